"""The nodes of a program for the operations of keras.ops on single numbers: functions, comparisons and choices.

In a program booleans are numbers, 1 for True and 0 for False.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from keras import ops

from cellerate import activations
from cellerate.keras_graph.program_layers import activation_layer, affine, numbered, reshaped
from cellerate.keras_graph.program_nodes import ProgramCall, ProgramValue, ReadOne, Refused, numpy

_MIRRORED = {
    "greater": "less",
    "greater_equal": "less_equal",
    "less": "greater",
    "less_equal": "greater_equal",
}

_NEGATIVE_PART = activations.written("relu", {"negative_slope": 1.0, "max_value": 0.0})


def parametric_relu(call: ProgramCall) -> ProgramValue:
    """A PReLU: with one slope an activation, else the positive part plus the negative one times the slopes."""
    slopes, x = numpy(call.layer.alpha), call.x
    if len(np.unique(slopes)) == 1:
        return activation_layer(call)
    of_features = slopes.size == slopes.shape[-1]
    if not of_features:
        if call.time_axis == 2 or None in x.shape[1:]:
            raise Refused("has slopes of single steps", "Share them between the steps: shared_axes=[1].")
        slopes = np.broadcast_to(slopes, x.shape[1:])
        flat = call.add("reshape", shape=(slopes.size,))
        x = dataclasses.replace(flat, shape=(x.shape[0], slopes.size))
    positive = call.add("activation", {"x": x}, activation="relu")
    negative = call.add("activation", {"x": x}, activation=_NEGATIVE_PART)
    scaled = affine(call, slopes, 0.0, dataclasses.replace(negative, shape=x.shape))
    both = call.add("add", numbered([positive, scaled]))
    return both if of_features else reshaped(call, both)


def function(name: str) -> ReadOne:
    """A reader of operations that programs compute as a function."""

    def read(call: ProgramCall) -> ProgramValue:
        if getattr(call.layer, "decimals", 0):
            raise Refused(
                f"rounds to decimals={call.layer.decimals}",
                "Scale the tensor, and round it to whole numbers.",
            )
        return function_of(call, name, call.x)

    return read


def power(call: ProgramCall) -> ProgramValue:
    """Each number to a constant power."""
    x, exponent = call.arguments["x1"], call.arguments["x2"]
    number = _constant(exponent)
    if not isinstance(x, ProgramValue) or number is None:
        raise Refused(
            "raises to a power that is not one finite number", "Use a number, or keras.ops.exp of a product."
        )
    if call.whole and number < 0:
        raise Refused("raises whole numbers to a negative power", "Cast them to a float before.")
    return squared(call, x) if number == 2 else function_of(call, "power", x, number)


def quotient_of(call: ProgramCall, constant: np.ndarray, x: ProgramValue) -> ProgramValue:
    """A constant divided by x."""
    inverse = dataclasses.replace(function_of(call, "reciprocal", x), shape=x.shape)
    return affine(call, constant, 0.0, inverse)


def compare(relation: str) -> ReadOne:
    """A reader of comparisons of two tensors, or of a tensor and a number."""

    def read(call: ProgramCall) -> ProgramValue:
        left, right = call.arguments["x1"], call.arguments["x2"]
        if isinstance(left, ProgramValue) and isinstance(right, ProgramValue):
            check_ranks([left, right])
            return call.add("compare", numbered([left, right]), relation=relation)
        first = isinstance(left, ProgramValue)
        number = _constant(right if first else left)
        if number is None:
            raise Refused("compares a tensor with something else than a tensor or one finite number")
        if first:
            return function_of(call, relation, left, number)
        return function_of(call, _MIRRORED.get(relation, relation), right, number)

    return read


def is_nan(call: ProgramCall) -> ProgramValue:
    """True where a number is not equal to itself."""
    return call.add("compare", numbered([call.x, call.x]), relation="not_equal")


def as_numbers(call: ProgramCall) -> ProgramValue:
    """1 where a number is not 0, and 0 elsewhere."""
    return truth(call, call.x)


def joined_truths(op: str) -> ReadOne:
    """A reader of operations on two booleans: their product is 1 where both are True, their maximum where one is."""
    return lambda call: call.add(op, numbered(_both(call)))


def logical_not(call: ProgramCall) -> ProgramValue:
    """1 where a number is 0."""
    return function_of(call, "equal", call.x)


def where(call: ProgramCall) -> ProgramValue:
    """One tensor where a condition holds, another elsewhere; a single number can replace either tensor."""
    condition, *given = (call.arguments.get(name) for name in ("condition", "x1", "x2"))
    if not isinstance(condition, ProgramValue) or any(each is None for each in given):
        raise Refused(
            "chooses by a constant, or lacks what it chooses from", "Give it three tensors or numbers."
        )
    chooses = truth(call, condition)
    parts = [each if isinstance(each, ProgramValue) else _like(call, chooses, each) for each in given]
    check_ranks([condition, *(each for each in given if isinstance(each, ProgramValue))])
    return call.add("choose", numbered([chooses, *parts]))


def truth(call: ProgramCall, x: ProgramValue) -> ProgramValue:
    """True where a number is not 0; booleans stay as they are."""
    if x.boolean:
        return x
    return dataclasses.replace(function_of(call, "not_equal", x), shape=x.shape, boolean=True)


def squared(call: ProgramCall, x: ProgramValue) -> ProgramValue:
    """The square of each number."""
    return call.add("multiply", numbered([x, x]))


def check_ranks(values: list[ProgramValue]) -> None:
    """Refuse tensors of different numbers of axes.

    Operations give a tensor with fewer axes new ones before the batch, layers after it.
    """
    if len({len(value.shape) for value in values}) > 1:
        shapes = " and ".join(str(value.shape) for value in values)
        raise Refused(f"joins tensors of the shapes {shapes} as programs cannot")


def function_of(call: ProgramCall, name: str, x: ProgramValue, number: float = 0.0) -> ProgramValue:
    """One of the functions of programs, of each number of x, or a comparison of it with a number."""
    return call.add("function", {"x": x}, function=name, number=number)


def _both(call: ProgramCall) -> list[ProgramValue]:
    both = [call.arguments["x1"], call.arguments["x2"]]
    if not all(isinstance(value, ProgramValue) for value in both):
        raise Refused("joins booleans with something else than a tensor")
    check_ranks(both)
    return [truth(call, value) for value in both]


def _like(call: ProgramCall, booleans: ProgramValue, constant: Any) -> ProgramValue:
    """A constant in the shape of booleans, which are finite."""
    number = _constant(constant)
    if number is None:
        raise Refused("chooses from something else than tensors and finite numbers")
    return affine(call, 0.0, number, booleans)


def _constant(value: Any) -> float | None:
    """A value that is one finite number; None for any other."""
    if value is None or isinstance(value, ProgramValue):
        return None
    values = np.asarray(ops.convert_to_numpy(value), "float64")
    return float(values.ravel()[0]) if values.size == 1 and np.isfinite(values).all() else None
