"""Losses on the engine take the steps of stock Keras, even where their derivatives jump."""

from typing import Any

import keras
import numpy as np
import pytest
from keras import layers, losses

import cellerate

pytestmark = [
    pytest.mark.keras,
    pytest.mark.backends,
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword"),
]
ROWS, STEPS, OUT = 12, 5, 3
RANDOM = np.random.default_rng(3)
X = RANDOM.standard_normal((ROWS, STEPS, 2), np.float32)
NUMBERS = RANDOM.standard_normal((ROWS, OUT), np.float32)
BITS = (NUMBERS > 0).astype(np.float32)
ONE_HOT = np.eye(OUT, dtype=np.float32)[RANDOM.integers(0, OUT, ROWS)]
SHARES = np.abs(NUMBERS) / np.abs(NUMBERS).sum(-1, keepdims=True)
COUNTS = np.floor(np.abs(NUMBERS) * 3)
CASES: dict[str, tuple[Any, str | None, np.ndarray]] = {
    "mape": (losses.MeanAbsolutePercentageError(), None, NUMBERS + 4),
    "msle": (losses.MeanSquaredLogarithmicError(), "relu", COUNTS),
    "poisson": (losses.Poisson(), "softplus", COUNTS),
    "hinge of bits": (losses.Hinge(reduction="sum"), "tanh", BITS),
    "hinge of signs": (losses.Hinge(), None, 2 * BITS - 1),
    "squared hinge": (losses.SquaredHinge(), None, BITS),
    "categorical hinge": (losses.CategoricalHinge(), None, ONE_HOT),
    "kl divergence": (losses.KLDivergence(), "softmax", SHARES),
    "cosine similarity": (losses.CosineSimilarity(), None, NUMBERS),
    "focal": (losses.BinaryFocalCrossentropy(gamma=1.5, label_smoothing=0.1), "sigmoid", BITS),
    "balanced focal of logits": (
        losses.BinaryFocalCrossentropy(True, alpha=0.3, from_logits=True),
        None,
        BITS,
    ),
    "categorical focal": (
        losses.CategoricalFocalCrossentropy(alpha=0.4, gamma=1.0, label_smoothing=0.1),
        "softmax",
        ONE_HOT,
    ),
    "categorical focal of logits": (
        losses.CategoricalFocalCrossentropy(from_logits=True, reduction="mean_with_sample_weight"),
        None,
        ONE_HOT,
    ),
}
NAN = np.float32(np.nan)
EPSILON = np.float32(1e-7)
HIGH = np.float32(1) - EPSILON
# Outputs and targets at which a maximum, a clip or an absolute value does not have a derivative.
KINKS: dict[str, tuple[Any, list[Any], list[Any]]] = {
    "mae": (losses.MeanAbsoluteError(), [1.0, 2.0, 1.0], [1.0, 1.0, NAN]),
    "mape": (losses.MeanAbsolutePercentageError(), [1.0, 0.5, 3.0], [1.0, 0.5, NAN]),
    "msle": (losses.MeanSquaredLogarithmicError(), [EPSILON, -1.0, 2.0], [1.0, 2.0, 2.0]),
    "hinge": (losses.Hinge(), [1.0, -1.0, 2.0], [1.0, -1.0, 1.0]),
    "hinge of bits": (losses.Hinge(), [1.0, -1.0, 0.5], [1.0, 0.0, 0.0]),
    "squared hinge": (losses.SquaredHinge(), [1.0, 0.5, 2.0], [1.0, -1.0, NAN]),
    "poisson": (losses.Poisson(), [0.0, -1.0, 2.0], [1.0, 1.0, 0.0]),
    "equal others": (losses.CategoricalHinge(), [1.5, 0.5, 0.5], [1.0, 0.0, 0.0]),
    "one largest": (losses.CategoricalHinge(), [1.0, 0.5, 0.25], [1.0, 0.0, 0.0]),
    "no other above 0": (losses.CategoricalHinge(), [-0.5, -1.0, -2.0], [1.0, 0.0, 0.0]),
    "divergence": (losses.KLDivergence(), [EPSILON, 1.0, 2.0], [0.2, 0.3, 0.0]),
    "divergence below": (losses.KLDivergence(), [0.0, 0.5, 0.5], [0.2, 1.5, NAN]),
    "no length": (losses.CosineSimilarity(), [0.0, 0.0, 0.0], [1.0, 2.0, 3.0]),
    "target without length": (losses.CosineSimilarity(), [1.0, 2.0, 0.0], [0.0, 0.0, 0.0]),
    "focal": (losses.BinaryFocalCrossentropy(), [0.0, 1.0, HIGH], [1.0, 1.0, 0.0]),
    "focal at an end": (losses.BinaryFocalCrossentropy(), [EPSILON, 0.0, 0.3], [1.0, 0.0, 1.0]),
    "focal of far logits": (
        losses.BinaryFocalCrossentropy(from_logits=True),
        [20.0, 20.0, -20.0],
        [1.0, 0.0, 1.0],
    ),
    "binary": (losses.BinaryCrossentropy(), [EPSILON, HIGH, 1.0], [1.0, 0.0, 0.0]),
    "categorical focal": (losses.CategoricalFocalCrossentropy(), [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]),
    "sum of zero": (losses.CategoricalFocalCrossentropy(), [0.0, 0.0, 0.0], [1.0, 0.0, 0.0]),
}


