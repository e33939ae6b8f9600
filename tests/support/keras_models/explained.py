"""Layers to explain, and a record of the calls that Keras really makes."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers
from keras.src import backend as keras_backend

from cellerate.layers.explain import Explanation, LayerReport

BACKEND = keras.backend.backend()
T, F = 3, 4

LAYERS: dict[str, Callable[[], layers.Layer]] = {
    "lstm": lambda: layers.LSTM(4),
    "lstm-relu": lambda: layers.LSTM(4, activation="relu"),
    "lstm-hard-sigmoid": lambda: layers.LSTM(4, recurrent_activation="hard_sigmoid"),
    "lstm-recurrent-dropout": lambda: layers.LSTM(4, recurrent_dropout=0.2),
    "lstm-dropout": lambda: layers.LSTM(4, dropout=0.2),
    "lstm-unroll": lambda: layers.LSTM(4, unroll=True),
    "lstm-no-bias": lambda: layers.LSTM(4, use_bias=False),
    "lstm-no-cudnn": lambda: layers.LSTM(4, use_cudnn=False),
    "lstm-backwards": lambda: layers.LSTM(4, go_backwards=True),
    "gru": lambda: layers.GRU(4),
    "gru-reset-before": lambda: layers.GRU(4, reset_after=False),
    "gru-recurrent-dropout": lambda: layers.GRU(4, recurrent_dropout=0.2),
    "gru-unroll": lambda: layers.GRU(4, unroll=True),
    "gru-no-cudnn": lambda: layers.GRU(4, use_cudnn=False),
    "simple-rnn": lambda: layers.SimpleRNN(4),
    "simple-rnn-unroll": lambda: layers.SimpleRNN(4, unroll=True),
    "rnn-of-lstm-cell": lambda: layers.RNN(layers.LSTMCell(4)),
    "rnn-of-stacked-cells": lambda: layers.RNN([layers.LSTMCell(4), layers.GRUCell(4)]),
}
PLAIN = {
    "jax": ("xla-scan", "xla-unrolled"),
    "tensorflow": ("tf-while", "tf-unrolled"),
    "torch": ("python-loop", "python-loop"),
}


def model_of(layer: layers.Layer, *, masked: bool = False) -> keras.Model:
    inputs = keras.Input((T, F))
    x = layers.Masking()(inputs) if masked else inputs
    return keras.Model(inputs, layer(x))


def ones(*shape: int) -> np.ndarray:
    return np.ones(shape or (2, T, F), "float32")


def only(explanation: Explanation) -> LayerReport:
    (report,) = explanation.layers
    return report


def condition(report: LayerReport, name: str) -> Any:
    (found,) = [c for c in report.conditions if c.name == name]
    return found


class Watch:
    """Record which recurrent kernels of a backend ran."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.kernels: list[str] = []
        self.fused = PLAIN[BACKEND][0].replace("python-loop", "python-loop-projected") + (
            "-projected" if BACKEND == "jax" else ""
        )
        # Keras 3.16 calls the kernels from a separate module.
        place = keras_backend if callable(keras_backend.rnn) else keras_backend.rnn
        for name in ("lstm", "gru"):
            monkeypatch.setattr(place, name, self._watched(getattr(place, name)))
        rnn = place.rnn

        def watched_rnn(*args: Any, **kwargs: Any) -> Any:
            self.kernels.append(PLAIN[BACKEND][1 if kwargs["unroll"] else 0])
            return rnn(*args, **kwargs)

        monkeypatch.setattr(place, "rnn", watched_rnn)

    def _watched(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)  # NotImplementedError: this one does not run it
            self.kernels.append(self.fused)
            return result

        return watched
