"""What the operations of keras.ops compute, as nodes of a program, and what Keras's masks are made with.

A module of its own because operations, unlike layers, take tensors and constants mixed, and some of them are in a
graph only because Keras wrote there how a mask is made.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from keras import ops
from keras.src import tree

from cellerate.layers.reading_layers import affine, inner_axis, numbered, reshaped
from cellerate.layers.reading_nodes import ALL_COUNT, Call, Refused, Value, carried, either

Operation = Callable[[Call], Value]


def read_operation(call: Call) -> Value:
    """The output of an operation of Keras's.

    Raises:
        Refused: Programs do not know it, or not as it is called.
    """
    kind = type(call.layer)
    name = kind.__name__ if kind.__module__.startswith("keras.src.ops.") else ""
    if call.boolean:
        # Whether it can be used as a mask is asked where it is; often it is not.
        return _MASKS[name](call) if name in _MASKS else Value(None)
    if name not in OPERATIONS:
        raise Refused("is none of the operations that programs know")
    return OPERATIONS[name](call)


def _take(call: Call) -> Value:
    x, indices = call.x, call.arguments["indices"]
    axis = inner_axis(call.layer.axis, len(x.shape))
    found = None if any(isinstance(i, Value) for i in tree.flatten(indices)) else np.asarray(indices)
    if found is None or found.ndim > 1 or found.dtype.kind not in "iu":
        raise Refused("takes by indices that are not a constant list of whole numbers")
    taken = call.add("take", {"x": x}, indices=tuple(found.ravel().tolist()), axis=axis)
    return taken if found.ndim else reshaped(call, taken)


def _get_item(call: Call) -> Value:
    key = call.arguments["key"]
    parts = list(key) if isinstance(key, tuple | list) else [key]
    if Ellipsis in parts:
        place = parts.index(Ellipsis)
        parts[place : place + 1] = [slice(None)] * (len(call.x.shape) - len(parts) + 1)
    changed = [axis for axis, part in enumerate(parts) if part != slice(None)]
    if not changed:
        return call.x
    part = parts[changed[0]]
    if len(changed) > 1 or changed[0] == 0 or not isinstance(part, int | slice):
        raise Refused(f"takes [{key}], where programs take a number or a range of one axis behind the batch")
    if isinstance(part, int):
        return reshaped(call, call.add("take", indices=(part,), axis=changed[0]))
    if changed != [1] or part.step not in (None, 1):
        raise Refused("takes a range of another axis than the first behind the batch, or with a step")
    return call.add("crop", begin=part.start or 0, end=part.stop)


def _flip(call: Call) -> Value:
    return call.add("flip", axis=inner_axis(call.layer.axis, len(call.x.shape)))


def _cumsum(call: Call) -> Value:
    return call.add("cumsum", axis=inner_axis(call.layer.axis, len(call.x.shape)))


def _negative(call: Call) -> Value:
    return affine(call, -1.0, 0.0)


def _arithmetic(op: str | None, left: Callable[[Any], Any], right: Callable[[Any], Any] | None) -> Operation:
    """An operation of two tensors, or of one and constants, then (scale, offset) for those on its right or left."""

    def read(call: Call) -> Value:
        a, b = call.arguments["x1"], call.arguments["x2"]
        if isinstance(a, Value) and isinstance(b, Value):
            if op is None or len(a.shape) != len(b.shape):
                raise Refused(f"joins tensors of the shapes {a.shape} and {b.shape} as programs cannot")
            return call.add(op, numbered([a, b]))
        x, constant, parts = (a, b, left) if isinstance(a, Value) else (b, a, right)
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


def _named(activation: str) -> Operation:
    return lambda call: call.add("activation", activation=activation)


def _expand_dims(call: Call) -> Value:
    inner_axis(call.layer.axis, len(call.x.shape) + 1)
    return reshaped(call)


def _squeeze(call: Call) -> Value:
    inner_axis(call.layer.axis, len(call.x.shape))
    return reshaped(call)


def _cast(call: Call) -> Value:
    if call.x.mask is not None or "float" not in str(call.layer.dtype):
        raise Refused("casts a tensor that has a mask, or to another type than a float", "Leave it out.")
    return call.x


def _concatenate(call: Call) -> Value:
    values = call.arguments["xs"]
    return call.add("concatenate", numbered(values), axis=inner_axis(call.layer.axis, len(values[0].shape)))


def _not_equal(call: Call) -> Value:
    """The masks that Keras makes: of ids that are not 0, and of features of which any is not a value."""
    x, other = call.arguments["x1"], call.arguments["x2"]
    if not isinstance(x, Value) or x.number is None or isinstance(other, Value) or np.ndim(other):
        return Value(None)
    value = float(ops.convert_to_numpy(other))
    if len(x.shape) == 3:
        # Keras's any() over the features, which follows, is part of this.
        return carried(call.nodes.mask("features_mask", call.path, {"x": x}, mask_value=value))
    if value == 0.0 and len(x.shape) == 2 and call.nodes.is_input(x):
        return carried(call.nodes.mask("ids_mask", call.path, {"ids": x}))
    return Value(None)


def _any(call: Call) -> Value:
    return call.x if len(call.x.shape) == 3 and list(call.layer.axis or []) in ([-1], [2]) else Value(None)


def _concatenated(call: Call) -> Value:
    return either(call.arguments["xs"]) if call.layer.axis in (-1, 2) else Value(None)


def _logical_or(call: Call) -> Value:
    both = call.arguments["x1"], call.arguments["x2"]
    return either(both) if all(isinstance(value, Value) for value in both) else Value(None)


OPERATIONS: Mapping[str, Operation] = {
    "Take": _take,
    "GetItem": _get_item,
    "Flip": _flip,
    "Concatenate": _concatenate,
    "ExpandDims": _expand_dims,
    "Squeeze": _squeeze,
    "Cast": _cast,
    "Cumsum": _cumsum,
    "Negative": _negative,
    "Add": _arithmetic("add", lambda c: (1.0, c), lambda c: (1.0, c)),
    "Subtract": _arithmetic("subtract", lambda c: (1.0, -c), lambda c: (-1.0, c)),
    "Multiply": _arithmetic("multiply", lambda c: (c, 0.0), lambda c: (c, 0.0)),
    "Divide": _arithmetic(None, lambda c: (1.0 / c, 0.0), None),
    "TrueDivide": _arithmetic(None, lambda c: (1.0 / c, 0.0), None),
    "Relu": _named("relu"),
    "Sigmoid": _named("sigmoid"),
    "Softplus": _named("softplus"),
    "Tanh": _named("tanh"),
}
"""The operations of keras.ops that programs know, by the names of their classes, but for those on masks."""

# Of these Keras makes masks. Those on the features of a Concatenate are the OR of what is joined, as any() over all
# features follows.
_MASKS: Mapping[str, Operation] = {
    "NotEqual": _not_equal,
    "Any": _any,
    "LogicalOr": _logical_or,
    "Concatenate": _concatenated,
    "ExpandDims": lambda call: call.x,
    "OnesLike": lambda call: Value(None, masks=frozenset([ALL_COUNT])),
    "ZerosLike": lambda call: Value(None, masks=frozenset()),
}
