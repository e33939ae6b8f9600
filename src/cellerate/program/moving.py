"""The operations that move elements without changing them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from cellerate.errors import ModelError
from cellerate.program.node import Node
from cellerate.program.operation import (
    AS_READ,
    MOST_AXES,
    Arithmetic,
    Given,
    Operation,
    Shape,
    Shapes,
    Stepped,
    along_axis,
    are_sizes,
    axis_of,
    check_last,
    check_numbers,
    needs_all_steps,
    step_by_step,
)

_MOST_REPEATED = 1 << 20


def _check_reshape(node: Node) -> None:
    def fits(shape: Any) -> bool:
        return are_sizes(shape) and len(shape) <= MOST_AXES and shape.count(-1) <= 1

    check_numbers(node, "shape", fits)


def _check_permute(node: Node) -> None:
    check_numbers(node, "axes", lambda axes: sorted(axes) == list(range(1, min(len(axes), MOST_AXES) + 1)))


def _check_repeat_vector(node: Node) -> None:
    if not 1 <= node.options["n"] <= _MOST_REPEATED:
        raise ModelError(f"{node.name}: n must be from 1 to {_MOST_REPEATED}, not {node.options['n']!r}.")


def _reshaped(node: Node, read: Shapes) -> Shape:
    shape = node.options["shape"]
    elements, known = math.prod(read["x"]), math.prod(size for size in shape if size != -1)
    if elements % known or (-1 not in shape and elements != known):
        raise ValueError(f"{elements} elements a row cannot become {shape}")
    return tuple(elements // known if size == -1 else size for size in shape)


def _cropped(node: Node, read: Shapes) -> Shape:
    x, begin, end = read["x"], node.options["begin"], node.options["end"]
    check_last(x)
    left = len(range(x[0])[begin:end])
    if left == 0:
        raise ValueError(f"of {x[0]} steps none is left from {begin} to {end}")
    return (left, *x[1:])


def _taken(node: Node, read: Shapes) -> Shape:
    x, indices = read["x"], node.options["indices"]
    place = axis_of(node, x)
    if not all(-x[place] <= index < x[place] for index in indices):
        raise ValueError(f"an index is not one of the {x[place]} along the axis")
    return (*x[:place], len(indices), *x[place + 1 :])


def _permuted(node: Node, read: Shapes) -> Shape:
    x, axes = read["x"], node.options["axes"]
    if len(axes) != len(x):
        raise ValueError(f"it orders {len(axes)} axes after the batch")
    return tuple(x[axis - 1] for axis in axes)


def _last_of(steps: int) -> tuple[int, ...]:
    """Return the indices of the last step; in a sequence of any length (-1), only -1 is certain to be the last."""
    return (-1, steps - 1) if steps > 0 else (-1,)


def _check_pad(node: Node) -> None:
    before, after = node.options["before"], node.options["after"]
    if not (0 <= before <= _MOST_REPEATED and 0 <= after <= _MOST_REPEATED):
        raise ModelError(
            f"{node.name}: before and after must be from 0 to {_MOST_REPEATED}, not {before!r} and {after!r}."
        )


def _padded(node: Node, read: Shapes) -> Shape:
    x = read["x"]
    check_last(x)
    return (node.options["before"] + x[0] + node.options["after"], *x[1:])


def _pad(node: Node, given: Given, arithmetic: Arithmetic) -> np.ndarray:
    x = given["x"]
    return np.pad(x, [(0, 0), (node.options["before"], node.options["after"]), *[(0, 0)] * (x.ndim - 2)])


def _crop_step(node: Node, steps: int) -> Stepped:
    if node.options["begin"] in _last_of(steps) and node.options["end"] in (None, steps):
        return Stepped(False, {"begin": -1, "end": None})
    return needs_all_steps(node, steps)


def _take_step(node: Node, steps: int) -> Stepped:
    axis = node.options["axis"]
    if axis == 1 and node.options["indices"] in [(place,) for place in _last_of(steps)]:
        return Stepped(False, {"indices": (-1,)})
    return Stepped() if axis == 2 else needs_all_steps(node, steps)


def _flattened(node: Node, read: Shapes) -> Shape:
    x = read["x"]
    check_last(x)
    return (x[0], math.prod(x[1:]))


ROWS = {
    # (B, T, ...) -> (B, T, F): all axes behind the first one become the features.
    "flatten_steps": Operation(
        gives=AS_READ,
        shape=_flattened,
        run=lambda node, given, _: given["x"].reshape(*given["x"].shape[:2], math.prod(given["x"].shape[2:])),
        step=step_by_step,
    ),
    # shape without the batch; -1 at most once.
    "reshape": Operation(
        options={"shape": tuple},
        check=_check_reshape,
        gives=AS_READ,
        shape=_reshaped,
        run=lambda node, given, _: given["x"].reshape(len(given["x"]), *node.options["shape"]),
    ),
    # (B, F) -> (B, n, F).
    "repeat_vector": Operation(
        options={"n": int},
        check=_check_repeat_vector,
        gives=AS_READ,
        shape=lambda node, read: (node.options["n"], *read["x"]),
        run=lambda node, given, _: np.repeat(given["x"][:, np.newaxis], node.options["n"], axis=1),
    ),
    # Steps from begin to end on axis 1; end may be None.
    "crop": Operation(
        options={"begin": int, "end": (int, type(None))},
        gives=AS_READ,
        shape=_cropped,
        run=lambda node, given, _: given["x"][:, node.options["begin"] : node.options["end"]],
        step=_crop_step,
    ),
    # Steps of zeros before and after those on axis 1.
    "pad": Operation(options={"before": int, "after": int}, check=_check_pad, shape=_padded, run=_pad),
    "take": Operation(
        options={"indices": tuple, "axis": int},
        check=lambda node: check_numbers(node, "indices", lambda indices: len(indices) > 0),
        gives=AS_READ,
        shape=_taken,
        run=lambda node, given, _: np.take(given["x"], node.options["indices"], axis=node.options["axis"]),
        step=_take_step,
    ),
    "flip": Operation(
        options={"axis": int},
        gives=AS_READ,
        shape=along_axis,
        run=lambda node, given, _: np.flip(given["x"], axis=node.options["axis"]),
    ),
    # axes without the batch, counted from 1, as in keras.layers.Permute.
    "permute": Operation(
        options={"axes": tuple},
        check=_check_permute,
        gives=AS_READ,
        shape=_permuted,
        run=lambda node, given, _: given["x"].transpose(0, *node.options["axes"]),
        step=lambda node, steps: Stepped() if node.options["axes"][0] == 1 else needs_all_steps(node, steps),
    ),
}
