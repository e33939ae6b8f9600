"""A batch of `fit` as the core takes it: inputs, targets and weights in dense arrays of the right shapes."""

import math
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
from keras.src import tree

from cellerate.kernels.training import cpu
from cellerate.layers.engine.losses import Objective


class Misfit(Exception):  # noqa: N818  (it is always caught)
    """Why a batch goes Keras's own way."""


def for_each_output(values: Any, model: keras.Model, count: int) -> list[Any]:
    """A batch's targets, one for each output."""
    if isinstance(values, Mapping) and not isinstance(model._outputs_struct, Mapping):
        names = list(model.output_names)
        if set(values) != set(names):
            raise Misfit("its targets have other names than the outputs")
        values = [values[name] for name in names]
    flat = list(tree.flatten(values))
    if len(flat) != count or any(one is None for one in flat):
        raise Misfit(f"it has {len(flat)} targets for {count} outputs, or none")
    return flat


def weights_for_each(sample_weight: Any, model: keras.Model, count: int) -> list[Any]:
    """The weights of a batch for each output; None for none."""
    if sample_weight is None:
        return [None] * count
    if isinstance(sample_weight, Mapping) and not isinstance(model._outputs_struct, Mapping):
        sample_weight = [sample_weight.get(name) for name in model.output_names]
    flat = list(tree.flatten(sample_weight))
    if len(flat) == 1:
        return flat * count
    if len(flat) != count:
        raise Misfit("it has several sample weights")
    return flat


def compared_with(
    objective: Objective, values: Any, weights: Any, output: tuple[int, ...], by_logits: bool
) -> cpu.Compared:
    """The targets and weights that a loss compares an output (B, ...) with, or the logits behind it."""
    rows, targets, rule = output[0], _array(values), objective.rule
    wanted = output[:-1] if rule.takes_ids or rule.levels else output
    if rule.levels:
        if output[-1] != len(rule.levels):
            raise Misfit("its output has another number of quantiles than the loss")
        fits = targets.shape == wanted or (len(rule.levels) == 1 and targets.shape == output)
        positions = math.prod(output[1:-2])
    else:
        alike = targets.shape in (wanted, (*wanted, 1))
        fits = alike or (not rule.takes_ids and (*targets.shape, 1) == wanted)
        positions = math.prod(output[1:-1])
    if not fits:
        raise Misfit(f"its targets are {targets.shape}")
    if by_logits and 2 < len(output) == targets.ndim + 1 and output[-1] == 1:
        # Keras reshapes the output, which forgets its logits.
        raise Misfit(f"its targets are {targets.shape}, without the last axis of the output")
    if objective.by_weight and weights is not None and math.prod(weights.shape) != rows * positions:
        raise Misfit("its weights, which divide the loss, are of rows and not of positions")
    if rule.takes_ids and targets.dtype.kind == "f" and (targets != np.trunc(targets)).any():
        # Keras cuts them off for the loss, but not for its accuracy.
        raise Misfit("its targets are not whole numbers")
    if rule.takes_signs and np.isin(targets, (0, 1)).all():
        targets = 2.0 * targets - 1.0
    return cpu.Compared(
        positions,
        math.prod(output[1:]) // positions,
        _of_type(targets.reshape(wanted), "int32" if rule.takes_ids else "float32"),
        _weights(weights, rows, positions),
    )


def _array(values: Any) -> np.ndarray:
    """An array of a batch, of whatever framework, without a copy where that is possible."""
    if isinstance(values, np.ndarray):
        return values
    detach = getattr(values, "detach", None)
    return np.asarray(values if detach is None else detach())


def input_array(values: Any, shape: Any, dtype: str) -> np.ndarray:
    """An input as the core takes it.

    Args:
        values: (B, ...).
        shape: What the model expects, -1 for any size.
        dtype: That of the node.
    """
    array = _array(values)
    # As Keras: a last axis of one may be left out, or be too many.
    if array.ndim == len(shape) - 1 and shape[-1] == 1:
        array = array[..., None]
    elif array.ndim == len(shape) + 1 and array.shape[-1] == 1:
        array = array[..., 0]
    if array.ndim != len(shape) or 0 in array.shape:
        raise Misfit(f"an input is {array.shape}")
    if any(size not in (-1, found) for size, found in zip(shape[1:], array.shape[1:], strict=True)):
        raise Misfit(f"an input is {array.shape}")
    return _of_type(array, dtype)


def _of_type(array: np.ndarray, dtype: str) -> np.ndarray:
    """A dense array of a type; ids that are too large for it are not taken for others."""
    if dtype == "int32" and array.dtype.itemsize > 4 and array.size:
        largest = np.iinfo(np.int32)
        if not largest.min <= float(array.min()) <= float(array.max()) <= largest.max:
            raise Misfit("an id is larger than any table")
    return np.ascontiguousarray(array, dtype)


def _weights(sample_weight: Any, rows: int, positions: int) -> np.ndarray | None:
    """(B, positions) float32."""
    if sample_weight is None:
        return None
    weights = _array(sample_weight)
    each = weights.size == rows * positions and weights.shape[:1] == (rows,)
    if not each and weights.shape not in ((rows, 1), (rows,)):
        raise Misfit(f"its sample weights are {weights.shape}")
    return np.ascontiguousarray(np.broadcast_to(weights.reshape(rows, -1), (rows, positions)), np.float32)
