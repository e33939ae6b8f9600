"""A packed model beside the Keras model that it was read from."""

from typing import Any

import keras

from cellerate.errors import ModelError
from cellerate.exports.trials import Arrays, deviation, trials_of
from cellerate.keras_graph.graph import forget_states, functional_graph
from cellerate.program import Program

# Keras's backends sum and round in orders of their own. In 16 bits each of its operations rounds, too.
_TOLERANCE, _TOLERANCE_16_BITS = 1e-4, 0.1
_ROWS, _STEPS = 5, 9


def check_against_keras(model: keras.Model, program: Program) -> None:
    """Run a model in Keras on a batch with masked steps, and compare with its program.

    Args:
        model: The model that the program was read from. It is not changed.
        program: Its program.

    Raises:
        ModelError: The program gives other numbers than Keras.
    """
    graph: Any = functional_graph(model)  # it has one, as a program was read from it
    rows = graph.inputs[0].shape[0] or _ROWS
    trials = trials_of(program, (rows,))
    # One length is enough: a program is the same for all, and Keras compiles anew for each.
    tried = [trial for trial in trials if trial.length in (None, _STEPS)] or trials[-1:]

    def in_keras(arrays: Arrays) -> Arrays:
        given = [
            keras.ops.convert_to_tensor(
                array.astype("bool") if tensor.dtype == "bool" else array, tensor.dtype
            )
            for array, tensor in zip(arrays.values(), graph.inputs, strict=True)
        ]
        outputs = keras.tree.flatten(
            model(keras.tree.pack_sequence_as(graph._inputs_struct, given), training=False)
        )
        forget_states(model)
        # NumPy does not have bfloat16.
        results = [keras.ops.convert_to_numpy(keras.ops.cast(output, "float32")) for output in outputs]
        return dict(zip(program.outputs, results, strict=True))

    found = deviation(tried, in_keras)
    narrow = any(layer.compute_dtype in ("bfloat16", "float16") for layer in model._flatten_layers())
    tolerance = _TOLERANCE_16_BITS if narrow else _TOLERANCE
    # Written with `not` because every comparison with NaN is False.
    if not found.error <= tolerance:
        raise ModelError(
            f"packed, model {model.name!r} gives other numbers than in Keras: its error is {found.error:.2g}, and at "
            f"most {tolerance:.2g} is right ({found.shapes}). Nothing was written; please report it, with the model, "
            "and use Keras's own model.export meanwhile."
        )
