"""The nodes of a program for the operations of keras.ops.

The table in `keras_layers` assigns these functions to operations. Unlike layers, operations take tensors and
constants mixed. Some are in a graph only because Keras recorded there how it makes a mask.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
from keras import ops
from keras.src import tree

from cellerate.keras_graph.activations import operation_activation
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
    """x[key], where key picks one index or one range of a single axis."""
    key = call.arguments["key"]
    parts = list(key) if isinstance(key, tuple | list) else [key]
    if Ellipsis in parts:
        place = parts.index(Ellipsis)
        parts[place : place + 1] = [slice(None)] * (len(call.x.shape) - len(parts) + 1)
    changed = [axis for axis, part in enumerate(parts) if part != slice(None)]
    if not changed:
        check_changes(call)
        return call.x
    part = parts[changed[0]]
    if len(changed) > 1 or changed[0] == 0 or not isinstance(part, int | slice):
        raise Refused(f"takes [{key}], where programs take a number or a range of one axis behind the batch")
    if isinstance(part, int) and changed == [1]:
        return reshaped(call, call.add("crop", begin=part, end=part + 1 or None))
    if isinstance(part, int):
        return reshaped(call, call.add("take", indices=(part,), axis=changed[0]))
    if changed != [1] or part.step not in (None, 1):
        raise Refused("takes a range of another axis than the first behind the batch, or with a step")
    return call.add("crop", begin=part.start or 0, end=part.stop)


def flip(call: ProgramCall) -> ProgramValue:
    """The input with one axis reversed."""
    return call.add("flip", axis=inner_axis(call.layer.axis, len(call.x.shape)))


def cumsum(call: ProgramCall) -> ProgramValue:
    """A running sum."""
    return call.add("cumsum", axis=inner_axis(call.layer.axis, len(call.x.shape)))


def negative(call: ProgramCall) -> ProgramValue:
    """-x."""
    return affine(call, -1.0, 0.0)


def arithmetic(op: str, left: Callable[[Any], Any], right: Callable[[Any], Any] | None) -> ReadOne:
    """A reader of operations on two tensors, or on a tensor and constants.

    Args:
        op: The operation of programs for two tensors.
        left: Gives (scale, offset) from the constants if the tensor is on the left.
        right: The same if the tensor is on the right; None if programs cannot compute that.
    """

    def read(call: ProgramCall) -> ProgramValue:
        a, b = call.arguments["x1"], call.arguments["x2"]
        if isinstance(a, ProgramValue) and isinstance(b, ProgramValue):
            _check_ranks([a, b])
            return call.add(op, numbered([a, b]))
        x, constant, parts = (a, b, left) if isinstance(a, ProgramValue) else (b, a, right)
        if parts is None:
            raise Refused("divides by a tensor")
        values = np.asarray(ops.convert_to_numpy(constant), "float64")
        if values.size != 1 and values.size != values.shape[-1]:
            raise Refused(
                f"computes with a constant of the shape {values.shape}, where programs know one a feature"
            )
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
    """A reader of operations that choose between two tensors, number by number."""

    def read(call: ProgramCall) -> ProgramValue:
        both = [call.arguments["x1"], call.arguments["x2"]]
        if not all(isinstance(value, ProgramValue) for value in both):
            raise Refused("compares a tensor with a constant")
        _check_ranks(both)
        return call.add(op, numbered(both))

    return read


def _check_ranks(both: list[ProgramValue]) -> None:
    a, b = both
    # With fewer axes a tensor of operations gets them at the front, before the batch, and one of layers behind it.
    if len(a.shape) != len(b.shape):
        raise Refused(f"joins tensors of the shapes {a.shape} and {b.shape} as programs cannot")


def exponential(call: ProgramCall) -> ProgramValue:
    """The exponential of each number."""
    return call.add("activation", activation="exponential")


def square(call: ProgramCall) -> ProgramValue:
    """The square of each number."""
    return call.add("multiply", numbered([call.x, call.x]))


def reduce(op: str) -> ReadOne:
    """A reader of operations that make one number of those along one axis or several."""

    def read(call: ProgramCall) -> ProgramValue:
        rank, keepdims = len(call.x.shape), bool(call.layer.keepdims)
        if call.layer.axis is None:
            raise Refused("works along all axes, the batch included", "Give it an axis behind the batch.")
        if getattr(call.layer, "initial", None) is not None:
            raise Refused("has an initial value", "Leave it out.")
        found = call.x
        # From the last axis on, so that the others keep their numbers.
        for axis in sorted((inner_axis(axis, rank) for axis in tree.flatten(call.layer.axis)), reverse=True):
            found = call.add(op, {"x": found}, axis=axis, keepdims=keepdims)
        return found

    return read


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
    """The input in another shape, of as many rows."""
    if call.x.shape[:1] != call.shapes[0][:1]:
        raise Refused("makes another number of rows", "Leave the batch as it is.")
    check_changes(call)
    return reshaped(call)


def transpose(call: ProgramCall) -> ProgramValue:
    """The input with its axes in another order."""
    axes = tuple(axis % len(call.x.shape) for axis in call.layer.axes or ())
    if axes[:1] != (0,):
        raise Refused(f"orders the axes as {call.layer.axes}, where programs leave the batch in front")
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
    """The input itself: programs have only one float type."""
    if call.x.mask is not None or "float" not in str(call.layer.dtype):
        raise Refused("casts a tensor that has a mask, or to another type than a float", "Leave it out.")
    return call.x


def concatenate(call: ProgramCall) -> ProgramValue:
    """The inputs side by side."""
    values = call.arguments["xs"]
    return call.add("concatenate", numbered(values), axis=inner_axis(call.layer.axis, len(values[0].shape)))


def not_equal(call: ProgramCall) -> ProgramValue:
    """The masks that Keras makes: ids that are not 0, and steps where any feature differs from the mask value."""
    x, other = call.arguments["x1"], call.arguments["x2"]
    if (
        not isinstance(x, ProgramValue)
        or x.number is None
        or isinstance(other, ProgramValue)
        or np.ndim(other)
    ):
        return ProgramValue(None)
    value = float(ops.convert_to_numpy(other))
    if len(x.shape) == 3:
        # This node also does the any() over the features that follows in Keras's graph.
        return carried(call.nodes.mask("features_mask", call.path, {"x": x}, mask_value=value))
    return _nonzero(call, x) if value == 0.0 and call.nodes.is_input(x) else ProgramValue(None)


def as_booleans(call: ProgramCall) -> ProgramValue:
    """The mask that a cast to booleans makes of numbers; booleans stay as they are."""
    x = call.x
    if x.number is None or x.masks is not None:
        return dataclasses.replace(x, number=None)
    return _nonzero(call, x)


def _nonzero(call: ProgramCall, x: ProgramValue) -> ProgramValue:
    return carried(call.nodes.nonzero(call.path, x)) if len(x.shape) == 2 else ProgramValue(None)


def any_feature(call: ProgramCall) -> ProgramValue:
    """The mask of steps where any feature counts, which `not_equal` has already made."""
    return (
        call.x
        if len(call.x.shape) == 3 and list(call.layer.axis or []) in ([-1], [2])
        else ProgramValue(None)
    )


def joined_masks(call: ProgramCall) -> ProgramValue:
    """The OR of masks that are put side by side along the features; Keras's any() over all features follows."""
    return either(call.arguments["xs"]) if call.layer.axis in (-1, 2) else ProgramValue(None)


def all_count(call: ProgramCall) -> ProgramValue:
    """A mask that is True everywhere."""
    return ProgramValue(None, masks=frozenset([ALL_COUNT]))


def none_count(call: ProgramCall) -> ProgramValue:
    """A mask that is False everywhere."""
    return ProgramValue(None, masks=frozenset())


def same_mask(call: ProgramCall) -> ProgramValue:
    """The mask itself."""
    return call.x


def logical_or(call: ProgramCall) -> ProgramValue:
    """The OR of two masks."""
    both = call.arguments["x1"], call.arguments["x2"]
    return either(both) if all(isinstance(value, ProgramValue) for value in both) else ProgramValue(None)
