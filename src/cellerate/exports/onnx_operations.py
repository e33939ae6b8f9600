"""Each operation of a program but the LSTM, as nodes of ONNX. `cellerate.program` defines the operations."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from onnx import TensorProto

from cellerate.exports import onnx_sequences as sequences
from cellerate.exports.onnx_graph import TO_THE_END, Given, OnnxGraph
from cellerate.program import RELATIONS, Node, named_activation


def add_operation(graph: OnnxGraph, node: Node, given: Given) -> str:
    """Add any operation but "input", "lstm" and "lstm_state", and return the name of its result."""
    return _OPERATIONS[node.op](graph, node, given)


def activate(graph: OnnxGraph, activation: str, x: str) -> str:
    """An activation of a node, with its parameters."""
    name, parameters = named_activation(activation)
    return x if name == "linear" else _ACTIVATIONS[name](graph, x, **parameters)


def _named(op: str, **attributes: Any) -> Callable[[OnnxGraph, str], str]:
    return lambda graph, x: graph.add(op, x, **attributes)


def _clip(graph: OnnxGraph, x: str, low: float, high: float) -> str:
    return graph.add("Clip", x, graph.number(low), graph.number(high))


def _where(graph: OnnxGraph, op: str, x: str, limit: float, yes: str, no: str) -> str:
    return graph.add("Where", graph.add(op, x, graph.number(limit)), yes, no)


def _relu(graph: OnnxGraph, x: str, negative_slope: float, max_value: float, threshold: float) -> str:
    if not negative_slope and not threshold and max_value == math.inf:
        return graph.add("Relu", x)
    above = x if max_value == math.inf else _clip(graph, x, 0, max_value)
    below = graph.add("Mul", graph.add("Sub", x, graph.number(threshold)), graph.number(negative_slope))
    return _where(graph, "Greater", x, threshold, above, below)


def _gelu(graph: OnnxGraph, x: str, approximate: float) -> str:
    if approximate:
        # x times the sigmoid of 2u is x (1 + tanh u) / 2.
        scale = 2 * math.sqrt(2 / math.pi)
        curve = graph.add("Mul", graph.add("Mul", x, x), graph.number(0.044715 * scale))
        inner = graph.add("Mul", x, graph.add("Add", curve, graph.number(scale)))
        return graph.add("Mul", x, graph.add("Sigmoid", inner))
    share = graph.add("Erf", graph.add("Mul", x, graph.number(1 / math.sqrt(2))))
    half = graph.add("Mul", x, graph.number(0.5))
    return graph.add("Mul", half, graph.add("Add", share, graph.number(1)))


def _hard_sigmoid(graph: OnnxGraph, x: str) -> str:
    return graph.add("HardSigmoid", x, alpha=1 / 6, beta=0.5)


def _squareplus(graph: OnnxGraph, x: str, b: float) -> str:
    root = graph.add("Sqrt", graph.add("Add", graph.add("Mul", x, x), graph.number(b)))
    return graph.add("Mul", graph.add("Add", x, root), graph.number(0.5))


def _sparse_plus(graph: OnnxGraph, x: str) -> str:
    more = graph.add("Add", x, graph.number(1))
    curve = graph.add("Mul", graph.add("Mul", more, more), graph.number(0.25))
    return _where(graph, "Less", x, -1, graph.number(0), _where(graph, "Less", x, 1, curve, x))


_ACTIVATIONS: Mapping[str, Callable[..., Any]] = {
    "tanh": _named("Tanh"),
    "sigmoid": _named("Sigmoid"),
    "relu": _relu,
    "hard_sigmoid": _hard_sigmoid,
    "softplus": _named("Softplus"),
    "softsign": _named("Softsign"),
    "elu": lambda graph, x, alpha: graph.add("Elu", x, alpha=alpha),
    "selu": _named("Selu", alpha=1.6732632423543772, gamma=1.0507009873554805),
    "exponential": _named("Exp"),
    "relu6": lambda graph, x: _clip(graph, x, 0, 6),
    "leaky_relu": lambda graph, x, negative_slope: graph.add("LeakyRelu", x, alpha=negative_slope),
    "silu": lambda graph, x: graph.add("Mul", x, graph.add("Sigmoid", x)),
    "gelu": _gelu,
    "hard_silu": lambda graph, x: graph.add("Mul", x, _hard_sigmoid(graph, x)),
    "hard_tanh": lambda graph, x: _clip(graph, x, -1, 1),
    "mish": lambda graph, x: graph.add("Mul", x, graph.add("Tanh", graph.add("Softplus", x))),
    "celu": lambda graph, x, alpha: graph.add("Celu", x, alpha=alpha),
    "log_sigmoid": lambda graph, x: graph.add("Neg", graph.add("Softplus", graph.add("Neg", x))),
    "hard_shrink": lambda graph, x, threshold: _where(
        graph, "LessOrEqual", graph.add("Abs", x), threshold, graph.number(0), x
    ),
    "soft_shrink": lambda graph, x, threshold: graph.add("Sub", x, _clip(graph, x, -threshold, threshold)),
    "tanh_shrink": lambda graph, x: graph.add("Sub", x, graph.add("Tanh", x)),
    "squareplus": _squareplus,
    "sparse_plus": _sparse_plus,
    "sparse_sigmoid": _named("HardSigmoid", alpha=0.5, beta=0.5),
    "threshold": lambda graph, x, threshold, default_value: _where(
        graph, "Greater", x, threshold, x, graph.number(default_value)
    ),
    "softmax": _named("Softmax", axis=-1),
    "log_softmax": _named("LogSoftmax", axis=-1),
}


def _dense(graph: OnnxGraph, node: Node, given: Given) -> str:
    y = graph.product(given.values["x"], node.arrays["kernel"])
    if "bias" in node.arrays:
        y = graph.add("Add", y, graph.weight(node.arrays["bias"]))
    return activate(graph, node.options["activation"], y)


def _unembedding(graph: OnnxGraph, node: Node, given: Given) -> str:
    logits = graph.product(given.values["x"], node.arrays["embeddings"], np.transpose)
    soft_cap = node.options["soft_cap"]
    if soft_cap is None:
        return logits
    cap = graph.number(soft_cap)
    return graph.add("Mul", graph.add("Tanh", graph.add("Div", logits, cap)), cap)


def _features_mask(graph: OnnxGraph, node: Node, given: Given) -> str:
    other = graph.add("Not", graph.add("Equal", given.values["x"], graph.number(node.options["mask_value"])))
    any_other = graph.add("ReduceMax", graph.cast(other, TensorProto.FLOAT), axes=[-1], keepdims=0)
    return graph.cast(any_other, TensorProto.BOOL)


def _by_mask(graph: OnnxGraph, node: Node, given: Given) -> str:
    x, other = _aligned(graph, given, ("x", "other"))
    return graph.add("Where", _over_features(graph, given), x, other)


def _over_features(graph: OnnxGraph, given: Given) -> str:
    """The mask with one more axis."""
    return graph.add("Unsqueeze", given.values["mask"], graph.sizes(2))


def _layer_norm(graph: OnnxGraph, node: Node, given: Given) -> str:
    x, axes = given.values["x"], [-1]
    centred = graph.add("Sub", x, graph.add("ReduceMean", x, axes=axes))
    variance = graph.add("ReduceMean", graph.add("Mul", centred, centred), axes=axes)
    above_zero = graph.add("Add", variance, graph.number(node.options["epsilon"]))
    y = graph.add("Div", centred, graph.add("Sqrt", above_zero))
    for name, op in (("gamma", "Mul"), ("beta", "Add")):
        if name in node.arrays:
            y = graph.add(op, y, graph.weight(node.arrays[name]))
    return str(y)


def _affine(graph: OnnxGraph, node: Node, given: Given) -> str:
    scaled = graph.add("Mul", given.values["x"], graph.weight(node.arrays["scale"]))
    return graph.add("Add", scaled, graph.weight(node.arrays["offset"]))


def _all(given: Given) -> list[str]:
    return [given.values[name] for name in map(str, range(len(given.values)))]


def _aligned(graph: OnnxGraph, given: Given, names: Sequence[str]) -> list[str]:
    """Inputs with equally many axes: those with fewer get axes of size 1 after the batch, as in Keras."""
    most = max(given.axes[name] for name in names)
    aligned = []
    for name in names:
        missing = most - given.axes[name]
        value = given.values[name]
        if missing:
            value = graph.add("Unsqueeze", value, graph.sizes(*range(1, 1 + missing)))
        aligned.append(value)
    return aligned


def _merge(op: str) -> Callable[[OnnxGraph, Node, Given], str]:
    """Merge all inputs, two at a time."""

    def merge(graph: OnnxGraph, node: Node, given: Given) -> str:
        merged, *others = _aligned(graph, given, list(map(str, range(len(given.values)))))
        for other in others:
            merged = graph.add(op, merged, other)
        return merged

    return merge


_add = _merge("Add")


def _average(graph: OnnxGraph, node: Node, given: Given) -> str:
    return graph.add("Div", _add(graph, node, given), graph.number(len(given.values)))


def _repeat_vector(graph: OnnxGraph, node: Node, given: Given) -> str:
    shape = graph.sizes(1, node.options["n"], *[1] * (given.axes["x"] - 1))
    return graph.add("Expand", graph.add("Unsqueeze", given.values["x"], graph.sizes(1)), shape)


def _crop(graph: OnnxGraph, node: Node, given: Given) -> str:
    end = node.options["end"]
    return graph.slice(given.values["x"], node.options["begin"], TO_THE_END if end is None else end, 1)


def _function(graph: OnnxGraph, node: Node, given: Given) -> str:
    x, name, number = given.values["x"], node.options["function"], node.options["number"]
    if name in RELATIONS:
        return _relation(graph, name, x, graph.number(float(number)))
    if name == "power":
        return graph.add("Pow", x, graph.number(float(number)))
    if name == "rsqrt":
        return graph.add("Reciprocal", graph.add("Sqrt", x))
    if name == "log1p":
        return graph.add("Log", graph.add("Add", x, graph.number(1)))
    if name == "expm1":
        return graph.add("Sub", graph.add("Exp", x), graph.number(1))
    return graph.add(name.capitalize(), x)


_RELATIONS = {
    "greater": "Greater",
    "greater_equal": "GreaterOrEqual",
    "less": "Less",
    "less_equal": "LessOrEqual",
    "equal": "Equal",
    "not_equal": "Equal",
}


def _relation(graph: OnnxGraph, name: str, left: str, right: str) -> str:
    """1 where the comparison holds, and 0 elsewhere."""
    found = graph.add(_RELATIONS[name], left, right)
    found = graph.add("Not", found) if name == "not_equal" else found
    return graph.cast(found, TensorProto.FLOAT)


def _compare(graph: OnnxGraph, node: Node, given: Given) -> str:
    left, right = _aligned(graph, given, ("0", "1"))
    return _relation(graph, node.options["relation"], left, right)


def _choose(graph: OnnxGraph, node: Node, given: Given) -> str:
    condition, yes, no = _aligned(graph, given, ("0", "1", "2"))
    return graph.add("Where", graph.cast(condition, TensorProto.BOOL), yes, no)


def _pad(graph: OnnxGraph, node: Node, given: Given) -> str:
    rest = [0] * (given.axes["x"] - 2)
    sizes = graph.sizes(0, node.options["before"], *rest, 0, node.options["after"], *rest)
    return graph.add("Pad", given.values["x"], sizes)


def _mean_over_time(graph: OnnxGraph, node: Node, given: Given) -> str:
    if "mask" not in given.values:
        return graph.add("ReduceMean", given.values["x"], axes=[1], keepdims=0)
    live = _over_features(graph, given)
    shown = graph.add("Where", live, given.values["x"], graph.number(0))
    time = graph.sizes(1)
    total = graph.add("ReduceSum", shown, time, keepdims=0)
    count = graph.add("ReduceSum", graph.cast(live, TensorProto.FLOAT), time, keepdims=0)
    return graph.add("Div", total, count)


_OPERATIONS: Mapping[str, Callable[[OnnxGraph, Node, Given], str]] = {
    "embedding": lambda graph, node, given: graph.add(
        "Gather", graph.weight(node.arrays["embeddings"]), given.values["ids"]
    ),
    "unembedding": _unembedding,
    "ids_mask": lambda graph, node, given: graph.add(
        "Not", graph.add("Equal", given.values["ids"], graph.number(0, np.int32))
    ),
    "features_mask": _features_mask,
    "masked": lambda graph, node, given: graph.add(
        "Where", _over_features(graph, given), given.values["x"], graph.number(0)
    ),
    "where": _by_mask,
    "dense": _dense,
    "activation": lambda graph, node, given: activate(graph, node.options["activation"], given.values["x"]),
    "layer_norm": _layer_norm,
    "affine": _affine,
    "function": _function,
    "compare": _compare,
    "choose": _choose,
    "add": _add,
    "subtract": _merge("Sub"),
    "multiply": _merge("Mul"),
    "divide": _merge("Div"),
    "average": _average,
    "maximum": _merge("Max"),
    "minimum": _merge("Min"),
    "concatenate": lambda graph, node, given: graph.add("Concat", *_all(given), axis=node.options["axis"]),
    # In ONNX a size of 0 keeps the axis's size.
    "reshape": lambda graph, node, given: graph.add(
        "Reshape", given.values["x"], graph.sizes(0, *node.options["shape"])
    ),
    "flatten_steps": lambda graph, node, given: graph.add(
        "Reshape", given.values["x"], graph.sizes(0, 0, -1)
    ),
    "repeat_vector": _repeat_vector,
    "crop": _crop,
    "pad": _pad,
    "take": lambda graph, node, given: graph.add(
        "Gather", given.values["x"], graph.sizes(*node.options["indices"]), axis=node.options["axis"]
    ),
    "cumsum": lambda graph, node, given: graph.add(
        "CumSum", given.values["x"], graph.number(node.options["axis"], np.int64)
    ),
    "flip": lambda graph, node, given: graph.flip(given.values["x"], node.options["axis"]),
    "permute": lambda graph, node, given: graph.add(
        "Transpose", given.values["x"], perm=[0, *node.options["axes"]]
    ),
    "mean_over_time": _mean_over_time,
    "max_over_time": lambda graph, node, given: graph.add(
        "ReduceMax", given.values["x"], axes=[1], keepdims=0
    ),
    "flip_mask": lambda graph, node, given: graph.flip(given.values["mask"], 1),
    "any_mask": _merge("Or"),
    "softmax": lambda graph, node, given: graph.add("Softmax", given.values["x"], axis=node.options["axis"]),
    "sum": sequences.reduce("ReduceSum"),
    "mean": sequences.reduce("ReduceMean"),
    "max": sequences.reduce("ReduceMax"),
    "min": sequences.reduce("ReduceMin"),
    "windows": sequences.windows,
    "max_pool": sequences.max_pool,
    "average_pool": sequences.average_pool,
    "dot": sequences.dot,
    "attention": sequences.attention,
}
