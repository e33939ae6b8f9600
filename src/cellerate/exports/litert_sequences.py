"""The operations across steps (windows, pooling, attention) as operators of LiteRT."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from ai_edge_litert import schema_py_generated as schema

from cellerate.errors import ModelError
from cellerate.exports.litert_graph import Given, LiteRtGraph, Value
from cellerate.program import Node, window_steps

_FREE = -1


def windows(graph: LiteRtGraph, node: Node, given: Given) -> Value:
    """The steps of each window side by side."""
    options = node.options
    x, axis, size, dilation = given["x"], options["axis"], options["size"], options["dilation"]
    if options["padding"] == "same" and options["strides"] > 1 and graph.free_length and axis == 1:
        raise ModelError(
            f'{node.name}: its padding="same" with strides={options["strides"]} depends on the length of the sequence, '
            "which LiteRT must know. Give the model's Input its steps, or export it to onnx or savedmodel."
        )
    reach, strides = (size - 1) * dilation + 1, options["strides"]
    count, before = window_steps(node, x.shape[axis])
    behind = max((count - 1) * strides + reach - x.shape[axis] - before, 0)
    # The padding must not depend on the length: with strides of 1 it does not, and without padding there is none.
    if before or behind:
        x = _padded(graph, x, axis, (before, behind))
    taps = []
    for tap in range(size):
        left = reach - 1 - tap * dilation
        taps.append(_part(graph, x, axis, (tap * dilation, -left if left else None, strides)))
    return taps[0] if size == 1 else _side_by_side(graph, taps)


def _padded(graph: LiteRtGraph, x: Value, axis: int, sides: tuple[int, int]) -> Value:
    paddings = [sides if place == axis else (0, 0) for place in range(len(x.shape))]
    shape = [size + sum(both) for size, both in zip(x.shape, paddings, strict=True)]
    return graph.add("PAD", [x, graph.constant(paddings, "int32")], shape, schema.PadOptionsT())


def _part(graph: LiteRtGraph, x: Value, axis: int, part: tuple[int, int | None, int]) -> Value:
    """A slice of the steps: from the first to before the second, with strides."""
    begin, end, strides = part
    axes = range(len(x.shape))
    options = schema.StridedSliceOptionsT()
    options.beginMask = sum(1 << place for place in axes if place != axis)
    options.endMask = options.beginMask | (1 << axis if end is None else 0)
    places = [
        [begin if place == axis else 0 for place in axes],
        [end or 0 if place == axis else 0 for place in axes],
        [strides if place == axis else 1 for place in axes],
    ]
    shape = list(x.shape)
    shape[axis] = len(range(x.shape[axis])[begin:end:strides])
    inputs = [x, *(graph.constant(place, "int32") for place in places)]
    return graph.add("STRIDED_SLICE", inputs, shape, options)


def _side_by_side(graph: LiteRtGraph, values: Sequence[Value]) -> Value:
    options = schema.ConcatenationOptionsT()
    options.axis = len(values[0].shape) - 1
    shape = (*values[0].shape[:-1], sum(value.shape[-1] for value in values))
    return graph.add("CONCATENATION", values, shape, options)


def pool(op: str) -> Callable[[LiteRtGraph, Node, Given], Value]:
    """Pooling by LiteRT's own operator, on images that are one pixel wide."""

    def write(graph: LiteRtGraph, node: Node, given: Given) -> Value:
        chosen = node.options
        x, count = given["x"], window_steps(node, given["x"].shape[-2])[0]
        *outer, steps, features = x.shape
        rows = math.prod(outer)
        # Only one size may be free: the steps, or the rows if x has a further axis before the steps.
        free = (rows, _FREE, 1) if len(outer) == 1 else (_FREE, steps, 1)
        image = graph.reshape(x, (rows, steps, 1, features), (*free, features))
        options = schema.Pool2DOptionsT()
        options.padding = schema.Padding.SAME if chosen["padding"] == "same" else schema.Padding.VALID
        options.strideH, options.strideW = chosen["strides"], 1
        options.filterHeight, options.filterWidth = chosen["size"], 1
        pooled = graph.add(op, [image], (rows, count, 1, features), options)
        inner = (*outer[2:], count) if len(outer) > 1 else ()
        return graph.reshape(pooled, (*outer, count, features), (x.shape[0], _FREE, *inner, features))

    return write


def flatten_steps(graph: LiteRtGraph, node: Node, given: Given) -> Value:
    """All axes behind the first one as the features."""
    x = given["x"]
    features = math.prod(x.shape[2:])
    return graph.reshape(x, (*x.shape[:2], features), (x.shape[0], _FREE, features))


def reduce(op: str) -> Callable[[LiteRtGraph, Node, Given], Value]:
    """Reductions along an axis: sums, means, extremes."""

    def write(graph: LiteRtGraph, node: Node, given: Given) -> Value:
        return graph.reduce(op, given["x"], node.options["axis"], keep=bool(node.options["keepdims"]))

    return write


