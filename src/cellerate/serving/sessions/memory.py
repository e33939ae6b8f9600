"""The states of sessions in memory, up to a bound: the least recently used ones move to the disk, or end."""

from __future__ import annotations

import itertools
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from cellerate.serving.sessions.state_store import StateStore
from cellerate.serving.sessions.streams import SessionStreams

# The most states to write in one transaction.
_MOST_ROWS = 4096
# The share of the sessions in memory that moves to the disk when memory is full.
_SPILLED = 8


def steady_clock() -> Callable[[], float]:
    """Return a clock of seconds since 1970 that later changes of the system's clock do not affect."""
    begin = time.time() - time.monotonic()
    return lambda: begin + time.monotonic()


class Place(NamedTuple):
    """The row of a session in memory, and the time of its last use."""

    row: int
    used: float


class SessionMemory:
    """Rows of streams by the names of sessions.

    Args:
        streams: The streams.
        most: The most sessions in memory.
        clock: Returns the time, in seconds.

    Attributes:
        places: The sessions in memory, the least recently used first.
        changed: The sessions whose state on disk is missing or older.
        store: The states on disk; None without a disk.
    """

    def __init__(self, streams: SessionStreams, most: int, clock: Callable[[], float]) -> None:
        self._streams, self._most, self._clock = streams, most, clock
        self.places: OrderedDict[str, Place] = OrderedDict()
        self.changed: set[str] = set()
        self.store: StateStore | None = None
        self._free: list[int] = []

    def rows(self, names: Sequence[str]) -> np.ndarray:
        """(N,) the rows of sessions that are in memory."""
        return np.array([self.places[name].row for name in names], np.int64)

    def put(self, names: Sequence[str], states: np.ndarray, *, changed: bool, staying: int = 0) -> list[str]:
        """Give sessions rows in memory, with their states.

        Args:
            names: The sessions.
            states: (N, S).
            changed: True if the states differ from those on disk.
            staying: The number of most recently used sessions that stay in memory.

        Returns:
            The sessions that had to leave and have no state on disk.

        Raises:
            StorageError: Sessions would have to move to the disk, which cannot be written.
        """
        dropped = self._make_room(len(names), staying)
        rows = [self._free.pop() for _ in names]
        self._streams.set_states(rows, states)
        now = self._clock()
        for name, row in zip(names, rows, strict=True):
            self.places[name] = Place(row, now)
        if changed:
            self._note_changes(names)
        return dropped

    def use(self, names: Sequence[str]) -> None:
        """Record that the states of sessions have changed."""
        now = self._clock()
        for name in names:
            self.places[name] = self.places[name]._replace(used=now)
            self.places.move_to_end(name)
        self._note_changes(names)

    def lend(self, state: np.ndarray) -> int:
        """Return a row outside all sessions, with a state (S,)."""
        if not self._free:
            self._grow(1)
        row = self._free.pop()
        self._streams.set_states([row], state[np.newaxis])
        return row

    def take_back(self, row: int) -> None:
        """Free a lent row."""
        self._free.append(row)

    def forget(self, names: Iterable[str]) -> None:
        """Free the rows of sessions."""
        for name in names:
            place = self.places.pop(name, None)
            if place is not None:
                self._free.append(place.row)
            self.changed.discard(name)

    def save(self, names: Sequence[str]) -> None:
        """Write the states of sessions in memory to the disk, if there is one.

        Raises:
            StorageError: The disk cannot be written.
        """
        if self.store is None:
            return
        for begin in range(0, len(names), _MOST_ROWS):
            part = names[begin : begin + _MOST_ROWS]
            states = self._streams.states_of(self.rows(part))
            self.store.save(part, states, [self.places[name].used for name in part])
            self.changed.difference_update(part)

    def _note_changes(self, names: Sequence[str]) -> None:
        self.changed.update(names)
        if self.store is not None:
            self.store.note_use(names)

    def _make_room(self, count: int, staying: int) -> list[str]:
        dropped: list[str] = []
        missing = len(self.places) + count - self._most
        if missing > 0:
            most = min(max(missing, self._most // _SPILLED), len(self.places) - staying)
            leaving = list(itertools.islice(self.places, most))
            if self.store is None:
                dropped = leaving
            else:
                self.save([name for name in leaving if name in self.changed])
            self.forget(leaving)
        if len(self._free) < count:
            self._grow(count)
        return dropped

    def _grow(self, count: int) -> None:
        """Add at least `count` free rows."""
        here = self._streams.count
        more = min(max(count, here, 64), max(self._most - here, count))
        self._streams.grow(more)
        self._free += range(here + more - 1, here - 1, -1)
