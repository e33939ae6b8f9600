"""Models that look across steps: convolutions, pooling and attention beside LSTMs, for `engine_models`."""

from collections.abc import Callable
from typing import Any

import keras
from keras import layers, ops

T, D, OUT, V = 9, 3, 2, 11
"""Steps and features of a series, outputs, and words of a vocabulary."""

L = layers


def _series(*rows: Callable[[], Any]) -> Callable[[], keras.Model]:
    """A function that builds a model of a series: a layer from each of `rows`, and a head."""
    return lambda: keras.Sequential([keras.Input((T, D)), *(row() for row in rows), L.Dense(OUT)])


def _pooled() -> keras.Model:
    """Every pooling of windows, of steps and of features."""
    inputs = keras.Input((T, D))
    steps = L.LSTM(6, return_sequences=True)(inputs)
    halves = [
        L.MaxPooling1D(3, strides=2, padding="same")(steps),
        L.AveragePooling1D(2, strides=1)(steps),
        L.AveragePooling1D(3, strides=1, padding="same")(L.MaxPooling1D(2)(steps)),
    ]
    pooled = [L.GlobalAveragePooling1D()(ops.square(half)) for half in halves]
    reduced = [
        ops.sum(steps, axis=1),
        ops.mean(steps, axis=2),
        ops.max(steps, axis=2),
        ops.min(steps, axis=1),
    ]
    weighted = ops.sum(ops.multiply(steps, ops.softmax(steps, axis=1)), axis=1)
    return keras.Model(inputs, L.Dense(OUT)(L.Concatenate()([*pooled, *reduced, weighted])))


def _attending(*parts: Callable[[Any], Any], masked: bool = False) -> Callable[[], keras.Model]:
    """A function that builds a model whose `parts` attend to an LSTM's outputs; a mask passes through them."""

    def build() -> keras.Model:
        inputs = keras.Input((T, D))
        steps = L.LSTM(6, return_sequences=True)(L.Masking()(inputs) if masked else inputs)
        pooled = [L.GlobalAveragePooling1D()(part(steps)) for part in parts]
        return keras.Model(inputs, L.Dense(OUT)(L.Concatenate()([*pooled, *pooled])))

    return build


def _scored(steps: Any) -> Any:
    """The mean of the steps weighted by a layer's scores, and products with it."""
    weights = L.Softmax(axis=1)(L.Dense(1, activation="tanh")(steps))
    mean = L.Dot(axes=(1, 1))([weights, steps])
    shared = L.Dot(axes=(2, 2))([mean, L.Dense(6)(steps)])
    return L.Concatenate(axis=1)([L.Dense(9)(mean), L.Dot(axes=(2, 1))([shared, L.Dense(9)(steps)])])


def _scores(steps: Any) -> Any:
    result, weights = L.Attention()([L.Dense(6)(steps), steps], return_attention_scores=True)
    return L.Concatenate()([result, weights])


def _functions(steps: Any) -> Any:
    """Elementwise functions, on numbers where they are differentiable."""
    positive = ops.square(steps) + 0.5
    parts = [
        ops.sqrt(positive) * ops.sin(steps * 3.0),
        ops.log(positive) / positive,
        1.0 / positive - ops.rsqrt(positive),
        ops.log1p(positive) ** 1.5 + ops.expm1(steps),
        ops.cos(steps) * ops.abs(steps) + ops.round(steps * 4.0) * steps,
    ]
    return L.Concatenate()(parts)


def _choices(steps: Any) -> Any:
    """Comparisons and choices, and values that are broadcast along features and steps."""
    first = steps[:, :, :1]
    last = steps[:, -1:]
    parts = [
        ops.where(steps > 0.1, steps * 2.0, ops.exp(steps)),
        ops.where(ops.logical_or(first < 0.0, steps > last), first, 0.5),
        ops.maximum(steps, first) - ops.minimum(last, steps),
        ops.cast(steps >= first, "float32") * steps * first,
        L.Multiply()([steps, L.Dense(1, activation="sigmoid")(steps)]) / (2.0 + last),
        ops.clip(steps, -0.1, 0.2),
    ]
    return L.Concatenate()(parts)


def _told(ids: bool) -> Callable[[], keras.Model]:
    """Layers that read the same two vectors at every step beside ids or numbers; some read a sum with a vector."""

    def build() -> keras.Model:
        inputs = keras.Input((T,), dtype="int32") if ids else keras.Input((T, D))
        first = L.LSTM(4)(L.Embedding(V, 5)(inputs) if ids else inputs)
        second = L.Dense(3, activation="tanh")(first)
        moving = L.Embedding(V, 6)(inputs) if ids else inputs
        parts = [L.RepeatVector(T)(first), moving, L.RepeatVector(T)(second)]
        steps = L.Bidirectional(L.LSTM(6, return_sequences=True))(L.Concatenate()(parts))
        one = L.Reshape((1, 3))(second)
        added = L.Embedding(V, 3)(inputs) if ids else inputs
        more = L.Add()([one, added, L.RepeatVector(T)(L.Dense(3)(first))])
        steps = L.Concatenate()([steps, L.LSTM(5, return_sequences=True, use_bias=False)(more)])
        both = L.Concatenate()([L.RepeatVector(T)(first), L.RepeatVector(T)(second)])
        steps = L.Concatenate()([steps, L.LSTM(5, return_sequences=True)(both)])
        return keras.Model(inputs, L.Dense(V if ids else OUT)(steps))

    return build


