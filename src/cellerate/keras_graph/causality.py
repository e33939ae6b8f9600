"""Tests whether a sequence model looks at later steps."""

from __future__ import annotations

import keras
import numpy as np

from cellerate.keras_graph.graph import forget_states, outputs_of

# Rounding errors are far below, the effect of a neighbouring step far above.
_SAME = 1e-5
_STEPS, _ROWS = 16, 4


def looks_ahead(model: keras.Model, vocabulary_size: int) -> bool:
    """Return True if an output of a model depends on an id of a later step.

    No list of layers would be complete, so the model is run: the ids of the second half of the steps change, and the
    outputs of the first half are compared. Meanwhile its trainable weights are moved a little, because a branch whose
    weights start at zero hides its inputs.

    Args:
        model: Maps ids (B, T) to (B, T, V). Only the states of its stateful layers change: they become zeros.
        vocabulary_size: The number of different ids.
    """
    rows, steps = model.inputs[0].shape
    rows, steps = rows or _ROWS, steps or _STEPS
    if steps < 2 or vocabulary_size < 2:
        return False
    random = np.random.default_rng(0)
    ids = random.integers(0, vocabulary_size, (rows, steps)).astype("int32")
    half = steps // 2
    changed = ids.copy()
    changed[:, half:] = (
        ids[:, half:] + random.integers(1, vocabulary_size, (rows, steps - half))
    ) % vocabulary_size
    before = [keras.ops.convert_to_numpy(variable) for variable in model.trainable_variables]
    try:
        for variable, values in zip(model.trainable_variables, before, strict=True):
            variable.assign(values + 0.1 * random.standard_normal(values.shape).astype(values.dtype))
        first, second = (_outputs(model, each)[:, :half] for each in (ids, changed))
    finally:
        forget_states(model)
        for variable, values in zip(model.trainable_variables, before, strict=True):
            variable.assign(values)
    return bool(np.abs(first - second).max() > _SAME * np.abs(first).max())


def _outputs(model: keras.Model, ids: np.ndarray) -> np.ndarray:
    forget_states(model)
    return outputs_of(model, [ids])[0]
