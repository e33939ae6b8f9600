"""Named streams through a model: states in memory up to a bound, the others on disk, and none silently lost.

A push to a missing session gets the reason: it was never opened, it was closed, or it ended because it was unused. A
session never restarts by itself. An error concerns only its own session, and a failed push leaves its session
unchanged.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cellerate.errors import ConfigError, DataError
from cellerate.runtime.packed import PackedModel
from cellerate.serving.sessions.disk import SessionDisk
from cellerate.serving.sessions.memory import SessionMemory, steady_clock
from cellerate.serving.sessions.pushes import (
    DamagedStateError,
    Endings,
    ExistingSessionError,
    MissingSessionError,
    Push,
    ReplacedModelError,
    StorageError,
    TooManySessionsError,
    check_name,
    groups_of,
    turns_of,
)
from cellerate.serving.sessions.series_streams import session_streams
from cellerate.serving.sessions.state_store import LOST, StateStore

# The most rows of one call, so that a large push does not keep the others waiting.
_MOST_ROWS = 4096
# The interval between searches for unused sessions, as a share of their time to live.
_SWEEP = 0.01

log = logging.getLogger("cellerate.serving")

Result = dict[str, np.ndarray] | Exception
"""The outputs of a push by their names, or its error."""


class Sessions:
    """The sessions of one model; any thread may call any method.

    The outputs of a session depend only on its pushed steps: not on other sessions, on the cuts between pushes, or on
    moves of its state to the disk and back.

    Args:
        model: The model; its layers must only look back.
        path: An SQLite file for states that are not in memory; without one, a session that finds no room ends.
        most: The most sessions.
        most_in_memory: The most states in memory.
        time_to_live_s: The seconds after which an unused session ends.
        refuse_after_s: The seconds for which a failing disk may leave states unwritten; then pushes are refused.
        clock: Returns seconds that never go back, even over restarts if there is a file; None for a steady clock.

    Attributes:
        disk: Keeps the states over restarts.
        size: The size of the outputs of a push.

    Raises:
        DataError: The file is damaged, or holds sessions of another model.
        ModelError: A layer needs future steps; the message names it.
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
        refuse_after_s: float = math.inf,
        clock: Callable[[], float] | None = None,
    ) -> None:
        if most < 1 or most_in_memory < 1 or not time_to_live_s > 0:
            raise ConfigError(
                f"most and most_in_memory must be at least 1 and time_to_live_s above 0, not {most}, "
                f"{most_in_memory} and {time_to_live_s}."
            )
        self._most_of_all, self._most = most, most_in_memory
        self._streams = session_streams(model)
        # Measured on other streams, so that the first sessions get the first rows, which are read in place.
        self.size = session_streams(model).measured()
        self._size = len(self._streams.initial_state)
        self._time_to_live, self._clock = time_to_live_s, clock or steady_clock()
        self._lock = threading.RLock()
        self._memory = SessionMemory(self._streams, most_in_memory, self._clock)
        self.disk = SessionDisk(self._memory, self._lock, refuse_after_s)
        self._endings = Endings()
        self._next_sweep = -math.inf
        self._count = 0
        self._replaced = False
        if path is not None:
            store = StateStore(path, model.fingerprint, self._size, lambda: self._memory.changed)
            self._memory.store = store
            self._count = len(store)
            self._endings.remember(store.ended, LOST)

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of the outputs of a push."""
        return self._streams.outputs

    def __len__(self) -> int:
        """The number of sessions there are, on disk and in memory."""
        return self._count

    def open(self, name: str) -> None:
        """Begin a session.

        Raises:
            ConfigError: The name is not valid.
            ExistingSessionError: The session exists already.
            TooManySessionsError: There are too many sessions.
        """
        check_name(name)
        with self._lock:
            self.disk.check()
            self.end_unused()
            if self._is_there(name):
                raise self._exists(name)
            self._begin(name, self._streams.initial_state[np.newaxis])

    def close(self, name: str) -> None:
        """Ends a session.

        Raises:
            MissingSessionError: There is none of this name.
        """
        with self._lock:
            if not self._is_there(name):
                raise self._endings.error(name)
            self._end([name])

    def push(self, pushes: Sequence[Push]) -> list[Result]:
        """Read new steps of many sessions; the pushes of one session are read in their order.

        Args:
            pushes: The pushes.

        Returns:
            For each push the outputs by name, without the batch: for each step if the model returns sequences,
            otherwise for the last step. Or the error of the push, whose session is then unchanged; other pushes are
            not affected.
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

    def lend(self, push: Push) -> int:
        """Lend a separate row to a push, with the state of its session; see `LongPush`.

        Raises:
            CellerateError: The session is missing, or it exists although the push begins it.
        """
        check_name(push.name)
        with self._lock:
            self.disk.check()
            if not push.begin:
                self._bring([push.name])
                state = self._streams.states_of(self._memory.rows([push.name]))[0]
            elif not push.restart and self._is_there(push.name):
                raise self._exists(push.name)
            else:
                state = self._streams.initial_state
            return self._memory.lend(state)

    def read_lent(self, inputs: Mapping[str, np.ndarray], row: int) -> dict[str, np.ndarray]:
        """Read steps into a lent row, and return the outputs without the batch."""
        with self._lock:
            rows = np.array([row])
            given = {name: array[np.newaxis] for name, array in inputs.items()}
            return {name: array[0] for name, array in self._streams.push(given, rows).items()}

    def keep_lent(self, push: Push, row: int) -> None:
        """Give the session of a push the state of its lent row.

        Raises:
            CellerateError: The session has ended meanwhile, or there is no place for it.
        """
        with self._lock:
            state = self._streams.states_of([row])
            if push.begin and not (push.restart and self._is_there(push.name)):
                self.open(push.name)
            self._set(push.name, state)
            if push.end:
                self._end([push.name])

    def take_back(self, row: int) -> None:
        """Free a lent row."""
        with self._lock:
            self._memory.take_back(row)

    def unused_s(self, name: str) -> float:
        """Return the seconds since the last use of a session.

        Raises:
            MissingSessionError: There is none of this name.
        """
        with self._lock:
            self.end_unused()
            place, store = self._memory.places.get(name), self._memory.store
            used = place.used if place else store.used(name) if store is not None else None
            if used is None:
                raise self._endings.error(name)
            return max(0.0, self._clock() - used)

    def state(self, name: str) -> np.ndarray:
        """Return a copy of the state of a session, (S,) float32.

        Raises:
            MissingSessionError: There is none of this name.
        """
        with self._lock:
            self._bring([name])
            return self._streams.states_of(self._memory.rows([name]))[0]

    def restore(self, name: str, state: np.ndarray) -> None:
        """Begin a session with a state from `state`, or reset it to that state.

        Raises:
            ConfigError: The name is not valid.
            DataError: The state has another size, or a value is not a number.
            TooManySessionsError: There are too many sessions.
        """
        check_name(name)
        with self._lock:
            if state.shape != (self._size,) or state.dtype.kind != "f":
                raise DataError(f"the state must be {self._size} numbers, not {state.dtype} {state.shape}.")
            self.disk.check()
            self.end_unused()
            if self._is_there(name):
                self._set(name, state[np.newaxis])
            else:
                self._begin(name, state[np.newaxis])

    def end_unused(self) -> None:
        """End the sessions that were unused for too long; other calls do so from time to time, too."""
        with self._lock:
            now = self._clock()
            if now < self._next_sweep:
                return
            self._next_sweep = now + self._time_to_live * _SWEEP
            since, unused = now - self._time_to_live, []
            for name, place in self._memory.places.items():
                if place.used >= since:
                    break
                unused.append(name)
            if self._memory.store is not None:
                try:
                    # For sessions in memory, the time on disk is out of date.
                    old = self._memory.store.unused_since(since)
                    unused += [name for name in old if name not in self._memory.places]
                except StorageError as error:
                    log.error("sessions that were not used cannot be looked for: %s", error)
            self._end(unused, f"it was not used for {self._time_to_live:g} s")

    def replace(self) -> int:
        """Refuse new sessions if there are none, because another model comes; return the number of sessions."""
        with self._lock:
            self._replaced = not self._count
            return self._count

    def keep(self) -> None:
        """Accept new sessions again, after `replace`."""
        with self._lock:
            self._replaced = False

    def _read(self, pushes: Sequence[Push]) -> list[Result]:
        """Reads pushes to different sessions, all of the same shapes."""
        names = [push.name for push in pushes]
        try:
            self.disk.check()
            self._bring(names)
            inputs = {
                name: np.stack([np.asarray(push.inputs[name]) for push in pushes])
                for name in pushes[0].inputs
            }
            outputs = self._streams.push(inputs, self._memory.rows(names))
        except Exception as error:  # any error concerns one of the pushes, or the machine
            if len(pushes) == 1 or self.disk.refuses:
                return [error] * len(pushes)
            # One push made all fail; read alone, each gives the same results.
            half = len(pushes) // 2
            return self._read(pushes[:half]) + self._read(pushes[half:])
        self._memory.use(names)
        return [{name: array[n] for name, array in outputs.items()} for n in range(len(pushes))]

    def _begin_some(
        self, pushes: Sequence[Push], turn: Sequence[int], results: list[Any]
    ) -> dict[int, np.ndarray | None]:
        """Open the sessions that begin with their push, and record the errors of those that cannot begin.

        Returns:
            The number of each push that began a session → the state that the session had before, None for a new one.
        """
        opened: dict[int, np.ndarray | None] = {}
        for number in turn:
            if pushes[number].begin:
                try:
                    opened[number] = self._open_anew(pushes[number])
                except Exception as error:  # as in `_read`
                    results[number] = error
        return opened

    def _end_some(
        self,
        pushes: Sequence[Push],
        turn: Sequence[int],
        results: list[Any],
        opened: Mapping[int, np.ndarray | None],
    ) -> None:
        """Close the sessions that end with their push, and those whose first push failed."""
        ending = []
        for number in turn:
            failed = isinstance(results[number], Exception)
            if number in opened if failed else pushes[number].end:
                name, before = pushes[number].name, opened.get(number)
                # The session was there; without a disk it may have had to leave since.
                if name not in self._memory.places and self._memory.store is None:
                    continue
                if failed and before is not None:
                    self._set(name, before)
                else:
                    ending.append(name)
        self._end(ending)

    def _open_anew(self, push: Push) -> np.ndarray | None:
        """Open the session of a push, or start it over; return the state that it had, (1, S), None for a new one."""
        if push.restart and self._is_there(push.name):
            self.disk.check()
            with contextlib.suppress(MissingSessionError):  # its state was damaged, so it has ended
                before = self.state(push.name)[np.newaxis]
                self._set(push.name, self._streams.initial_state[np.newaxis])
                return before
        self.open(push.name)
        return None

    def _set(self, name: str, state: np.ndarray) -> None:
        """Give a session another state, (1, S)."""
        self._bring([name])
        self._streams.set_states(self._memory.rows([name]), state)
        self._memory.use([name])

    def _begin(self, name: str, states: np.ndarray) -> None:
        if self._replaced:
            raise ReplacedModelError("the model is being replaced by another one; try again.")
        if self._count >= self._most_of_all:
            raise TooManySessionsError(
                f"there are {self._count} sessions already: close one that is not needed."
            )
        self._put([name], states, changed=True)
        self._endings.forget(name)
        self._count += 1

    def _is_there(self, name: str) -> bool:
        store = self._memory.store
        return name in self._memory.places or (store is not None and name in store)

    def _bring(self, names: Sequence[str]) -> None:
        """Brings sessions into memory.

        Raises:
            MissingSessionError: One of them is not there.
            StorageError: One cannot be read.
        """
        absent, states = [], []
        for name in names:
            if name in self._memory.places:
                # Marked as used, so that it does not leave to make room for the others.
                self._memory.places.move_to_end(name)
            else:
                absent.append(name)
        for name in absent:
            try:
                found = None if self._memory.store is None else self._memory.store.state(name)
            except DamagedStateError as error:
                log.error("%s It has ended.", error)
                self._end([name], "its state on the disk was damaged")
                found = None
            if found is None:
                raise self._endings.error(name)
            states.append(found)
        if absent:
            self._put(absent, np.stack(states), changed=False, staying=len(names) - len(absent))

    def _put(self, names: Sequence[str], states: np.ndarray, *, changed: bool, staying: int = 0) -> None:
        dropped = self._memory.put(names, states, changed=changed, staying=staying)
        self._count -= len(dropped)
        self._endings.remember(dropped, "there was no room for it")

    def _end(self, names: Sequence[str], reason: str = "") -> None:
        """End existing sessions; the reason is empty if a client ended them."""
        self._memory.forget(names)
        self._count -= len(names)
        if self._memory.store is not None:
            self._memory.store.delete(names)
        if reason:
            self._endings.remember(names, reason)

    @staticmethod
    def _exists(name: str) -> ExistingSessionError:
        return ExistingSessionError(f"there is a session {name!r} already: close it first, or go on with it.")
