"""Items of the GPU suite, and the journals in which its processes record the outcome of each.

A journal is a file of lines, each a JSON object that is on the disk before anything else happens: no result is lost if
a process, or the machine, ends.
"""

import dataclasses
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.records import as_json

ENDS = ("done", "failed", "left out")
"""The possible outcomes of a started item."""
_LOG_BYTES = 3000


@dataclasses.dataclass(frozen=True)
class Item:
    """A single check or measurement, whose failure does not affect other items.

    Attributes:
        name: Its name, the same in each run and unique in its part.
        run: Returns the findings as JSON values; "right": False marks a failure.
        limit_s: The seconds after which it counts as hanging. The kernels' own limit for a barrier is 20 s.
    """

    name: str
    run: Callable[[], dict[str, Any]]
    limit_s: float = 60


class LeftOutError(Exception):
    """An item or a part is unavailable here, which is not a failure; the message is the reason."""


def journal(folder: Path, module: str) -> Path:
    """The journal of a module's parts."""
    return folder / f"{module.rpartition('.')[2]}.jsonl"


def append(file: Path, **line: Any) -> None:
    """Append a line atomically, even while other processes append theirs."""
    text = as_json(line).encode() + b"\n"
    handle = os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        size = os.fstat(handle).st_size
        # A process killed while writing leaves a partial line.
        torn = size > 0 and os.pread(handle, 1, size - 1) != b"\n"
        os.write(handle, b"\n" * torn + text)
        os.fsync(handle)
    finally:
        os.close(handle)


class Reader:
    """Read a journal that grows.

    Args:
        file: The journal, which may not exist yet.

    Attributes:
        damaged: The number of damaged lines.
    """

    def __init__(self, file: Path) -> None:
        self._file, self._at = file, 0
        self.damaged = 0

    def lines(self) -> list[dict[str, Any]]:
        """The complete lines since the last call."""
        try:
            with self._file.open("rb") as file:
                file.seek(self._at)
                text = file.read()
        except FileNotFoundError:
            return []
        whole = text[: text.rfind(b"\n") + 1]
        self._at += len(whole)
        found = []
        for line in whole.splitlines():
            try:
                one = json.loads(line) if line else None
            except ValueError:
                one = 0
            if isinstance(one, dict):
                found.append(one)
            else:
                self.damaged += one is not None
        return found


def ended(lines: list[dict[str, Any]], part: str) -> set[str]:
    """The items of a part with a known outcome."""
    return {line["item"] for line in lines if line["part"] == part and line["event"] in ENDS and line["item"]}


def log_tail(handle: int = 2) -> str:
    """The end of an open file; handle 2 is the output of this process and its children."""
    try:
        return os.pread(handle, _LOG_BYTES, max(0, os.fstat(handle).st_size - _LOG_BYTES)).decode(
            errors="replace"
        )
    except OSError:  # a terminal, or a pipe
        return ""
