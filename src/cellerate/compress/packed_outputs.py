"""Judges a model by the outputs that its packed file gives, in place of those that Keras computes in float32."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from cellerate.errors import DataError
from cellerate.keras_graph.keras_backend import with_mask_of
from cellerate.keras_graph.to_program import read_program
from cellerate.program import Program
from cellerate.runtime.program import Engine


class PackedOutputs(keras.callbacks.Callback):
    """A callback of `evaluate`, which takes the loss from the outputs that the packed file has on this machine.

    A packed file rounds the inputs of products as well as weights, and gates are computed in other ways. Keras's own
    outputs still decide about masks and about losses that layers add. The model is evaluated eagerly: traced, its
    inputs would have no values.

    Args:
        precision: The precision of the file, one of `program.PRECISIONS`.
    """

    def __init__(self, precision: str) -> None:
        super().__init__()
        self._precision = precision

    def on_test_begin(self, logs: Any = None) -> None:
        """Changes the model's `compute_loss`; before, Keras may trace it to build losses and metrics."""
        judge = self.model
        program = read_program(judge)
        engine = Engine(program, self._precision)
        loss_of_outputs = judge.compute_loss

        def compute_loss(
            x: Any = None,
            y: Any = None,
            y_pred: Any = None,
            sample_weight: Any = None,
            training: bool = False,
        ) -> Any:
            arrays = engine.run(inputs_by_name(judge, program, x)).values()
            own = [
                with_mask_of(output, keras.ops.convert_to_tensor(array, dtype=output.dtype))
                for output, array in zip(keras.tree.flatten(y_pred), arrays, strict=True)
            ]
            y_pred = keras.tree.pack_sequence_as(y_pred, own)
            return loss_of_outputs(x, y, y_pred, sample_weight, training)

        judge.compute_loss = compute_loss


def inputs_by_name(model: keras.Model, program: Program, x: Any) -> dict[str, np.ndarray]:
    """The inputs of a batch of `fit`, as a model's program takes them.

    Raises:
        DataError: There are other inputs than the model's.
    """
    names = list(program.inputs)
    if isinstance(x, Mapping):
        by_key = not isinstance(model, keras.Sequential) and isinstance(model.input, Mapping)
        try:
            x = {key: x[key] for key in model.input} if by_key else [x[name] for name in names]
        except KeyError as error:
            raise DataError(f"data lacks the input {error}; expected {', '.join(names)}.") from error
    arrays = keras.tree.flatten(x)
    if len(arrays) != len(names):
        raise DataError(
            f"data has {len(arrays)} inputs in a batch; expected {len(names)}: {', '.join(names)}."
        )
    found = {}
    for (name, number), values in zip(program.inputs.items(), arrays, strict=True):
        options = program.nodes[number].options
        shape, dtype = options["shape"], options["dtype"]
        array = np.asarray(keras.ops.convert_to_numpy(values))
        # As Keras accepts them: ids in any dtype, a last axis of 1 left out.
        array = array.astype(dtype, copy=False)
        if isinstance(shape, tuple) and array.ndim == len(shape) - 1 and shape[-1] == 1:
            array = array[..., np.newaxis]
        found[name] = array
    return found
