"""The nodes of a program for normalisations that are not single operations: means, roots and products."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import keras
import numpy as np

from cellerate.keras_graph.families.elementwise import function_of, squared
from cellerate.keras_graph.program_layers import (
    affine,
    check_last_axis,
    inner_axis,
    numbered,
    summed_products,
)
from cellerate.keras_graph.program_nodes import ProgramCall, ProgramValue, Refused
from cellerate.keras_graph.program_operations import at_least

# The smallest norm by which UnitNormalization divides.
_LEAST_NORM = 1e-12


def unit_normalization(call: ProgramCall) -> ProgramValue:
    """x, divided by the root of the sum of its squares along axes."""
    axes = call.layer.axis if isinstance(call.layer.axis, Sequence) else [call.layer.axis]
    return _unit(call, call.x, axes, _LEAST_NORM)


def dot(call: ProgramCall) -> ProgramValue:
    """The products of two tensors, summed over an axis of each, along which they may be normalised first."""
    layer = call.layer
    axes = (layer.axes, layer.axes) if isinstance(layer.axes, int) else layer.axes
    both = call.x
    if layer.normalize:
        least = keras.config.epsilon()
        both = [_unit(call, x, [axis], least) for x, axis in zip(both, axes, strict=True)]
    return summed_products(call, both, axes)


def _unit(call: ProgramCall, x: ProgramValue, axes: Sequence[int], least: float) -> ProgramValue:
    """X, divided by the root of the sum of its squares along axes, or by a least number."""
    total = squared(call, x)
    for axis in axes:
        total = call.add("sum", {"x": total}, axis=inner_axis(axis, len(x.shape)), keepdims=True)
    # Keras limits the inverse, which is the same.
    inverse = function_of(call, "rsqrt", at_least(call, total, least**2))
    return dataclasses.replace(call.add("multiply", numbered([x, inverse])), shape=x.shape)


def rms_normalization(call: ProgramCall) -> ProgramValue:
    """x, divided by the root of the mean of its squares, and scaled."""
    check_last_axis(call, call.layer.axis)
    x = call.x
    inverse = _inverse_deviation(
        call, call.add("mean", {"x": squared(call, x)}, axis=len(x.shape) - 1, keepdims=True)
    )
    return _scaled(call, call.add("multiply", numbered([x, inverse])), "scale")


def group_normalization(call: ProgramCall) -> ProgramValue:
    """X less the mean of each group of features, divided by its deviation, and scaled."""
    layer, x = call.layer, call.x
    check_last_axis(call, layer.axis)
    if not 2 <= len(x.shape) <= 3:
        raise Refused(f"normalises a tensor of {len(x.shape)} axes, where programs take (B, F) and (B, T, F)")
    centred = call.add("subtract", numbered([x, _mean_of_groups(call, x)]))
    variance = _mean_of_groups(call, squared(call, centred))
    inverse = _inverse_deviation(call, dataclasses.replace(variance, shape=x.shape))
    return _scaled(call, call.add("multiply", numbered([centred, inverse])), "gamma", "beta")


def _mean_of_groups(call: ProgramCall, x: ProgramValue) -> ProgramValue:
    """The mean of the group of each feature, over all steps."""
    layer, rank, width = call.layer, len(call.x.shape), call.x.shape[-1]
    mean = call.add("mean", {"x": x}, axis=1, keepdims=False) if rank == 3 else x
    size = width // layer.groups
    if size > 1:
        mean = call.add("reshape", {"x": mean}, shape=(layer.groups, size))
        mean = call.add("mean", {"x": mean}, axis=2, keepdims=True)
        mean = call.add("concatenate", numbered([mean] * size), axis=2)
    return call.add("reshape", {"x": mean}, shape=(*[1] * (rank - 2), width))


def _inverse_deviation(call: ProgramCall, variance: ProgramValue) -> ProgramValue:
    known = variance if variance.shape else dataclasses.replace(variance, shape=(None, 1))
    return function_of(call, "rsqrt", affine(call, 1.0, call.layer.epsilon, known))


def _scaled(call: ProgramCall, x: ProgramValue, scale: str, offset: str = "") -> ProgramValue:
    """x, scaled and offset by the layer's weights for each feature, if it has them."""
    width, arrays = call.x.shape[-1], call.weights(call.layer, scale, *[offset] * bool(offset))
    if not arrays:
        return x
    for name, value in ((scale, 1.0), (offset, 0.0)):
        if name not in arrays:
            arrays[name] = np.full(width, value, "float32")
    return call.add("affine", {"x": x}, {"scale": arrays[scale], "offset": arrays[offset]})
