"""The parts of a stage as functions of a batch: before the trunk, through its layers, and the loss after it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import keras
from keras import ops

from cellerate.layers.chunked import ChunkedLayers
from cellerate.models.trunk import Trunk

Run = Callable[[Any, Any, Sequence[Any], bool], tuple[Any, list[Any]]]
"""A function of (fixed, x, states, training) that returns (y, states); `fixed` has no gradient."""


@dataclasses.dataclass(frozen=True)
class StageBatch:
    """A batch in the form of the stages.

    Attributes:
        x: The inputs in their original structure.
        y: The targets.
        weight: The weights of the rows, or None.
        entering: The inputs of the model before the trunk, or of the trunk itself.
        beside: The inputs that the model after the trunk takes besides the trunk's output.
        rows: The number of rows.
        steps: The number of time steps in the trunk.
    """

    x: Any
    y: Any
    weight: Any
    entering: list[Any]
    beside: list[Any]
    rows: int
    steps: int

    @classmethod
    def of(cls, trainer: keras.Model, trunk: Trunk, data: Any) -> StageBatch:
        """Unpacks the data that `fit` passes to a step."""
        x, y, weight = keras.utils.unpack_x_y_sample_weight(data)
        flat = [x[tensor.name] for tensor in trainer.inputs] if isinstance(x, dict) else keras.tree.flatten(x)
        inputs = [
            ops.convert_to_tensor(value, tensor.dtype)
            for value, tensor in zip(flat, trainer.inputs, strict=True)
        ]
        y, weight = (
            None if one is None else keras.tree.map_structure(ops.convert_to_tensor, one)
            for one in (y, weight)
        )
        entering = [inputs[number] for number in trunk.before_inputs]
        rows, steps = (int(size) for size in entering[0].shape[:2])
        if trunk.before is not None:
            steps = trunk.entry.shape[1] or steps
        beside = [inputs[number] for number in trunk.after_inputs]
        return cls(x, y, weight, entering, beside, rows, steps)

    def judged(self, share: Any) -> tuple[Any, ...]:
        """The fixed arguments of the loss; `share` is the loss's factor."""
        x = keras.tree.map_structure(ops.convert_to_tensor, self.x)
        return self.beside, x, self.y, self.weight, ops.convert_to_tensor(share, "float32")


def preparing(trunk: Trunk) -> Run:
    """The function of the model before the trunk."""

    def run(fixed: Any, x: Any, states: Sequence[Any], training: bool) -> tuple[Any, list[Any]]:
        inputs = fixed if len(fixed) > 1 else fixed[0]
        return trunk.before(inputs, training=training), []  # type: ignore[misc]

    return run


def running(layers: ChunkedLayers) -> Run:
    """The function of some layers of the trunk."""

    def run(fixed: Any, x: Any, states: Sequence[Any], training: bool) -> tuple[Any, list[Any]]:
        return layers(fixed if x is None else x, states, training)

    return run


def judging(trainer: keras.Model, trunk: Trunk) -> tuple[Run, list[Any], list[Any]]:
    """The function of the loss and the metrics, the variables it trains, and the other variables it changes."""
    (tracker,) = [metric for metric in trainer.metrics if metric.name == "loss"][:1]
    after = trunk.after

    def run(fixed: Any, x: Any, states: Sequence[Any], training: bool) -> tuple[Any, list[Any]]:
        beside, inputs, y, weight, share = fixed
        predicted = x
        if after is not None:
            predicted = after([x, *beside] if beside else x, training=training)
        loss = share * trainer.compute_loss(inputs, y, predicted, weight, training=training)
        rows = ops.shape(keras.tree.flatten(inputs)[0])[0]
        tracker.update_state(ops.stop_gradient(loss), sample_weight=rows)
        kept = keras.tree.map_structure(ops.stop_gradient, predicted)
        trainer.compute_metrics(inputs, y, kept, weight)
        return loss, []

    trainable = [] if after is None else after.trainable_variables
    others = [] if after is None else after.non_trainable_variables
    return run, trainable, [*others, *trainer.metrics_variables]
