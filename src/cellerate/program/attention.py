"""The operations of attention, in which each step of one sequence reads the steps of another."""

from __future__ import annotations

import math

import numpy as np

from cellerate.errors import ModelError
from cellerate.program.node import Node
from cellerate.program.operation import Arithmetic, Given, Operation, Shape, Shapes, check_numbers

# Keras subtracts this from the scores of masked keys.
_HIDDEN = np.float32(1e9)
# About the most pairs of steps, or features of pairs, whose scores are in memory at once.
_AT_ONCE = 1 << 18
_MOST_HEADS = 1 << 16


def _check_dot(node: Node) -> None:
    check_numbers(node, "axes", lambda axes: len(axes) == 2 and all(axis in (1, 2) for axis in axes))


def _dot_shape(node: Node, read: Shapes) -> Shape:
    rests: Shape = ()
    sizes = []
    for name, axis in zip("01", node.options["axes"], strict=True):
        x = read[name]
        if not axis <= len(x) <= 2:
            raise ValueError(f"input {name} must have an axis {axis} and at most 3 axes, the batch included")
        sizes.append(x[axis - 1])
        rests += (*x[: axis - 1], *x[axis:])
    if sizes[0] != sizes[1]:
        raise ValueError(f"the axes that are multiplied have the sizes {sizes[0]} and {sizes[1]}")
    return rests or (1,)


def _dot(node: Node, given: Given, arithmetic: Arithmetic) -> np.ndarray:
    # The summed axis of each input comes last, with one axis before it.
    x, y = (
        np.moveaxis(given[name], axis, -1).reshape(len(given[name]), -1, given[name].shape[axis])
        for name, axis in zip("01", node.options["axes"], strict=True)
    )
    products = np.matmul(np.ascontiguousarray(x), np.ascontiguousarray(y).swapaxes(1, 2))
    rest = [size for name, size in zip("01", products.shape[1:], strict=True) if given[name].ndim == 3]
    return products.reshape(len(products), *(rest or [1]))


def _check_attention(node: Node) -> None:
    if not 1 <= node.options["heads"] <= _MOST_HEADS:
        raise ModelError(
            f"{node.name}: heads must be from 1 to {_MOST_HEADS}, not {node.options['heads']!r}."
        )
    if "additive" in node.arrays and node.options["heads"] != 1:
        raise ModelError(f"{node.name}: heads must be 1 for additive scores, not {node.options['heads']!r}.")


def _attention_shape(node: Node, read: Shapes) -> Shape:
    query, key, value, heads = read["query"], read["key"], read["value"], node.options["heads"]
    if any(len(x) != 2 for x in (query, key, value)):
        raise ValueError("query, key and value must be (B, T, F)")
    if query[1] != key[1] or key[0] != value[0]:
        raise ValueError("query and key must have the same features, key and value the same steps")
    if key[1] % heads or value[1] % heads:
        raise ValueError(f"the features cannot be divided among {heads} heads")
    if "additive" in node.arrays and len(node.arrays["additive"]) != key[1]:
        raise ValueError(f"additive has {len(node.arrays['additive'])} weights")
    for name, x in (("mask", key), ("mask_of_queries", query)):
        if read.get(name, x[:1]) != x[:1]:
            raise ValueError(f"{name} must be (B, {x[0]})")
    return (query[0], value[1])


def _attention_products(node: Node, read: Shapes, result: Shape) -> int:
    # tanh takes as long as many products.
    each = 16 if "additive" in node.arrays else 1
    return read["query"][0] * read["key"][0] * (each * read["key"][1] + read["value"][1])


def _attention(node: Node, given: Given, arithmetic: Arithmetic) -> np.ndarray:
    heads, key, value = node.options["heads"], given["key"], given["value"]
    queries, keys = given["query"].shape[1], key.shape[1]
    each = keys * (key.shape[2] if "additive" in node.arrays else heads)
    most = max(1, _AT_ONCE // each)
    parts = [
        _attended(node, given, arithmetic, (begin, min(begin + most, queries)))
        for begin in range(0, queries, most)
    ]
    return np.concatenate(parts, axis=1).reshape(len(value), queries, value.shape[2])


def _attended(node: Node, given: Given, arithmetic: Arithmetic, part: tuple[int, int]) -> np.ndarray:
    """The results of some queries, (B, queries, heads, features of a head)."""
    begin, end = part
    heads, query = node.options["heads"], given["query"][:, begin:end]
    q, k, v = (
        np.ascontiguousarray(x.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2))
        for x in (query, given["key"], given["value"])
    )
    additive = node.arrays.get("additive")
    if additive is None:
        scores = np.matmul(q, k.swapaxes(2, 3))
    else:
        scores = (np.tanh(q[:, :, :, np.newaxis] + k[:, :, np.newaxis]) * additive).sum(axis=-1)
    scores *= np.float32(node.options["scale"])
    counts = _counts(node, given, begin, end)
    if counts is not None:
        scores = np.where(counts, scores, scores - _HIDDEN)
    weights = arithmetic.activate("softmax", scores)
    if counts is not None and node.options["zeros"]:
        weights = np.where(counts, weights, np.float32(0))
    return np.matmul(weights, v).swapaxes(1, 2)


def _counts(node: Node, given: Given, begin: int, end: int) -> np.ndarray | None:
    """Return the unmasked keys of each query, (B or 1, 1, queries, keys); None if all are unmasked."""
    counts = None
    if "mask" in given:
        counts = given["mask"][:, np.newaxis, np.newaxis]
    if "mask_of_queries" in given:
        own = given["mask_of_queries"][:, np.newaxis, begin:end, np.newaxis]
        counts = own if counts is None else counts & own
    if node.options["causal"]:
        earlier = np.arange(begin, end)[:, np.newaxis] >= np.arange(given["key"].shape[1])
        counts = earlier[np.newaxis, np.newaxis] if counts is None else counts & earlier
    return counts


ROWS = {
    # The sums of products over an axis of each of two values; the rest of their axes stay, those of "0" first.
    "dot": Operation(
        inputs=("0", "1"),
        options={"axes": tuple},
        check=_check_dot,
        shape=_dot_shape,
        run=_dot,
        products=lambda node, read, result: math.prod(result) * read["0"][node.options["axes"][0] - 1],
    ),
    # query (B, T, K), key (B, S, K), value (B, S, V) -> (B, T, V): the mean of the values, weighted by the softmax of
    # each query's scores. A score is scale · q·k, in heads that have their part of the features each; with additive
    # weights it is scale · Σ additive·tanh(q + k). mask (B, S) says which keys count, mask_of_queries (B, T) for which
    # queries any do; causal, that no later ones do. Where none counts the result is the mean of all values, or zeros.
    "attention": Operation(
        inputs=("query", "key", "value", "mask?", "mask_of_queries?"),
        arrays={"additive?": "K"},
        options={"heads": int, "scale": float, "causal": bool, "zeros": bool},
        check=_check_attention,
        shape=_attention_shape,
        run=_attention,
        products=_attention_products,
    ),
}
