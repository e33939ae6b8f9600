"""The operations that compute each number by itself, and those that compare numbers and choose between them.

The result of a comparison is 1 where it is true and 0 elsewhere, a number like any other: products are then "and", and
maxima "or".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from cellerate.errors import ModelError
from cellerate.program.merging import aligned, merged_shape
from cellerate.program.node import Node
from cellerate.program.operation import Arithmetic, Given, Operation, in_order, step_by_step

RELATIONS: Mapping[str, Callable[[np.ndarray, Any], np.ndarray]] = MappingProxyType(
    {
        "greater": np.greater,
        "greater_equal": np.greater_equal,
        "less": np.less,
        "less_equal": np.less_equal,
        "equal": np.equal,
        "not_equal": np.not_equal,
    }
)
"""The comparisons of two numbers, by the names of `keras.ops`."""

FUNCTIONS: Mapping[str, Callable[[np.ndarray, Any], np.ndarray]] = MappingProxyType(
    {
        "sqrt": lambda x, _: np.sqrt(x),
        "rsqrt": lambda x, _: 1 / np.sqrt(x),
        "reciprocal": lambda x, _: 1 / x,
        "log": lambda x, _: np.log(x),
        "log1p": lambda x, _: np.log1p(x),
        "expm1": lambda x, _: np.expm1(x),
        "sin": lambda x, _: np.sin(x),
        "cos": lambda x, _: np.cos(x),
        "abs": lambda x, _: np.abs(x),
        "sign": lambda x, _: np.sign(x),
        "floor": lambda x, _: np.floor(x),
        "ceil": lambda x, _: np.ceil(x),
        # Halves to the even number.
        "round": lambda x, _: np.rint(x),
        "power": np.power,
        **RELATIONS,
    }
)
"""The functions of a number x, by the names of `keras.ops`; the second argument is a power's exponent, or what x is
compared with."""


def _check_name(name: str, known: Mapping[str, object]) -> Callable[[Node], None]:
    def check(node: Node) -> None:
        if node.options[name] not in known:
            raise ModelError(
                f"{node.name}: {name} must be one of {', '.join(known)}, not {node.options[name]!r}."
            )

    return check


def _function(node: Node, given: Given, arithmetic: Arithmetic) -> np.ndarray:
    compute = FUNCTIONS[node.options["function"]]
    return np.asarray(compute(given["x"], np.float32(node.options["number"])), np.float32)


def _compare(node: Node, given: Given, arithmetic: Arithmetic) -> np.ndarray:
    left, right = aligned(in_order(given))
    return np.asarray(RELATIONS[node.options["relation"]](left, right), np.float32)


def _choose(node: Node, given: Given, arithmetic: Arithmetic) -> np.ndarray:
    condition, yes, no = aligned(in_order(given))
    return np.where(condition != 0, yes, no)


ROWS = {
    # number is 0 for functions that have none.
    "function": Operation(
        options={"function": str, "number": float},
        check=_check_name("function", FUNCTIONS),
        shape=lambda node, read: read["x"],
        run=_function,
        step=step_by_step,
    ),
    # 0 and 1 stretched to one shape as the inputs of an add.
    "compare": Operation(
        inputs=("0", "1"),
        options={"relation": str},
        check=_check_name("relation", RELATIONS),
        shape=lambda node, read: merged_shape(in_order(read)),
        run=_compare,
        step=step_by_step,
    ),
    # 1 where 0 is not 0, else 2; all three stretched to one shape.
    "choose": Operation(
        inputs=("0", "1", "2"),
        shape=lambda node, read: merged_shape(in_order(read)),
        run=_choose,
        step=step_by_step,
    ),
}
