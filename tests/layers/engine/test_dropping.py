"""Dropout on the engine: Keras's rates, different random numbers, repeatable runs."""

from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

import cellerate
from support.keras_models.engine_models import copy_of, numbers

pytestmark = [
    pytest.mark.keras,
    pytest.mark.backends,
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword"),
]
RATE, WIDTH = 0.3, 40


def probe(*dropping: Any, steps: int = 5) -> keras.Model:
    """A model whose output shows the dropped inputs; its LSTM does not affect the output."""
    inputs = keras.Input((steps, WIDTH))
    kept = inputs
    for layer in dropping:
        kept = layer(kept)
    nothing = layers.LSTM(WIDTH, return_sequences=True, kernel_initializer="zeros")(inputs)
    same = layers.Dense(WIDTH, use_bias=False, kernel_initializer="identity")
    return keras.Model(inputs, layers.Add()([same(kept), nothing]))


def loss_of_steps(model: keras.Model, rows: int, count: int, target: float = 0.0) -> list[float]:
    """The mean distance of the outputs for inputs of ones, at each step, with constant weights."""
    model.compile(keras.optimizers.SGD(0.0), "mae")
    cellerate.accelerate(model, engine="require")
    x = np.ones((rows, 5, WIDTH), np.float32)
    return [model.train_on_batch(x, np.full_like(x, target)) for _ in range(count)]


DROPPING = {
    "dropout": (lambda: layers.Dropout(RATE, seed=1), 5 * WIDTH),
    "spatial": (lambda: layers.SpatialDropout1D(RATE, seed=1), WIDTH),
    "noise shape of features": (lambda: layers.Dropout(RATE, noise_shape=(None, 1, WIDTH), seed=1), WIDTH),
    "noise shape of steps": (lambda: layers.Dropout(RATE, noise_shape=(None, 5, 1), seed=1), 5),
}
"""Layers, and how many decisions each takes for a row."""


@pytest.mark.parametrize("kind", DROPPING)
def test_dropout_keeps_the_mean_and_drops_at_its_rate(kind: str) -> None:
    make, decisions = DROPPING[kind]
    losses = loss_of_steps(probe(make()), 64, 12)
    drawn = 64 * decisions
    # A kept number is 1 / (1 - RATE): the share that is kept has this deviation.
    deviation = np.sqrt(RATE / (1 - RATE) / drawn)
    assert len(set(losses)) > len(losses) / 2
    np.testing.assert_allclose(losses, 1.0, atol=5 * deviation)
    assert abs(np.mean(losses) - 1) < 5 * deviation / np.sqrt(len(losses))
    # Fewer decisions would scatter the means more; the deviation of 12 means is never near a third or three times this.
    assert deviation / 2 < np.std(losses) < 2 * deviation


@pytest.mark.parametrize(
    ("layer", "deviation"),
    [
        (lambda: layers.GaussianNoise(0.2, seed=1), 0.2),
        (lambda: layers.GaussianDropout(RATE, seed=1), np.sqrt(RATE / (1 - RATE))),
    ],
    ids=["noise", "factors"],
)
def test_gaussian_noise_has_its_mean_and_deviation(layer: Any, deviation: float) -> None:
    model = probe(layer())
    # The mean absolute deviation of normal numbers, and its sampling error for this many.
    expected, off = deviation * np.sqrt(2 / np.pi), deviation / np.sqrt(64 * 5 * WIDTH * 12)
    assert np.mean(loss_of_steps(model, 64, 12, target=1.0)) == pytest.approx(expected, abs=5 * off)
    # Half of them are above the mean.
    above = np.mean([loss_of_steps(probe(layer()), 64, 1, target=far)[0] for far in (-20.0, 22.0)])
    assert above == pytest.approx(21.0, abs=1e-4)
    x = np.ones((8, 5, WIDTH), np.float32)
    assert model.evaluate(x, x, verbose=0) == pytest.approx(0.0, abs=1e-6)


def test_alpha_dropout_keeps_mean_and_deviation_and_drops_at_its_rate() -> None:
    """For inputs of ones, all kept values are equal and all dropped values are equal."""
    least = -1.7580993408473766
    scale = ((1 - RATE) * (1 + RATE * least**2)) ** -0.5
    kept, dropped = (scale * value - scale * least * RATE for value in (1.0, least))
    losses = loss_of_steps(probe(layers.AlphaDropout(RATE, seed=1)), 64, 12, target=kept)
    expected, drawn = RATE * (kept - dropped), 64 * 5 * WIDTH * 12
    off = (kept - dropped) * np.sqrt(RATE * (1 - RATE) / drawn)
    assert np.mean(losses) == pytest.approx(expected, abs=5 * off)
    model = probe(layers.AlphaDropout(RATE, seed=1))
    loss_of_steps(model, 8, 1)
    x = np.ones((8, 5, WIDTH), np.float32)
    assert model.evaluate(x, x, verbose=0) == pytest.approx(0.0, abs=1e-6)


def test_evaluation_has_no_dropout() -> None:
    model = probe(layers.Dropout(RATE, seed=1))
    loss_of_steps(model, 8, 1)
    x = np.ones((8, 5, WIDTH), np.float32)
    assert model.evaluate(x, np.zeros_like(x), verbose=0) == pytest.approx(1.0, abs=1e-6)


