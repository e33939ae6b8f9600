"""The model of one step, which Keras alone runs, held against the model on whole sequences."""

import keras
import numpy as np
import pytest
from keras import layers

from cellerate.errors import ModelError
from cellerate.keras_graph.step_graph import step_model

pytestmark = [pytest.mark.keras, pytest.mark.backends]

V, ROWS, STEPS = 7, 3, 5


def chain(*middle: layers.Layer, head: layers.Layer | None = None, **embedding: object) -> keras.Model:
    inputs = keras.Input((None,), dtype="int32")
    x = layers.Embedding(V, 4, **embedding)(inputs)
    for layer in middle:
        x = layer(x)
    return keras.Model(inputs, (head or layers.Dense(V))(x))


def nested(**embedding: object) -> keras.Model:
    """A model in a model, both with layers of the same names, as the cells of any two layers are."""
    inner = keras.Sequential(
        [
            keras.Input((None, 4)),
            layers.LSTM(4, return_sequences=True, name="one"),
            layers.Dense(4, name="head"),
        ],
        name="inner",
    )
    last = layers.LSTM(5, return_sequences=True, name="one")
    return chain(inner, last, head=layers.Dense(V, name="head"), **embedding)


BUILT = {
    "stacked": lambda: chain(layers.LSTM(5, return_sequences=True), layers.LSTM(3, return_sequences=True)),
    "gru-softmax": lambda: chain(
        layers.GRU(5, return_sequences=True), head=layers.Dense(V, activation="softmax")
    ),
    "masked": lambda: chain(
        layers.LSTM(5, return_sequences=True, recurrent_dropout=0.5), layers.Dropout(0.5), mask_zero=True
    ),
    "nested": nested,
    "nested-masked": lambda: nested(mask_zero=True),
    "mixed_bfloat16": lambda: chain(
        layers.LSTM(5, return_sequences=True, dtype="mixed_bfloat16"), dtype="mixed_bfloat16"
    ),
}


# Keras warns of a mask on a nested model's input, and hands it on all the same.
@pytest.mark.filterwarnings("ignore:Layer 'inner':UserWarning")
@pytest.mark.parametrize("name", BUILT)
def test_step_model_step_by_step_equals_the_model_on_whole_sequences(name):
    model = BUILT[name]()
    ids = np.random.default_rng(0).integers(0, V, (ROWS, STEPS)).astype("int32")
    expected = np.asarray(model.predict_on_batch(ids), np.float32)
    before = [weights.copy() for weights in model.get_weights()]
    steps = step_model(model, ROWS)
    assert tuple(steps.inputs[0].shape) == (ROWS, 1)
    state = [np.zeros(tuple(tensor.shape), np.float32) for tensor in steps.inputs[1:]]
    found = []
    for step in range(STEPS):
        output, *state = steps.predict_on_batch([ids[:, step : step + 1], *state])
        found.append(np.asarray(output, np.float32)[:, 0])
    rounding = 2.0**-7 if "bfloat16" in name else 1e-5
    np.testing.assert_allclose(np.stack(found, 1), expected, atol=rounding * np.abs(expected).max(), rtol=0)
    for one, other in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_step_model_of_a_last_step_model_gives_what_follows_each_prefix():
    model = chain(layers.LSTM(5))
    ids = np.array([[1, 2, 3]], np.int32)
    steps = step_model(model, 1)
    state = [np.zeros(tuple(tensor.shape), np.float32) for tensor in steps.inputs[1:]]
    for step in range(3):
        output, *state = steps.predict_on_batch([ids[:, step : step + 1], *state])
    np.testing.assert_allclose(output, model.predict_on_batch(ids), atol=1e-5)


def test_step_model_shares_the_weights_of_the_model():
    model = chain(layers.LSTM(5, return_sequences=True))
    steps = step_model(model, 2)
    assert {id(weight) for weight in steps.weights} == {id(weight) for weight in model.weights}


def test_step_model_of_a_bidirectional_model_raises_model_error():
    with pytest.raises(ModelError, match="future"):
        step_model(chain(layers.Bidirectional(layers.LSTM(3, return_sequences=True))), 1)
