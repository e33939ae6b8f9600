"""The operations that compute features from features, each step or each row by itself."""

import numpy as np

from cellerate.program.node import NORMALIZERS, Node
from cellerate.program.operation import (
    Arithmetic,
    Given,
    Operation,
    Shape,
    Shapes,
    along_axis,
    check_last,
    check_mask,
    option,
    same_shape,
    step_by_step,
)


def _activated(node: Node, read: Shapes) -> Shape:
    return same_shape(node, read) if node.options["activation"] in NORMALIZERS else read["x"]


def _layer_norm(node: Node, given: Given, arithmetic: Arithmetic) -> np.ndarray:
    x, epsilon = given["x"], option(node, "epsilon")
    gamma, beta = node.arrays.get("gamma"), node.arrays.get("beta")
    centred = x - x.mean(axis=-1, keepdims=True)
    y: np.ndarray = centred / np.sqrt(np.square(centred).mean(axis=-1, keepdims=True) + epsilon)
    if gamma is not None:
        y *= gamma
    if beta is not None:
        y += beta
    return y


def _over_time(node: Node, read: Shapes) -> Shape:
    check_last(read["x"])
    check_mask(read["x"], read.get("mask"))
    return read["x"][1:]


def _mean_over_time(node: Node, given: Given, arithmetic: Arithmetic) -> np.ndarray:
    x, mask = given["x"], given.get("mask")
    if mask is None:
        mean = x.mean(axis=1, dtype=np.float64)
    else:
        live = mask[..., np.newaxis]
        mean = np.where(live, x, 0).sum(axis=1, dtype=np.float64) / live.sum(axis=1)
    return np.asarray(mean, np.float32)


ROWS = {
    "activation": Operation(
        options={"activation": str},
        shape=_activated,
        run=lambda node, given, arithmetic: arithmetic.activate(option(node, "activation"), given["x"]),
        step=step_by_step,
    ),
    # Over the last axis.
    "layer_norm": Operation(
        arrays={"gamma?": "F", "beta?": "F"},
        options={"epsilon": float},
        shape=same_shape,
        run=_layer_norm,
        step=step_by_step,
    ),
    # x * scale + offset, over the last axis: a BatchNormalization at inference, or a Normalization.
    "affine": Operation(
        arrays={"scale": "F", "offset": "F"},
        shape=same_shape,
        run=lambda node, given, _: given["x"] * node.arrays["scale"] + node.arrays["offset"],
        step=step_by_step,
    ),
    "cumsum": Operation(
        options={"axis": int},
        shape=along_axis,
        run=lambda node, given, _: np.cumsum(given["x"], axis=option(node, "axis")),
    ),
    # Over axis 1: (B, T, F) -> (B, F).
    "mean_over_time": Operation(inputs=("x", "mask?"), shape=_over_time, run=_mean_over_time),
    "max_over_time": Operation(shape=_over_time, run=lambda node, given, _: given["x"].max(axis=1)),
}
