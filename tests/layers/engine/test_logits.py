"""Cross-entropies of probabilities of exactly 0 and 1, which TensorFlow computes from the logits behind them."""

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
    pytest.mark.filterwarnings("ignore:.*received `from_logits=True`"),
]
ROWS, STEPS = 12, 5
RANDOM = np.random.default_rng(3)
X = RANDOM.standard_normal((ROWS, STEPS, 2), np.float32)
BITS = RANDOM.integers(0, 2, (ROWS, STEPS, 1)).astype(np.float32)
IDS = RANDOM.integers(0, 4, ROWS)
ONE_HOT = np.eye(4, dtype=np.float32)[IDS]


def _rows(*tail: Any) -> keras.Model:
    return keras.Sequential([keras.Input((STEPS, 2)), layers.LSTM(4), *tail])


def _steps(*tail: Any) -> keras.Model:
    return keras.Sequential([keras.Input((STEPS, 2)), layers.LSTM(4, return_sequences=True), *tail])


def _inside() -> keras.Model:
    x = keras.Input((STEPS, 2))
    return keras.Model(x, _rows(layers.Dense(1, activation="sigmoid"))(x))


def _read_twice() -> keras.Model:
    x = keras.Input((STEPS, 2))
    shares = layers.Dense(4, activation="softmax")(layers.LSTM(4)(x))
    return keras.Model(x, [shares, layers.Dense(4)(shares)])


CASES: dict[str, tuple[Any, Any, Any]] = {
    "sigmoid": (lambda: _rows(layers.Dense(1, activation="sigmoid")), "binary_crossentropy", BITS[:, 0]),
    "targets of rows": (
        lambda: _rows(layers.Dense(1, activation="sigmoid")),
        losses.BinaryCrossentropy(label_smoothing=0.1),
        BITS[:, 0, 0],
    ),
    "sigmoid of steps": (lambda: _steps(layers.Dense(1, activation="sigmoid")), "binary_crossentropy", BITS),
    "a layer of each step forgets": (
        lambda: _steps(layers.TimeDistributed(layers.Dense(1, activation="sigmoid"))),
        "binary_crossentropy",
        BITS,
    ),
    "activation of its own": (
        lambda: _rows(layers.Dense(1), layers.Activation("sigmoid")),
        losses.BinaryFocalCrossentropy(),
        BITS[:, 0],
    ),
    "softmax of ids": (
        lambda: _rows(layers.Dense(4, activation="softmax")),
        "sparse_categorical_crossentropy",
        IDS,
    ),
    "softmax layer": (lambda: _rows(layers.Dense(4), layers.Softmax()), "categorical_crossentropy", ONE_HOT),
    "sigmoid as shares": (
        lambda: _rows(layers.Dense(4, activation="sigmoid")),
        "categorical_crossentropy",
        ONE_HOT,
    ),
    "taken for logits": (
        lambda: _rows(layers.Dense(1, activation="sigmoid")),
        losses.BinaryCrossentropy(from_logits=True),
        BITS[:, 0],
    ),
    "a reshape forgets": (
        lambda: _rows(layers.Dense(4, activation="softmax"), layers.Reshape((4,))),
        "categorical_crossentropy",
        ONE_HOT,
    ),
    "other losses": (lambda: _rows(layers.Dense(1, activation="sigmoid")), "mean_squared_error", BITS[:, 0]),
    "a model inside": (_inside, "binary_crossentropy", BITS[:, 0]),
    "read by another layer": (_read_twice, ["categorical_crossentropy", "mean_squared_error"], [ONE_HOT] * 2),
}
# On other backends rounding makes up most of a binary loss near 1.
if keras.backend.backend() == "tensorflow":
    CASES["each class by itself"] = (
        lambda: _rows(layers.Dense(4, activation="softmax")),
        "binary_crossentropy",
        ONE_HOT,
    )


def _numbers(make: Any, loss: Any, y: Any, engine: str | None) -> list[Any]:
    """The losses of three steps and of an evaluation, and the weights, of a model whose outputs are 0 or 1."""
    keras.utils.set_random_seed(1)
    model = make()
    dense = next(one for one in model._flatten_layers(include_self=False) if type(one) is layers.Dense)
    dense.set_weights([2000 * array for array in dense.get_weights()])
    model.compile(keras.optimizers.SGD(1e-5), loss)
    if engine is not None:
        cellerate.accelerate(model, engine=engine)
    steps = [np.ravel(model.train_on_batch(X, y))[0] for _ in range(3)]
    return [*steps, np.ravel(model.test_on_batch(X, y))[0], *model.get_weights()]


@pytest.mark.parametrize("name", CASES)
def test_outputs_of_0_and_1_have_the_loss_and_steps_of_keras(name: str) -> None:
    make, loss, y = CASES[name]
    for ours, theirs in zip(_numbers(make, loss, y, "require"), _numbers(make, loss, y, None), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=2e-5)


def test_cross_entropy_metrics_equal_keras() -> None:
    found = []
    for engine in (None, "require"):
        keras.utils.set_random_seed(1)
        model = _rows(layers.Dense(1, kernel_initializer=keras.initializers.RandomNormal(stddev=2000.0)))
        model = keras.Sequential([*model.layers, layers.Activation("sigmoid")])
        model.compile(
            loss="binary_crossentropy", metrics=[keras.metrics.BinaryCrossentropy(), keras.metrics.AUC()]
        )
        if engine is not None:
            cellerate.accelerate(model, engine=engine)
        found.append(model.evaluate(X, BITS[:, 0], verbose=0))
    np.testing.assert_allclose(found[1], found[0], rtol=2e-5)


def test_targets_without_the_last_axis_train_as_in_keras(misfits: None) -> None:
    def make() -> keras.Model:
        return _steps(layers.Dense(1, activation="sigmoid"))

    ours, theirs = (_numbers(make, "binary_crossentropy", BITS[..., 0], engine) for engine in ("auto", None))
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-5)
