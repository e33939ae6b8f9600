"""The nodes of a program for the layers that look at a few neighbouring steps or pixels: convolutions and pooling."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from cellerate.keras_graph.program_layers import check_data_format, reshaped
from cellerate.keras_graph.program_nodes import (
    ProgramCall,
    ProgramValue,
    Read,
    Refused,
    Weight,
    in_blocks,
    known_activation,
    numpy,
)
from cellerate.program import Option


class WindowNodes:
    """The nodes of a layer that reads windows of a sequence (T, F) or an image (H, W, F); or of one at each step.

    Operations of windows work along the axis before the features, so H and W of an image are swapped for windows
    along H.

    Args:
        call: The call of the layer, whose input and output are both one or both the other.
        axes: 1 for a sequence, 2 for an image.

    Attributes:
        value: What the operations so far have made.
    """

    def __init__(self, call: ProgramCall, axes: int) -> None:
        check_data_format(call)
        self._call = call
        self._before_features = call.time_axis + axes - 1
        self._swapped = False
        self.value: ProgramValue = call.x

    def along(self, height: bool, op: str, **options: Option) -> None:
        """Adds an operation of windows, with its options other than `axis`.

        Args:
            height: Whether its windows lie along H of an image.
            op: The operation.
            options: Its options.
        """
        if height != self._swapped:
            self._swap()
        self.value = self._call.add(op, {"x": self.value}, None, axis=self._before_features, **options)

    def finished(self, value: ProgramValue) -> ProgramValue:
        """The output of the layer, from what was made of `value` at each place."""
        self.value = value
        if self._swapped:
            self._swap()
        return self.value

    def _swap(self) -> None:
        last = self._before_features
        axes = (*range(1, last - 1), last, last - 1, last + 1)
        self.value = self._call.add("permute", {"x": self.value}, axes=axes)
        self._swapped = not self._swapped


def convolution(call: ProgramCall) -> ProgramValue:
    """The places of each window side by side, and their product with a kernel."""
    layer = call.layer
    activation = known_activation(layer.activation)
    if layer.lora_enabled:
        raise Refused("has a low-rank update", "Merge it into the kernel first.")
    *sizes, features = layer.kernel.shape[:-1]
    arrays = {"kernel": _kernel(call, "kernel", layer.groups, features), **call.weights(layer, "bias")}
    nodes = _windows(call, sizes, features * layer.groups)
    return nodes.finished(call.add("dense", {"x": nodes.value}, arrays, activation=activation))


def depthwise_convolution(call: ProgramCall) -> ProgramValue:
    """A convolution in as many groups as there are features."""
    layer = call.layer
    activation = known_activation(layer.activation)
    *sizes, features = layer.kernel.shape[:-1]
    arrays = {"kernel": _kernel(call, "kernel", features, 1), **call.weights(layer, "bias")}
    nodes = _windows(call, sizes, features)
    return nodes.finished(call.add("dense", {"x": nodes.value}, arrays, activation=activation))


def separable_convolution(call: ProgramCall) -> ProgramValue:
    """A convolution of each feature by itself, and a product at each place."""
    layer = call.layer
    activation = known_activation(layer.activation)
    *sizes, features, each = layer.depthwise_kernel.shape
    depthwise = {"kernel": _kernel(call, "depthwise_kernel", features, 1)}
    nodes = _windows(call, sizes, features)
    x = call.add("dense", {"x": nodes.value}, depthwise, activation="linear")
    pointwise = {
        "kernel": _kernel(call, "pointwise_kernel", 1, features * each),
        **call.weights(layer, "bias"),
    }
    return nodes.finished(call.add("dense", {"x": x}, pointwise, activation=activation))


def _windows(call: ProgramCall, sizes: Sequence[int], features: int) -> WindowNodes:
    """The places of each window side by side, in the order of the kernel.

    Args:
        call: The call of a convolution.
        sizes: The size of a window along each axis.
        features: The features at a place.
    """
    nodes, layer, axes = WindowNodes(call, len(sizes)), call.layer, len(sizes)
    strides, dilations = (
        (value,) * axes if isinstance(value, int) else value for value in (layer.strides, layer.dilation_rate)
    )
    # The last axis first, because its places are neighbours in a kernel.
    for axis in reversed(range(axes)):
        size = sizes[axis]
        if (size, strides[axis]) != (1, 1):
            options = {"size": size, "strides": strides[axis], "dilation": dilations[axis]}
            options |= {"padding": layer.padding, "features": features}
            nodes.along(axis < axes - 1, "windows", **options)
            features *= size
    return nodes


def _kernel(call: ProgramCall, name: str, groups: int, features: int) -> np.ndarray:
    """The kernel of a convolution in groups of `features` features each, (places, features, N) in memory."""
    variable = getattr(call.layer, name)
    make = functools.partial(_flat_kernel, variable, groups, features)
    return call.nodes.array(call.layer, name, make, Weight(variable, groups=groups))


def _flat_kernel(variable: Any, groups: int, features: int) -> np.ndarray:
    """The kernel as (places·F, N), with zeros for features outside a filter's group."""
    kernel = numpy(variable)
    return in_blocks(kernel.reshape(math.prod(kernel.shape[:-2]), features, -1), groups)


def pooling(op: str) -> Read:
    """A reader of layers that pool windows by an operation of programs."""

    def read(call: ProgramCall) -> ProgramValue:
        layer = call.layer
        axes = len(layer.pool_size)
        nodes = WindowNodes(call, axes)
        for axis in reversed(range(axes)):
            size, strides = layer.pool_size[axis], layer.strides[axis]
            if op == "average_pool" and layer.padding == "same" and keras.backend.backend() == "torch":
                _check_same_on_torch(size, strides, call.x.shape[axis - axes - 1])
            nodes.along(axis < axes - 1, op, size=size, strides=strides, dilation=1, padding=layer.padding)
        return nodes.finished(nodes.value)

    return read


def global_pooling(op: str) -> Read:
    """A reader of layers that pool whole images, by the name of an operation along an axis."""

    def read(call: ProgramCall) -> ProgramValue:
        check_data_format(call)
        pooled: ProgramValue = call.x
        for axis in (call.time_axis + 1, call.time_axis):
            pooled = call.add(op, {"x": pooled}, axis=axis, keepdims=False)
        return reshaped(call, pooled) if call.layer.keepdims else pooled

    return read


def _check_same_on_torch(size: int, strides: int, steps: int | None) -> None:
    """Refuses average pooling where torch alone differs: if the padding is odd, it counts the last step twice."""
    if size <= 2 or (strides == 1 and size % 2):
        return
    if steps is None or max((-(-steps // strides) - 1) * strides + size - steps, 0) % 2:
        raise Refused(
            'has padding="same", by which torch counts the last step twice and other backends do not',
            'Use padding="valid", or an odd pool_size with strides=1.',
        )