SEQUENCES: dict[str, tuple[Callable[[], keras.Model], str, Any]] = {
    "ids beside vectors": (
        _told(ids=True),
        "next ids",
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    ),
    "steps beside vectors": (_told(ids=False), "steps", "mse"),
    "convolutions": (
        _series(
            lambda: L.Conv1D(6, 3, padding="same", activation="relu", kernel_regularizer="l2"),
            lambda: L.Conv1D(5, 2, strides=2, padding="causal", activation="gelu", use_bias=False),
            lambda: L.Conv1D(4, 2, dilation_rate=2, activation="tanh", bias_regularizer="l2"),
            lambda: L.Conv1D(4, 1, padding="same"),
            lambda: L.LSTM(5),
        ),
        "series",
        "mse",
    ),
    "frames": (
        _series(
            lambda: L.Reshape((3, 3, D)),
            lambda: L.TimeDistributed(L.Conv1D(5, 2, activation="relu")),
            lambda: L.TimeDistributed(L.Conv1D(4, 2, padding="same")),
            lambda: L.TimeDistributed(L.MaxPooling1D(2)),
            lambda: L.TimeDistributed(L.Flatten()),
            lambda: L.LSTM(5),
        ),
        "series",
        "mse",
    ),
    "groups": (
        _series(
            lambda: L.Conv1D(6, 3, padding="same", groups=3, activation="gelu"),
            lambda: L.GaussianNoise(0.0),
            lambda: L.Conv1D(4, 2, groups=2, use_bias=False, kernel_regularizer="l2"),
            lambda: L.LSTM(5),
        ),
        "series",
        "mse",
    ),
    "functions": (_attending(_functions), "series", "mse"),
    "choices": (_attending(_choices), "series", "mse"),
    "depthwise": (
        _series(
            lambda: L.ZeroPadding1D((2, 0)),
            lambda: L.DepthwiseConv1D(3, depth_multiplier=2, activation="tanh"),
            lambda: L.SeparableConv1D(5, 2, padding="same", activation="relu", depth_multiplier=2),
            lambda: L.UpSampling1D(2),
            lambda: L.LSTM(5),
        ),
        "series",
        "mse",
    ),
    "normalized by themselves": (
        _series(
            lambda: L.LSTM(6, return_sequences=True),
            lambda: L.RMSNormalization(),
            lambda: L.Dense(4),
            lambda: L.GroupNormalization(2),
            lambda: L.UnitNormalization(),
            lambda: L.LSTM(5),
        ),
        "series",
        "mse",
    ),
    "pooled windows": (_pooled, "series", "mse"),
    "attention": (
        _attending(
            lambda x: L.Attention()([x, L.Dense(6)(x)]),
            lambda x: L.Attention()([x, L.Dense(4)(x), x], use_causal_mask=True),
            lambda x: L.AdditiveAttention()([L.Dense(6)(x), x]),
            lambda x: L.AdditiveAttention(use_scale=False)([x, x], use_causal_mask=True),
            _scored,
            _scores,
        ),
        "series",
        "mse",
    ),
    "masked attention": (
        _attending(
            lambda x: L.Attention()([x, x]),
            lambda x: L.AdditiveAttention()([x, x]),
            masked=True,
        ),
        "series",
        "mse",
    ),
    "masked statistics": (
        _attending(
            lambda x: L.BatchNormalization(momentum=0.8)(x),
            lambda x: L.LSTM(4, return_sequences=True)(L.BatchNormalization(scale=False)(x)),
            masked=True,
        ),
        "series",
        "mse",
    ),
    "masked heads": (
        _attending(lambda x: L.MultiHeadAttention(2, 3, use_bias=False)(x, x), masked=True),
        "series",
        "mse",
    ),
    # The gradient of the keys' biases is nothing but rounding, which Adam would follow.
    "heads": (
        _attending(
            lambda x: L.MultiHeadAttention(2, 3, use_bias=False)(x, x),
            lambda x: L.MultiHeadAttention(3, 2, use_bias=False)(x, L.Dense(5)(x), use_causal_mask=True),
            lambda x: L.LayerNormalization()(L.Add()([x, L.MultiHeadAttention(1, 4, use_bias=False)(x, x)])),
        ),
        "series",
        "mse",
    ),
}
"""By name: the model, the key of its data, and its loss."""
