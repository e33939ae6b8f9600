"""Turns a batch of `fit` into the core's form: dense arrays of inputs, targets and weights, in the right shapes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
from keras.src import tree

from cellerate.keras_graph.graph import functional_graph
from cellerate.kernels.training import cpu
from cellerate.layers.engine.losses import Objective


class Misfit(Exception):  # noqa: N818  (it is always caught)
    """The reason why Keras must take a batch."""


def for_each_input(values: Any, structure: Any, names: Sequence[str]) -> list[Any]:
    """The inputs of a batch, in the order of the model's.

    Args:
        values: A tensor, or a structure of tensors.
        structure: The structure of the model's inputs.
        names: Their names.
    """
    if isinstance(values, np.ndarray):
        return [values]
    if not isinstance(values, Mapping):
        if isinstance(structure, Mapping) and list(structure) != sorted(structure):
            # Keras refuses them, for it orders inputs by their keys, and a caller by their definition.
            raise Misfit(f"expected inputs named {sorted(names)}, got a {type(values).__name__}")
        return list(tree.flatten(values))
    if not isinstance(structure, Mapping):
        # Like Keras, ignore other values.
        fits = values.keys() >= set(names)
    elif any(map(tree.is_nested, structure.values())):
        if _paths(values) == _paths(structure):
            return list(tree.flatten(values))
        fits = False
    else:
        fits = values.keys() == set(names)
    if not fits:
        raise Misfit(f"expected inputs named {sorted(names)}, got {sorted(values)}")
    return [values[name] for name in names]


def _paths(structure: Any) -> list[Any]:
    return [path for path, _ in tree.flatten_with_path(structure)]


class Outputs:
    """The outputs of a model, whose structure the targets and sample weights of a batch may have.

    Attributes:
        names: Their names; empty if Keras knows none.
        paths: The path to each output.
        named: Whether they are a dictionary.
        nested: Whether they are in a structure, even if it has only one.

    Args:
        model: The model.
    """

    def __init__(self, model: keras.Model) -> None:
        graph: Any = functional_graph(model)
        structure = graph._outputs_struct
        self.names: list[str] = list(getattr(model, "output_names", None) or [])
        self.paths = _paths(structure)
        self.named = isinstance(structure, Mapping)
        self.nested = tree.is_nested(structure)


def for_each_output(values: Any, outputs: Outputs) -> list[Any]:
    """The targets of a batch, one for each output."""
    if isinstance(values, np.ndarray) and len(outputs.paths) == 1:
        return [values]
    if isinstance(values, Mapping) and not outputs.named:
        if set(values) != set(outputs.names):
            raise Misfit(f"expected targets named {sorted(outputs.names)}, got {sorted(values)}")
        values = [values[name] for name in outputs.names]
    pairs = tree.flatten_with_path(values) if tree.is_nested(values) else [((), values)]
    flat = [value for _, value in pairs]
    is_list = not isinstance(values, Mapping) and all(len(path) < 2 for path, _ in pairs)
    if not is_list and [path for path, _ in pairs] != outputs.paths:
        # Keras refuses them, or finds another order for them.
        raise Misfit("the targets have another structure than the outputs")
    count = len(outputs.paths)
    if len(flat) != count or any(one is None for one in flat):
        raise Misfit(f"expected targets for {count} outputs, got {sum(one is not None for one in flat)}")
    return flat


def weights_for_each(sample_weight: Any, outputs: Outputs) -> list[Any]:
    """The sample weights of a batch for each output; None for an output without weights."""
    count = len(outputs.paths)
    if sample_weight is None or not tree.is_nested(sample_weight):
        return [sample_weight] * count
    flat = tree.flatten(sample_weight)
    # Keras accepts a list of one for a model's only output.
    expected = outputs.paths if outputs.nested else [(0,)]
    if _paths(sample_weight) != expected or all(one is None for one in flat):
        raise Misfit("the sample weights have another structure than the outputs")
    return list(flat)


def compared_with(
    objective: Objective, values: Any, weights: Any, output: tuple[int, ...], by_logits: bool
) -> cpu.Compared:
    """The targets and weights for a loss of an output (B, ...), or of the logits behind it."""
    rows, targets, rule = output[0], _array(values), objective.rule
    expected = output[:-1] if rule.takes_ids or rule.levels else output
    if rule.levels:
        if output[-1] != len(rule.levels):
            raise Misfit(f"the output has {output[-1]} quantiles, the loss {len(rule.levels)}")
        fits = targets.shape == expected or (len(rule.levels) == 1 and targets.shape == output)
        steps = output[1:-2]
    else:
        same = targets.shape in (expected, (*expected, 1))
        fits = same or (not rule.takes_ids and (*targets.shape, 1) == expected)
        steps = output[1:-1]
    positions = math.prod(steps)
    if not fits:
        raise Misfit(f"the targets have the shape {targets.shape}")
    if by_logits and 2 < len(output) == targets.ndim + 1 and output[-1] == 1:
        # Keras reshapes such an output, and the result does not remember its logits.
        raise Misfit(f"the targets have the shape {targets.shape}, without the last axis of the output")
    if objective.by_weight and weights is not None and math.prod(weights.shape) != rows * positions:
        raise Misfit("the loss is divided by the sample weights, which are per row and not per position")
    if rule.takes_ids and targets.dtype.kind == "f" and (targets != np.trunc(targets)).any():
        # Keras truncates them for the loss, but not for the accuracy.
        raise Misfit("the targets are not whole numbers")
    if rule.takes_signs and np.isin(targets, (0, 1)).all():
        targets = 2.0 * targets - 1.0
    return cpu.Compared(
        positions,
        math.prod(output[1:]) // positions,
        _of_type(targets.reshape(expected), "int32" if rule.takes_ids else "float32"),
        _weights(weights, rows, positions, of_steps=bool(steps)),
    )


def _array(values: Any) -> np.ndarray:
    """A dense tensor of any framework as a NumPy array, without a copy where possible."""
    if isinstance(values, np.ndarray):
        return values
    detach = getattr(values, "detach", None)
    tensor = values if detach is None else detach()
    try:
        found = np.asarray(tensor)
    except TypeError as error:
        if str(getattr(tensor, "dtype", "")) != "torch.bfloat16":
            raise Misfit(str(error)) from error
        # NumPy has no such dtype.
        found = np.asarray(tensor.float())
    if found.dtype == object:
        raise Misfit(f"a tensor is a {type(values).__name__}, which is not dense")
    return found


def input_array(values: Any, declared: str, shape: Any, dtype: str) -> np.ndarray:
    """An input in the core's form.

    Args:
        values: (B, ...).
        declared: The dtype of the model's input.
        shape: The shape that the model expects, with -1 for any size.
        dtype: The dtype of the input's node.
    """
    array = _array(values)
    if array.shape[1:] == shape[1:] and array.dtype == dtype == declared and len(array):
        return np.ascontiguousarray(array)
    if not _keeps_values(array.dtype, declared):
        array = keras.ops.convert_to_numpy(keras.ops.cast(values, declared))
    # Like Keras, accept an input that lacks a last axis of size 1, or has one too many.
    if array.ndim == len(shape) - 1 and shape[-1] == 1:
        array = array[..., None]
    elif array.ndim == len(shape) + 1 and array.shape[-1] == 1:
        array = array[..., 0]
    if array.ndim != len(shape) or 0 in array.shape:
        raise Misfit(f"an input has the shape {array.shape}")
    if any(size not in (-1, found) for size, found in zip(shape[1:], array.shape[1:], strict=True)):
        raise Misfit(f"an input has the shape {array.shape}")
    return _of_type(array, dtype)


def _keeps_values(found: np.dtype, declared: str) -> bool:
    """False if Keras, which first converts a batch to the dtype of the model's input, changes its values."""
    if declared in ("float32", "float64"):
        # The core computes in float32 at most.
        return True
    # NumPy's ids are int64; a conversion would cost each step time, and ids too large for int32 fit into no table.
    return np.can_cast(found, declared) or (found.kind in "iu" and declared in ("int32", "int64"))


def _of_type(array: np.ndarray, dtype: str) -> np.ndarray:
    """A contiguous array of a dtype; ids too large for the dtype raise `Misfit`, for they would wrap around."""
    if dtype == "int32" and array.dtype.itemsize > 4 and array.size:
        largest = np.iinfo(np.int32)
        if not largest.min <= float(array.min()) <= float(array.max()) <= largest.max:
            raise Misfit("an id is larger than any table")
    return np.ascontiguousarray(array, dtype)


def _weights(sample_weight: Any, rows: int, positions: int, *, of_steps: bool) -> np.ndarray | None:
    """The sample weights (B, positions), float32; None without any.

    Of an output with steps, Keras takes (B,) weights for those of steps, if there are as many, or raises an error.
    """
    if sample_weight is None:
        return None
    weights = _array(sample_weight)
    per_position = weights.size == rows * positions and weights.shape[:1] == (rows,)
    if (of_steps and weights.ndim == 1) or not (per_position or weights.shape == (rows, 1)):
        raise Misfit(f"the sample weights have the shape {weights.shape}")
    return np.ascontiguousarray(np.broadcast_to(weights.reshape(rows, -1), (rows, positions)), np.float32)
