"""Named streams through a model: their states in memory up to a bound, the others on disk, none ever silently lost.

Whoever pushes to a session that is not there is told why: it was never opened, it was closed, or it was not used for
so long that it ended. A session never begins anew by itself.
"""

import itertools
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cellerate.errors import CellerateError, ConfigError, DataError
from cellerate.runtime.packed import PackedModel
from cellerate.serving.pushes import (
    ExistingSessionError,
    MissingSessionError,
    Push,
    TooManySessionsError,
    check_name,
    groups_of,
    turns_of,
)
from cellerate.serving.session_streams import session_streams
from cellerate.serving.state_file import StateFile

# Sessions that ended by themselves and are remembered, to say so.
_MOST_ENDED = 100_000
# The most rows of one call, so that a large push does not keep the others waiting.
_MOST_ROWS = 4096
# How often unused sessions are looked for, as a share of their time to live.
_SWEEP = 0.01
# The share of the sessions in memory that goes to the disk when there is no room.
_SPILLED = 8


class _Place(NamedTuple):
    row: int
    used: float


class Sessions:
    """The sessions of one model; any thread may call any method.

    What a session gives depends on nothing but what was pushed to it: not on the sessions beside it, not on how the
    pushes were cut, and not on whether its state was on disk meanwhile.

    Args:
        model: The model; its layers must only look back.
        path: The file for states that are not in memory, an SQLite database; None for none, and then a session that
            finds no room ends.
        most: How many sessions there may be.
        most_in_memory: How many states are kept in memory.
        time_to_live_s: A session that was not used for so many seconds ends.
        clock: Seconds that never go back, also over restarts if there is a file.

    Raises:
        DataError: The file is damaged, or holds sessions of another model.
        ModelError: A layer needs steps that are still to come; the message names it.
        OutputError: The file cannot be written.
    """

    def __init__(
        self,
        model: PackedModel,
        path: Path | None = None,
        *,
        most: int = 1_000_000,
        most_in_memory: int = 100_000,
        time_to_live_s: float = 3600,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if most < 1 or most_in_memory < 1 or not time_to_live_s > 0:
            raise ConfigError(
                f"most and most_in_memory must be at least 1 and time_to_live_s above 0; got {most}, "
                f"{most_in_memory} and {time_to_live_s}."
            )
        self._most_of_all = most
        self._streams = session_streams(model)
        self._size = len(self._streams.initial_state)
        self._most, self._time_to_live, self._clock = most_in_memory, time_to_live_s, clock
        self._lock = threading.RLock()
        # Those in memory, the least recently used first.
        self._places: OrderedDict[str, _Place] = OrderedDict()
        self._free: list[int] = []
        # Those in memory whose state on disk is missing or older.
        self._changed: set[str] = set()
        self._ended: OrderedDict[str, str] = OrderedDict()
        self._file = None if path is None else StateFile(path, model.fingerprint, self._size)
        self._next_sweep = -math.inf
        self._count = 0 if self._file is None else len(self._file)

    def __len__(self) -> int:
        """How many sessions there are, on disk and in memory."""
        return self._count

    def open(self, name: str) -> None:
        """Begins a session.

        Raises:
            ConfigError: The name cannot be one.
            ExistingSessionError: It is there already.
            TooManySessionsError: There are too many.
        """
        check_name(name)
        with self._lock:
            self.end_unused()
            if self._is_there(name):
                raise ExistingSessionError(
                    f"there is a session {name!r} already: close it first, or go on with it."
                )
            self._begin(name, self._streams.initial_state[np.newaxis])

    def close(self, name: str) -> None:
        """Ends a session.

        Raises:
            MissingSessionError: There is none of this name.
        """
        with self._lock:
            if not self._is_there(name):
                raise self._missing(name)
            self._forget([name])
            self._count -= 1
            if self._file is not None:
                self._file.delete([name])

    def push(self, pushes: Sequence[Push]) -> list[dict[str, np.ndarray] | CellerateError]:
        """Reads new steps of many sessions, those of one session in the order in which they are given.

        Args:
            pushes: What came.

        Returns:
            For each push the outputs by name, without the batch: of each of its steps where the model gives
            sequences, otherwise of the last; or its error, and then nothing of it was read. An error of one is no
            error of the others.
        """
        results: list[Any] = [None] * len(pushes)
        with self._lock:
            self.end_unused()
            for turn in turns_of(pushes):
                opened = self._begin_some(pushes, turn, results)
                for group in groups_of(pushes, [number for number in turn if results[number] is None]):
                    for begin in range(0, len(group), min(_MOST_ROWS, self._most)):
                        part = group[begin : begin + min(_MOST_ROWS, self._most)]
                        for place, result in zip(part, self._read([pushes[n] for n in part]), strict=True):
                            results[place] = result
                self._end_some(pushes, turn, results, opened)
        return results

    def unused_s(self, name: str) -> float:
        """For how many seconds a session was not used.

        Raises:
            MissingSessionError: There is none of this name.
        """
        with self._lock:
            self.end_unused()
            place = self._places.get(name)
            used = place.used if place else self._file.used(name) if self._file is not None else None
            if used is None:
                raise self._missing(name)
            return max(0.0, self._clock() - used)

    def state(self, name: str) -> np.ndarray:
        """(S,) float32, what a session remembers; a copy.

        Raises:
            MissingSessionError: There is none of this name.
        """
        with self._lock:
            self._bring([name])
            return self._streams.states_of([self._places[name].row])[0]

    def restore(self, name: str, state: np.ndarray) -> None:
        """Begins a session with a state that `state` gave, or puts it back to that.

        Raises:
            ConfigError: The name cannot be one.
            DataError: The state has another size, or is no numbers.
            TooManySessionsError: There are too many.
        """
        check_name(name)
        with self._lock:
            if state.shape != (self._size,) or state.dtype.kind != "f":
                raise DataError(f"the state must be {self._size} numbers; got {state.dtype} {state.shape}.")
            self.end_unused()
            if self._is_there(name):
                self._bring([name])
                self._streams.set_states([self._places[name].row], state[np.newaxis])
                self._used([name])
            else:
                self._begin(name, state[np.newaxis])

    def end_unused(self) -> None:
        """Ends the sessions that were not used for too long; now and then the other calls do so, too."""
        with self._lock:
            now = self._clock()
            if now < self._next_sweep:
                return
            self._next_sweep = now + self._time_to_live * _SWEEP
            since, unused = now - self._time_to_live, []
            for name, place in self._places.items():
                if place.used >= since:
                    break
                unused.append(name)
            reason = f"it was not used for {self._time_to_live:g} s"
            if self._file is not None:
                # Of those in memory, the time on disk is an older one.
                unused += [name for name in self._file.unused_since(since) if name not in self._places]
            if unused:
                self._end(unused, reason)

    def unsaved(self) -> list[str]:
        """The sessions whose states are not on disk yet; none without a file."""
        with self._lock:
            return sorted(self._changed) if self._file is not None else []

    def flush_some(self, names: list[str], most: int = _MOST_ROWS) -> bool:
        """Writes some of the states that are not on disk yet.

        Args:
            names: Which; those that are looked at are taken out.
            most: How many are looked at.

        Returns:
            Whether there are more in `names`.

        Raises:
            OutputError: The file cannot be written.
        """
        with self._lock:
            some = names[-most:]
            del names[-most:]
            self._save([name for name in some if name in self._changed])
        return bool(names)

    def shut(self) -> None:
        """Writes every state that is not on disk yet, and lets go of the file."""
        with self._lock:
            self._save(self.unsaved())
            if self._file is not None:
                self._file.close()

    def _read(self, pushes: Sequence[Push]) -> list[dict[str, np.ndarray] | CellerateError]:
        """Reads pushes to different sessions, all of the same shapes."""
        try:
            self._bring([push.name for push in pushes])
            rows = np.array([self._places[push.name].row for push in pushes])
            inputs = {
                name: np.stack([np.asarray(push.inputs[name]) for push in pushes])
                for name in pushes[0].inputs
            }
            outputs = self._streams.push(inputs, rows)
        except CellerateError as error:
            if len(pushes) == 1:
                return [error]
            # One of them made it fail for all; alone each gives the same results.
            half = len(pushes) // 2
            return self._read(pushes[:half]) + self._read(pushes[half:])
        self._used([push.name for push in pushes])
        return [{name: array[n] for name, array in outputs.items()} for n in range(len(pushes))]

    def _begin_some(self, pushes: Sequence[Push], turn: Sequence[int], results: list[Any]) -> set[int]:
        """Opens the sessions that begin with their push, and notes the errors of those that cannot."""
        opened = set()
        for number in turn:
            if pushes[number].begin:
                try:
                    self.open(pushes[number].name)
                    opened.add(number)
                except CellerateError as error:
                    results[number] = error
        return opened

    def _end_some(
        self, pushes: Sequence[Push], turn: Sequence[int], results: list[Any], opened: set[int]
    ) -> None:
        """Closes the sessions that end with their push, and those whose first push failed."""
        for number in turn:
            failed = isinstance(results[number], CellerateError)
            ends = number in opened if failed else pushes[number].end
            if ends and self._is_there(pushes[number].name):
                self.close(pushes[number].name)

    def _begin(self, name: str, states: np.ndarray) -> None:
        if self._count >= self._most_of_all:
            raise TooManySessionsError(
                f"there are {self._count} sessions already: close one that is not needed."
            )
        self._put([name], states, changed=True)
        self._ended.pop(name, None)
        self._count += 1

    # --- where states are

    def _is_there(self, name: str) -> bool:
        return name in self._places or (self._file is not None and name in self._file)

    def _bring(self, names: Sequence[str]) -> None:
        """Brings sessions into memory.

        Raises:
            MissingSessionError: One of them is not there.
        """
        absent, states = [], []
        for name in names:
            if name in self._places:
                # So that it does not leave to make room for the others.
                self._places.move_to_end(name)
            else:
                absent.append(name)
        for name in absent:
            found = None if self._file is None else self._file.state(name)
            if found is None:
                raise self._missing(name)
            states.append(found)
        if absent:
            self._put(absent, np.stack(states), changed=False, staying=len(names) - len(absent))

    def _put(self, names: Sequence[str], states: np.ndarray, *, changed: bool, staying: int = 0) -> None:
        """Gives sessions rows in memory, with their states; the `staying` ones used last keep theirs."""
        self._make_room(len(names), staying)
        rows = [self._free.pop() for _ in names]
        self._streams.set_states(rows, states)
        now = self._clock()
        for name, row in zip(names, rows, strict=True):
            self._places[name] = _Place(row, now)
            if changed:
                self._changed.add(name)

    def _make_room(self, count: int, staying: int) -> None:
        missing = len(self._places) + count - self._most
        if missing > 0:
            most = min(max(missing, self._most // _SPILLED), len(self._places) - staying)
            leaving = list(itertools.islice(self._places, most))
            if self._file is None:
                self._end(leaving, "there was no room for it")
            else:
                self._save([name for name in leaving if name in self._changed])
                self._forget(leaving)
        if len(self._free) < count:
            here = self._streams.count
            more = min(max(count, here, 64), max(self._most - here, count))
            self._streams.grow(more)
            self._free += range(here + more - 1, here - 1, -1)

    def _used(self, names: Iterable[str]) -> None:
        now = self._clock()
        for name in names:
            self._places[name] = self._places[name]._replace(used=now)
            self._places.move_to_end(name)
            self._changed.add(name)

    def _forget(self, names: Sequence[str]) -> None:
        """Gives up the rows of sessions."""
        for name in names:
            place = self._places.pop(name, None)
            if place is not None:
                self._free.append(place.row)
            self._changed.discard(name)

    # --- how sessions end

    def _end(self, names: Sequence[str], reason: str) -> None:
        self._forget(names)
        self._count -= len(names)
        if self._file is not None:
            self._file.delete(names)
        for name in names:
            self._ended[name] = reason
        while len(self._ended) > _MOST_ENDED:
            self._ended.popitem(last=False)

    def _missing(self, name: str) -> MissingSessionError:
        if name in self._ended:
            return MissingSessionError(
                f"the session {name!r} ended: {self._ended[name]}. Open it again; it begins anew.", ended=True
            )
        return MissingSessionError(f"there is no session {name!r}: open it first.", ended=False)

    def _save(self, names: Sequence[str]) -> None:
        """Writes the states of sessions in memory to the file, if there is one."""
        if self._file is None:
            return
        for begin in range(0, len(names), _MOST_ROWS):
            part = names[begin : begin + _MOST_ROWS]
            places = [self._places[name] for name in part]
            states = self._streams.states_of([place.row for place in places])
            self._file.save(part, states, [place.used for place in places])
            self._changed.difference_update(part)
