"""The operations that make masks, and those that select by a mask."""

from __future__ import annotations

import numpy as np

from cellerate.program.merging import aligned, merge, merged_shape
from cellerate.program.node import Node
from cellerate.program.operation import (
    Arithmetic,
    Given,
    Operation,
    Shape,
    Shapes,
    check_last,
    check_mask,
    step_by_step,
)


def _features_mask_shape(node: Node, read: Shapes) -> Shape:
    check_last(read["x"])
    return read["x"][:-1]


def _masked_shape(node: Node, read: Shapes) -> Shape:
    check_mask(read["x"], read["mask"])
    return read["x"]


def _where_shape(node: Node, read: Shapes) -> Shape:
    shape = merged_shape([read["x"], read["other"], (*read["mask"], 1)])
    if len(read["mask"]) != 1 or len(shape) != 2:
        raise ValueError("x and other must be (B, T, F) and mask (B, T)")
    return shape


def _where(node: Node, given: Given, arithmetic: Arithmetic) -> np.ndarray:
    x, other = aligned([given["x"], given["other"]])
    return np.where(given["mask"][..., np.newaxis], x, other)


def _flipped_shape(node: Node, read: Shapes) -> Shape:
    check_last(read["mask"])
    return read["mask"]


ROWS = {
    # ids -> mask: True where the id is not 0.
    "ids_mask": Operation(
        inputs=("ids",),
        gives="bool",
        shape=lambda node, read: read["ids"],
        run=lambda node, given, _: given["ids"] != 0,
        step=step_by_step,
    ),
    # (B, T, F) -> mask: True where any feature is not mask_value.
    "features_mask": Operation(
        options={"mask_value": float},
        gives="bool",
        shape=_features_mask_shape,
        run=lambda node, given, _: np.any(given["x"] != node.options["mask_value"], axis=-1),
        step=step_by_step,
    ),
    # x (B, T, F), mask -> x with zeros where the mask is False.
    "masked": Operation(
        inputs=("x", "mask"),
        shape=_masked_shape,
        run=lambda node, given, _: np.where(given["mask"][..., np.newaxis], given["x"], 0),
        step=step_by_step,
    ),
    # x, other, mask -> x where the mask is True, else other; stretched to one shape as the inputs of an add.
    "where": Operation(inputs=("x", "other", "mask"), shape=_where_shape, run=_where, step=step_by_step),
    # mask -> mask, reversed over time: for the outputs of a backward layer, put back in order.
    "flip_mask": Operation(
        inputs=("mask",),
        gives="bool",
        shape=_flipped_shape,
        run=lambda node, given, _: np.flip(given["mask"], axis=1),
    ),
    # masks -> mask: True where any of them is; a mask of one step is stretched to the steps of the others.
    "any_mask": merge(np.logical_or, dtype="bool"),
}
