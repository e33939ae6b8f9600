"""The nodes of a program for the layers that look at a few neighbouring steps: convolutions and pooling."""

from __future__ import annotations

import functools
from typing import Any

import keras
import numpy as np

from cellerate.keras_graph.program_layers import check_data_format
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


def convolution(call: ProgramCall) -> ProgramValue:
    """The steps of each window side by side, and their product with a kernel."""
    layer = call.layer
    activation = known_activation(layer.activation)
    if layer.lora_enabled:
        raise Refused("has a low-rank update", "Merge it into the kernel first.")
    x = _windows(call, layer.kernel.shape[0], layer.kernel.shape[1] * layer.groups)
    arrays = {
        "kernel": _kernel(call, "kernel", layer.groups, layer.kernel.shape[1]),
        **call.weights(layer, "bias"),
    }
    return call.add("dense", {"x": x}, arrays, activation=activation)


def depthwise_convolution(call: ProgramCall) -> ProgramValue:
    """A convolution in as many groups as there are features."""
    layer = call.layer
    activation = known_activation(layer.activation)
    size, features, _ = layer.kernel.shape
    arrays = {"kernel": _kernel(call, "kernel", features, 1), **call.weights(layer, "bias")}
    return call.add("dense", {"x": _windows(call, size, features)}, arrays, activation=activation)


def separable_convolution(call: ProgramCall) -> ProgramValue:
    """A convolution of each feature by itself, and a product at each step."""
    layer = call.layer
    activation = known_activation(layer.activation)
    size, features, _ = layer.depthwise_kernel.shape
    depthwise = {"kernel": _kernel(call, "depthwise_kernel", features, 1)}
    x = call.add("dense", {"x": _windows(call, size, features)}, depthwise, activation="linear")
    pointwise = {
        "kernel": _kernel(call, "pointwise_kernel", 1, layer.pointwise_kernel.shape[1]),
        **call.weights(layer, "bias"),
    }
    return call.add("dense", {"x": x}, pointwise, activation=activation)


def _windows(call: ProgramCall, size: int, features: int) -> ProgramValue:
    """The steps of each window side by side."""
    layer = call.layer
    check_data_format(call)
    strides, dilation = (
        value if isinstance(value, int) else value[0] for value in (layer.strides, layer.dilation_rate)
    )
    if (size, strides) == (1, 1):
        x: ProgramValue = call.x
        return x
    return call.add(
        "windows",
        size=size,
        strides=strides,
        dilation=dilation,
        padding=layer.padding,
        features=features,
        axis=call.time_axis,
    )


def _kernel(call: ProgramCall, name: str, groups: int, features: int) -> np.ndarray:
    """The kernel of a convolution in groups of `features` features each, (size, features, N) in memory."""
    variable = getattr(call.layer, name)
    make = functools.partial(_flat_kernel, variable, groups, features)
    return call.nodes.array(call.layer, name, make, Weight(variable, groups=groups))


def _flat_kernel(variable: Any, groups: int, features: int) -> np.ndarray:
    """The kernel as (size·F, N), with zeros for features outside a filter's group."""
    kernel = numpy(variable)
    return in_blocks(kernel.reshape(len(kernel), features, -1), groups)


def pooling(op: str) -> Read:
    """A reader of layers that pool windows by an operation of programs."""

    def read(call: ProgramCall) -> ProgramValue:
        layer = call.layer
        check_data_format(call)
        (size,), (strides,) = layer.pool_size, layer.strides
        if op == "average_pool" and layer.padding == "same" and keras.backend.backend() == "torch":
            _check_same_on_torch(size, strides, call.x.shape[1])
        return call.add(
            op, size=size, strides=strides, dilation=1, padding=layer.padding, axis=call.time_axis
        )

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
