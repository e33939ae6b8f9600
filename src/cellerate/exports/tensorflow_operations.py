"""Each operation of a program in TensorFlow's own operations, without cuDNN and XLA."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from cellerate.exports import tensorflow_sequences as sequences
from cellerate.exports.tensorflow_sequences import Given
from cellerate.program import RELATIONS, Node, named_activation


def run(node: Node, given: Given) -> Any:
    """The result of any operation but "input", "lstm" and "lstm_state"."""
    return _OPERATIONS[node.op](node, given)


def lstm(node: Node, given: Given) -> tuple[Any, Any, Any]:
    """The result of an LSTM (all outputs, or the last one) and its last states h and c.

    One product projects the inputs of all steps; a loop over the steps follows.
    """
    options, H = node.options, node.arrays["recurrent_kernel"].shape[0]
    x, recurrent = given["x"], given["recurrent_kernel"]
    projected = _project(x, given["kernel"], given.get("bias"))
    projected = tf.transpose(projected, [1, 0, 2])
    mask = given.get("mask")
    if mask is not None:
        mask = tf.transpose(mask)[:, :, tf.newaxis]
    if options["go_backwards"]:
        projected = tf.reverse(projected, [0])
        mask = None if mask is None else tf.reverse(mask, [0])
    steps, batch = tf.shape(projected)[0], tf.shape(projected)[1]
    zeros = tf.zeros([batch, H])
    h0, c0 = given.get("h0", zeros), given.get("c0", zeros)
    sequences = bool(options["return_sequences"])
    kept = tf.TensorArray(tf.float32, size=steps if sequences else 0, element_shape=[None, H])

    def step(t: Any, h: Any, c: Any, output: Any, outputs: Any) -> tuple[Any, ...]:
        z_i, z_f, z_c, z_o = tf.split(projected[t] + tf.matmul(h, recurrent), 4, axis=1)
        i, f, o = (activate(options["recurrent_activation"], each) for each in (z_i, z_f, z_o))
        c_new = f * c + i * activate(options["activation"], z_c)
        h_new = o * activate(options["activation"], c_new)
        if mask is None:
            h, c, output = h_new, c_new, h_new
        else:
            live = mask[t]
            otherwise = {"previous_output": output, "previous_state": h, "zero": zeros}
            output = tf.where(live, h_new, otherwise[options["masked_output"]])
            h, c = tf.where(live, h_new, h), tf.where(live, c_new, c)
        return t + 1, h, c, output, outputs.write(t, output) if sequences else outputs

    _, h, c, output, outputs = tf.while_loop(
        lambda t, *_: t < steps, step, (0, h0, c0, zeros, kept), maximum_iterations=steps
    )
    return tf.transpose(outputs.stack(), [1, 0, 2]) if sequences else output, h, c


def activate(activation: str, x: Any) -> Any:
    """An activation of a node, with its parameters."""
    name, parameters = named_activation(activation)
    return _ACTIVATIONS[name](x, **parameters)


def _hard_sigmoid(x: Any) -> Any:
    return tf.clip_by_value(x / 6 + 0.5, 0.0, 1.0)


def _relu(x: Any, negative_slope: float, max_value: float, threshold: float) -> Any:
    if not negative_slope and not threshold:
        return tf.nn.relu(x) if max_value == math.inf else tf.clip_by_value(x, 0.0, max_value)
    above = x if max_value == math.inf else tf.clip_by_value(x, 0.0, max_value)
    return tf.where(x > threshold, above, negative_slope * (x - threshold))


def _gelu(x: Any, approximate: float) -> Any:
    if approximate:
        return tf.nn.gelu(x, approximate=True)
    return 0.5 * x * (1 + tf.math.erf(x * 0.7071067811865476))


def _sparse_plus(x: Any) -> Any:
    return tf.where(x < -1, tf.zeros_like(x), tf.where(x < 1, tf.square(x + 1) / 4, x))


_ACTIVATIONS: Mapping[str, Callable[..., Any]] = {
    "linear": lambda x: x,
    "tanh": tf.tanh,
    "sigmoid": tf.sigmoid,
    "relu": _relu,
    "hard_sigmoid": _hard_sigmoid,
    "softplus": tf.math.softplus,
    "softsign": tf.math.softsign,
    "elu": lambda x, alpha: tf.where(x > 0, x, alpha * tf.nn.elu(x)),
    "selu": tf.nn.selu,
    "exponential": tf.exp,
    "relu6": tf.nn.relu6,
    "leaky_relu": lambda x, negative_slope: tf.where(x > 0, x, negative_slope * x),
    "silu": lambda x: x * tf.sigmoid(x),
    "gelu": _gelu,
    "hard_silu": lambda x: x * _hard_sigmoid(x),
    "hard_tanh": lambda x: tf.clip_by_value(x, -1.0, 1.0),
    "mish": lambda x: x * tf.tanh(tf.math.softplus(x)),
    "celu": lambda x, alpha: tf.where(x > 0, x, alpha * tf.nn.elu(tf.minimum(x, 0.0) / alpha)),
    "log_sigmoid": lambda x: -tf.math.softplus(-x),
    "hard_shrink": lambda x, threshold: tf.where(tf.abs(x) <= threshold, tf.zeros_like(x), x),
    "soft_shrink": lambda x, threshold: x - tf.clip_by_value(x, -threshold, threshold),
    "tanh_shrink": lambda x: x - tf.tanh(x),
    "squareplus": lambda x, b: (x + tf.sqrt(tf.square(x) + b)) / 2,
    "threshold": lambda x, threshold, default_value: tf.where(
        x > threshold, x, tf.constant(default_value, x.dtype)
    ),
    "sparse_plus": _sparse_plus,
    "sparse_sigmoid": lambda x: tf.clip_by_value(x / 2 + 0.5, 0.0, 1.0),
    "softmax": tf.nn.softmax,
    "log_softmax": tf.nn.log_softmax,
}


def _project(x: Any, kernel: Any, bias: Any) -> Any:
    y = tf.tensordot(x, kernel, 1)
    return y if bias is None else y + bias


def _embedding(node: Node, given: Given) -> Any:
    ids = given["ids"]
    # Negative ids count from the end.
    return tf.gather(given["embeddings"], tf.where(ids < 0, ids + len(node.arrays["embeddings"]), ids))


def _unembedding(node: Node, given: Given) -> Any:
    logits = tf.tensordot(given["x"], tf.transpose(given["embeddings"]), 1)
    soft_cap = node.options["soft_cap"]
    return logits if soft_cap is None else tf.tanh(logits / soft_cap) * soft_cap


def _where(node: Node, given: Given) -> Any:
    x, other = _aligned([given["x"], given["other"]])
    return tf.where(given["mask"][..., tf.newaxis], x, other)


def _layer_norm(node: Node, given: Given) -> Any:
    x = given["x"]
    centred = x - tf.reduce_mean(x, axis=-1, keepdims=True)
    variance = tf.reduce_mean(tf.square(centred), axis=-1, keepdims=True)
    y = centred / tf.sqrt(variance + node.options["epsilon"])
    if "gamma" in given:
        y *= given["gamma"]
    if "beta" in given:
        y += given["beta"]
    return y


def _aligned(values: Sequence[Any]) -> list[Any]:
    """The values with equally many axes: those with fewer get axes of size 1 after the batch, as in Keras."""
    axes = max(len(value.shape) for value in values)
    aligned = []
    for value in values:
        for _ in range(axes - len(value.shape)):
            value = value[:, tf.newaxis]
        aligned.append(value)
    return aligned


def _merge(function: Callable[[Any, Any], Any]) -> Callable[[Node, Given], Any]:
    """Merge all inputs, two at a time."""

    def merge(node: Node, given: Given) -> Any:
        merged, *others = _aligned(_all(given))
        for other in others:
            merged = function(merged, other)
        return merged

    return merge


_sum = _merge(tf.add)


def _all(given: Given) -> list[Any]:
    return [given[str(number)] for number in range(len(given))]


def _reshape(node: Node, given: Given) -> Any:
    x, shape = given["x"], node.options["shape"]
    return tf.reshape(x, tf.concat([tf.shape(x)[:1], tf.constant(shape, tf.int32, [len(shape)])], 0))


def _take(node: Node, given: Given) -> Any:
    axis = node.options["axis"]
    indices = tf.constant(node.options["indices"], tf.int32)
    size = tf.shape(given["x"])[axis]
    return tf.gather(given["x"], tf.where(indices < 0, indices + size, indices), axis=axis)


def _function(node: Node, given: Given) -> Any:
    x, name, number = given["x"], node.options["function"], tf.constant(node.options["number"])
    if name in RELATIONS:
        return _relation(name, x, number)
    return tf.pow(x, number) if name == "power" else getattr(tf.math, name)(x)


def _compare(node: Node, given: Given) -> Any:
    return _relation(node.options["relation"], *_aligned(_all(given)))


def _relation(name: str, left: Any, right: Any) -> Any:
    """1 where the comparison holds, and 0 elsewhere."""
    return tf.cast(getattr(tf, name)(left, right), tf.float32)


def _choose(node: Node, given: Given) -> Any:
    condition, yes, no = _aligned(_all(given))
    return tf.where(condition != 0, yes, no)


def _pad(node: Node, given: Given) -> Any:
    paddings = [[0, 0], [node.options["before"], node.options["after"]]]
    return tf.pad(given["x"], [*paddings, *[[0, 0]] * (len(given["x"].shape) - 2)])


def _mean_over_time(node: Node, given: Given) -> Any:
    if "mask" not in given:
        return tf.reduce_mean(given["x"], axis=1)
    live = given["mask"][..., tf.newaxis]
    total = tf.reduce_sum(tf.where(live, given["x"], 0.0), axis=1)
    return total / tf.reduce_sum(tf.cast(live, tf.float32), axis=1)


_OPERATIONS: Mapping[str, Callable[[Node, Given], Any]] = {
    "embedding": _embedding,
    "unembedding": _unembedding,
    "ids_mask": lambda node, given: tf.not_equal(given["ids"], 0),
    "features_mask": lambda node, given: tf.reduce_any(given["x"] != node.options["mask_value"], axis=-1),
    "masked": lambda node, given: tf.where(given["mask"][..., tf.newaxis], given["x"], 0.0),
    "where": _where,
    "dense": lambda node, given: activate(
        node.options["activation"], _project(given["x"], given["kernel"], given.get("bias"))
    ),
    "activation": lambda node, given: activate(node.options["activation"], given["x"]),
    "layer_norm": _layer_norm,
    "affine": lambda node, given: given["x"] * given["scale"] + given["offset"],
    "function": _function,
    "compare": _compare,
    "choose": _choose,
    "add": _sum,
    "subtract": _merge(tf.subtract),
    "multiply": _merge(tf.multiply),
    "divide": _merge(tf.divide),
    "average": lambda node, given: _sum(node, given) / len(given),
    "maximum": _merge(tf.maximum),
    "minimum": _merge(tf.minimum),
    "concatenate": lambda node, given: tf.concat(_all(given), axis=node.options["axis"]),
    "reshape": _reshape,
    "flatten_steps": sequences.flatten_steps,
    "repeat_vector": lambda node, given: tf.repeat(given["x"][:, tf.newaxis], node.options["n"], axis=1),
    "crop": lambda node, given: given["x"][:, node.options["begin"] : node.options["end"]],
    "pad": _pad,
    "take": _take,
    "cumsum": lambda node, given: tf.cumsum(given["x"], axis=node.options["axis"]),
    "flip": lambda node, given: tf.reverse(given["x"], [node.options["axis"]]),
    "permute": lambda node, given: tf.transpose(given["x"], [0, *node.options["axes"]]),
    "mean_over_time": _mean_over_time,
    "max_over_time": lambda node, given: tf.reduce_max(given["x"], axis=1),
    "flip_mask": lambda node, given: tf.reverse(given["mask"], [1]),
    "any_mask": _merge(tf.logical_or),
    "softmax": sequences.softmax,
    "sum": sequences.reduce(tf.reduce_sum),
    "mean": sequences.reduce(tf.reduce_mean),
    "max": sequences.reduce(tf.reduce_max),
    "min": sequences.reduce(tf.reduce_min),
    "windows": lambda node, given: tf.concat(sequences.taps(node, given["x"], 0.0), axis=-1),
    "max_pool": sequences.max_pool,
    "average_pool": sequences.average_pool,
    "dot": sequences.dot,
    "attention": sequences.attention,
}
