"""Layers and weights of models to prune."""

from typing import Any

import keras
import numpy as np
from keras import layers

BATCH, STEPS, WIDTH, UNITS = 3, 5, 4, 6


def sequence(*shape: Any) -> Any:
    return keras.Input(shape or (None, WIDTH))


def lstm(units: int = UNITS, **arguments: Any) -> layers.LSTM:
    """An LSTM of zeros: tests set the weights, and each random initializer would be compiled for each shape."""
    return layers.LSTM(units, kernel_initializer="zeros", recurrent_initializer="zeros", **arguments)


def dense(units: int = 2, activation: str | None = None, **arguments: Any) -> layers.Dense:
    return layers.Dense(units, activation, kernel_initializer="zeros", **arguments)


def with_random_weights(model: keras.Model, scale: float = 1.0) -> keras.Model:
    rng = np.random.default_rng(3)
    model.set_weights([scale * rng.uniform(0.1, 1.0, w.shape) * _sign(w, rng) for w in model.weights])
    return model


def _sign(variable: Any, rng: np.random.Generator) -> Any:
    return 1 if "variance" in variable.name else rng.choice([-1.0, 1.0], variable.shape)


def relative_error(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.sqrt(np.mean((found - expected) ** 2) / np.mean(expected**2)))


def rows(count: int = 24, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((count, STEPS, WIDTH)).astype("float32")
    return x, np.stack([x[:, :, 0].sum(1), x[:, -1, 1]], -1)
