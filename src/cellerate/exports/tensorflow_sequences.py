"""The operations across steps (windows, pooling, attention) in TensorFlow."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from cellerate.program import Node

Given = Mapping[str, Any]
"""The tensors of an operation's inputs and the variables of its weights, by name."""


def taps(node: Node, x: Any, padding: float) -> list[Any]:
    """The first steps of all windows, their second steps, and so on.

    Args:
        node: The node.
        x: (..., T, F).
        padding: The value of the steps of padding.
    """
    options = node.options
    size, strides, dilation = options["size"], options["strides"], options["dilation"]
    reach, steps = (size - 1) * dilation + 1, tf.shape(x)[-2]
    if options["padding"] == "valid":
        before, windows = 0, (steps - reach) // strides + 1
    elif options["padding"] == "causal":
        before, windows = reach - 1, (steps - 1) // strides + 1
    else:
        windows = (steps - 1) // strides + 1
        before = tf.maximum((windows - 1) * strides + reach - steps, 0) // 2
    behind = tf.maximum((windows - 1) * strides + reach - steps - before, 0)
    x = tf.pad(x, [[0, 0]] * (len(x.shape) - 2) + [[before, behind], [0, 0]], constant_values=padding)
    found = []
    for tap in range(size):
        first = tap * dilation
        found.append(x[..., first : first + (windows - 1) * strides + 1 : strides, :])
    return found


def max_pool(node: Node, given: Given) -> Any:
    """The largest of each window."""
    most, *others = taps(node, given["x"], -math.inf)
    for other in others:
        most = tf.maximum(most, other)
    return most


def average_pool(node: Node, given: Given) -> Any:
    """The mean of each window, without the steps of padding."""
    x = given["x"]
    there = tf.ones_like(x[..., :1])
    return tf.add_n(taps(node, x, 0.0)) / tf.add_n(taps(node, there, 0.0))


def flatten_steps(node: Node, given: Given) -> Any:
    """All axes behind the first one as the features."""
    x = given["x"]
    return tf.reshape(x, tf.concat([tf.shape(x)[:2], [math.prod(x.shape[2:])]], 0))


def softmax(node: Node, given: Given) -> Any:
    """A softmax along any axis."""
    return tf.nn.softmax(given["x"], axis=node.options["axis"])


def reduce(function: Callable[..., Any]) -> Callable[[Node, Given], Any]:
    """Reductions along an axis: sums, means, extremes."""
    return lambda node, given: function(
        given["x"], axis=node.options["axis"], keepdims=node.options["keepdims"]
    )


def dot(node: Node, given: Given) -> Any:
    """The dot products of two values over one axis of each."""
    axes = node.options["axes"]
    flat = [len(given[name].shape) == 2 for name in "01"]
    x, y = (given[name][:, tf.newaxis] if one else given[name] for name, one in zip("01", flat, strict=True))
    products = tf.matmul(x, y, transpose_a=not flat[0] and axes[0] == 1, transpose_b=flat[1] or axes[1] == 2)
    if flat[0] and not flat[1]:
        return products[:, 0]
    return products[..., 0] if flat[1] else products


def attention(node: Node, given: Given) -> Any:
    """The mean of the values, weighted by the softmax of each query's scores."""
    options = node.options
    query, key, value = (_heads(given[name], options["heads"]) for name in ("query", "key", "value"))
    if "additive" in given:
        pairs = tf.tanh(query[:, :, :, tf.newaxis] + key[:, :, tf.newaxis])
        scores = tf.reduce_sum(pairs * given["additive"], axis=-1)
    else:
        scores = tf.matmul(query, key, transpose_b=True)
    scores *= options["scale"]
    counts = _counts(node, given)
    if counts is not None:
        scores = tf.where(counts, scores, scores - 1e9)
    weights = tf.nn.softmax(scores)
    if counts is not None and options["zeros"]:
        weights = tf.where(counts, weights, 0.0)
    joined = tf.transpose(tf.matmul(weights, value), [0, 2, 1, 3])
    return tf.reshape(joined, tf.concat([tf.shape(joined)[:2], [given["value"].shape[2]]], 0))


def _heads(x: Any, heads: int) -> Any:
    """(B, T, F) as (B, heads, T, features of a head)."""
    split = tf.reshape(x, tf.concat([tf.shape(x)[:2], [heads, x.shape[2] // heads]], 0))
    return tf.transpose(split, [0, 2, 1, 3])


def _counts(node: Node, given: Given) -> Any:
    """The mask of keys for each query, in a shape that broadcasts to (B, heads, T, S); None if all keys count."""
    found = []
    if "mask" in given:
        found.append(given["mask"][:, tf.newaxis, tf.newaxis])
    if "mask_of_queries" in given:
        found.append(given["mask_of_queries"][:, tf.newaxis, :, tf.newaxis])
    if node.options["causal"]:
        query, key = (tf.range(tf.shape(given[name])[1]) for name in ("query", "key"))
        found.append(query[:, tf.newaxis] >= key)
    if not found:
        return None
    counts, *others = found
    for other in others:
        counts = tf.logical_and(counts, other)
    return counts
