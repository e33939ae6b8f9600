"""Programs made without the checks of `Program`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from cellerate.program import Node, Program
from cellerate.runtime.cell import write_cell
from cellerate.runtime.packed import PackedModel, load


def ones(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


def unchecked(nodes: list[Node], **outputs: Any) -> Program:
    """A program without checks."""
    program = object.__new__(Program)
    object.__setattr__(program, "nodes", tuple(nodes))
    object.__setattr__(program, "outputs", outputs or {"y": len(nodes) - 1})
    return program


def given(*shape: int, dtype: str = "float32", name: str = "x") -> Node:
    return Node("input", name, {}, {}, {"shape": (-1, *shape), "dtype": dtype})


def lstm(
    x: int, inputs: int, units: int, *, arrays: dict[str, np.ndarray] | None = None, **more: int
) -> Node:
    options: dict[str, Any] = {"activation": "tanh", "recurrent_activation": "sigmoid"}
    options |= {"masked_output": "zero", "go_backwards": False, "return_sequences": True}
    arrays = arrays or {"kernel": ones(inputs, 4 * units), "recurrent_kernel": ones(units, 4 * units)}
    return Node("lstm", "lstm", {"x": x, **more}, arrays, options)


def packed(tmp_path: Path, nodes: list[Node], **outputs: int) -> PackedModel:
    """The model after it has been written to a file and loaded."""
    write_cell(tmp_path / "a.cell", unchecked(nodes, **outputs))
    return load(tmp_path / "a.cell")


def array(number: int, **values: np.ndarray) -> Callable[[list[dict[str, Any]]], Any]:
    return lambda nodes: nodes[number]["arrays"].update(values)
