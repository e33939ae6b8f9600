"""The operations on windows of neighbouring steps: the inputs of a convolution, and pooling.

They work along the axis before the last, so `axis` is 1 for (B, T, F), 2 for (B, N, T, F), and so on.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator

import numpy as np

from cellerate.errors import ModelError
from cellerate.program.node import Node
from cellerate.program.operation import MOST_AXES, Arithmetic, Given, Operation, Shape, Shapes, Stepped

PADDINGS = ("valid", "same", "causal")
"""Keras's names of padding: none; steps on both sides that keep the length at strides of 1; the same number of steps,
all before the sequence."""

_LARGEST = 1 << 20
_SIZES = {"size": int, "strides": int, "dilation": int, "padding": str, "axis": int}


def window_steps(node: Node, steps: int) -> tuple[int, int]:
    """The windows over a sequence, and the steps of padding before it.

    Args:
        node: A node of `ROWS`.
        steps: The length of the sequence.

    Returns:
        The number of windows, and the number of padding steps before the sequence.

    Raises:
        ValueError: The sequence is shorter than a window.
    """
    size, strides = node.options["size"], node.options["strides"]
    reach = (size - 1) * node.options["dilation"] + 1
    if node.options["padding"] == "same":
        windows = -(-steps // strides)
        return windows, max((windows - 1) * strides + reach - steps, 0) // 2
    before = reach - 1 if node.options["padding"] == "causal" else 0
    if steps + before < reach:
        raise ValueError(f"a window of {reach} steps is longer than the {steps} steps that there are")
    return (steps + before - reach) // strides + 1, before


def _check(node: Node) -> None:
    for name in ("size", "strides", "dilation", "features"):
        value = node.options.get(name, 1)
        if not isinstance(value, int) or not 1 <= value <= _LARGEST:
            raise ModelError(f"{node.name}: {name} must be from 1 to {_LARGEST}, not {value!r}.")
    # A pool that looked back would need to know which steps before the first one are not there.
    known = PADDINGS if "features" in node.options else PADDINGS[:2]
    if node.options["padding"] not in known:
        raise ModelError(
            f"{node.name}: padding must be one of {', '.join(known)}, not {node.options['padding']!r}."
        )
    if not 1 <= node.options["axis"] < MOST_AXES:
        raise ModelError(
            f"{node.name}: axis must be from 1 to {MOST_AXES - 1}, not {node.options['axis']!r}."
        )


def _shape(node: Node, read: Shapes) -> Shape:
    x, axis = read["x"], node.options["axis"]
    if len(x) != axis + 1:
        raise ValueError(f"x must have {axis + 2} axes, the batch included")
    if (features := node.options.get("features", x[-1])) != x[-1]:
        raise ValueError(f"x must have {features} features")
    windows, _ = window_steps(node, x[-2])
    return (*x[:-2], windows, x[-1] * (node.options["size"] if "features" in node.options else 1))


def _taps(node: Node, x: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The first step of every window, then the second, and so on: (..., windows, F), and which there are (windows, 1).

    One after the other, so that pooling needs no more memory than its result.
    """
    steps = x.shape[-2]
    windows, before = window_steps(node, steps)
    for tap in range(node.options["size"]):
        places = np.arange(windows) * node.options["strides"] + tap * node.options["dilation"] - before
        inside = (places >= 0) & (places < steps)
        yield x.take(np.where(inside, places, 0), axis=-2), inside[:, np.newaxis]


def _windows(node: Node, given: Given, arithmetic: Arithmetic) -> np.ndarray:
    return np.concatenate([np.where(inside, x, 0) for x, inside in _taps(node, given["x"])], axis=-1)


def _max_pool(node: Node, given: Given, arithmetic: Arithmetic) -> np.ndarray:
    return functools.reduce(
        np.maximum, (np.where(inside, x, np.float32(-np.inf)) for x, inside in _taps(node, given["x"]))
    )


def _average_pool(node: Node, given: Given, arithmetic: Arithmetic) -> np.ndarray:
    total, count = np.zeros(1), np.zeros(1)
    for x, inside in _taps(node, given["x"]):
        total, count = total + np.where(inside, x, 0), count + inside
    return np.asarray(total / count, np.float32)


def _step(node: Node, steps: int) -> Stepped:
    if node.options["axis"] > 1:
        return Stepped()
    size, strides = node.options["size"], node.options["strides"]
    if strides > 1:
        raise ValueError(f"it has strides={strides}, so most steps have no result")
    if size > 1 and node.options["padding"] != "causal":
        raise ValueError(
            f'its windows hold future steps (padding="{node.options["padding"]}"); those of a Conv1D with '
            'padding="causal" do not, and no other layer has this padding'
        )
    earlier = (size - 1) * node.options["dilation"]
    return Stepped(
        options={"padding": "valid"}, earlier=(earlier, node.options["features"] if earlier else 0)
    )


def _pool(run: Callable[[Node, Given, Arithmetic], np.ndarray]) -> Operation:
    return Operation(
        options=_SIZES,
        check=_check,
        shape=_shape,
        run=run,
        products=lambda node, read, result: math.prod(result) * node.options["size"],
        step=_step,
    )


ROWS = {
    # (..., T, F) -> (..., windows, size·F), the steps of each window side by side: what a dense node makes a
    # convolution of. Places without a step hold zeros. features is F.
    "windows": Operation(
        options={**_SIZES, "features": int},
        check=_check,
        shape=_shape,
        run=_windows,
        step=_step,
    ),
    # (..., T, F) -> (..., windows, F): over the steps of a window that are there.
    "max_pool": _pool(_max_pool),
    "average_pool": _pool(_average_pool),
}
