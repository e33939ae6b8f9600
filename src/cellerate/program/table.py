"""The table of all operations: one row each, which the families define."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from cellerate.program import (
    attention,
    elementwise,
    features,
    masks,
    merging,
    moving,
    products,
    recurrent,
    windows,
)
from cellerate.program.node import Node
from cellerate.program.operation import MOST_AXES, Operation, Shape, are_sizes, check_numbers


def _check_input(node: Node) -> None:
    check_numbers(node, "shape", lambda shape: are_sizes(shape) and 1 <= len(shape) <= MOST_AXES)


def _of_the_caller(node: Node, read: Any) -> Shape:
    raise ValueError("the caller's array has the shape")


OPERATIONS: Mapping[str, Operation] = {
    # An input of the model. shape starts with the batch and has -1 for any size; dtype is "float32" or "int32".
    "input": Operation(
        inputs=(), options={"shape": tuple, "dtype": str}, check=_check_input, shape=_of_the_caller
    ),
    **products.ROWS,
    **masks.ROWS,
    **recurrent.ROWS,
    **features.ROWS,
    **elementwise.ROWS,
    **merging.ROWS,
    **moving.ROWS,
    **windows.ROWS,
    **attention.ROWS,
}
"""Every operation; a file that names any other is refused."""

MASKS = tuple(name for name, row in OPERATIONS.items() if row.gives == "bool")
"""The operations that give a mask."""

RECURRENT = tuple(name for name, row in OPERATIONS.items() if row.states)
"""The operations that have a state, and run one step after the other."""

LAST_STATES: Mapping[str, str] = MappingProxyType(
    {name: row.inputs[0] for name, row in OPERATIONS.items() if row.state_of}
)
"""The operations that return the last state of a recurrent operation → the name of their input."""
