"""The operations that look up rows of a table, or multiply by a matrix."""

from __future__ import annotations

import math

import numpy as np

from cellerate.program.node import Node
from cellerate.program.operation import Arithmetic, Given, Operation, Shape, Shapes, check_last, step_by_step


def _dense_shape(node: Node, read: Shapes) -> Shape:
    inputs, outputs = node.arrays["kernel"].shape
    check_last(read["x"], inputs)
    return (*read["x"][:-1], outputs)


def _dense_products(node: Node, read: Shapes, result: Shape) -> int:
    return math.prod(read["x"]) * result[-1]


def _dense(node: Node, given: Given, arithmetic: Arithmetic) -> np.ndarray:
    y = arithmetic.product(given["x"], node.arrays["kernel"], node.arrays.get("bias"))
    return arithmetic.activate(node.options["activation"], y)


def _unembedding(node: Node, given: Given, arithmetic: Arithmetic) -> np.ndarray:
    logits, soft_cap = arithmetic.product(given["x"], node.arrays["kernel"], None), node.options["soft_cap"]
    return logits if soft_cap is None else np.tanh(logits / soft_cap) * soft_cap


ROWS = {
    # (B, T) ids -> (B, T, E); negative ids count from the end.
    "embedding": Operation(
        inputs=("ids",),
        arrays={"embeddings": "VE"},
        shape=lambda node, read: (*read["ids"], node.arrays["embeddings"].shape[1]),
        run=lambda node, given, _: node.arrays["embeddings"].take(given["ids"], axis=0),
        step=step_by_step,
    ),
    # (B, ..., E) -> (B, ..., V): a tied head, the product with the transposed table. soft_cap may be None. A runtime
    # transposes the table once, and calls the result its kernel.
    "unembedding": Operation(
        arrays={"embeddings": "VE"},
        options={"soft_cap": (float, type(None))},
        shape=_dense_shape,
        run=_unembedding,
        products=_dense_products,
        step=step_by_step,
    ),
    # (B, ..., K) -> (B, ..., N), then the activation.
    "dense": Operation(
        arrays={"kernel": "KN", "bias?": "N"},
        options={"activation": str},
        shape=_dense_shape,
        run=_dense,
        products=_dense_products,
        step=step_by_step,
    ),
}
