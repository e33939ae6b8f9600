"""Gathers the values of all stages in the first process: weights, seeds, optimizer slots, metrics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from cellerate.errors import ModelError
from cellerate.training.checkpoint import sync_variables
from cellerate.training.pipeline.division import StageLayout


class Gathering:
    """Knows which stage holds which variables of a compiled model.

    Args:
        trainer: The model.
        layers_of: Returns the layers of a stage.
        link: The connection to the other processes.
        layout: The position of this process.
    """

    def __init__(
        self,
        trainer: keras.Model,
        layers_of: Callable[[int], Sequence[keras.Layer]],
        link: Any,
        layout: StageLayout,
    ) -> None:
        self._trainer, self._link, self._layout = trainer, link, layout
        self._owned = [
            [variable for layer in layers_of(stage) for variable in layer.variables]
            for stage in range(layout.stages)
        ]

    def _variables(self, stage: int) -> list[Any]:
        """The variables of a stage and the optimizer's slots for them."""
        trained = {id(variable) for variable in self._trainer.trainable_variables}
        owners = {
            variable.path.replace("/", "_"): number
            for number, owned in enumerate(self._owned)
            for variable in owned
            if id(variable) in trained
        }
        return [*self._owned[stage], *slots_of(self._trainer.optimizer, owners, stage)]

    def settle(self) -> None:
        """Gives the first process all values. All processes must call it."""
        sync_variables(self._trainer)
        if self._layout.copy == 0:
            for stage in range(1, self._layout.stages):
                if self._layout.stage in (0, stage):
                    self._hand_over(stage)
        variables = self._trainer.metrics_variables
        for variable, value in zip(variables, self._summed(variables), strict=True):
            variable.assign(value)
        self.count_once()

    def _hand_over(self, stage: int) -> None:
        """Copies the variables of a stage into the first process."""
        variables = self._variables(stage)
        sizes = [int(np.prod(v.shape, dtype=np.int64)) * _width(v) for v in variables]
        if self._layout.stage == stage:
            content = b"".join(_numpy(variable).tobytes() for variable in variables)
            self._link.send(ops.convert_to_tensor(np.frombuffer(content, np.uint8), "uint8"), 0)
            self._link.finish()
            return
        found = np.asarray(ops.convert_to_numpy(self._link.receive((sum(sizes),), "uint8", stage)))
        begin = 0
        for variable, size in zip(variables, sizes, strict=True):
            value = np.frombuffer(found[begin : begin + size].tobytes(), _numpy(variable).dtype)
            variable.assign(value.reshape(variable.shape))
            begin += size

    def count_once(self) -> None:
        """Leaves the sums of metrics to the first process."""
        if self._layout.number:
            for variable in self._trainer.metrics_variables:
                variable.assign(ops.zeros_like(variable.value))

    def metrics(self) -> dict[str, Any]:
        """The metrics over all rows; each process keeps its own sums. All processes must call it."""
        sync_variables(self._trainer)
        variables = self._trainer.metrics_variables
        own = [_numpy(variable) for variable in variables]
        for variable, value in zip(variables, self._summed(variables), strict=True):
            variable.assign(value)
        result = type(self._trainer).get_metrics_result(self._trainer)
        found = {name: float(value) for name, value in result.items()}
        for variable, value in zip(variables, own, strict=True):
            variable.assign(value)
        return found

    def _summed(self, variables: Sequence[Any]) -> list[np.ndarray]:
        """The sums of variables over all processes."""
        own = [_numpy(variable) for variable in variables]
        if not own:
            return []
        total = self._link.sums(np.concatenate([value.reshape(-1) for value in own]))
        ends = np.cumsum([value.size for value in own])[:-1]
        return [
            part.reshape(value.shape).astype(value.dtype)
            for part, value in zip(np.split(total, ends), own, strict=True)
        ]


def slots_of(optimizer: Any, owners: dict[str, int], stage: int) -> list[Any]:
    """The optimizer's variables for the weights of a stage.

    Args:
        optimizer: The optimizer, built.
        owners: The stage of each weight, by the prefix of its slots' names.
        stage: The stage.

    Raises:
        ModelError: A slot belongs to no weight.
    """
    found = []
    for variable in optimizer.variables:
        # Counters, the learning rate and the norms of gradients are the same in all processes.
        if len(variable.shape) == 0 or variable.name == "gradient_norms":
            continue
        named = [name for name in owners if variable.name.startswith(f"{name}_")]
        if not named:
            raise ModelError(
                f"{type(optimizer).__name__} has a variable {variable.name!r} that belongs to no weight of the model, "
                "so the stages cannot share it: use another optimizer."
            )
        if owners[max(named, key=len)] == stage:
            found.append(variable)
    return found


def _width(variable: Any) -> int:
    return _numpy_type(variable).itemsize


def _numpy_type(variable: Any) -> np.dtype:
    name = keras.backend.standardize_dtype(variable.dtype)
    return np.dtype("float32" if name == "bfloat16" else name)


def _numpy(variable: Any) -> np.ndarray:
    return np.array(ops.convert_to_numpy(variable.value)).astype(_numpy_type(variable))
