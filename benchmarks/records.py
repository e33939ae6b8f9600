"""Result files: the facts recorded beside every figure, and the writing of records; needs no peer and no framework.

Whether a record may be published is in `publishing`.
"""

import datetime
import json
import math
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks import ROOT, conditions
from benchmarks.measured import digest_of, digests
from cellerate.files import atomic_write
from cellerate.machine.environment import machine, versions

RESULTS = ROOT / "benchmarks" / "results"
_LINE = 120
BUNDLE = "BUNDLE"
"""The file in a copy without git (`gpu/bundle.py`) that names its commit and the digest of its files."""


def new_record(case: str) -> dict[str, Any]:
    """The first fields of a record: case, time, machine, code and settings."""
    commit, clean = state_of(ROOT)
    return {
        "case": case,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": shlex.join(["python", *_program(Path(sys.argv[0])), *sys.argv[1:]]),
        "machine": machine() | {"memory_speed": conditions.memory_speed()},
        "versions": versions(),
        "commit": commit,
        "clean": clean,
        "measured": digests(case, ROOT),
        "allocator": conditions.allocator(),
        "threads": conditions.threads(),
        "kernel": conditions.kernel(),
    }


def _program(path: Path) -> list[str]:
    """The command that starts a benchmark program from the project's root; a program in a folder starts by `-m`."""
    folder = path.resolve().parent
    if folder.parent == RESULTS.parent:
        return ["-m", f"benchmarks.{folder.name}.{path.stem}"]
    return [f"benchmarks/{path.name}"]


def write_record(record: dict[str, Any], folder: Path = RESULTS) -> Path:
    """Write a record into a new file, whole or not at all, and return its path."""
    folder.mkdir(parents=True, exist_ok=True)  # a bundle does not contain the folder
    path = folder / f"{record['case']}-{record['date'][:19].replace(':', '')}.json"
    with atomic_write(path) as beside:
        beside.write_text(in_rows(record) + "\n")
    return path


def as_json(record: dict[str, Any]) -> str:
    """Strict JSON: null replaces NaN and infinity, and "not_finite" holds the originals by path."""
    return json.dumps(_finite(record), allow_nan=False)


def in_rows(record: dict[str, Any]) -> str:
    """The JSON, with each list or object that is flat or fits into a line on one line."""

    def rows(value: Any, depth: int) -> str:
        line = json.dumps(value, allow_nan=False)
        if not isinstance(value, dict | list) or depth + len(line) <= _LINE:
            return line
        inside = value.values() if isinstance(value, dict) else value
        if not any(isinstance(one, dict | list) for one in inside):
            return line
        names = [f"{json.dumps(name)}: " for name in value] if isinstance(value, dict) else [""] * len(value)
        pad = " " * (depth + 1)
        lines = [f"{pad}{name}{rows(one, depth + 1)}" for name, one in zip(names, inside, strict=True)]
        opening, closing = "{}" if isinstance(value, dict) else "[]"
        return f"{opening}\n" + ",\n".join(lines) + f"\n{' ' * depth}{closing}"

    return rows(_finite(record), 0)


def _finite(record: dict[str, Any]) -> dict[str, Any]:
    words: dict[str, str] = {}

    def finite(value: Any, place: str) -> Any:
        if isinstance(value, dict):
            return {name: finite(one, f"{place}.{name}".lstrip(".")) for name, one in value.items()}
        if isinstance(value, list | tuple):
            return [finite(one, f"{place}.{n}".lstrip(".")) for n, one in enumerate(value)]
        if isinstance(value, float) and not math.isfinite(value):
            words[place] = str(float(value))
            return None
        return value

    found = finite(record, "")
    return found | {"not_finite": found.get("not_finite", {}) | words} if words else found


def commit_of(root: Path) -> str:
    """The commit of a copy, with "-dirty" at the end if files differ, or "unknown".

    The first available source counts: `CELLERATE_COMMIT`, the file `BUNDLE`, git.
    """
    return state_of(root)[0]


def state_of(root: Path) -> tuple[str, bool]:
    """The commit of a copy (`commit_of`), and True if the code certainly is that commit's.

    With git, it is if no file but records differs or is added; in a bundle, if the code has not changed since it was
    put there. `CELLERATE_COMMIT` gives the name, but proves nothing.
    """
    if told := os.environ.get("CELLERATE_COMMIT"):
        return told, False
    try:
        commit, digest = (root / BUNDLE).read_text().split()
    except (OSError, ValueError):
        commit = _of_git(root) or "unknown"
    else:
        if digest != digest_of(root) and not commit.endswith("-dirty"):
            commit += "-dirty"
    return commit, commit != "unknown" and not commit.endswith("-dirty")


def _of_git(root: Path) -> str | None:
    """The commit that git names, unless the folder merely lies inside another repository."""

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=root, check=False, capture_output=True, text=True)
        return done.stdout.strip()

    try:
        top = git("rev-parse", "--show-toplevel")
        if not top or Path(top) != root.resolve():
            return None
        commit = git("rev-parse", "--short=12", "HEAD") or "unknown"
        # A run adds records; any other new or changed file is not in the commit.
        changed = git("status", "--porcelain", "--", ".", ":(exclude)benchmarks/results")
        return f"{commit}-dirty" if changed else commit
    except OSError:  # git is not installed
        return None
