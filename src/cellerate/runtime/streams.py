"""Many streams through one model, each with its own state: push new steps as they come, get the new outputs.

For sensors, prices, frames and keystrokes, which need an answer at once: no step is read twice.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cellerate.errors import CellerateError, ConfigError, DataError
from cellerate.kernels.decoder.arguments import check_whole
from cellerate.kernels.program.cpu import PreparedRun
from cellerate.runtime.cell_format import FLOAT32, read_container, write_container
from cellerate.runtime.program import Engine, Stepping, by_name, checked_out
from cellerate.runtime.rows import chosen_rows, distinct_rows

_FORMAT = "streams"


@dataclasses.dataclass(slots=True)
class _PushesAlike:
    """Pushes of one size into all streams.

    Attributes:
        run: The call, which reads the states from one of two sets of arrays and writes them to the other.
        shape: The shape of its result.
        states: The arrays that the next call writes.
    """

    run: PreparedRun
    shape: tuple[int, ...]
    states: dict[str, np.ndarray]


def _pushes_alike(
    engine: Engine, given: Mapping[str, np.ndarray], states: Mapping[str, np.ndarray]
) -> _PushesAlike | None:
    """Return pushes like one that the engine has run; None if the core does not take them."""
    named = {**given, **states}
    prepared = engine.prepared_for(named, None)
    if prepared is None:
        return None
    spare = {name: np.empty_like(array) for name, array in states.items()}
    alone = prepared.alone(list(named), {name: (array, spare[name]) for name, array in states.items()})
    return None if alone is None else _PushesAlike(*alone, spare)


class Streams:
    """Streams that a model reads side by side, and their states.

    A state stands for all pushed steps. Steps pushed in two parts give the same bits as in one push, and no stream
    depends on the others: a NaN stays in its own stream. Several threads must not use one object at once, but each may
    use a clone.

    Args:
        stepping: The model's program for a push.
        engine: Runs it.
        count: The number of streams, from 0; more can `join`.
        fingerprint: The fingerprint of the model, for saved files.

    Example:
        >>> streams = cellerate.load("ett.cell").streams(100)
        >>> outputs = streams.push(readings)  # (100, 1, features)
    """

    def __init__(self, stepping: Stepping, engine: Engine, count: int, fingerprint: str) -> None:
        check_whole("count", count, 0, 2**31 - 1)
        self._stepping, self._engine, self._fingerprint = stepping, engine, fingerprint
        # The shapes of the last push, and the call for pushes like it.
        self._pushed: Mapping[str, tuple[int, ...]] = {}
        self._alike: _PushesAlike | None = None
        self._states = {name: np.zeros((count, units), np.float32) for name, units in stepping.states.items()}

    @property
    def _states(self) -> dict[str, np.ndarray]:
        """The (B, H) arrays of the states, which may be changed."""
        return self._arrays

    @_states.setter
    def _states(self, states: dict[str, np.ndarray]) -> None:
        self._arrays, self._alike = states, None

    @property
    def count(self) -> int:
        """The number of streams there are."""
        return len(next(iter(self._states.values())))

    @property
    def state(self) -> np.ndarray:
        """A copy of the states, (B, S) float32: h and c of each LSTM, one after another."""
        return np.concatenate(list(self._states.values()), axis=1)

    def push(
        self,
        inputs: Mapping[str, np.ndarray] | np.ndarray,
        rows: Sequence[int] | np.ndarray | None = None,
    ) -> np.ndarray | dict[str, np.ndarray]:
        """Reads the next steps of streams.

        Args:
            inputs: The array of each input by its name, or one array if there is one input: (B, k, F) numbers or
                (B, k) ids, k ≥ 1 steps of each of the B streams.
            rows: (B,) the indices of the streams, each once; None for all. Other streams do not change.

        Returns:
            The output, or the outputs by name if there are several: for each of the k steps if the model returns
            sequences, otherwise for the last step.

        Raises:
            ConfigError: A name is not one of the model's, there is no such stream, or one is named twice.
            DataError: An array has the wrong shape or type, or holds an id that the model does not know; then
                nothing was read.
        """
        if rows is None and self._alike is not None:
            result = np.empty(self._alike.shape, np.float32)
            if self._push_alike(inputs, result):
                return result
        given = {
            name: _as_core_reads(array) for name, array in by_name(inputs, self._stepping.inputs).items()
        }
        chosen = None if rows is None else distinct_rows(rows, self.count, "stream")
        count = self.count if chosen is None else len(chosen)
        for name, array in given.items():
            if np.ndim(array) and len(array) != count:
                raise DataError(
                    f"input {name!r} has {len(array)} rows; expected {count}, one for each stream."
                )
        if chosen is None:
            results = self._engine.run(given | self._states)
            self._states = {name: results.pop(name) for name in self._states}
            if type(inputs) is np.ndarray and len(self._stepping.outputs) == 1:
                self._prepare(given)
        else:
            results = self._engine.run(given | {name: array[chosen] for name, array in self._states.items()})
            for name, array in self._states.items():
                array[chosen] = results.pop(name)
        return next(iter(results.values())) if len(results) == 1 else results

    def push_into(
        self, inputs: Mapping[str, np.ndarray] | np.ndarray, out: Mapping[str, np.ndarray] | np.ndarray
    ) -> None:
        """Read the next steps of all streams, and write the output into the caller's memory.

        Repeated pushes of one size allocate nothing: a model with one input and one output then takes a step in a few
        microseconds.

        Args:
            inputs: As `push` takes them.
            out: Where the output goes: an array, or arrays by name if there are several outputs, of the shape that
                `push` gives and float32.

        Raises:
            ConfigError, DataError: As `push`, or `out` does not fit; then nothing was read.
        """
        if self._push_alike(inputs, out):
            return
        if out is None:
            raise ConfigError("out is None; expected an array for the output. To get a new array, call push.")
        before = self._states
        results = self.push(inputs)
        found = results if isinstance(results, dict) else {self._stepping.outputs[0]: results}
        try:
            places = checked_out(out, {name: (each.shape, each.dtype.name) for name, each in found.items()})
        except CellerateError:
            self._states = before
            raise
        for name, place in places.items():
            np.copyto(place, found[name])

    def time_pushes(self, inputs: np.ndarray, out: np.ndarray, count: int) -> list[float]:
        """Push the same steps `count` times in one native call; return the seconds of each push.

        These are the times of a C++ program that calls the core. At least three pushes of the same size must come
        before.

        Args:
            inputs: As `push_into` takes them.
            out: As `push_into` takes it.
            count: The number of pushes.

        Raises:
            ConfigError: These pushes do not take the fast path of `push_into`.
        """
        if self._alike is None:
            raise ConfigError("expected some pushes of the same size before; push these inputs three times.")
        try:
            seconds = self._alike.run.time(inputs, out, count)
        except ValueError:
            raise ConfigError(
                f"the arrays do not fit: expected steps as they were pushed before, and {self._alike.shape} float32 "
                "for the output."
            ) from None
        if count % 2:
            self._take_turns(self._alike)
        return seconds

    def clone(self) -> Streams:
        """Return streams with the same states, independent from here on."""
        return self._with({name: array.copy() for name, array in self._states.items()})

    __copy__ = clone

    def join(self, other: Streams) -> None:
        """Append copies of the streams of another object of the same model.

        Raises:
            ConfigError: The other object belongs to another model.
        """
        if other._engine is not self._engine:
            raise ConfigError(
                "the other streams belong to another model; expected streams of the same model."
            )
        self._states = {
            name: np.concatenate([array, other._states[name]]) for name, array in self._states.items()
        }

    def leave(self, rows: Sequence[int] | np.ndarray) -> Streams:
        """Take streams out; later streams move up.

        Args:
            rows: (N,) the indices of the streams, each in [0, B) and none twice.

        Returns:
            An object with these streams, in the order of `rows`.

        Raises:
            ConfigError: There is no such stream, or one is named twice.
        """
        chosen = distinct_rows(rows, self.count, "stream")
        left = self._with({name: array[chosen] for name, array in self._states.items()})
        self._states = {name: np.delete(array, chosen, axis=0) for name, array in self._states.items()}
        return left

    def reset(self, rows: Sequence[int] | np.ndarray | None = None) -> None:
        """Reset streams to their initial states.

        Args:
            rows: (N,) the indices of the streams; None for all.

        Raises:
            ConfigError: There is no such stream.
        """
        chosen = slice(None) if rows is None else chosen_rows(rows, self.count)
        for array in self._states.values():
            array[chosen] = 0

    def states_of(self, rows: Sequence[int] | np.ndarray) -> np.ndarray:
        """Return a copy of the states of some streams, (N, S) float32, as in `state`.

        Raises:
            ConfigError: There is no such stream.
        """
        chosen = chosen_rows(rows, self.count)
        return np.concatenate([array[chosen] for array in self._states.values()], axis=1)

    def set_states(self, rows: Sequence[int] | np.ndarray, states: np.ndarray) -> None:
        """Set the states of streams, as `states_of` returns them.

        Args:
            rows: (N,) the indices of the streams.
            states: (N, S) numbers.

        Raises:
            ConfigError: There is no such stream, or one is named twice.
            DataError: The states have another shape, or are not numbers.
        """
        chosen = distinct_rows(rows, self.count, "stream")
        units = list(self._stepping.states.values())
        if states.shape != (len(chosen), sum(units)) or states.dtype.kind not in "fiu":
            raise DataError(
                f"states must be numbers of the shape {(len(chosen), sum(units))}, not {states.dtype} {states.shape}."
            )
        parts = np.split(states, np.cumsum(units)[:-1], axis=1)
        for array, part in zip(self._states.values(), parts, strict=True):
            array[chosen] = part

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the states into a file, whole or not at all; `restore` reads them back.

        Raises:
            ConfigError: There is no stream.
            OutputError: The file could not be written.
        """
        if self.count == 0:
            raise ConfigError("there is no stream to save; expected at least one.")
        write_container(path, {"kind": _FORMAT, "model": self._fingerprint}, {"state": self.state})

    def restore(self, path: str | os.PathLike[str]) -> None:
        """Restore states that `save` wrote for this model; on failure nothing changes.

        Raises:
            DataError: There is no such file, or it is damaged or belongs to another model.
        """
        metadata, tensors = read_container(Path(path))
        if metadata.get("kind") != _FORMAT or tensors.keys() != {"state"}:
            raise DataError(f"{path} does not hold states of streams: give a file that Streams.save wrote.")
        state, units = tensors["state"], list(self._stepping.states.values())
        fits = state.ndim == 2 and state.dtype == FLOAT32 and state.shape[1] == sum(units)
        if metadata.get("model") != self._fingerprint or not fits:
            raise DataError(
                f"{path} belongs to another model, or to one packed with other settings: restore it with that model."
            )
        parts = np.split(state, np.cumsum(units)[:-1], axis=1)
        self._states = {
            name: np.ascontiguousarray(part) for name, part in zip(self._states, parts, strict=True)
        }

    def _prepare(self, given: Mapping[str, np.ndarray]) -> None:
        """Prepare, after a push with one input, the call for pushes like it, from the second of its kind on."""
        pushed = {name: np.shape(array) for name, array in given.items()}
        if pushed == self._pushed:
            self._alike = _pushes_alike(self._engine, given, self._states)
        self._pushed = pushed

    def _push_alike(self, inputs: Any, result: Any) -> bool:
        """Run a push like the last ones; return False, with nothing read, if the push is different."""
        if self._alike is None:
            return False
        run = self._alike.run.run
        try:
            done = run(inputs, result)
            if not done and (copied := _as_core_reads(inputs)) is not inputs:
                done = run(copied, result)
        except (IndexError, MemoryError):
            return False  # the checks of `push` handle ids that count from the end, and word the errors
        if done:
            self._take_turns(self._alike)
        return done

    def _take_turns(self, alike: _PushesAlike) -> None:
        """Swap the two sets of arrays: those that a push has written become the states."""
        self._arrays, alike.states = alike.states, self._arrays

    def _with(self, states: dict[str, np.ndarray]) -> Streams:
        other = Streams(self._stepping, self._engine, 0, self._fingerprint)
        other._states = states
        return other


def _as_core_reads(array: Any) -> Any:
    """Return numbers in the form that the core takes; return anything else unchanged."""
    if type(array) is not np.ndarray or array.ndim == 0:
        return array
    with np.errstate(all="ignore"):
        return np.ascontiguousarray(array, FLOAT32 if array.dtype.kind == "f" else None)
