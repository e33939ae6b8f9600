"""Models that look across steps: convolutions, pooling and attention beside LSTMs, for `engine_models`."""

from collections.abc import Callable
from typing import Any

import keras
from keras import layers, ops

T, D, OUT = 9, 3, 2
"""Steps and features of a series, and outputs."""

L = layers


def _series(*rows: Callable[[], Any]) -> Callable[[], keras.Model]:
    """A model of a series: layers that `rows` give, and a head."""
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


SEQUENCES: dict[str, tuple[Callable[[], keras.Model], str, Any]] = {
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
    "pooled windows": (_pooled, "series", "mse"),
}
"""By name: the model, the key of its data, and its loss."""
