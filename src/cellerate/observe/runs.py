"""Finds trainings and reads their telemetry while they run."""

from __future__ import annotations

import dataclasses
import glob
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cellerate.errors import DataError
from cellerate.training.telemetry import LIVE, telemetry_lines

# A run that validates or compiles writes nothing for a while.
_SILENT_S = 60.0
# The most lines of a long run that a page gets at first; its charts have fewer points across.
_MOST_LINES = 4000


@dataclasses.dataclass(frozen=True)
class Page:
    """A part of a run's telemetry.

    Attributes:
        began: The time of the run's first line, in seconds since 1970; 0 without one. Another time means another run.
        end: The position of the next part, in bytes.
        rows: The figures, oldest first; thinned out if there are very many.
        status: "training", "silent", or how it ended.
        heard: The time of the last line, in seconds since 1970; 0 without one.
    """

    began: float
    end: int
    rows: tuple[dict[str, Any], ...]
    status: str
    heard: float


def find_runs(paths: Sequence[str | Path]) -> dict[str, Path]:
    """The folders of runs. A path may be a run, its model (`book.keras`), a pattern, or a folder of runs.

    Returns:
        The folders by name: the model's name, or as much of the path as tells the runs apart.

    Raises:
        DataError: A path names no run.
    """
    return named([folder for path in paths for folder in run_folders(path)])


def run_folders(given: str | Path) -> list[Path]:
    """The folders of the runs that a path stands for; there may be none yet.

    Raises:
        DataError: The path names no run.
    """
    path = Path(given)
    if path.suffix == ".keras":
        path = path.with_suffix(".run")
    found: list[Path] = []
    if glob.has_magic(str(path)) and not path.exists():
        # Not `Path.glob`, whose patterns must lie within a folder.
        found = [Path(hit).with_suffix(".run") for hit in sorted(glob.glob(str(path), recursive=True))]  # noqa: PTH207
    elif path.suffix == ".run":
        found = [path]
    elif path.is_dir():
        return sorted(one for one in path.rglob("*.run") if one.is_dir())
    found = [one for one in found if one.is_dir()]
    if not found:
        raise DataError(
            f"{given} is not a run: expected the folder of one (book.run), its model (book.keras), or a folder with "
            "runs in it."
        )
    return found


def named(folders: Sequence[Path]) -> dict[str, Path]:
    """The folders of runs by their models' names, or by as much of the path as tells them apart."""
    folders = list(dict.fromkeys(folders))
    names: dict[str, Path] = {}
    for folder in folders:
        parts = folder.absolute().with_suffix("").parts
        same = [other.absolute().with_suffix("").parts for other in folders if other != folder]
        used = 1
        while used < len(parts) and any(other[-used:] == parts[-used:] for other in same):
            used += 1
        names["/".join(parts[-used:])] = folder
    return names


def read_run(folder: Path, began: float = 0.0, start: int = 0) -> Page:
    """Read the new telemetry of a run.

    Args:
        folder: Its folder.
        began: `began` of the last page.
        start: `end` of the last page.
    """
    try:
        with (folder / LIVE).open("rb") as file:
            head = file.readline()
            first = telemetry_lines(head)
            if not first:
                return Page(0.0, 0, (), "silent", 0.0)
            if first[0]["time"] != began:
                start = 0
            file.seek(start)
            content = file.read()
            # The last line says how the run ended, or when it last wrote.
            file.seek(max(0, file.tell() - 8192))
            last = telemetry_lines(file.read())
    except OSError:  # not begun, removed, or not readable
        return Page(0.0, 0, (), "silent", 0.0)
    whole = content[: content.rfind(b"\n") + 1]
    rows = [line for line in telemetry_lines(whole) if "step" in line]
    heard = last[-1]["time"] if last else first[0]["time"]
    status = str(last[-1].get("status", "")) if last else ""
    if not status:
        status = "training" if time.time() - heard < _SILENT_S else "silent"
    return Page(first[0]["time"], start + len(whole), tuple(_thinned(rows)), status, heard)


def _thinned(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Every k-th row, so that about `_MOST_LINES` are left; all rows of epochs and samples stay."""
    every = -(-len(rows) // _MOST_LINES)
    return [
        row
        for number, row in enumerate(rows)
        if number % every == 0 or any(name == "sample" or name.startswith("epoch/") for name in row)
    ]
