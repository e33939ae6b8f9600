"""Reads convolutions over time for training, and refuses layers on images."""

from __future__ import annotations

import dataclasses
from typing import Any

from keras import layers

from cellerate.keras_graph.program_nodes import ProgramCall, ProgramValue, Read, Refused, Weight, numpy
from cellerate.kernels.training import cpu

OF_IMAGES = (
    *(layers.Conv2D, layers.DepthwiseConv2D, layers.SeparableConv2D, layers.SpatialDropout2D),
    *(layers.MaxPooling2D, layers.AveragePooling2D),
    *(layers.GlobalMaxPooling2D, layers.GlobalAveragePooling2D),
)
"""The layers on images that packed models know."""


def on_image(call: ProgramCall) -> ProgramValue:
    """Refuses a layer on images: the backends' convolutions take half the time of our products of windows.

    Raises:
        Refused: Always.
    """
    raise Refused(
        "works on images, which Keras trains faster", "The LSTMs of the model use the kernels anyway."
    )


def convolution(read: Read, call: ProgramCall) -> ProgramValue | list[ProgramValue]:
    """The nodes of a convolution, whose kernel stays one variable even if it has groups."""
    added, layer = read(call), call.layer
    if isinstance(layer, layers.Conv1D):
        _group(call, -1, layer.kernel, layer.groups)
    elif isinstance(layer, layers.DepthwiseConv1D):
        _group(call, -1, layer.kernel, layer.kernel.shape[1])
    else:
        # The pointwise product is the last node.
        _group(call, -2, layer.depthwise_kernel, layer.depthwise_kernel.shape[1])
    return added


def _group(call: ProgramCall, index: int, kernel: Any, groups: int) -> None:
    """Replaces the dense node at `index` by a grouped one, whose kernel has the variable's layout in memory."""
    if groups == 1:
        return
    dense, size = call.nodes.found[index], kernel.shape[0]
    filters = dense.arrays["kernel"].shape[1]
    array = call.nodes.array(
        call.layer, "kernel in groups", lambda: numpy(kernel).reshape(-1, filters), Weight(kernel)
    )
    call.nodes.found[index] = dataclasses.replace(
        dense,
        op=cpu.GROUPED,
        arrays={**dense.arrays, "kernel": array},
        options={**dense.options, "groups": groups, "size": size},
    )
