"""The common form of what profilers record: pieces of time on threads, and the layer that each belongs to.

A part of a model runs under a mark, a name that its operations carry into the trace: in the graph where there is one
(`scope` of each bridge), and on the timeline of the thread that calls it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple, Protocol

WINDOW = "cellerate.window"
"""The mark around the steps that count."""
_MARK = re.compile(r"cellerate\.p(\d+)\.")


def mark(number: int) -> str:
    """The name under which part `number` runs: of letters that all frameworks take in names."""
    return f"cellerate.p{number}."


def marked(name: str) -> int | None:
    """The number of the innermost part in a name of a trace; None if it has none."""
    found = _MARK.findall(name)
    return int(found[-1]) if found else None


class Event(NamedTuple):
    """A piece of time on a thread.

    Attributes:
        thread: Which thread, or stream of a GPU.
        begin_ns: When it begins, on any clock that all events of a trace share.
        end_ns: When it ends.
        name: What the framework calls it.
        part: The number of the part that it belongs to; None if its name does not say.
        backward: Whether it computes gradients.
        work: Whether something is computed in it; otherwise it is a mark around calls.
    """

    thread: str
    begin_ns: float
    end_ns: float
    name: str
    part: int | None
    backward: bool
    work: bool


class Recording(Protocol):
    """A framework's profiler: it runs as long as this is entered."""

    def __init__(self, folder: Path) -> None: ...

    def __enter__(self) -> Recording: ...

    def __exit__(self, *error: object) -> None: ...

    def events(self) -> Iterable[Event]:
        """The recorded pieces; called after the end."""

    def write(self) -> None:
        """Writes what TensorBoard or Perfetto read into the folder, if that was not done yet."""


class Bridge(Protocol):
    """The functions of a module `<framework>_profiler`."""

    Recording: type[Recording]

    def scope(self, name: str) -> AbstractContextManager[object]:
        """Names what is computed or built in it."""
