"""One finding of the doctor, and how its checks read the machine's files."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Literal, get_args

Status = Literal["problem", "note", "ok"]
STATUSES: tuple[Status, ...] = get_args(Status)
"""Most serious first."""


@dataclasses.dataclass(frozen=True)
class Finding:
    """A finding of a check.

    Attributes:
        topic: The subject: "gpu", "versions", "threads" ...
        status: "problem" costs speed or correctness and can be fixed; "note" is worth knowing; "ok" passed.
        found: The fact.
        cost: Its cost, with a figure only if measured; empty without one.
        fix: The command or the setting that fixes it; empty without one.
    """

    topic: str
    status: Status
    found: str
    cost: str = ""
    fix: str = ""


def read(path: Path) -> str | None:
    """The text of a small file; None if it is missing or may not be read, as with many of the kernel's files."""
    try:
        return path.read_text()
    except OSError:
        return None


def parted(reason: str) -> tuple[str, str]:
    """Splits a reason of the form "what is wrong: what to do" at its first colon outside parentheses.

    Returns:
        What is wrong, and what to do; the latter is empty if the reason does not say.
    """
    depth = 0
    for place, character in enumerate(reason):
        depth += {"(": 1, ")": -1}.get(character, 0)
        if depth == 0 and reason.startswith(": ", place):
            return reason[:place], reason[place + 2 :]
    return reason, ""
