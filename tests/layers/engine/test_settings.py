"""Settings that change between steps: torch reads them in each step, other backends keep the first ones."""

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
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword"),
]
TORCH = keras.backend.backend() == "torch"
JAX = keras.backend.backend() == "jax"
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


def _strengthen(model: keras.Model) -> None:
    model.layers[0].cell.kernel.regularizer.l2 = 0.5


def _replace_optimizer(model: keras.Model) -> None:
    model.optimizer = keras.optimizers.SGD(0.0)


def _keep_all(model: keras.Model) -> None:
    model.layers[1].rate = 0.0


def _average(model: keras.Model) -> None:
    model.optimizer.ema_momentum = 0.1


def _activate(model: keras.Model) -> None:
    model.layers[-1].activation = keras.activations.tanh


CHANGES = [_clip, _momentum, _decay, _constrain, _regularize, _strengthen, _average, _activate]


def _everything(model: keras.Model) -> None:
    for change in CHANGES:
        change(model)
    if not JAX:
        _freeze(model)


def _model(engine: str | None, *, averaged: bool = False) -> keras.Model:
    keras.utils.set_random_seed(1)
    lstm = layers.LSTM(4, kernel_regularizer=keras.regularizers.L2(0.01))
    model = keras.Sequential([keras.Input((5, 2)), lstm, layers.Dropout(0.5), layers.Dense(1)])
    if not TORCH:
        model.layers[1].rate = 0.0
    optimizer = keras.optimizers.SGD(
        0.0 if TORCH else 0.05,
        momentum=0.9,
        weight_decay=0.01,
        use_ema=averaged,
        ema_momentum=0.9,
        ema_overwrite_frequency=2 if averaged else None,
    )
    model.compile(optimizer, "mse")
    if engine is not None:
        cellerate.accelerate(model, engine=engine)
    return model


def _weights(change: Callable[[Any], None], engine: str | None) -> list[np.ndarray]:
    model = _model(engine, averaged=change in (_average, _everything))
    # The two copies drop different values, which does not change anything yet.
    model.train_on_batch(X, Y)
    model.optimizer.learning_rate = 0.05
    _keep_all(model)
    model.optimizer.momentum = 0.5
    model.train_on_batch(X, Y)
    change(model)
    for _ in range(2):
        model.train_on_batch(X, Y)
    return model.get_weights()


def _assert_alike(ours: list[np.ndarray], theirs: list[np.ndarray]) -> None:
    for our, their in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(our, their, rtol=1e-5, atol=1e-6)


@pytest.mark.skipif(not TORCH, reason="elsewhere all are kept alike")
@pytest.mark.parametrize("change", [*CHANGES, _freeze, _keep_all])
def test_setting_changed_between_steps_applies_to_the_next_step(change: Callable[[Any], None]) -> None:
    _assert_alike(_weights(change, "require"), _weights(change, None))


@pytest.mark.skipif(TORCH, reason="there each step reads its settings")
def test_settings_changed_between_steps_apply_as_in_keras() -> None:
    _assert_alike(_weights(_everything, "require"), _weights(_everything, None))


@pytest.mark.skipif(not TORCH, reason="elsewhere a step keeps what it began with")
@pytest.mark.parametrize("change", [_freeze, _activate, _strengthen, _replace_optimizer])
def test_setting_changed_within_an_epoch_applies_to_the_next_batch(
    change: Callable[[Any], None],
) -> None:
    class Change(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch == 1:
                change(self.model)

    found = []
    for engine in ("require", None):
        model = _model(engine)
        model.optimizer.learning_rate = 0.05
        _keep_all(model)
        model.fit(X, Y, 4, shuffle=False, verbose=0, callbacks=[Change()])
        found.append(model.get_weights())
    _assert_alike(*found)


@pytest.mark.parametrize("engine", [None, "auto"])
def test_layer_unfrozen_after_a_step_is_refused_or_trains_after_compile(engine: str | None) -> None:
    """TensorFlow fixes the trained weights in the first step; other backends refuse weights the optimizer lacks."""
    model = _model(engine)
    model.layers[0].trainable = False
    model.compile(keras.optimizers.SGD(0.05), "mse")
    model.train_on_batch(X, Y)
    model.layers[0].trainable = True
    before = model.get_weights()
    if keras.backend.backend() != "tensorflow":
        with pytest.raises(ValueError, match=r"(?i)trainable_variables|unknown variable"):
            model.train_on_batch(X, Y)
        return
    model.train_on_batch(X, Y)
    np.testing.assert_array_equal(model.get_weights()[0], before[0])
    assert (model.get_weights()[-1] != before[-1]).any()


class _Halving(keras.optimizers.schedules.LearningRateSchedule):
    """A schedule that asks for what Keras passes: a variable."""

    def __call__(self, step: Any) -> Any:
        return 0.05 * 0.5 ** keras.ops.cast(step.value, "float32")


def test_schedule_that_needs_kerass_variable_of_steps_trains_as_in_keras() -> None:
    found = []
    for engine in ("require", None):
        model = _model(engine)
        _keep_all(model)
        model.compile(keras.optimizers.SGD(_Halving()), "mse")
        model.fit(X, Y, 4, epochs=2, shuffle=False, verbose=0)
        found.append(model.get_weights())
    _assert_alike(*found)


def _freeze_as_torch_does(model: keras.Model) -> None:
    for weight in model.layers[0].trainable_weights:
        weight.value.requires_grad_(False)


def _thaw(model: keras.Model) -> None:
    for weight in model.layers[0].trainable_weights:
        weight.value.requires_grad_(True)


def _hook_a_gradient(model: keras.Model) -> None:
    model.layers[-1].kernel.value.register_hook(lambda gradient: gradient * 0)


@pytest.mark.skipif(not TORCH, reason="torch's own settings")
@pytest.mark.filterwarnings("ignore:Gradients do not exist:UserWarning")
@pytest.mark.parametrize(
    ("first", "then"),
    [(_freeze_as_torch_does, _thaw), (_keep_all, _freeze_as_torch_does), (_keep_all, _hook_a_gradient)],
)
def test_setting_of_a_parameter_applies_to_the_next_step(first: Any, then: Any) -> None:
    found = []
    for engine in ("auto", None):
        model = _model(engine)
        _keep_all(model)
        model.optimizer.learning_rate = 0.05
        for change in (first, then):
            change(model)
            model.train_on_batch(X, Y)
            found.append(model.get_weights())
    _assert_alike(found[0] + found[1], found[2] + found[3])
