"""The operations that compute features from features, each step or each row by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from cellerate.errors import ModelError
from cellerate.program.node import NORMALIZERS, Node
from cellerate.program.operation import (
    Arithmetic,
    Given,
    Operation,
    Shape,
    Shapes,
    Stepped,
    along_axis,
    axis_of,
    check_last,
    check_mask,
    same_shape,
    step_by_step,
)


def _activated(node: Node, read: Shapes) -> Shape:
    return same_shape(node, read) if node.options["activation"] in NORMALIZERS else read["x"]


def _layer_norm(node: Node, given: Given, arithmetic: Arithmetic) -> np.ndarray:
    x, epsilon = given["x"], node.options["epsilon"]
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


def _reduced(node: Node, read: Shapes) -> Shape:
    x, place = read["x"], axis_of(node, read["x"])
    return (*x[:place], *((1,) if node.options["keepdims"] else ()), *x[place + 1 :])


def _within_a_step(node: Node, steps: int) -> Stepped:
    if node.options["axis"] == 1:
        raise ValueError(f"{node.op} needs the whole sequence")
    return step_by_step(node, steps)


def _reduce(function: Callable[..., np.ndarray], **exactly: Any) -> Operation:
    """Return the row of an operation that reduces the numbers along an axis to one."""

    def run(node: Node, given: Given, arithmetic: Arithmetic) -> np.ndarray:
        axis, keepdims = node.options["axis"], node.options["keepdims"]
        return np.asarray(function(given["x"], axis=axis, keepdims=keepdims, **exactly), np.float32)

    return Operation(
        options={"axis": int, "keepdims": bool},
        check=_check_axis,
        shape=_reduced,
        run=run,
        step=_within_a_step,
    )


def _softmax(node: Node, given: Given, arithmetic: Arithmetic) -> np.ndarray:
    last = np.moveaxis(given["x"], node.options["axis"], -1)
    return np.moveaxis(arithmetic.activate("softmax", last), -1, node.options["axis"])


def _check_axis(node: Node) -> None:
    if node.options["axis"] < 1:
        raise ModelError(f"{node.name}: axis must be at least 1, not {node.options['axis']!r}.")


ROWS = {
    "activation": Operation(
        options={"activation": str},
        shape=_activated,
        run=lambda node, given, arithmetic: arithmetic.activate(node.options["activation"], given["x"]),
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
        run=lambda node, given, _: np.cumsum(given["x"], axis=node.options["axis"]),
    ),
    # Along any axis; an activation has it along the last one.
    "softmax": Operation(
        options={"axis": int}, check=_check_axis, shape=along_axis, run=_softmax, step=_within_a_step
    ),
    # Along an axis, which goes or, with keepdims, becomes 1.
    "sum": _reduce(np.sum, dtype=np.float64),
    "mean": _reduce(np.mean, dtype=np.float64),
    "max": _reduce(np.max),
    "min": _reduce(np.min),
    # Over axis 1: (B, T, F) -> (B, F).
    "mean_over_time": Operation(inputs=("x", "mask?"), shape=_over_time, run=_mean_over_time),
    "max_over_time": Operation(shape=_over_time, run=lambda node, given, _: given["x"].max(axis=1)),
}
