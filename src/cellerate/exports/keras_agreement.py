"""A packed model beside the Keras model that it was read from."""

from __future__ import annotations

import keras
import numpy as np

from cellerate.errors import ModelError
from cellerate.exports.trials import Arrays, TrialBatch, deviation, trials_of
from cellerate.keras_graph.graph import forget_states, functional_graph, outputs_of
from cellerate.program import Program
from cellerate.runtime.program import Engine

# Each backend of Keras sums in its own order. In 16 bits, each operation of Keras rounds, too.
_TOLERANCE, _TOLERANCE_16_BITS = 1e-4, 0.1
_ROWS, _STEPS = 5, 9


def check_against_keras(model: keras.Model, program: Program) -> None:
    """Run a model in Keras on a batch with masked steps, and compare with its program.

    Args:
        model: The model that the program was read from. It is not changed.
        program: Its program.

    Raises:
        ModelError: The results of the program differ from Keras's.
    """
    rows = model.inputs[0].shape[0] or _ROWS
    trials = trials_of(program, (rows,))
    # One length is enough: a program is the same for all, and Keras compiles anew for each.
    tried = [trial for trial in trials if trial.length in (None, _STEPS)] or trials[-1:]
    tried = [_with_numbers_of(model, trial, Engine(program)) for trial in tried]

    def in_keras(arrays: Arrays) -> Arrays:
        outputs = outputs_of(model, list(arrays.values()))
        forget_states(model)
        return dict(zip(program.outputs, outputs, strict=True))

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


def _with_numbers_of(model: keras.Model, trial: TrialBatch, engine: Engine) -> TrialBatch:
    """The trial, with each number replaced by the nearest one that the dtype of the model's input can hold."""
    graph = functional_graph(model)
    dtypes = [] if graph is None else [tensor.dtype for tensor in graph.inputs]
    if not any("int" in dtype or dtype == "bool" for dtype in dtypes):
        return trial
    inputs = {
        name: _held(array, dtype) for (name, array), dtype in zip(trial.inputs.items(), dtypes, strict=True)
    }
    return TrialBatch(trial.length, inputs, engine.run(inputs))


def _held(array: np.ndarray, dtype: str) -> np.ndarray:
    """The nearest numbers of a dtype; an unsigned dtype gets absolute values, and booleans become 0 and 1."""
    if dtype == "bool":
        return (array > 0).astype(array.dtype)
    if "int" not in dtype:
        return array
    whole = np.rint(array).astype(array.dtype)
    return np.abs(whole) if dtype.startswith("uint") else whole
