"""The nodes of a program for the layers that look at a few neighbouring steps: convolutions and pooling."""

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
    known_activation,
    numpy,
)


def convolution(call: ProgramCall) -> ProgramValue:
    """The steps of each window side by side, and their product with a kernel."""
    layer = call.layer
    check_data_format(call)
    activation = known_activation(layer.activation)
    if layer.lora_enabled:
        raise Refused("has a low-rank update", "Merge it into the kernel first.")
    (size,), (strides,), (dilation,) = layer.kernel_size, layer.strides, layer.dilation_rate
    features = layer.kernel.shape[1] * layer.groups
    x = call.x
    if (size, strides) != (1, 1):
        x = call.add(
            "windows",
            size=size,
            strides=strides,
            dilation=dilation,
            padding=layer.padding,
            features=features,
            axis=call.time_axis,
        )
    weight = Weight(layer.kernel) if layer.groups == 1 else None
    kernel = call.nodes.array(layer, "kernel", functools.partial(_flat_kernel, layer), weight)
    arrays = {"kernel": kernel, **call.weights(layer, "bias")}
    return call.add("dense", {"x": x}, arrays, activation=activation)


def _flat_kernel(layer: Any) -> np.ndarray:
    """The kernel (size, F, N) as (size·F, N); that of groups with zeros where a filter does not look."""
    kernel = numpy(layer.kernel)
    size, features, filters = kernel.shape
    whole = np.zeros((size, layer.groups, features, layer.groups, filters // layer.groups), "float32")
    for group in range(layer.groups):
        whole[:, group, :, group] = np.split(kernel, layer.groups, axis=2)[group]
    return whole.reshape(-1, filters)


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
    """Refuses means that no other backend gives: of an odd number of steps of padding, torch repeats the last step."""
    if size <= 2 or (strides == 1 and size % 2):
        return
    if steps is None or max((-(-steps // strides) - 1) * strides + size - steps, 0) % 2:
        raise Refused(
            'has padding="same", by which torch counts the last step twice and other backends do not',
            'Use padding="valid", or an odd pool_size with strides=1.',
        )
