"""One finding of the doctor, and how its checks read the machine's files."""

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
        topic: What it is about: "gpu", "versions", "threads" ...
        status: "problem" costs speed or correctness and can be mended; "note" is worth knowing; "ok" is well.
        found: What there is.
        cost: What it costs, with a figure only where it was measured; else empty.
        fix: The command or the setting that mends it; else empty.
    """

    topic: str
    status: Status
    found: str
    cost: str = ""
    fix: str = ""


def read(path: Path) -> str | None:
    """The text of a small file; None if there is none or it may not be read, as many of the kernel's may not."""
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
