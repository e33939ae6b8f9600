"""`accelerate` and `restore` in a callback, while Keras runs the functions that they make again."""

import functools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

from cellerate.errors import ModelError
from cellerate.layers.accelerate import accelerate, restore
from cellerate.layers.engine import seam

pytestmark = [pytest.mark.keras, pytest.mark.backends]

RANDOM = np.random.default_rng(0)
X, Y = RANDOM.normal(size=(16, 6, 3)).astype("float32"), RANDOM.normal(size=(16, 1)).astype("float32")
HOOKS = (
    "on_train_begin",
    "on_epoch_begin",
    "on_train_batch_begin",
    "on_train_batch_end",
    "on_test_batch_end",
)


def new_model() -> keras.Model:
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((6, 3)), layers.LSTM(8), layers.Dense(1)])
    model.compile("adam", "mse")
    return model


def losses(model: keras.Model, *callbacks: Any) -> list[float]:
    fitted = model.fit(
        X,
        Y,
        batch_size=4,
        epochs=2,
        shuffle=False,
        validation_data=(X, Y),
        validation_batch_size=4,
        callbacks=list(callbacks),
        verbose=0,
    )
    return [*fitted.history["loss"], *fitted.history["val_loss"]]


@functools.cache
def stock_losses() -> tuple[float, ...]:
    return tuple(losses(restore(new_model())))


@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize(
    ("before", "change"), [(restore, accelerate), (accelerate, restore)], ids=["accelerate", "restore"]
)
def test_change_within_fit_works_from_the_next_batch_on_and_leaves_the_numbers_alone(
    before: Callable[[Any], Any], change: Callable[[Any], Any], hook: str
) -> None:
    calls: list[Any] = []

    def change_once(*_: Any, **__: Any) -> None:
        calls.append(None)
        if len(calls) == (1 if hook == "on_train_begin" else 2):
            change(model)

    model = before(new_model())
    callback = keras.callbacks.Callback()
    setattr(callback, hook, change_once)
    np.testing.assert_allclose(losses(model, callback), stock_losses(), rtol=1e-5)
    assert (seam.step_of(model) is not None) == (change is accelerate)


@pytest.mark.parametrize("change", [accelerate, restore])
def test_change_within_predict_leaves_the_outputs_alone(change: Callable[[Any], Any]) -> None:
    model = new_model()
    expected = model.predict(X, batch_size=4, verbose=0)
    callback = keras.callbacks.LambdaCallback()
    callback.on_predict_batch_end = lambda *_, **__: change(model)
    found = model.predict(X, batch_size=4, verbose=0, callbacks=[callback])
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_each_fit_of_a_model_that_must_train_on_the_engine_and_cannot_is_refused() -> None:
    model = new_model()
    accelerate(model, engine="require").run_eagerly = True
    for _ in range(2):
        with pytest.raises(ModelError, match="it runs eagerly"):
            model.fit(X, Y, verbose=0)
