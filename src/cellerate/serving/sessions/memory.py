"""The states of sessions in memory, up to a bound: those not used for longest leave for the disk, or end."""

import itertools
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from cellerate.serving.sessions.state_store import StateStore
from cellerate.serving.sessions.streams import SessionStreams

# States that are written in one transaction.
_MOST_ROWS = 4096
# The share of the sessions in memory that goes to the disk when there is no room.
_SPILLED = 8


def steady_clock() -> Callable[[], float]:
    """Seconds since 1970 as they were at the start, and from then on what has really passed."""
    begin = time.time() - time.monotonic()
    return lambda: begin + time.monotonic()


class Place(NamedTuple):
    """Where a session is in memory, and when it was used last."""

    row: int
    used: float


class SessionMemory:
    """Rows of streams by the names of sessions.

    Args:
        streams: The streams.
        most: How many sessions there may be in memory.
        clock: The time, in seconds.

    Attributes:
        places: Those in memory, the least recently used first.
        changed: Those whose state on the disk is missing or older.
        store: The disk; None without one.
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
        """Return sessions rows in memory, with their states.

        Args:
            names: The sessions.
            states: (N, S).
            changed: Whether the states on the disk are others.
            staying: So many that were used last keep their places.

        Returns:
            Sessions that had to leave and are on no disk.

        Raises:
            StorageError: Others would have to leave for the disk, which takes nothing.
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
        """Notes that the states of sessions have changed."""
        now = self._clock()
        for name in names:
            self.places[name] = self.places[name]._replace(used=now)
            self.places.move_to_end(name)
        self._note_changes(names)

    def lend(self, state: np.ndarray) -> int:
        """A row that belongs to no session, with a state (S,)."""
        if not self._free:
            self._grow(1)
        row = self._free.pop()
        self._streams.set_states([row], state[np.newaxis])
        return row

    def take_back(self, row: int) -> None:
        """Takes back a row that was lent."""
        self._free.append(row)

    def forget(self, names: Iterable[str]) -> None:
        """Gives up the rows of sessions."""
        for name in names:
            place = self.places.pop(name, None)
            if place is not None:
                self._free.append(place.row)
            self.changed.discard(name)

    def save(self, names: Sequence[str]) -> None:
        """Writes the states of sessions in memory to the disk, if there is one.

        Raises:
            StorageError: It takes nothing.
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
        """Adds at least so many free rows."""
        here = self._streams.count
        more = min(max(count, here, 64), max(self._most - here, count))
        self._streams.grow(more)
        self._free += range(here + more - 1, here - 1, -1)