X = np.random.default_rng(0).standard_normal((40, 6, 4)).astype("float32")
Y = np.random.default_rng(1).standard_normal((40, 2)).astype("float32")
OPTIONS = [{"dropout": 0.3}, {"recurrent_dropout": 0.3}, {"dropout": 0.2, "recurrent_dropout": 0.3}, {}]
BUILT_NAMES = [" ".join(options) or "none" for options in OPTIONS]


@pytest.mark.parametrize("units", [4, 16, 20, 50])
@pytest.mark.parametrize("options", OPTIONS, ids=BUILT_NAMES)
def test_evaluation_of_layers_with_dropout_equals_that_of_keras(
    units: int, options: dict[str, float]
) -> None:
    """Enough rows for several pieces, which share the packed weights."""
    chain = [layers.LSTM(units, return_sequences=True, **options), layers.LSTM(5, **options), layers.Dense(2)]
    model = keras.Sequential([keras.Input((6, 4)), *chain])
    x, y = (np.concatenate([one] * 4) for one in (X, Y))
    made = copy_of(model)
    model.compile("sgd", "mse", jit_compile=False)
    made.compile("sgd", "mse")
    cellerate.accelerate(made, engine="require")
    for rows in (160, 24):
        expected = model.evaluate(x[:rows], y[:rows], rows, verbose=0)
        assert made.evaluate(x[:rows], y[:rows], rows, verbose=0) == pytest.approx(expected, rel=1e-5)


def test_layers_with_different_seeds_drop_different_values() -> None:
    one = loss_of_steps(probe(layers.Dropout(0.5, seed=1)), 64, 1)[0]
    both = loss_of_steps(probe(layers.Dropout(0.5, seed=1), layers.Dropout(0.5, seed=2)), 64, 1)[0]
    # With the same numbers the output would be twice that of one layer.
    assert both == pytest.approx(1.0, abs=0.05)
    assert one == pytest.approx(1.0, abs=0.03)


def recurrent(**options: Any) -> keras.Model:
    inputs = keras.Input((6, 4))
    hidden = layers.Bidirectional(layers.LSTM(8, return_sequences=True, seed=5, **options))(inputs)
    return keras.Model(inputs, layers.Dense(2)(layers.Dropout(0.2, seed=7)(layers.LSTM(5)(hidden))))


def attending(**options: Any) -> keras.Model:
    inputs = keras.Input((6, 4))
    hidden = layers.LSTM(8, return_sequences=True)(inputs)
    heads = layers.MultiHeadAttention(2, 4, seed=5, **options)(hidden, hidden, use_causal_mask=True)
    both = layers.Concatenate()([heads, layers.Attention(seed=6, **options)([hidden, heads])])
    return keras.Model(inputs, layers.Dense(2)(layers.LSTM(5)(both)))


def fitted(model: keras.Model, epochs: int = 2, engine: str = "require") -> keras.Model:
    made = copy_of(model)
    made.compile(keras.optimizers.Adam(0.01), "mse")
    cellerate.accelerate(made, engine=engine)
    made.fit(X, Y, 16, epochs=epochs, shuffle=False, verbose=0)
    return made


BUILT = {name: (recurrent, options) for name, options in zip(BUILT_NAMES, OPTIONS, strict=True)}
BUILT["attention"] = attending, {"dropout": 0.4}


@pytest.mark.parametrize("name", BUILT)
def test_runs_with_the_same_seeds_are_bit_identical(name: str) -> None:
    build, options = BUILT[name]
    keras.utils.set_random_seed(2)
    model = build(**options)
    first, second = fitted(model), fitted(model)
    for one, other in zip(first.get_weights(), second.get_weights(), strict=True):
        np.testing.assert_array_equal(other, one)


def test_resumed_run_equals_an_uninterrupted_run() -> None:
    keras.utils.set_random_seed(2)
    model = recurrent(dropout=0.2, recurrent_dropout=0.3)
    whole, half, resumed = fitted(model, epochs=2), fitted(model, epochs=1), copy_of(model)
    resumed.compile(keras.optimizers.Adam(0.01), "mse")
    resumed.optimizer.build(resumed.trainable_variables)
    # The states of the generators of random numbers are among a model's variables.
    for owner, other in ((resumed, half), (resumed.optimizer, half.optimizer)):
        for variable, value in zip(owner.variables, numbers(other.variables), strict=True):
            variable.assign(value)
    cellerate.accelerate(resumed, engine="require")
    resumed.fit(X, Y, 16, shuffle=False, verbose=0)
    for one, other in zip(whole.get_weights(), resumed.get_weights(), strict=True):
        np.testing.assert_array_equal(other, one)


@pytest.mark.parametrize("name", [name for name in BUILT if name != "none"])
def test_training_with_dropout_has_the_mean_loss_of_keras(name: str) -> None:
    """The losses of many steps have the same mean, though the numbers drawn differ."""
    build, options = BUILT[name]
    keras.utils.set_random_seed(2)
    model = build(**options)
    means = []
    for engine in ("off", "require"):
        made = copy_of(model)
        made.compile(keras.optimizers.SGD(0.0), "mse")
        cellerate.accelerate(made, engine=engine)
        x, y = np.tile(X, (20, 1, 1)), np.tile(Y, (20, 1))
        means.append(made.fit(x, y, 40, epochs=3, verbose=0).history["loss"])
    np.testing.assert_allclose(np.mean(means[1]), np.mean(means[0]), rtol=0.02)
