"""The operations that merge several values into one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from cellerate.program.node import Node
from cellerate.program.operation import (
    AS_READ,
    Arithmetic,
    Given,
    Operation,
    Shape,
    Shapes,
    Stepped,
    axis_of,
    in_order,
    step_by_step,
)


def merged_shape(shapes: Sequence[Shape]) -> Shape:
    """The broadcast shape: shapes with fewer axes get axes at the front, and sizes of 1 stretch to the others."""
    axes = max(map(len, shapes))
    padded = [(1,) * (axes - len(shape)) + shape for shape in shapes]
    sizes = [set(along) - {1} for along in zip(*padded, strict=True)]
    if any(len(found) > 1 for found in sizes):
        raise ValueError("the sizes of an axis are not the same, or 1")
    return tuple(found.pop() if found else 1 for found in sizes)


def aligned(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The arrays with one number of axes: those with fewer get axes of size 1 after the batch, as in Keras."""
    axes = max(array.ndim for array in arrays)
    return [array.reshape(len(array), *[1] * (axes - array.ndim), *array.shape[1:]) for array in arrays]


def merge(
    function: Callable[[np.ndarray, np.ndarray], np.ndarray],
    inputs: tuple[str, ...] = ("*",),
    *,
    dtype: str = "float32",
    average: bool = False,
) -> Operation:
    """Return the row of an operation that joins all inputs pairwise, broadcast to one shape."""

    def run(node: Node, given: Given, arithmetic: Arithmetic) -> np.ndarray:
        merged, *others = aligned(in_order(given))
        for other in others:
            merged = function(merged, other)
        return merged / len(given) if average else merged

    return Operation(
        inputs=inputs,
        reads=dtype,
        gives=dtype,
        shape=lambda node, read: merged_shape(in_order(read)),
        run=run,
        step=step_by_step,
    )


def _concatenated(node: Node, read: Shapes) -> Shape:
    shapes = in_order(read)
    place = axis_of(node, shapes[0])
    if len({(len(shape), shape[:place], shape[place + 1 :]) for shape in shapes}) > 1:
        raise ValueError("the sizes of the axes that are not joined must be the same")
    return (*shapes[0][:place], sum(shape[place] for shape in shapes), *shapes[0][place + 1 :])


def _join_steps(node: Node, steps: int) -> Stepped:
    if node.options["axis"] not in (-1, 2):
        raise ValueError("it joins sequences along time")
    return step_by_step(node, steps)


ROWS = {
    "add": merge(np.add),
    "subtract": merge(np.subtract, ("0", "1")),
    "multiply": merge(np.multiply),
    "divide": merge(np.divide, ("0", "1")),
    "average": merge(np.add, average=True),
    "maximum": merge(np.maximum),
    "minimum": merge(np.minimum),
    "concatenate": Operation(
        inputs=("*",),
        options={"axis": int},
        gives=AS_READ,
        shape=_concatenated,
        run=lambda node, given, _: np.concatenate(in_order(given), axis=node.options["axis"]),
        step=_join_steps,
    ),
}
