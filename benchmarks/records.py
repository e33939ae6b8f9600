"""Result files: what is recorded beside every figure, and how a record is written; needs no peer and no framework."""

import datetime
import hashlib
import json
import math
import os
import subprocess
from pathlib import Path
from typing import Any

from cellerate.files import atomic_write
from cellerate.machine.environment import machine, versions

RESULTS = Path(__file__).parent / "results"
ROOT = Path(__file__).resolve().parents[1]
BUNDLE = "BUNDLE"
"""The file of a copy without git (`gpu_bundle.py`) that says of which commit it is, and what its files were."""


def new_record(case: str) -> dict[str, Any]:
    """The beginning of a record: of what, when, on what, of which commit."""
    return {
        "case": case,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "versions": versions(),
        "commit": commit_of(ROOT),
    }


def write_record(record: dict[str, Any], folder: Path = RESULTS) -> Path:
    """Writes a record into a file of its own, whole or not at all, and gives its path."""
    path = folder / f"{record['case']}-{record['date'][:19].replace(':', '')}.json"
    with atomic_write(path) as beside:
        beside.write_text(as_json(record, indent=2) + "\n")
    return path


def as_json(record: dict[str, Any], indent: int | None = None) -> str:
    """JSON that every program reads: in place of a NaN stands null, and its word by its place in "not_finite"."""
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
    if words:
        found["not_finite"] = found.get("not_finite", {}) | words
    return json.dumps(found, indent=indent, allow_nan=False)


def commit_of(root: Path) -> str:
    """The commit of a copy; "-dirty" at its end says that files differ from it, and "unknown" that nothing tells.

    The first of these that there is: `CELLERATE_COMMIT`, the file `BUNDLE`, and git.
    """
    if told := os.environ.get("CELLERATE_COMMIT"):
        return told
    try:
        commit, digest = (root / BUNDLE).read_text().split()
    except (OSError, ValueError):
        return _of_git(root) or "unknown"
    return commit if digest == digest_of(root) or commit.endswith("-dirty") else f"{commit}-dirty"


def digest_of(root: Path) -> str:
    """Changes with everything that runs: the package, the native core, and the benchmarks."""
    digest = hashlib.sha256()
    for part in ("src", "csrc", "benchmarks"):
        for file in sorted((root / part).rglob("*.*")):
            if file.suffix in (".py", ".cuh", ".h", ".cpp"):
                digest.update(f"{file.relative_to(root)}\n".encode() + file.read_bytes())
    return digest.hexdigest()


def _of_git(root: Path) -> str | None:
    """What git says, unless it speaks of a repository that the folder only lies in."""

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=root, check=False, capture_output=True, text=True)
        return done.stdout.strip()

    try:
        top = git("rev-parse", "--show-toplevel")
        return git("describe", "--always", "--dirty") if top and Path(top) == root.resolve() else None
    except OSError:  # git is not installed
        return None
