"""Attention with one learned score factor, on the engine and in Keras."""

import keras
import numpy as np
import pytest
from keras import layers

import cellerate
from support.keras_models.engine_models import copy_of, data_of

pytestmark = [
    pytest.mark.keras,
    pytest.mark.backends,
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword"),
]


def attending() -> keras.Model:
    """A model with each kind of attention scores, a mask, and sequences of any length."""
    inputs = keras.Input((None, 3))
    steps = layers.LSTM(6, return_sequences=True)(layers.Masking()(inputs))
    parts = [
        layers.Attention(use_scale=True)([layers.Dense(6)(steps), steps]),
        layers.Attention(score_mode="concat", use_scale=True)([steps, steps], use_causal_mask=True),
        layers.Attention(score_mode="concat")([layers.Dense(6)(steps), steps]),
    ]
    return keras.Model(inputs, layers.Dense(2)(layers.GlobalAveragePooling1D()(layers.Concatenate()(parts))))


def test_weights_and_score_factors_equal_keras() -> None:
    keras.utils.set_random_seed(1)
    model, (x, y) = attending(), data_of("series", 39)
    for layer in model.layers:
        if isinstance(layer, layers.Attention):
            layer.set_weights([np.float32(0.7)] * len(layer.weights))
    found = []
    for engine in (None, "require"):
        made = copy_of(model)
        made.compile(keras.optimizers.SGD(0.1), "mse")
        if engine is not None:
            cellerate.accelerate(made, engine=engine)
        losses = made.fit(x, y, 16, epochs=2, shuffle=False, verbose=0).history["loss"]
        judged = made.evaluate(x, y, verbose=0)
        found.append(([*losses, judged], made.get_weights()))
    np.testing.assert_allclose(found[1][0], found[0][0], rtol=1e-5)
    for before, theirs, ours in zip(model.get_weights(), found[0][1], found[1][1], strict=True):
        moved = np.abs(theirs - before).max()
        assert moved > 0
        # The gradient of the score factor is a sum of terms that nearly cancel.
        np.testing.assert_allclose(ours, theirs, atol=2e-3 * moved)
