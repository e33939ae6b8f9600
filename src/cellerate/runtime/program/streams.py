"""Many streams through one model, each with its own memory: push new steps as they come, get the new outputs.

For sensors, prices, frames and keystrokes, whose next value is wanted now: nothing that was read is read again.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from cellerate.errors import ConfigError, DataError
from cellerate.kernels.decoder.arguments import check_whole
from cellerate.runtime.cell_format import FLOAT32, read_container, write_container
from cellerate.runtime.program.engine import Engine
from cellerate.runtime.program.inputs import by_name
from cellerate.runtime.program.stepping import Stepping
from cellerate.runtime.text import chosen_rows

_FORMAT = "streams"


class Streams:
    """Streams that a model reads side by side, and what it remembers of each.

    The state stands for all that was pushed. What is pushed in two parts gives the bits of what is pushed at once, and
    no stream's numbers depend on the streams beside it: a NaN stays in its own. One object must not be used by several
    threads at once; clones of it may.

    Args:
        stepping: The model's program for a push.
        engine: Runs it.
        count: How many streams, from 0; more can `join`.
        fingerprint: Tells the model from others, in saved files.

    Example:
        >>> streams = cellerate.load("ett.cell").streams(100)
        >>> outputs = streams.push(readings)  # (100, 1, features)
    """

    def __init__(self, stepping: Stepping, engine: Engine, count: int, fingerprint: str) -> None:
        check_whole("count", count, 0, 2**31 - 1)
        self._stepping, self._engine, self._fingerprint = stepping, engine, fingerprint
        self._states = {name: np.zeros((count, units), np.float32) for name, units in stepping.states.items()}

    @property
    def count(self) -> int:
        """The number of streams there are."""
        return len(next(iter(self._states.values())))

    @property
    def state(self) -> np.ndarray:
        """(B, S) float32, h and c of each LSTM, one after another; a copy."""
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
            rows: (B,) which streams, each once; None for all. The others stay as they are.

        Returns:
            The output, or the outputs by name if there are several: of each of the k steps where the model gives
            sequences, otherwise of the last.

        Raises:
            ConfigError: A name is not one of the model's, there is no such stream, or one is named twice.
            DataError: An array has the wrong shape or type, or holds an id that the model does not know; then
                nothing was read.
        """
        given = dict(by_name(inputs, self._stepping.inputs))
        chosen = None if rows is None else _distinct_rows(rows, self.count)
        count = self.count if chosen is None else len(chosen)
        for name, array in given.items():
            if np.ndim(array) and len(array) != count:
                raise DataError(
                    f"input {name!r} has {len(array)} rows; expected {count}, one for each stream."
                )
        if chosen is None:
            results = self._engine.run(given | self._states)
            self._states = {name: results.pop(name) for name in self._states}
        else:
            results = self._engine.run(given | {name: array[chosen] for name, array in self._states.items()})
            for name, array in self._states.items():
                array[chosen] = results.pop(name)
        return next(iter(results.values())) if len(results) == 1 else results

    def clone(self) -> "Streams":
        """Streams that have read the same and are independent from here on."""
        return self._with({name: array.copy() for name, array in self._states.items()})

    def join(self, other: "Streams") -> None:
        """Appends the streams of another object of the same model, which keeps them too.

        Raises:
            ConfigError: It belongs to another model.
        """
        if other._engine is not self._engine:
            raise ConfigError("the other streams are of another model; expected ones of the same.")
        self._states = {
            name: np.concatenate([array, other._states[name]]) for name, array in self._states.items()
        }

    def leave(self, rows: Sequence[int] | np.ndarray) -> "Streams":
        """Takes streams out; those behind them move up.

        Args:
            rows: (N,) which streams, each in [0, B) and none twice.

        Returns:
            An object with these streams, in the order of `rows`.

        Raises:
            ConfigError: There is no such stream, or one is named twice.
        """
        chosen = _distinct_rows(rows, self.count)
        left = self._with({name: array[chosen] for name, array in self._states.items()})
        self._states = {name: np.delete(array, chosen, axis=0) for name, array in self._states.items()}
        return left

    def reset(self, rows: Sequence[int] | np.ndarray | None = None) -> None:
        """Has streams begin anew.

        Args:
            rows: (N,) which streams; None for all.

        Raises:
            ConfigError: There is no such stream.
        """
        chosen = slice(None) if rows is None else chosen_rows(rows, self.count)
        self._states = {name: array.copy() for name, array in self._states.items()}
        for array in self._states.values():
            array[chosen] = 0

    def states_of(self, rows: Sequence[int] | np.ndarray) -> np.ndarray:
        """(N, S) float32, what some streams remember, as in `state`; a copy.

        Raises:
            ConfigError: There is no such stream.
        """
        chosen = chosen_rows(rows, self.count)
        return np.concatenate([array[chosen] for array in self._states.values()], axis=1)

    def set_states(self, rows: Sequence[int] | np.ndarray, states: np.ndarray) -> None:
        """Puts streams back to what `states_of` gave.

        Args:
            rows: (N,) which streams.
            states: (N, S) numbers.

        Raises:
            ConfigError: There is no such stream, or one is named twice.
            DataError: The states have another shape, or are not numbers.
        """
        chosen = _distinct_rows(rows, self.count)
        units = list(self._stepping.states.values())
        if states.shape != (len(chosen), sum(units)) or states.dtype.kind not in "fiu":
            raise DataError(
                f"states must be numbers of the shape {(len(chosen), sum(units))}, not {states.dtype} {states.shape}."
            )
        parts = np.split(states, np.cumsum(units)[:-1], axis=1)
        for array, part in zip(self._states.values(), parts, strict=True):
            array[chosen] = part

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the states into a file, whole or not at all; `restore` reads them back.

        Raises:
            ConfigError: There is no stream.
            OutputError: The file could not be written.
        """
        if self.count == 0:
            raise ConfigError("there is no stream to save; expected at least one.")
        write_container(path, {"kind": _FORMAT, "model": self._fingerprint}, {"state": self.state})

    def restore(self, path: str | os.PathLike[str]) -> None:
        """Goes back to states that `save` wrote from this very model; on failure nothing changes.

        Raises:
            DataError: There is no such file, or it is damaged or belongs to another model.
        """
        metadata, tensors = read_container(Path(path))
        if metadata.get("kind") != _FORMAT or tensors.keys() != {"state"}:
            raise DataError(f"{path} holds no state of streams: give a file that Streams.save wrote.")
        state, units = tensors["state"], list(self._stepping.states.values())
        fits = state.ndim == 2 and state.dtype == FLOAT32 and state.shape[1] == sum(units)
        if metadata.get("model") != self._fingerprint or not fits:
            raise DataError(
                f"{path} is a state of another model, or of one packed otherwise: restore it with that one."
            )
        parts = np.split(state, np.cumsum(units)[:-1], axis=1)
        self._states = {
            name: np.ascontiguousarray(part) for name, part in zip(self._states, parts, strict=True)
        }

    def _with(self, states: dict[str, np.ndarray]) -> "Streams":
        other = Streams(self._stepping, self._engine, 0, self._fingerprint)
        other._states = states
        return other


def _distinct_rows(rows: Sequence[int] | np.ndarray, count: int) -> np.ndarray:
    """As `chosen_rows`, each of them once."""
    chosen = chosen_rows(rows, count)
    if len(np.unique(chosen)) != len(chosen):
        raise ConfigError(f"rows is {chosen.tolist()}; expected each stream once.")
    return chosen