def both_ways(
    make: Any, loss: Any, y: np.ndarray, x: np.ndarray = X, **batch: Any
) -> list[tuple[list[float], list[np.ndarray]]]:
    """The losses and the weights of three steps, of stock Keras and of the engine."""
    found = []
    for engine in (None, "require"):
        keras.utils.set_random_seed(1)
        model = make()
        model.compile(keras.optimizers.SGD(0.1), loss)
        if engine is not None:
            cellerate.accelerate(model, engine=engine)
        steps = [float(model.train_on_batch(x[: len(y)], y, **batch)) for _ in range(3)]
        found.append((steps, model.get_weights()))
    return found


def assert_alike(found: list[tuple[list[float], list[np.ndarray]]], rtol: float = 1e-5) -> None:
    (steps, weights), (our_steps, our_weights) = found
    np.testing.assert_allclose(our_steps, steps, rtol=rtol)
    for one, our in zip(weights, our_weights, strict=True):
        np.testing.assert_allclose(our, one, rtol=rtol, atol=rtol)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_every_loss_takes_the_steps_of_keras(name: str, weighted: bool) -> None:
    loss, activation, y = CASES[name]

    def make() -> keras.Model:
        head = layers.Dense(OUT, activation=activation)
        return keras.Sequential([keras.Input((STEPS, 2)), layers.LSTM(4), head])

    weights = {"sample_weight": np.linspace(0, 2, ROWS, dtype=np.float32)} if weighted else {}
    assert_alike(both_ways(make, loss, y, **weights))


@pytest.mark.parametrize("name", ["cosine similarity", "squared hinge", "categorical focal"])
def test_loss_with_masked_steps_equals_keras(name: str) -> None:
    loss, activation, y = CASES[name]
    ids = RANDOM.integers(0, 4, (ROWS, STEPS)).astype("int32")

    def make() -> keras.Model:
        head = layers.Dense(OUT, activation=activation)
        rows = [keras.Input((STEPS,), dtype="int32"), layers.Embedding(4, 3, mask_zero=True)]
        return keras.Sequential([*rows, layers.LSTM(4, return_sequences=True), head])

    targets = np.repeat(y[:, None], STEPS, axis=1)
    assert_alike(both_ways(make, loss, targets, ids))


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("name", KINKS)
def test_step_at_a_point_without_a_derivative_equals_the_backend(name: str) -> None:
    loss, outputs, targets = KINKS[name]

    def make() -> keras.Model:
        at = keras.initializers.Constant(np.array(outputs, np.float32))
        head = layers.Dense(len(outputs), kernel_initializer="zeros", bias_initializer=at)
        return keras.Sequential([keras.Input((STEPS, 2)), layers.LSTM(4), head])

    found = []
    for engine in (None, "require"):
        model = make()
        model.compile(keras.optimizers.SGD(0.1), loss)
        if engine is not None:
            cellerate.accelerate(model, engine=engine)
        y = np.array([targets] * 4, np.float32)
        found.append(([float(model.train_on_batch(X[:4], y))], model.get_weights()[-1:]))
    assert_alike(found, rtol=2e-5)


def test_metric_beside_a_hinge_loss_sees_unchanged_targets() -> None:
    found = []
    for engine in (None, "require"):
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((STEPS, 2)), layers.LSTM(4), layers.Dense(OUT)])
        model.compile("sgd", "hinge", metrics=["mse"])
        if engine is not None:
            cellerate.accelerate(model, engine=engine)
        found.append(model.train_on_batch(X, BITS, return_dict=True))
    assert found[0].keys() == found[1].keys()
    for key, value in found[0].items():
        np.testing.assert_allclose(found[1][key], value, rtol=1e-5)
