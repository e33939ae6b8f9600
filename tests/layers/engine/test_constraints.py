"""Constraints and moving averages between updates, on the engine and in Keras."""

from typing import Any

import keras
import numpy as np
import pytest
from keras import constraints, layers

import cellerate
from cellerate.layers.engine.constraints import projection_of
from support.keras_models.engine_models import copy_of, data_of, numbers

pytestmark = [
    pytest.mark.keras,
    pytest.mark.backends,
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword"),
]
CONSTRAINTS = [
    constraints.MaxNorm(0.5),
    constraints.MaxNorm(0.7, axis=[0, 1]),
    constraints.MinMaxNorm(0.3, 0.6, rate=0.8, axis=1),
    constraints.UnitNorm(axis=-1),
    constraints.NonNeg(),
]


@pytest.mark.parametrize("constraint", CONSTRAINTS, ids=lambda one: type(one).__name__)
def test_constrained_weight_equals_keras(constraint: Any) -> None:
    weight = np.random.default_rng(0).standard_normal((5, 4), np.float32)
    weight[:, 1] = 0
    project = projection_of(constraint)
    assert project is not None
    expected = keras.ops.convert_to_numpy(constraint(keras.ops.convert_to_tensor(weight)))
    np.testing.assert_allclose(project(weight), expected, rtol=1e-6)


def test_subclass_of_a_constraint_is_not_supported() -> None:
    class Own(constraints.NonNeg):
        pass

    assert projection_of(Own()) is None


def constrained() -> keras.Model:
    norm, span, unit, positive = CONSTRAINTS[0], *CONSTRAINTS[2:]
    lstm = layers.LSTM(6, kernel_constraint=norm, recurrent_constraint=span, bias_constraint=positive)
    return keras.Sequential([keras.Input((9, 3)), lstm, layers.Dense(2, kernel_constraint=unit)])


def test_weights_and_moving_averages_between_updates_equal_keras() -> None:
    """Keras also moves an average, and overwrites its weight, in steps that only accumulate gradients."""
    keras.utils.set_random_seed(1)
    model, (x, y) = constrained(), data_of("series", 39)
    found = []
    for engine in (None, "require"):
        made = copy_of(model)
        optimizer = keras.optimizers.SGD(
            0.1, gradient_accumulation_steps=2, use_ema=True, ema_momentum=0.8, ema_overwrite_frequency=3
        )
        made.compile(optimizer, "mse")
        if engine is not None:
            cellerate.accelerate(made, engine=engine)
        losses = made.fit(x, y, 8, epochs=2, shuffle=False, verbose=0).history["loss"]
        found.append((losses, numbers(made.weights), numbers(optimizer.variables)))
    for ours, theirs in zip(found[1], found[0], strict=True):
        for one, other in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=2e-6)
