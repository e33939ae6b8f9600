"""A packed model for batches of one size, as a function for loops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cellerate.errors import ConfigError, DataError
from cellerate.runtime.program import Engine, Inputs, Out, fits, input_sizes


class PreparedCall:
    """A packed model for batches of one size, as `PackedModel.prepared` gives it; several threads may use one.

    Args:
        engine: Runs the program.
        batch: Rows of a call.
        steps: The size of each input's first free axis after the batch; None if there is none.
        outputs: Which outputs to compute; None for all.

    Attributes:
        inputs: The shape and dtype that each input must have, by its name.
        outputs: The shape and dtype of each result, by its name.

    Raises:
        ConfigError: A size is not a whole number above 0 or does not fit the model, or an output is unknown.
        DataError: The model does not take batches of this size.
    """

    def __init__(self, engine: Engine, batch: int, steps: int | None, outputs: Sequence[str] | None) -> None:
        self._engine, self._asked = engine, outputs
        zeros = {
            name: np.zeros(shape, dtype)
            for name, (shape, dtype) in input_sizes(engine.program, batch, steps).items()
        }
        made = engine.run(zeros, outputs)
        self.inputs = {name: (array.shape, array.dtype.name) for name, array in zeros.items()}
        self.outputs = {name: (array.shape, array.dtype.name) for name, array in made.items()}
        self._shapes = tuple(array.shape for array in zeros.values())
        self._types = tuple(array.dtype for array in zeros.values())
        ready = engine.prepared_for(zeros, outputs)
        self._run = self._run_by_engine if ready is None else ready.run
        self._alone = None if ready is None else ready.alone(list(zeros), {})

    def __call__(self, inputs: Inputs, out: Out = None) -> np.ndarray | dict[str, np.ndarray]:
        """Compute the result of `PackedModel.predict`.

        Args:
            inputs: The array of each input by its name, or one array if there is one input; of the shapes and dtypes
                of `inputs`, C-contiguous.
            out: Where the results go: arrays of the shapes and dtypes of `outputs`, by name if there are several;
                None for new ones.

        Returns:
            The result, or the results by name if there are several; those of `out` if it is given.

        Raises:
            ConfigError: A name is not one of the model's.
            DataError: An array does not fit, or holds an id that the model does not know.
        """
        if self._alone is not None:
            run, shape = self._alone
            result: Any = np.empty(shape, np.float32) if out is None else out
            try:
                if run.run(inputs, result):
                    return result
            except (IndexError, MemoryError):
                pass  # the checks below handle ids that count from the end, and word the errors
        arrays = (inputs,) if isinstance(inputs, np.ndarray) else self._by_name(inputs)
        if len(arrays) != len(self._shapes) or not all(map(fits, arrays, self._shapes, self._types)):
            raise DataError(f"expected C-contiguous arrays {self._expected()}, got {_described(arrays)}.")
        try:
            made = self._run(arrays, out)
        except IndexError:  # ids that count from the end or are wrong: the engine handles both
            made = self._run_by_engine(arrays, out)
        return next(iter(made.values())) if len(made) == 1 else made

    def _run_by_engine(self, arrays: Sequence[np.ndarray], out: Out) -> dict[str, np.ndarray]:
        return self._engine.run(dict(zip(self.inputs, arrays, strict=True)), self._asked, out)

    def _by_name(self, inputs: Any) -> tuple[np.ndarray, ...]:
        if not isinstance(inputs, Mapping) or set(inputs) != set(self.inputs):
            found = ", ".join(map(str, inputs)) if isinstance(inputs, Mapping) else type(inputs).__name__
            raise ConfigError(f"inputs must be arrays for {', '.join(self.inputs)}, not {found}.")
        return tuple(inputs[name] for name in self.inputs)

    def _expected(self) -> str:
        return ", ".join(f"{name!r} {shape} {dtype}" for name, (shape, dtype) in self.inputs.items())


def _described(arrays: Sequence[Any]) -> str:
    def one(array: Any) -> str:
        if not isinstance(array, np.ndarray):
            return type(array).__name__
        return f"{array.shape} {array.dtype}" + ("" if array.flags.c_contiguous else " not C-contiguous")

    return ", ".join(map(one, arrays))