def softmax(graph: LiteRtGraph, node: Node, given: Given) -> Value:
    """A softmax along any axis."""
    x, axis = given["x"], node.options["axis"]
    order = [place for place in range(len(x.shape)) if place != axis] + [axis]
    back = [order.index(place) for place in range(len(x.shape))]
    return _turned(graph, last_softmax(graph, _turned(graph, x, order)), back)


def last_softmax(graph: LiteRtGraph, x: Value) -> Value:
    """A softmax along the last axis."""
    options = schema.SoftmaxOptionsT()
    options.beta = 1.0
    return graph.unary("SOFTMAX", x, options)


def _turned(graph: LiteRtGraph, x: Value, order: Sequence[int]) -> Value:
    """Transpose the axes."""
    return graph.add("TRANSPOSE", [x, graph.constant(order, "int32")], [x.shape[axis] for axis in order])


def _products(graph: LiteRtGraph, x: Value, y: Value, turned: tuple[bool, bool]) -> Value:
    """Products of matrices, each of which may be transposed."""
    options = schema.BatchMatMulOptionsT()
    options.adjX, options.adjY = turned
    shape = (*x.shape[:-2], x.shape[-1 if turned[0] else -2], y.shape[-2 if turned[1] else -1])
    return graph.add("BATCH_MATMUL", [x, y], shape, options)


def dot(graph: LiteRtGraph, node: Node, given: Given) -> Value:
    """The dot products of two values over one axis of each."""
    axes = node.options["axes"]
    sides, rests = [], []
    for name in "01":
        x = given[name]
        rests.append(len(x.shape) == 3)
        if not rests[-1]:
            x = graph.reshape(x, (x.shape[0], 1, x.shape[1]), (x.shape[0], 1, _FREE))
        sides.append(x)
    turned = rests[0] and axes[0] == 1, not rests[1] or axes[1] == 2
    products = _products(graph, sides[0], sides[1], turned)
    if all(rests):
        return products
    kept = math.prod(products.shape[1:])
    return graph.reshape(products, (products.shape[0], kept), (products.shape[0], _FREE))


def attention(graph: LiteRtGraph, node: Node, given: Given) -> Value:
    """The mean of the values, weighted by the softmax of each query's scores."""
    options = node.options
    heads = options["heads"]
    query, key, value = (_heads(graph, given[name], heads) for name in ("query", "key", "value"))
    if "additive" in node.arrays:
        if graph.free_length:
            raise ModelError(
                f"{node.name}: LiteRT must know the length of the sequences whose steps additive attention compares. "
                "Give the model's Input its steps, or export it to onnx or savedmodel."
            )
        scores = _additive(graph, query, key, graph.weight(node.arrays["additive"]))
    else:
        scores = _products(graph, query, key, (False, True))
    scores = graph.binary("MUL", scores, options["scale"])
    if options["causal"]:
        # The indices of the steps, as cumulative sums of ones: so they have the shape of the scores at any length.
        ones = graph.binary("ADD", graph.unary("ZEROS_LIKE", scores), 1.0)
        rows, columns = (
            graph.add("CUMSUM", [ones, graph.constant(axis, "int32")], scores.shape, schema.CumsumOptionsT())
            for axis in (2, 3)
        )
        counts = graph.add("GREATER_EQUAL", [rows, columns], scores.shape, dtype="bool")
        hidden = graph.binary("SUB", scores, 1e9)
        scores = graph.add("SELECT_V2", [counts, scores, hidden], scores.shape)
    mixed = _turned(graph, _products(graph, last_softmax(graph, scores), value, (False, False)), [0, 2, 1, 3])
    rows, steps, features = mixed.shape[0], mixed.shape[1], given["value"].shape[2]
    return graph.reshape(mixed, (rows, steps, features), (rows, _FREE, features))


def _heads(graph: LiteRtGraph, x: Value, heads: int) -> Value:
    """(B, T, F) as (B, heads, T, features of a head)."""
    rows, steps, features = x.shape
    split = (heads, features // heads)
    return _turned(graph, graph.reshape(x, (rows, steps, *split), (rows, _FREE, *split)), [0, 2, 1, 3])


def _additive(graph: LiteRtGraph, query: Value, key: Value, weights: Value) -> Value:
    rows, _, queries, width = query.shape
    keys = key.shape[2]
    each = (rows, queries, 1, width), (rows, 1, keys, width)
    q, k = (graph.reshape(x, shape, shape) for x, shape in zip((query, key), each, strict=True))
    pairs = graph.binary("MUL", graph.unary("TANH", graph.binary("ADD", q, k)), weights)
    scores = graph.reduce("SUM", pairs, 3, keep=False)
    return graph.reshape(scores, (rows, 1, queries, keys), (rows, 1, queries, keys))
