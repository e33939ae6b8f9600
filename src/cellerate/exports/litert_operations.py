"""Each operation of a program as operators of LiteRT. `cellerate.program` defines the operations."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from ai_edge_litert import schema_py_generated as schema

from cellerate.errors import ModelError
from cellerate.exports import litert_sequences as sequences
from cellerate.exports.litert_graph import Given, LiteRtGraph, Value
from cellerate.program import MASKS, RELATIONS, Node, named_activation


def add_operation(graph: LiteRtGraph, node: Node, given: Given) -> Value:
    """Add any operation but "input", "lstm" and "lstm_state".

    Raises:
        ModelError: LiteRT has no operators for it.
    """
    # LiteRT's LSTM takes no mask, so no node with a mask is written.
    if node.op in MASKS or any(name.startswith("mask") for name in given):
        raise masks_refused(node)
    return _OPERATIONS[node.op](graph, node, given)


def masks_refused(node: Node) -> ModelError:
    """The error for a node that reads a mask, or makes one."""
    return ModelError(
        f"{node.name}: LiteRT's LSTM takes no mask, and this layer has one. Train the model without mask_zero and "
        "Masking, or export it to onnx or savedmodel."
    )


def activate(graph: LiteRtGraph, activation: str, x: Value) -> Value:
    """An activation of a node, with its parameters."""
    name, parameters = named_activation(activation)
    return x if name == "linear" else _ACTIVATIONS[name](graph, x, **parameters)


def product(graph: LiteRtGraph, x: Value, weight: Value, bias: Value) -> Value:
    """X (..., K) times a weight (N, K), plus a bias."""
    options = schema.FullyConnectedOptionsT()
    options.keepNumDims = True
    shape = (*x.shape[:-1], weight.shape[0])
    return graph.add("FULLY_CONNECTED", [x, weight, bias], shape, options, version=5)


def _named(op: str, **options: Any) -> Callable[[LiteRtGraph, Value], Value]:
    def activation(graph: LiteRtGraph, x: Value) -> Value:
        settings = None
        if options:
            settings = getattr(schema, "".join(part.capitalize() for part in op.split("_")) + "OptionsT")()
            for name, value in options.items():
                setattr(settings, name, value)
        return graph.unary(op, x, settings)

    return activation


def _clip(graph: LiteRtGraph, x: Value, low: float, high: float) -> Value:
    return graph.binary("MINIMUM", graph.binary("MAXIMUM", x, low), high)


def _where(
    graph: LiteRtGraph, op: str, x: Value, limit: float, yes: Value | float, no: Value | float
) -> Value:
    chosen = graph.add(op, [x, graph.constant(limit)], x.shape, dtype="bool")
    yes, no = (one if isinstance(one, Value) else graph.constant(one) for one in (yes, no))
    return graph.add("SELECT_V2", [chosen, yes, no], x.shape)


def _softplus(graph: LiteRtGraph, x: Value) -> Value:
    # max(x, 0) + log(1 + e^-|x|), which never overflows.
    small = graph.unary("EXP", graph.unary("NEG", graph.unary("ABS", x)))
    return graph.binary("ADD", graph.unary("RELU", x), graph.unary("LOG", graph.binary("ADD", small, 1.0)))


def _relu(graph: LiteRtGraph, x: Value, negative_slope: float, max_value: float, threshold: float) -> Value:
    if not negative_slope and not threshold and max_value == math.inf:
        return graph.unary("RELU", x)
    above = x if max_value == math.inf else _clip(graph, x, 0.0, max_value)
    below = graph.binary("MUL", graph.binary("SUB", x, threshold), negative_slope)
    return _where(graph, "GREATER", x, threshold, above, below)


def _leaky_relu(graph: LiteRtGraph, x: Value, negative_slope: float) -> Value:
    options = schema.LeakyReluOptionsT()
    options.alpha = negative_slope
    return graph.unary("LEAKY_RELU", x, options)


def _celu(graph: LiteRtGraph, x: Value, alpha: float) -> Value:
    below = graph.unary("ELU", graph.binary("DIV", graph.binary("MINIMUM", x, 0.0), alpha))
    return graph.binary("ADD", graph.unary("RELU", x), graph.binary("MUL", below, alpha))


def _elu(graph: LiteRtGraph, x: Value, alpha: float) -> Value:
    if alpha == 1.0:
        return graph.unary("ELU", x)
    below = graph.binary("MUL", graph.unary("ELU", graph.binary("MINIMUM", x, 0.0)), alpha)
    return graph.binary("ADD", graph.unary("RELU", x), below)


def _selu(graph: LiteRtGraph, x: Value) -> Value:
    below = graph.binary("MUL", graph.unary("ELU", graph.binary("MINIMUM", x, 0.0)), 1.6732632423543772)
    return graph.binary("MUL", graph.binary("ADD", graph.unary("RELU", x), below), 1.0507009873554805)


def _hard_sigmoid(graph: LiteRtGraph, x: Value) -> Value:
    return graph.binary("MUL", graph.unary("RELU6", graph.binary("ADD", x, 3.0)), 1 / 6)


def _gelu(graph: LiteRtGraph, x: Value, approximate: float) -> Value:
    options = schema.GeluOptionsT()
    options.approximate = bool(approximate)
    return graph.unary("GELU", x, options)


def _squareplus(graph: LiteRtGraph, x: Value, b: float) -> Value:
    root = graph.unary("SQRT", graph.binary("ADD", graph.binary("MUL", x, x), b))
    return graph.binary("MUL", graph.binary("ADD", x, root), 0.5)


def _sparse_plus(graph: LiteRtGraph, x: Value) -> Value:
    more = graph.binary("ADD", x, 1.0)
    curve = graph.binary("MUL", graph.binary("MUL", more, more), 0.25)
    return _where(graph, "LESS", x, -1.0, 0.0, _where(graph, "LESS", x, 1.0, curve, x))


_ACTIVATIONS: Mapping[str, Callable[..., Value]] = {
    "tanh": _named("TANH"),
    "sigmoid": _named("LOGISTIC"),
    "relu": _relu,
    "hard_sigmoid": _hard_sigmoid,
    "softplus": _softplus,
    "softsign": lambda graph, x: graph.binary("DIV", x, graph.binary("ADD", graph.unary("ABS", x), 1.0)),
    "elu": _elu,
    "selu": _selu,
    "exponential": _named("EXP"),
    "relu6": _named("RELU6"),
    "leaky_relu": _leaky_relu,
    "silu": lambda graph, x: graph.binary("MUL", x, graph.unary("LOGISTIC", x)),
    "gelu": _gelu,
    "hard_silu": _named("HARD_SWISH"),
    "hard_tanh": _named("RELU_N1_TO_1"),
    "mish": lambda graph, x: graph.binary("MUL", x, graph.unary("TANH", _softplus(graph, x))),
    "celu": _celu,
    "log_sigmoid": lambda graph, x: graph.unary("NEG", _softplus(graph, graph.unary("NEG", x))),
    "hard_shrink": lambda graph, x, threshold: _where(
        graph, "LESS_EQUAL", graph.unary("ABS", x), threshold, 0.0, x
    ),
    "soft_shrink": lambda graph, x, threshold: graph.binary("SUB", x, _clip(graph, x, -threshold, threshold)),
    "tanh_shrink": lambda graph, x: graph.binary("SUB", x, graph.unary("TANH", x)),
    "squareplus": _squareplus,
    "sparse_plus": _sparse_plus,
    "sparse_sigmoid": lambda graph, x: _clip(
        graph, graph.binary("ADD", graph.binary("MUL", x, 0.5), 0.5), 0.0, 1.0
    ),
    "threshold": lambda graph, x, threshold, default_value: _where(
        graph, "GREATER", x, threshold, x, default_value
    ),
    "softmax": sequences.last_softmax,
    "log_softmax": _named("LOG_SOFTMAX"),
}


def _dense(graph: LiteRtGraph, node: Node, given: Given) -> Value:
    bias = node.arrays.get("bias")
    columns = node.arrays["kernel"].shape[1]
    added = graph.constant(np.zeros(columns)) if bias is None else graph.weight(bias)
    y = product(graph, given["x"], graph.weight(node.arrays["kernel"], np.transpose), added)
    return activate(graph, node.options["activation"], y)


def _unembedding(graph: LiteRtGraph, node: Node, given: Given) -> Value:
    table = node.arrays["embeddings"]
    logits = product(graph, given["x"], graph.weight(table), graph.constant(np.zeros(len(table))))
    soft_cap = node.options["soft_cap"]
    if soft_cap is None:
        return logits
    return graph.binary("MUL", graph.unary("TANH", graph.binary("DIV", logits, soft_cap)), soft_cap)


def _layer_norm(graph: LiteRtGraph, node: Node, given: Given) -> Value:
    x = given["x"]
    centred = graph.binary("SUB", x, graph.reduce("MEAN", x, -1, keep=True))
    variance = graph.reduce("MEAN", graph.binary("MUL", centred, centred), -1, keep=True)
    above_zero = graph.binary("ADD", variance, node.options["epsilon"])
    y = graph.binary("DIV", centred, graph.unary("SQRT", above_zero))
    for name, op in (("gamma", "MUL"), ("beta", "ADD")):
        if name in node.arrays:
            y = graph.binary(op, y, graph.weight(node.arrays[name]))
    return y


def _affine(graph: LiteRtGraph, node: Node, given: Given) -> Value:
    scaled = graph.binary("MUL", given["x"], graph.weight(node.arrays["scale"]))
    return graph.binary("ADD", scaled, graph.weight(node.arrays["offset"]))


def _all(given: Given) -> list[Value]:
    return [given[str(number)] for number in range(len(given))]


def _merge(op: str) -> Callable[[LiteRtGraph, Node, Given], Value]:
    """Merge all inputs, two at a time."""

    def merge(graph: LiteRtGraph, node: Node, given: Given) -> Value:
        merged, *others = _aligned(graph, given)
        for other in others:
            merged = graph.binary(op, merged, other)
        return merged

    return merge


def _aligned(graph: LiteRtGraph, given: Given) -> list[Value]:
    """The inputs with equally many axes: those with fewer get axes of size 1 after the batch, as in Keras."""
    most = max(len(value.shape) for value in given.values())
    values = []
    for value in _all(given):
        while len(value.shape) < most:
            value = _with_axis(graph, value)
        values.append(value)
    return values


def _with_axis(graph: LiteRtGraph, x: Value) -> Value:
    """An axis of size 1 after the batch."""
    axis = graph.constant(1, "int32")
    return graph.add("EXPAND_DIMS", [x, axis], (x.shape[0], 1, *x.shape[1:]), dtype=x.dtype)


_sum = _merge("ADD")


def _average(graph: LiteRtGraph, node: Node, given: Given) -> Value:
    return graph.binary("DIV", _sum(graph, node, given), float(len(given)))


def _concatenate(graph: LiteRtGraph, node: Node, given: Given) -> Value:
    values = _all(given)
    options = schema.ConcatenationOptionsT()
    options.axis = place = node.options["axis"] % len(values[0].shape)
    shape = list(values[0].shape)
    shape[place] = sum(value.shape[place] for value in values)
    return graph.add("CONCATENATION", values, shape, options, dtype=values[0].dtype)


def _reshape(graph: LiteRtGraph, node: Node, given: Given) -> Value:
    x = given["x"]
    sizes = (x.shape[0], *node.options["shape"])
    known = math.prod(size for size in sizes if size != -1)
    shape = [math.prod(x.shape) // known if size == -1 else size for size in sizes]
    return graph.reshape(x, shape, sizes)


def _repeat_vector(graph: LiteRtGraph, node: Node, given: Given) -> Value:
    x, n = _with_axis(graph, given["x"]), node.options["n"]
    times = graph.constant([1, n, *[1] * (len(x.shape) - 2)], "int32")
    return graph.add("TILE", [x, times], (x.shape[0], n, *x.shape[2:]), dtype=x.dtype)


def crop(graph: LiteRtGraph, x: Value, begin: int, end: int | None) -> Value:
    """The steps from `begin` to `end` on axis 1, as in NumPy."""
    axes = range(len(x.shape))
    options = schema.StridedSliceOptionsT()
    # The bits of the axes that are not cut.
    options.beginMask = sum(1 << axis for axis in axes if axis != 1)
    options.endMask = options.beginMask | (2 if end is None else 0)
    ends = [0 if end is None or axis != 1 else end for axis in axes]
    left = len(range(x.shape[1])[begin:end])
    places = [[begin if axis == 1 else 0 for axis in axes], ends, [1 for _ in axes]]
    inputs = [x, *(graph.constant(place, "int32") for place in places)]
    return graph.add("STRIDED_SLICE", inputs, (x.shape[0], left, *x.shape[2:]), options, dtype=x.dtype)


def _function(graph: LiteRtGraph, node: Node, given: Given) -> Value:
    x, name = given["x"], node.options["function"]
    number = graph.constant(float(node.options["number"]))
    if name in RELATIONS:
        return _relation(graph, name, x, number)
    if name == "power":
        return graph.binary("POW", x, number)
    if name == "reciprocal":
        return graph.add("DIV", [graph.constant(1.0), x], x.shape, schema.DivOptionsT())
    if name == "log1p":
        return graph.unary("LOG", graph.binary("ADD", x, 1.0))
    if name == "expm1":
        return graph.binary("SUB", graph.unary("EXP", x), 1.0)
    return graph.unary(name.upper(), x)


def _relation(graph: LiteRtGraph, name: str, left: Value, right: Value) -> Value:
    """1 where the comparison holds, and 0 elsewhere."""
    shape = np.broadcast_shapes(left.shape, right.shape)
    found = graph.add(name.upper(), [left, right], shape, dtype="bool")
    return graph.add("CAST", [found], shape)


def _compare(graph: LiteRtGraph, node: Node, given: Given) -> Value:
    left, right = _aligned(graph, given)
    return _relation(graph, node.options["relation"], left, right)


def _choose(graph: LiteRtGraph, node: Node, given: Given) -> Value:
    condition, yes, no = _aligned(graph, given)
    chosen = graph.add("NOT_EQUAL", [condition, graph.constant(0.0)], condition.shape, dtype="bool")
    shape = np.broadcast_shapes(condition.shape, yes.shape, no.shape)
    return graph.add("SELECT_V2", [chosen, yes, no], shape)


def _pad(graph: LiteRtGraph, node: Node, given: Given) -> Value:
    x, before, after = given["x"], node.options["before"], node.options["after"]
    paddings = [[0, 0], [before, after], *[[0, 0]] * (len(x.shape) - 2)]
    shape = (x.shape[0], x.shape[1] + before + after, *x.shape[2:])
    return graph.add("PAD", [x, graph.constant(np.array(paddings), "int32")], shape, schema.PadOptionsT())


def _take(graph: LiteRtGraph, node: Node, given: Given) -> Value:
    x, indices = given["x"], node.options["indices"]
    place = node.options["axis"] % len(x.shape)
    if graph.free_length and place == 1 and min(indices) < 0:
        raise ModelError(
            f"{node.name}: LiteRT cannot take steps counted from the end; export the model to onnx or savedmodel."
        )
    options = schema.GatherOptionsT()
    options.axis = place
    chosen = graph.constant([index % x.shape[place] for index in indices], "int32")
    shape = (*x.shape[:place], len(indices), *x.shape[place + 1 :])
    return graph.add("GATHER", [x, chosen], shape, options, dtype=x.dtype)


def _cumsum(graph: LiteRtGraph, node: Node, given: Given) -> Value:
    x = given["x"]
    inputs = [x, graph.constant(node.options["axis"] % len(x.shape), "int32")]
    return graph.add("CUMSUM", inputs, x.shape, schema.CumsumOptionsT())


def flip(graph: LiteRtGraph, x: Value, axis: int) -> Value:
    """Reverse an axis."""
    return graph.add(
        "REVERSE_V2", [x, graph.constant([axis % len(x.shape)], "int32")], x.shape, dtype=x.dtype
    )


def _permute(graph: LiteRtGraph, node: Node, given: Given) -> Value:
    x = given["x"]
    axes = (0, *node.options["axes"])
    shape = [x.shape[axis] for axis in axes]
    return graph.add("TRANSPOSE", [x, graph.constant(axes, "int32")], shape, dtype=x.dtype)


_OPERATIONS: Mapping[str, Callable[[LiteRtGraph, Node, Given], Value]] = {
    "embedding": lambda graph, node, given: graph.rows_of(
        graph.weight(node.arrays["embeddings"]), given["ids"]
    ),
    "unembedding": _unembedding,
    "dense": _dense,
    "activation": lambda graph, node, given: activate(graph, node.options["activation"], given["x"]),
    "layer_norm": _layer_norm,
    "affine": _affine,
    "function": _function,
    "compare": _compare,
    "choose": _choose,
    "add": _sum,
    "subtract": _merge("SUB"),
    "multiply": _merge("MUL"),
    "divide": _merge("DIV"),
    "average": _average,
    "maximum": _merge("MAXIMUM"),
    "minimum": _merge("MINIMUM"),
    "concatenate": _concatenate,
    "reshape": _reshape,
    "flatten_steps": sequences.flatten_steps,
    "repeat_vector": _repeat_vector,
    "crop": lambda graph, node, given: crop(graph, given["x"], node.options["begin"], node.options["end"]),
    "pad": _pad,
    "take": _take,
    "cumsum": _cumsum,
    "flip": lambda graph, node, given: flip(graph, given["x"], node.options["axis"]),
    "permute": _permute,
    "softmax": sequences.softmax,
    "sum": sequences.reduce("SUM"),
    "mean": sequences.reduce("MEAN"),
    "max": sequences.reduce("REDUCE_MAX"),
    "min": sequences.reduce("REDUCE_MIN"),
    "windows": sequences.windows,
    "max_pool": sequences.pool("MAX_POOL_2D"),
    "average_pool": sequences.pool("AVERAGE_POOL_2D"),
    "dot": sequences.dot,
    "attention": sequences.attention,
    "mean_over_time": lambda graph, node, given: graph.reduce("MEAN", given["x"], 1, keep=False),
    "max_over_time": lambda graph, node, given: graph.reduce("REDUCE_MAX", given["x"], 1, keep=False),
}
