"""An exported model in its own runtime, with the interface of a packed model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from cellerate.exports.trials import Arrays
from cellerate.program import Program


class ExportedModel:
    """A file of another runtime that predicts.

    Args:
        run: Returns the outputs by name.
        program: The exported program.
        rows: The only number of rows that the model takes; None for any.
    """

    def __init__(
        self, run: Callable[[Arrays], Mapping[str, np.ndarray]], program: Program, rows: int | None = None
    ) -> None:
        self._run, self._rows = run, rows
        self._types = {
            name: str(program.nodes[number].options["dtype"]) for name, number in program.inputs.items()
        }
        self.outputs: tuple[str, ...] = tuple(program.outputs)
        """The names of its outputs."""

    def predict(self, inputs: Any, outputs: Sequence[str] | None = None) -> Any:
        """As `PackedModel.predict`: the output, or the outputs by name if there are several."""
        given = inputs if isinstance(inputs, Mapping) else dict.fromkeys(self._types, inputs)
        arrays = {name: np.asarray(given[name], dtype) for name, dtype in self._types.items()}
        count = len(next(iter(arrays.values())))
        found: dict[str, list[np.ndarray]] = {name: [] for name in outputs or self.outputs}
        for begin in range(0, count, self._rows or max(count, 1)):
            batch = {name: array[begin : begin + (self._rows or count)] for name, array in arrays.items()}
            for name, result in self._run({key: self._filled(array) for key, array in batch.items()}).items():
                if name in found:
                    found[name].append(result[: len(next(iter(batch.values())))])
        results = {name: np.concatenate(parts) for name, parts in found.items()}
        return next(iter(results.values())) if len(results) == 1 else results

    def _filled(self, array: np.ndarray) -> np.ndarray:
        """Return the array padded to the model's number of rows by repeating its last row."""
        missing = (self._rows or len(array)) - len(array)
        return np.concatenate([array, np.repeat(array[-1:], missing, axis=0)]) if missing else array
