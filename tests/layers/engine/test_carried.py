"""States carried from batch to batch, on the engine and in Keras's own steps."""

from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

from cellerate.layers.accelerate import accelerate
from cellerate.layers.carried_states import CarriedStates, carried_states
from cellerate.layers.explain import explain
from support.keras_models.engine_models import copy_of, numbers

pytestmark = [
    pytest.mark.keras,
    pytest.mark.backends,
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword"),
]
ROWS, STEPS, V = 4, 6, 11
IDS = np.random.default_rng(0).integers(0, V, (6 * ROWS, STEPS + 1)).astype("int32")


def model() -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((None,), dtype="int32"),
            layers.Embedding(V, 5),
            layers.LSTM(6, return_sequences=True),
            layers.LSTM(7, return_sequences=True),
            layers.Dense(V),
        ]
    )


def trained(source: keras.Model, engine: str, **fit: Any) -> tuple[CarriedStates, list[float]]:
    carried = carried_states(accelerate(copy_of(source), engine=engine), ROWS)
    carried.model.compile(
        keras.optimizers.Adam(0.01), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    accelerate(carried.model, engine=engine, sum_embedding_gradients=True)
    found = carried.model.fit(IDS[:, :-1], IDS[:, 1:], ROWS, shuffle=False, verbose=0, **fit)
    return carried, found.history["loss"]


def test_carried_states_and_weights_equal_keras() -> None:
    keras.utils.set_random_seed(1)
    source = model()
    (plain, losses), (ours, our_losses) = (trained(source, engine, epochs=2) for engine in ("off", "require"))
    assert explain(ours.model).training_step == "whole steps in one native call"
    np.testing.assert_allclose(our_losses, losses, rtol=1e-5)
    for one, our in zip(numbers(plain.model.variables), numbers(ours.model.variables), strict=True):
        # Integer variables are seeds, which differ between the two copies.
        if one.dtype == np.float32:
            np.testing.assert_allclose(our, one, atol=5e-6)
    states = [state for layer in ours.layers for state in numbers(layer.states)]
    assert len(states) == 4 and all(np.abs(state).max() > 0 for state in states)


def test_carried_states_continue_in_evaluate_and_clear_on_reset() -> None:
    keras.utils.set_random_seed(1)
    carried, _ = trained(model(), "require")
    x, y = IDS[:ROWS, :-1], IDS[:ROWS, 1:]
    first, second = (carried.model.evaluate(x, y, ROWS, verbose=0) for _ in range(2))
    assert first != second
    carried.reset()
    assert all((state == 0).all() for layer in carried.layers for state in numbers(layer.states))
    again = carried.model.evaluate(x, y, ROWS, verbose=0)
    carried.reset()
    assert carried.model.evaluate(x, y, ROWS, verbose=0) == again
