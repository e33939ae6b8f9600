"""The operations across steps (windows, pooling, attention) as nodes of ONNX."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto, helper

from cellerate.exports.onnx_graph import TO_THE_END, Given, OnnxGraph
from cellerate.program import Node


def windows(graph: OnnxGraph, node: Node, given: Given) -> str:
    """The steps of each window side by side."""
    taps = _taps(graph, node, given.values["x"], given.axes["x"], 0.0)
    return taps[0] if len(taps) == 1 else graph.add("Concat", *taps, axis=-1)


def max_pool(graph: OnnxGraph, node: Node, given: Given) -> str:
    """The largest of each window."""
    return graph.add("Max", *_taps(graph, node, given.values["x"], given.axes["x"], -np.inf))


def average_pool(graph: OnnxGraph, node: Node, given: Given) -> str:
    """The mean of each window, without the steps of padding."""
    x, rank = given.values["x"], given.axes["x"]
    total = graph.add("Sum", *_taps(graph, node, x, rank, 0.0))
    # Ones at the true steps: the padding adds zeros, so their sum counts the true steps of a window.
    first = graph.add("Slice", x, graph.sizes(0), graph.sizes(1), graph.sizes(rank - 1))
    ones = graph.add("ConstantOfShape", graph.add("Shape", first), value=_one())
    return graph.add("Div", total, graph.add("Sum", *_taps(graph, node, ones, rank, 0.0)))


def _one() -> TensorProto:
    return helper.make_tensor("value", TensorProto.FLOAT, [1], [1.0])


def _taps(graph: OnnxGraph, node: Node, x: str, rank: int, padding: float) -> list[str]:
    """The first steps of all windows, their second steps, and so on."""
    options = node.options
    axis, size, strides = options["axis"], options["size"], options["strides"]
    dilation = options["dilation"]
    reach = (size - 1) * dilation + 1
    if options["padding"] == "same" and strides > 1:
        x = _padded(graph, x, (rank, axis), _same(graph, x, axis, reach, strides), padding)
    elif options["padding"] != "valid" and reach > 1:
        before = reach - 1 if options["padding"] == "causal" else (reach - 1) // 2
        x = _padded(graph, x, (rank, axis), (graph.sizes(before), graph.sizes(reach - 1 - before)), padding)
    taps = []
    for tap in range(size):
        left = reach - 1 - tap * dilation
        taps.append(graph.slice(x, tap * dilation, -left if left else TO_THE_END, axis, strides))
    return taps


def _same(graph: OnnxGraph, x: str, axis: int, reach: int, strides: int) -> tuple[str, str]:
    """The numbers of steps to pad before and behind, [1] each, if they depend on the length."""
    steps = graph.slice(graph.add("Shape", x), axis, axis + 1, 0)
    rest = graph.add("Mod", graph.add("Sub", steps, graph.sizes(1)), graph.sizes(strides))
    # The last window begins `rest` + 1 steps before the end.
    total = graph.add("Max", graph.add("Sub", graph.sizes(reach - 1), rest), graph.sizes(0))
    before = graph.add("Div", total, graph.sizes(2))
    return before, graph.add("Sub", total, before)


def _padded(graph: OnnxGraph, x: str, place: tuple[int, int], sides: tuple[str, str], padding: float) -> str:
    rank, axis = place
    parts = []
    for side in sides:
        around = [graph.sizes(*[0] * zeros) if zeros else "" for zeros in (axis, rank - 1 - axis)]
        parts += [part for part in (around[0], side, around[1]) if part]
    return graph.add("Pad", x, graph.add("Concat", *parts, axis=0), graph.number(padding))


def reduce(op: str) -> Any:
    """Reductions along an axis: sums, means, extremes."""

    def write(graph: OnnxGraph, node: Node, given: Given) -> str:
        options = node.options
        x, keepdims = given.values["x"], int(options["keepdims"])
        if op == "ReduceSum":
            return graph.add(op, x, graph.sizes(options["axis"]), keepdims=keepdims)
        return graph.add(op, x, axes=[options["axis"]], keepdims=keepdims)

    return write


def dot(graph: OnnxGraph, node: Node, given: Given) -> str:
    """The dot products of two values over one axis of each."""
    axes = node.options["axes"]
    sides, rests = [], []
    for name, axis in zip("01", axes, strict=True):
        x = given.values[name]
        if given.axes[name] == 2:
            x = graph.add("Unsqueeze", x, graph.sizes(1))
        elif (axis == 2) != (name == "0"):
            # MatMul sums over the last axis of the first and the last but one of the second.
            x = graph.add("Transpose", x, perm=[0, 2, 1])
        if name == "1" and given.axes[name] == 2:
            x = graph.add("Transpose", x, perm=[0, 2, 1])
        sides.append(x)
        rests.append(given.axes[name] == 3)
    products = graph.add("MatMul", *sides)
    gone = [1 + place for place, rest in enumerate(rests) if not rest]
    if len(gone) == 2:
        gone = [2]
    return str(graph.add("Squeeze", products, graph.sizes(*gone)) if gone else products)


def attention(graph: OnnxGraph, node: Node, given: Given) -> str:
    """The mean of the values, weighted by the softmax of each query's scores."""
    options = node.options
    split = graph.sizes(0, 0, options["heads"], -1)
    query, key, value = (
        graph.add("Transpose", graph.add("Reshape", given.values[name], split), perm=perm)
        for name, perm in (("query", [0, 2, 1, 3]), ("key", [0, 2, 3, 1]), ("value", [0, 2, 1, 3]))
    )
    if "additive" in node.arrays:
        pairs = graph.add(
            "Add",
            graph.add("Unsqueeze", given.values["query"], graph.sizes(1, 3)),
            graph.add("Unsqueeze", given.values["key"], graph.sizes(1, 2)),
        )
        weighted = graph.add("Mul", graph.add("Tanh", pairs), graph.weight(node.arrays["additive"]))
        scores = graph.add("ReduceSum", weighted, graph.sizes(-1), keepdims=0)
    else:
        scores = graph.add("MatMul", query, key)
    scores = graph.add("Mul", scores, graph.number(options["scale"]))
    counts = _counts(graph, node, given)
    if counts is not None:
        scores = graph.add("Where", counts, scores, graph.add("Sub", scores, graph.number(1e9)))
    weights = graph.add("Softmax", scores, axis=-1)
    if counts is not None and options["zeros"]:
        weights = graph.add("Where", counts, weights, graph.number(0))
    joined = graph.add("Transpose", graph.add("MatMul", weights, value), perm=[0, 2, 1, 3])
    return graph.add("Reshape", joined, graph.sizes(0, 0, -1))


def _counts(graph: OnnxGraph, node: Node, given: Given) -> str | None:
    """The mask of keys for each query, in a shape that broadcasts to (B, heads, T, S); None if all keys count."""
    found = []
    for name, axes in (("mask", (1, 2)), ("mask_of_queries", (1, 3))):
        if name in given.values:
            found.append(graph.add("Unsqueeze", given.values[name], graph.sizes(*axes)))
    if node.options["causal"]:
        query, key = (_range(graph, given.values[name]) for name in ("query", "key"))
        found.append(graph.add("GreaterOrEqual", graph.add("Unsqueeze", query, graph.sizes(1)), key))
    if not found:
        return None
    counts, *others = found
    for other in others:
        counts = graph.add("And", counts, other)
    return str(counts)


def _range(graph: OnnxGraph, x: str) -> str:
    """The indices of the steps of a value."""
    steps = graph.add("Squeeze", graph.slice(graph.add("Shape", x), 1, 2, 0), graph.sizes(0))
    return graph.add("Range", graph.number(0, np.int64), steps, graph.number(1, np.int64))
