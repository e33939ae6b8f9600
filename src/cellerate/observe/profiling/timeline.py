"""Divides a stretch of time among the parts of a model, by the events on each thread.

Each instant is counted once, so that the shares add up to the whole: it belongs to the parts that are computed then, in
equal shares; if there are none, to the part that Python is in; else to no part.
"""

from __future__ import annotations

import bisect
import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from cellerate.bridges.profiled import WINDOW, Event
from cellerate.errors import BackendError

Owner = tuple[int | None, bool]
"""The number of a part, or None, and True for its backward pass."""
_Piece = tuple[float, float, Owner]


@dataclasses.dataclass
class Spent:
    """The time spent on one owner in a window.

    Attributes:
        busy_ns: Time in which something was computed for the owner.
        idle_ns: Time in which nothing was computed, while Python was in the owner.
        events: The number of its events.
    """

    busy_ns: float = 0.0
    idle_ns: float = 0.0
    events: int = 0


@dataclasses.dataclass(frozen=True)
class Shares:
    """The division of a window of time.

    Attributes:
        window_ns: The length of the window.
        spent: The time of each owner; all add up to the window.
        idle_ns: The time in which nothing was computed.
    """

    window_ns: float
    spent: dict[Owner, Spent]
    idle_ns: float


def share_out(events: Iterable[Event]) -> Shares:
    """Divide the window of a recording among its owners.

    Args:
        events: The recorded events, in any order; the event `WINDOW` encloses those that count.

    Raises:
        BackendError: There is no window: the profiler recorded nothing.
    """
    events = list(events)
    windows = [event for event in events if event.name == WINDOW]
    if not windows:
        raise BackendError(
            "the backend's profiler recorded nothing. It may be in use by another program or thread: profile again."
        )
    begin, end = windows[0].begin_ns, windows[0].end_ns
    inside = [
        event for event in events if event.end_ns > begin and event.begin_ns < end and event not in windows
    ]
    marks, _ = _pieces([event for event in inside if not event.work])
    around = _Marks(marks)
    work, counts = _pieces(
        [
            event if event.part is not None else event._replace(part=around.at(event.begin_ns))
            for event in inside
            if event.work
        ]
    )
    spent = {owner: Spent(events=count) for owner, count in counts.items()}
    idle = 0.0
    for length, computed, within in _instants(work, marks, begin, end):
        if computed:
            count = computed.total()
            for owner, times in computed.items():
                spent.setdefault(owner, Spent()).busy_ns += length * times / count
        else:
            idle += length
            owner = next(iter(within), (None, False))
            spent.setdefault(owner, Spent()).idle_ns += length
    return Shares(end - begin, spent, idle)


class _Marks:
    """Finds the mark around an instant."""

    def __init__(self, pieces: Sequence[_Piece]) -> None:
        self._pieces = sorted(pieces)
        self._begins = [piece[0] for piece in self._pieces]

    def at(self, instant: float) -> int | None:
        place = bisect.bisect_right(self._begins, instant) - 1
        if place < 0 or self._pieces[place][1] < instant:
            return None
        return self._pieces[place][2][0]


def _pieces(events: Sequence[Event]) -> tuple[list[_Piece], Counter[Owner]]:
    """The time of each thread by its innermost event, and the number of events of each owner."""
    found: list[_Piece] = []
    counts: Counter[Owner] = Counter()
    by_thread: dict[str, list[Event]] = {}
    for event in events:
        by_thread.setdefault(event.thread, []).append(event)
    for of_thread in by_thread.values():
        of_thread.sort(key=lambda event: (event.begin_ns, -event.end_ns))
        open_: list[tuple[float, Owner]] = []
        now = 0.0
        for event in of_thread:
            while open_ and open_[-1][0] <= event.begin_ns:
                now = _close(found, open_, now)
            if open_ and event.begin_ns > now:
                found.append((now, event.begin_ns, open_[-1][1]))
            now = event.begin_ns
            # An event whose name has no part belongs to the owner of the event around it.
            part = event.part
            owner = (part, event.backward) if part is not None or not open_ else open_[-1][1]
            counts[owner] += 1
            open_.append((event.end_ns, owner))
        while open_:
            now = _close(found, open_, now)
    return found, counts


def _close(found: list[_Piece], open_: list[tuple[float, Owner]], now: float) -> float:
    end, owner = open_.pop()
    if end > now:
        found.append((now, end, owner))
    return max(end, now)


def _instants(
    work: Sequence[_Piece], marks: Sequence[_Piece], begin: float, end: float
) -> Iterator[tuple[float, Counter[Owner], Counter[Owner]]]:
    """Stretches in which nothing changes: their length, the computing owners, and the marks around them."""
    changes: list[tuple[float, int, bool, Owner]] = []
    for computed, pieces in ((True, work), (False, marks)):
        for first, last, owner in pieces:
            first, last = max(first, begin), min(last, end)
            if last > first:
                changes += [(first, 1, computed, owner), (last, -1, computed, owner)]
    changes.sort(key=lambda change: change[0])
    active: dict[bool, Counter[Owner]] = {True: Counter(), False: Counter()}
    now = begin
    for at, step, computed, owner in changes:
        if at > now:
            yield at - now, active[True], active[False]
            now = at
        active[computed][owner] += step
        if not active[computed][owner]:
            del active[computed][owner]
    if end > now:
        yield end - now, active[True], active[False]
