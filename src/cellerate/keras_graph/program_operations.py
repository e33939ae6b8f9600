"""The nodes of a program for the operations of keras.ops.

The table in `keras_layers` assigns these functions to operations. Unlike layers, operations take tensors and
constants mixed. Some are in a graph only because Keras recorded there how it makes a mask.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops
from keras.src import tree

from cellerate.activations import written
from cellerate.keras_graph.activations import operation_activation
from cellerate.keras_graph.families.elementwise import check_ranks, quotient_of, truth
from cellerate.keras_graph.program_layers import (
    affine,
    check_changes,
    inner_axis,
    numbered,
    reshaped,
    softmax_along,
    summed_products,
)
from cellerate.keras_graph.program_nodes import (
    ALL_COUNT,
    NAMED,
    ProgramCall,
    ProgramValue,
    ReadOne,
    Refused,
    carried,
    either,
)

_PRODUCTS = "Use keras.layers.Dot or keras.ops.matmul."


def take(call: ProgramCall) -> ProgramValue:
    """Entries along an axis at constant indices."""
    x, indices = call.x, call.arguments["indices"]
    axis = inner_axis(call.layer.axis, len(x.shape))
    found = None if any(isinstance(i, ProgramValue) for i in tree.flatten(indices)) else np.asarray(indices)
    if found is None or found.ndim > 1 or found.dtype.kind not in "iu":
        raise Refused("takes by indices that are not a constant list of whole numbers")
    taken = call.add("take", {"x": x}, indices=tuple(found.ravel().tolist()), axis=axis)
    return taken if found.ndim else reshaped(call, taken)


def get_item(call: ProgramCall) -> ProgramValue:
    """x[key], where key selects indices and ranges of axes after the batch, and adds axes of size 1."""
    key = call.arguments["key"]
    parts = list(key) if isinstance(key, tuple | list) else [key]
    places = [place for place, part in enumerate(parts) if part is Ellipsis]
    if places:
        given = sum(part is not None for part in parts) - 1
        parts[places[0] : places[0] + 1] = [slice(None)] * (len(call.x.shape) - given)
    if all(isinstance(part, slice) and part == slice(None) for part in parts):
        check_changes(call)
        return call.x
    of_axes = [part for part in parts if part is not None]
    if parts[0] is None or not isinstance(of_axes[0], slice) or of_axes[0] != slice(None):
        raise Refused(f"takes [{key}], where programs take numbers and ranges of axes behind the batch")
    found = call.x
    for axis, part in enumerate(of_axes):
        if not isinstance(part, slice) or part != slice(None):
            found = _part(call, found, axis, part)
    return found if all(isinstance(part, slice) for part in parts) else reshaped(call, found)


def _part(call: ProgramCall, x: ProgramValue, axis: int, part: Any) -> ProgramValue:
    """The entries of x at an index or in a range of an axis; the axis stays."""
    size = call.x.shape[axis]
    ends = (part.start, part.stop, part.step) if isinstance(part, slice) else (part,)
    if not all(end is None or type(end) is int for end in ends):
        raise Refused(f"takes [{part}] of an axis, where programs take constant whole numbers")
    if not isinstance(part, slice):
        if axis == 1:
            return call.add("crop", {"x": x}, begin=part, end=part + 1 or None)
        return call.add("take", {"x": x}, indices=(part,), axis=axis)
    if axis == 1 and part.step in (None, 1):
        return call.add("crop", {"x": x}, begin=part.start or 0, end=part.stop)
    indices = tuple(range(*part.indices(_known(call, axis))))
    if not indices:
        raise Refused(f"takes no entry of an axis of {size}", "Take at least one.")
    return call.add("take", {"x": x}, indices=indices, axis=axis)


def roll(call: ProgramCall) -> ProgramValue:
    """The input with its entries moved along an axis, the last ones to the front."""
    axis, shift = call.layer.axis, call.layer.shift
    if not isinstance(axis, int) or not isinstance(shift, int):
        raise Refused(f"rolls the axes {axis} by {shift}, where programs roll one axis by one number")
    axis = inner_axis(axis, len(call.x.shape))
    size = _known(call, axis)
    return _picked(call, call.x, axis, [(place - shift) % size for place in range(size)])


def tile(call: ProgramCall) -> ProgramValue:
    """The input repeated side by side, along any axes after the batch."""
    repeats, rank = list(tree.flatten(call.layer.repeats)), len(call.x.shape)
    repeats = [1] * (rank - len(repeats)) + repeats
    if len(repeats) > rank or repeats[0] != 1 or min(repeats) < 1:
        raise Refused(
            f"tiles {rank} axes {call.layer.repeats} times, where programs tile axes behind the batch"
        )
    found = call.x
    for axis, count in enumerate(repeats):
        if count > 1:
            found = _picked(call, found, axis, [*range(_known(call, axis))] * count)
    check_changes(call)
    return found


def repeat(call: ProgramCall) -> ProgramValue:
    """The input with each entry of an axis repeated."""
    count = call.layer.repeats
    if not isinstance(count, int) or count < 1:
        raise Refused(f"repeats entries {count} times, where programs repeat each as often, at least once")
    axis = inner_axis(call.layer.axis, len(call.x.shape))
    return _picked(call, call.x, axis, [place for place in range(_known(call, axis)) for _ in range(count)])


def _known(call: ProgramCall, axis: int) -> int:
    size = call.x.shape[axis]
    if size is None:
        raise Refused("takes a range of an axis of unknown size", "Give the model's Input its size.")
    return size


def _picked(call: ProgramCall, x: ProgramValue, axis: int, indices: list[int]) -> ProgramValue:
    return call.add("take", {"x": x}, indices=tuple(indices), axis=axis)


def split(call: ProgramCall) -> list[ProgramValue]:
    """The parts of an axis, one after the other."""
    axis = inner_axis(call.layer.axis, len(call.x.shape))
    sizes = [size for shape in call.shapes if (size := shape[axis]) is not None]
    if len(sizes) < len(call.shapes):
        raise Refused("splits an axis of unknown size", "Give the model's Input its size.")
    ends = list(itertools.accumulate(sizes))
    return [_part(call, call.x, axis, slice(end - size, end)) for size, end in zip(sizes, ends, strict=True)]


def stack(call: ProgramCall) -> ProgramValue:
    """The inputs side by side along a new axis."""
    values = call.arguments["x"]
    axis = inner_axis(call.layer.axis, len(values[0].shape) + 1)
    shape = [-1 if size is None else size for size in values[0].shape[1:]]
    if shape.count(-1) > 1:
        raise Refused("stacks tensors of which more than one size is not known")
    shape.insert(axis - 1, 1)
    expanded = [call.add("reshape", {"x": value}, shape=tuple(shape)) for value in values]
    return call.add("concatenate", numbered(expanded), axis=axis)


def along_axis(op: str) -> ReadOne:
    """A reader of operations along one axis that keep the shape."""
    return lambda call: call.add(op, axis=inner_axis(call.layer.axis, len(call.x.shape)))


def negative(call: ProgramCall) -> ProgramValue:
    """-x."""
    return affine(call, -1.0, 0.0)


def arithmetic(op: str, left: Callable[[Any], Any], right: Callable[[Any], Any] | None) -> ReadOne:
    """A reader of operations on two tensors, or on a tensor and constants.

    Args:
        op: The operation of programs for two tensors.
        left: Gives (scale, offset) from the constants if the tensor is on the left.
        right: The same if the tensor is on the right; None for a division, whose divisor is then the tensor.
    """

    def read(call: ProgramCall) -> ProgramValue:
        a, b = call.arguments["x1"], call.arguments["x2"]
        if isinstance(a, ProgramValue) and isinstance(b, ProgramValue):
            check_ranks([a, b])
            return call.add(op, numbered([a, b]))
        x, constant, parts = (a, b, left) if isinstance(a, ProgramValue) else (b, a, right)
        values = np.asarray(ops.convert_to_numpy(constant), "float64")
        if values.size != 1 and values.size != values.shape[-1]:
            raise Refused(
                f"computes with a constant of the shape {values.shape}, where programs know one a feature"
            )
        if parts is None:
            return quotient_of(call, values, x)
        scale, offset = parts(values)
        return affine(call, scale, offset, x)

    return read


def activation(call: ProgramCall) -> ProgramValue:
    """An operation that is an activation."""
    found = operation_activation(call.layer)
    if found is None:
        raise Refused("has parameters that programs do not know", NAMED)
    return call.add("activation", activation=found)


def extreme(op: str) -> ReadOne:
    """A reader of the elementwise maximum or minimum of two tensors, or of a tensor and a number."""
    limited = at_least if op == "maximum" else _at_most

    def read(call: ProgramCall) -> ProgramValue:
        both = [call.arguments["x1"], call.arguments["x2"]]
        if all(isinstance(value, ProgramValue) for value in both):
            check_ranks(both)
            return call.add(op, numbered(both))
        x, limit = both if isinstance(both[0], ProgramValue) else reversed(both)
        return limited(call, x, limit)

    return read


def clip(call: ProgramCall) -> ProgramValue:
    """The input limited to a range; the upper limit if the limits cross."""
    return _at_most(call, at_least(call, call.x, call.layer.x_min), call.layer.x_max)


def at_least(call: ProgramCall, x: ProgramValue, limit: Any) -> ProgramValue:
    """The larger of x and a number, elementwise."""
    number = _single(limit)
    raised = written("threshold", {"threshold": number, "default_value": number})
    # The threshold alone would replace a NaN by the number; the maximum with x keeps the NaN.
    return call.add("maximum", numbered([call.add("activation", {"x": x}, activation=raised), x]))


def _at_most(call: ProgramCall, x: ProgramValue, limit: Any) -> ProgramValue:
    def negated(value: ProgramValue) -> ProgramValue:
        return affine(call, -1.0, 0.0, dataclasses.replace(value, shape=call.shapes[0]))

    return negated(at_least(call, negated(x), -_single(limit)))


def _single(limit: Any) -> float:
    """A constant that is one finite number."""
    unknown = limit is None or isinstance(limit, ProgramValue | keras.KerasTensor)
    values = None if unknown else np.asarray(ops.convert_to_numpy(limit), "float64")
    if values is None or values.size != 1 or not np.isfinite(values).all():
        raise Refused("compares a tensor with something else than a tensor or one finite number")
    return float(values.ravel()[0])


def einsum(call: ProgramCall) -> ProgramValue:
    """The products of two tensors, row by row, summed over an axis of each."""
    equation, both = call.layer.subscripts.replace(" ", ""), call.arguments["operands"]
    found = re.fullmatch(r"([a-zA-Z]+),([a-zA-Z]+)->([a-zA-Z]+)", equation)
    if found is None or not all(isinstance(value, ProgramValue) for value in both):
        raise Refused(f"computes {equation!r}, which is not a product of two tensors", _PRODUCTS)
    left, right, result = found.groups()
    kept = [letter for letter in left[1:] + right[1:] if letter not in left[1:] or letter not in right[1:]]
    summed = set(left[1:]) & set(right[1:])
    repeated = any(len(set(letters)) < len(letters) for letters in (left, right))
    same_rows = left[0] == right[0] == result[0]
    if repeated or not same_rows or len(summed) != 1 or sorted(kept) != sorted(result[1:]):
        raise Refused(f"computes {equation!r}, which does not sum over one axis of each row", _PRODUCTS)
    axes = [letters.index(*summed) for letters in (left, right)]
    if kept != list(result[1:]):
        both, axes = both[::-1], axes[::-1]
    products = summed_products(call, both, axes)
    return products if kept else reshaped(call, products)


def reduce(op: str) -> ReadOne:
    """A reader of operations that reduce one axis or several."""

    def read(call: ProgramCall) -> ProgramValue:
        rank, keepdims = len(call.x.shape), bool(call.layer.keepdims)
        if call.layer.axis is None:
            raise Refused("works along all axes, the batch included", "Give it an axis behind the batch.")
        if getattr(call.layer, "initial", None) is not None:
            raise Refused("has an initial value", "Leave it out.")
        found = call.x
        # The last axis first, so that the other axes keep their numbers.
        for axis in sorted((inner_axis(axis, rank) for axis in tree.flatten(call.layer.axis)), reverse=True):
            found = call.add(op, {"x": found}, axis=axis, keepdims=keepdims)
        return found

    return read


def extreme_of_booleans(op: str) -> ReadOne:
    """A reader of `any` and `all`, which are the largest and the smallest of the booleans along axes."""
    read = reduce(op)

    def of_truth(call: ProgramCall) -> ProgramValue:
        x = dataclasses.replace(truth(call, call.x), mask=None)
        return read(dataclasses.replace(call, arguments={"x": x}))

    return of_truth


def softmax(call: ProgramCall) -> ProgramValue:
    """A softmax along an axis."""
    return softmax_along(call, call.layer.axis)


def matmul(call: ProgramCall) -> ProgramValue:
    """The products of matrices, one pair for each row of the batch."""
    both = [call.arguments["x1"], call.arguments["x2"]]
    if not all(isinstance(value, ProgramValue) and len(value.shape) == 3 for value in both):
        raise Refused("multiplies something else than two tensors (B, M, K) and (B, K, N)")
    return summed_products(call, both, (2, 1))


def reshape(call: ProgramCall) -> ProgramValue:
    """The input in another shape with the same number of rows."""
    if call.x.shape[:1] != call.shapes[0][:1]:
        raise Refused("makes another number of rows", "Leave the batch as it is.")
    check_changes(call)
    return reshaped(call)


def transpose(call: ProgramCall) -> ProgramValue:
    """The input with its axes in another order."""
    return _permuted(call, call.layer.axes or ())


def swapaxes(call: ProgramCall) -> ProgramValue:
    """The input with two axes swapped."""
    rank = len(call.x.shape)
    axes = list(range(rank))
    first, second = call.layer.axis1 % rank, call.layer.axis2 % rank
    axes[first], axes[second] = second, first
    return _permuted(call, axes)


def moveaxis(call: ProgramCall) -> ProgramValue:
    """The input with some axes moved, and the others in their order."""
    rank = len(call.x.shape)
    source, destination = (
        [axis % rank for axis in tree.flatten(given)] for given in (call.layer.source, call.layer.destination)
    )
    axes = [axis for axis in range(rank) if axis not in source]
    for place, axis in sorted(zip(destination, source, strict=True)):
        axes.insert(place, axis)
    return _permuted(call, axes)


def _permuted(call: ProgramCall, given: Sequence[int]) -> ProgramValue:
    axes = tuple(axis % len(call.x.shape) for axis in given)
    if axes[:1] != (0,):
        raise Refused(f"orders the axes as {tuple(given)}, where programs leave the batch in front")
    return call.add("permute", axes=axes[1:])


def expand_dims(call: ProgramCall) -> ProgramValue:
    """The input with a new axis of size 1."""
    inner_axis(call.layer.axis, len(call.x.shape) + 1)
    return reshaped(call)


def squeeze(call: ProgramCall) -> ProgramValue:
    """The input without an axis of size 1."""
    inner_axis(call.layer.axis, len(call.x.shape))
    return reshaped(call)


def cast(call: ProgramCall) -> ProgramValue:
    """The input itself: programs have only one float type, and booleans are numbers in it."""
    if call.x.mask is not None or "float" not in str(call.layer.dtype):
        raise Refused("casts a tensor that has a mask, or to another type than a float", "Leave it out.")
    return dataclasses.replace(call.x, boolean=False)


def not_equal(call: ProgramCall) -> ProgramValue:
    """The masks that Keras makes: ids that are not 0, and steps where any feature differs from the mask value."""
    x, other = call.arguments["x1"], call.arguments["x2"]
    if not isinstance(x, ProgramValue) or isinstance(other, ProgramValue) or np.ndim(other):
        return ProgramValue(None)
    if x.number is None or x.boolean:
        return ProgramValue(None)
    value = float(ops.convert_to_numpy(other))
    if len(x.shape) == 3:
        # This node also does the any() over the features that follows in Keras's graph.
        return carried(call.nodes.mask("features_mask", call.path, {"x": x}, mask_value=value))
    return _nonzero(call, x) if value == 0.0 and call.nodes.is_input(x) else ProgramValue(None)


def as_booleans(call: ProgramCall) -> ProgramValue:
    """The mask that a cast to booleans makes of numbers; booleans stay as they are."""
    x = call.x
    return x if x.number is None or x.boolean else _nonzero(call, x)


def _nonzero(call: ProgramCall, x: ProgramValue) -> ProgramValue:
    return carried(call.nodes.nonzero(call.path, x)) if len(x.shape) == 2 else ProgramValue(None)


def any_feature(call: ProgramCall) -> ProgramValue:
    """The mask of steps where any feature counts, which `not_equal` has already made."""
    if len(call.x.shape) == 3 and list(call.layer.axis or []) in ([-1], [2]):
        return call.x
    return ProgramValue(None)


def joined_masks(call: ProgramCall) -> ProgramValue:
    """The OR of masks that are put side by side along the features; Keras's any() over all features follows."""
    return either(call.arguments["xs"]) if call.layer.axis in (-1, 2) else ProgramValue(None)


def constant_mask(*, counts: bool) -> ReadOne:
    """A reader of operations that give a mask that is True everywhere, or nowhere."""
    return lambda call: ProgramValue(None, masks=frozenset([ALL_COUNT] if counts else []))


def same_mask(call: ProgramCall) -> ProgramValue:
    """The mask itself."""
    return call.x


def logical_or(call: ProgramCall) -> ProgramValue:
    """The OR of two masks."""
    both = call.arguments["x1"], call.arguments["x2"]
    return either(both) if all(isinstance(value, ProgramValue) for value in both) else ProgramValue(None)
