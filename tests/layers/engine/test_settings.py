"""Settings that change between steps: on torch Keras reads them at each step, and so does the engine."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

import cellerate

pytestmark = [
    pytest.mark.keras,
    pytest.mark.backends,
    pytest.mark.skipif(
        keras.backend.backend() != "torch", reason="elsewhere Keras trains what it has compiled"
    ),
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword"),
]
RANDOM = np.random.default_rng(3)
X = RANDOM.standard_normal((16, 5, 2), np.float32)
Y = RANDOM.standard_normal((16, 1), np.float32)


def _clip(model: keras.Model) -> None:
    model.optimizer.clipnorm = 1e-3


def _momentum(model: keras.Model) -> None:
    model.optimizer.momentum = 0.0


def _decay(model: keras.Model) -> None:
    model.optimizer.weight_decay = 0.5


def _freeze(model: keras.Model) -> None:
    model.layers[0].trainable = False


def _constrain(model: keras.Model) -> None:
    model.layers[-1].kernel.constraint = keras.constraints.MaxNorm(0.1)


def _regularize(model: keras.Model) -> None:
    model.layers[-1].kernel.regularizer = keras.regularizers.L2(0.5)


def _keep_all(model: keras.Model) -> None:
    model.layers[1].rate = 0.0


def _weights(change: Callable[[Any], None], engine: str | None) -> list[np.ndarray]:
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((5, 2)), layers.LSTM(4), layers.Dropout(0.5), layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.0, momentum=0.9, weight_decay=0.01), "mse")
    if engine is not None:
        cellerate.accelerate(model, engine=engine)
    # What is dropped is not the same for both, and changes nothing yet.
    model.train_on_batch(X, Y)
    model.optimizer.learning_rate = 0.05
    _keep_all(model)
    model.optimizer.momentum = 0.5
    model.train_on_batch(X, Y)
    change(model)
    for _ in range(2):
        model.train_on_batch(X, Y)
    return model.get_weights()


@pytest.mark.parametrize("change", [_clip, _momentum, _decay, _freeze, _constrain, _regularize, _keep_all])
def test_setting_that_changes_between_steps_is_that_of_the_next_step(change: Callable[[Any], None]) -> None:
    for ours, theirs in zip(_weights(change, "require"), _weights(change, None), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
