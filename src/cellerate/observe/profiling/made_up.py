"""Batches for a model without its data: random numbers of the right shapes."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from cellerate.errors import ModelError
from cellerate.observe.profiling.feeding import KeptBatches

STEPS = 100
"""Time steps for a model that takes any number."""
_FEWEST_IDS = 2


def made_up_batches(model: keras.Model, rows: int, steps: int | None, loss: Any) -> tuple[KeptBatches, Any]:
    """Return batches of random inputs and targets, and a loss for them.

    Args:
        model: A built model.
        rows: Rows of a batch, if the model leaves them open.
        steps: Time steps, if the model leaves them open; None for `STEPS`.
        loss: The model's own loss; None if it has none, for the mean squared error.

    Raises:
        ModelError: The model does not say what its inputs are, or leaves more sizes open.
    """
    if not getattr(model, "inputs", None):
        raise ModelError(
            f"the model {model.name!r} does not say what its inputs are, so none can be made up. Profile it from "
            "Python, with batches: cellerate.profile(model, x, y)."
        )
    random = np.random.default_rng(0)
    inputs = [_input(model, tensor, random, rows, steps or STEPS) for tensor in model.inputs]
    given = inputs[0] if len(inputs) == 1 else [*inputs]
    targets = keras.tree.map_structure(
        lambda made: _target(made, random, sparse=_is_sparse(loss)), model(given, training=False)
    )
    return KeptBatches([(given, targets)]), loss or "mean_squared_error"


def _input(model: keras.Model, tensor: Any, random: np.random.Generator, rows: int, steps: int) -> np.ndarray:
    """Random numbers, or ids that are valid in all tables of the model."""
    shape = [tensor.shape[0] or rows, *tensor.shape[1:]]
    if len(shape) > 1 and shape[1] is None:
        shape[1] = steps
    if None in shape:
        raise ModelError(
            f"the input {tensor.name!r} has the shape {tuple(tensor.shape)}, with more open sizes than rows and time "
            "steps, so it cannot be made up. Profile it from Python, with batches: cellerate.profile(model, x, y)."
        )
    tables = [
        layer.input_dim for layer in model._flatten_layers() if isinstance(layer, keras.layers.Embedding)
    ]
    if "int" in tensor.dtype or (tables and len(model.inputs) == 1):
        # An id of 0 may be masked.
        return random.integers(1, max(_FEWEST_IDS, min(tables, default=_FEWEST_IDS)), shape).astype(np.int32)
    if tensor.dtype == "string":
        raise ModelError(
            f"the input {tensor.name!r} takes texts, which cannot be made up. Profile it from Python, with batches: "
            "cellerate.profile(model, x, y)."
        )
    if tensor.dtype == "bool":
        return np.ones(shape, bool)
    return random.standard_normal(shape, np.float32)


def _is_sparse(loss: Any) -> bool:
    """True if a loss takes the numbers of classes."""
    named = (
        type(loss).__name__ if isinstance(loss, keras.losses.Loss) else getattr(loss, "__name__", str(loss))
    )
    return "sparse" in named.lower()


def _target(made: Any, random: np.random.Generator, *, sparse: bool) -> np.ndarray:
    shape = tuple(made.shape)
    if sparse:
        return random.integers(0, shape[-1], shape[:-1]).astype(np.int32)
    return random.random(shape, np.float32)
