"""A row of the language's table: all facts on an operation except its kernels and exports.

Each family of operations has its rows in one module; `table` joins them. A shape here is the shape of one row of the
batch, without the batch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from cellerate.errors import ModelError
from cellerate.program.node import Node, Option

Shape = tuple[int, ...]
"""The shape of a row of a value, without the batch."""

Shapes = Mapping[str, Shape]
"""The shape of a row of each input, by the name of the input."""

Given = Mapping[str, np.ndarray]
"""The inputs of an operation: the name of an input → its array."""

AS_READ = "as its inputs"
"""The type of a result that has the type of its inputs."""

MOST_AXES = 32
"""The most axes of an array: real models have fewer, and array libraries choke on more."""


class Arithmetic(NamedTuple):
    """The arithmetic that a runtime brings along, from the native core where there is one.

    Attributes:
        product: x (..., K), a kernel (K, N) and a bias (N,) or None → (..., N).
        activate: An activation as a node names it, and x → an array like x.
    """

    product: Callable[[np.ndarray, np.ndarray, np.ndarray | None], np.ndarray]
    activate: Callable[[str, np.ndarray], np.ndarray]


class Stepped(NamedTuple):
    """The way a node takes a push of steps, while the model itself reads the whole sequence.

    Attributes:
        sequence: True if its result has the steps of the push; False if it has only the last step.
        options: The options to change for a push.
        earlier: The number of steps before a push that it reads as well, zeros at first, and their features.
    """

    sequence: bool = True
    options: Mapping[str, Option] = {}
    earlier: tuple[int, int] = (0, 0)


def needs_all_steps(node: Node, steps: int) -> Stepped:
    """Refuse a push, because the operation needs the whole sequence."""
    raise ValueError(f"{node.op} needs the whole sequence")


def step_by_step(node: Node, steps: int) -> Stepped:
    """Take each step of a push by itself."""
    return Stepped()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Operation:
    """One operation: what its nodes have, and what they compute.

    Attributes:
        inputs: The names of its inputs; those that end in "?" are optional. ("*",) stands for one or more,
            named "0", "1", ...
        arrays: Its weights: name → axes. Names that end in "?" are optional.
        options: Its options: name → required type.
        check: Raises `ModelError` for a node that breaks a rule which the types of its options cannot express.
        reads: The type of its inputs, except "ids", which are int32, and names that begin with "mask", which are bool.
        gives: The type of its result: "float32", "bool" for a mask, or `AS_READ`.
        shape: The shape of its result from those of its inputs, without a size of 0. Raises `ValueError` for shapes
            that it does not take.
        run: The computation in NumPy. None for an input, and for operations with states, which a runtime computes.
        products: The number of multiplications for a row, from the shapes of its inputs and of its result.
        step: The way it takes a push of steps, given the steps of its inputs in the model itself, -1 for any number.
            Raises `ValueError` with the reason if its result is not known step by step.
        gates: The gates of a recurrent layer: columns of its recurrent kernel for each unit.
        states: The letters of the states of a recurrent layer, "h" or "hc".
        state_of: The recurrent operations whose last state it gives.
    """

    inputs: tuple[str, ...] = ("x",)
    arrays: Mapping[str, str] = dataclasses.field(default_factory=dict)
    options: Mapping[str, type | tuple[type, ...]] = dataclasses.field(default_factory=dict)
    check: Callable[[Node], None] = lambda node: None
    reads: str = "float32"
    gives: str = "float32"
    shape: Callable[[Node, Shapes], Shape]
    run: Callable[[Node, Given, Arithmetic], Any] | None = None
    products: Callable[[Node, Shapes, Shape], int] = lambda node, read, result: 0
    step: Callable[[Node, int], Stepped] = needs_all_steps
    gates: int = 0
    states: str = ""
    state_of: tuple[str, ...] = ()


def in_order(read: Mapping[str, Any]) -> list[Any]:
    """The inputs of an operation that takes any number of them."""
    return [read[name] for name in map(str, range(len(read)))]


def same_shape(node: Node, read: Shapes) -> Shape:
    """The shape of x, which must have as many features as each weight of the node."""
    check_last(read["x"], *(len(array) for array in node.arrays.values()))
    return read["x"]


def along_axis(node: Node, read: Shapes) -> Shape:
    """The shape of x, which must have the axis that the node works along."""
    axis_of(node, read["x"])
    return read["x"]


def axis_of(node: Node, x: Shape) -> int:
    """The axis that a node works along, among those after the batch."""
    axis = node.options["axis"]
    place = axis + len(x) if axis < 0 else axis - 1
    if not 0 <= place < len(x):
        raise ValueError(f"there is no axis {axis} after the batch")
    return place


def check_last(x: Shape, *sizes: int) -> None:
    """Refuse rows without an axis or with another size of the last axis, because NumPy would broadcast a 1."""
    if not x or any(size != x[-1] for size in sizes):
        raise ValueError(f"the last axis must have the size {sizes[0] if sizes else 'of the features'}")


def check_mask(x: Shape, mask: Shape | None) -> None:
    """Refuse a mask that has other steps than x."""
    if mask is not None and (len(x) != 2 or mask != x[:1]):
        raise ValueError("x must be (B, T, F) and mask (B, T)")


def check_numbers(node: Node, name: str, fits: Callable[[Sequence[int]], bool]) -> None:
    """Refuse a node whose option, a tuple, does not hold whole numbers that fit."""
    values = node.options[name]
    if not all(is_whole(value) for value in values):
        raise ModelError(f"{node.name}: {name} must be whole numbers, not {values!r}.")
    if not fits(values):
        raise ModelError(f"{node.name}: {node.op} cannot have the {name} {values!r}.")


def are_sizes(values: Sequence[int]) -> bool:
    """Return True for the sizes of axes, where -1 stands for any."""
    return all(size == -1 or size > 0 for size in values)


def is_whole(value: object) -> bool:
    """Return True for an int, which to Python a bool is, too."""
    return isinstance(value, int) and not isinstance(value, bool)
