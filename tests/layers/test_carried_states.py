import keras
import numpy as np
import pytest

from cellerate.errors import ModelError
from cellerate.layers.accelerate import accelerate, implementation_of, is_accelerated, is_strict
from cellerate.layers.carried_states import CarriedRNN, carried_states

pytestmark = [pytest.mark.keras, pytest.mark.backends]

B, T, V = 3, 12, 7
IDS = np.random.default_rng(0).integers(0, V, (B, T)).astype(np.int32)


def model_of(*recurrent) -> keras.Model:
    ids = keras.Input((None,), dtype="int32")
    x = keras.layers.Embedding(V, 4)(ids)
    for layer in recurrent:
        x = layer(x)
    return keras.Model(ids, keras.layers.Dense(V)(x))


MODELS = {
    "lstm": lambda: model_of(
        keras.layers.LSTM(5, return_sequences=True), keras.layers.LSTM(6, return_sequences=True)
    ),
    "gru": lambda: model_of(keras.layers.GRU(5, return_sequences=True)),
    "simple": lambda: model_of(keras.layers.SimpleRNN(5, return_sequences=True)),
    "stacked-cells": lambda: model_of(
        keras.layers.RNN([keras.layers.LSTMCell(5), keras.layers.GRUCell(4)], return_sequences=True)
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_consecutive_batches_equal_one_call_over_the_whole_sequence(name):
    model = MODELS[name]()
    whole = keras.ops.convert_to_numpy(model(IDS))
    carried = carried_states(model, B)
    for _ in range(2):
        parts = [carried.model.predict_on_batch(IDS[:, a:b]) for a, b in ((0, 5), (5, 6), (6, 12))]
        np.testing.assert_allclose(np.concatenate(parts, axis=1), whole, atol=1e-6)
        carried.reset()


@pytest.mark.parametrize("name", ["lstm", "gru"])
def test_fit_carries_states_from_batch_to_batch(name):
    model = MODELS[name]()
    whole = keras.ops.convert_to_numpy(model(IDS))
    carried = carried_states(model, B)
    # A learning rate of zero keeps the weights, so only the states can change the result.
    carried.model.compile(
        keras.optimizers.SGD(0.0), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    x = np.concatenate([IDS[:, :4], IDS[:, 4:8]])
    carried.model.fit(x, x, batch_size=B, shuffle=False, verbose=0)
    np.testing.assert_allclose(carried.model.predict_on_batch(IDS[:, 8:]), whole[:, 8:], atol=1e-6)


@pytest.mark.parametrize("implementation", ["auto", "cellerate-cpu"])
def test_carried_layer_keeps_the_named_implementation(implementation):
    model = accelerate(MODELS["lstm"](), implementation)
    wrappers = [layer for layer in carried_states(model, B).model.layers if isinstance(layer, CarriedRNN)]
    assert len(wrappers) == 2
    for wrapper in wrappers:
        assert implementation_of(wrapper.runner) == "cellerate-cpu"
        assert is_strict(wrapper.runner) is (implementation != "auto")


def test_carried_model_trains_the_weights_of_the_original():
    model = MODELS["lstm"]()
    before = [weight.copy() for weight in model.get_weights()]
    carried = carried_states(model, B)
    carried.model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    carried.model.fit(IDS, IDS, batch_size=B, verbose=0)
    assert all(np.abs(a - b).max() > 0 for a, b in zip(before, model.get_weights(), strict=True))
    assert len(model.weights) == len(before)


def test_carried_states_do_not_change_at_masked_steps():
    ids = keras.Input((None,), dtype="int32")
    x = keras.layers.Embedding(V, 4, mask_zero=True)(ids)
    model = keras.Model(ids, keras.layers.LSTM(5, return_sequences=True)(x))
    padded = np.concatenate([np.maximum(IDS[:, :6], 1), np.zeros((B, 2), np.int32)], axis=1)
    rest = np.maximum(IDS[:, 6:], 1)
    whole = keras.ops.convert_to_numpy(model(np.concatenate([padded, rest], axis=1)))
    carried = carried_states(model, B)
    parts = [carried.model.predict_on_batch(part) for part in (padded, rest)]
    np.testing.assert_allclose(np.concatenate(parts, axis=1), whole, atol=1e-6)


@pytest.mark.parametrize("masked", [False, True], ids=["plain", "masked"])
def test_carried_states_of_an_accelerated_model_equal_those_of_keras(masked):
    results = []
    for step in (lambda model: model, accelerate):
        keras.utils.set_random_seed(0)
        ids = keras.Input((None,), dtype="int32")
        x = keras.layers.Embedding(V, 4, mask_zero=masked)(ids)
        for units in (5, 6):
            x = keras.layers.LSTM(units, return_sequences=True)(x)
        model = step(keras.Model(ids, keras.layers.Dense(V)(x)))
        carried = carried_states(model, B)
        assert all(is_accelerated(layer.runner) is (step is accelerate) for layer in carried.layers)
        carried.model.compile(
            keras.optimizers.SGD(1.0), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        )
        losses = [carried.model.train_on_batch(IDS[:, a : a + 4], IDS[:, a : a + 4]) for a in (0, 4, 8)]
        states = [keras.ops.convert_to_numpy(state) for layer in carried.layers for state in layer.states]
        results.append([*map(float, losses), *states, *model.get_weights()])
    for stock, ours in zip(*results, strict=True):
        np.testing.assert_allclose(ours, stock, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("layer", "said"),
    [
        (lambda: keras.layers.Bidirectional(keras.layers.LSTM(4, return_sequences=True)), "one direction"),
        (lambda: keras.layers.LSTM(4, return_sequences=True, go_backwards=True), "backwards"),
        (lambda: keras.layers.Dense(4), "no recurrent layer"),
    ],
    ids=["bidirectional", "backwards", "none"],
)
def test_model_whose_states_cannot_be_carried_is_refused(layer, said):
    with pytest.raises(ModelError, match=said):
        carried_states(model_of(layer()), B)
