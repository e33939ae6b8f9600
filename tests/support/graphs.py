"""Programs of packed models, made node by node."""

from typing import Any

import numpy as np

from cellerate.program import Node, Program


def draw(*shape: int, seed: int = 0) -> np.ndarray:
    """Standard normal numbers, the same for the same shape and seed."""
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


class Graph:
    """The nodes of a program, added one after the other."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []

    def add(
        self,
        op: str,
        name: str,
        inputs: dict[str, int] | None = None,
        arrays: dict[str, np.ndarray] | None = None,
        **options: Any,
    ) -> int:
        """Add a node and return its number."""
        self.nodes.append(Node(op, name, inputs or {}, arrays or {}, options))
        return len(self.nodes) - 1

    def input(self, name: str, *shape: int, dtype: str = "float32") -> int:
        return self.add("input", name, shape=(-1, *shape), dtype=dtype)

    def affine(self, x: int, name: str, width: int, scale: float = 2.0, offset: float = 1.0) -> int:
        arrays = {name: np.full(width, v, np.float32) for name, v in (("scale", scale), ("offset", offset))}
        return self.add("affine", name, {"x": x}, arrays)

    def dense(self, x: int, name: str, inputs: int, outputs: int, activation: str = "linear") -> int:
        arrays = {"kernel": draw(inputs, outputs, seed=3) / np.float32(inputs**0.5), "bias": draw(outputs)}
        return self.add("dense", name, {"x": x}, arrays, activation=activation)

    def lstm(
        self,
        x: int,
        name: str,
        inputs: int,
        units: int,
        *,
        mask: int | None = None,
        h0: int | None = None,
        c0: int | None = None,
        **options: Any,
    ) -> int:
        read = {"x": x, "mask": mask, "h0": h0, "c0": c0}
        arrays = {
            "kernel": draw(inputs, 4 * units, seed=1) / np.float32(inputs**0.5),
            "recurrent_kernel": draw(units, 4 * units, seed=2) / np.float32(2 * units**0.5),
            "bias": draw(4 * units, seed=3),
        }
        defaults: dict[str, Any] = {
            "activation": "tanh",
            "recurrent_activation": "sigmoid",
            "masked_output": "previous_output",
        }
        defaults |= {"go_backwards": False, "return_sequences": True}
        given = {key: value for key, value in read.items() if value is not None}
        return self.add("lstm", name, given, arrays, **(defaults | options))

    def program(self, **outputs: int) -> Program:
        return Program(tuple(self.nodes), outputs)
