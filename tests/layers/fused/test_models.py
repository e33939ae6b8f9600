"""Models with accelerated LSTMs, shapes of every size, and layers that are left alone."""

from typing import Any

import keras
import numpy as np
import pytest
from keras import layers, ops

from cellerate.layers.accelerate import accelerate, is_accelerated
from support.keras_models.fused_layers import (
    BACKEND,
    MASK,
    QUICK,
    B,
    Build,
    D,
    F,
    H,
    Measured,
    T,
    assert_accelerated_equals,
    assert_close,
    data,
    measure,
    model_of,
    quick,
    rms,
)

pytestmark = [
    pytest.mark.keras,
    pytest.mark.backends,
    # Keras's own convert_to_numpy calls np.array on a framework's tensor, which NumPy 2 warns about.
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword"),
]


def test_other_recurrent_layers_stay_unchanged() -> None:
    class Mine(layers.LSTM):
        def call(self, *args: Any, **keywords: Any) -> Any:
            return super().call(*args, **keywords)

    for layer in (layers.RNN(layers.LSTMCell(H)), layers.GRU(H), Mine(H), layers.ConvLSTM1D(2, 2)):
        before = dict(vars(layer))
        accelerate(layer)
        assert vars(layer) == before


@pytest.mark.parametrize("steps", [3, None], ids=["known", "any"])
def test_time_distributed_lstm_equals_keras(steps: int | None) -> None:
    model = keras.Sequential([keras.Input((steps, T, F)), layers.TimeDistributed(layers.LSTM(H))])
    x = np.random.default_rng(0).normal(size=(2, 3, T, F)).astype("float32")
    stock = {"output": model.predict(x, verbose=0)}
    assert_close({"output": accelerate(model).predict(x, verbose=0)}, stock)


def test_one_model_called_with_many_shapes_equals_keras() -> None:
    model = model_of(layers.LSTM(H), layers.LSTM(17, return_sequences=True), steps=None)
    rng = np.random.default_rng(0)
    for b, t in ((1, 1), (1, 5), (13, 1), (3, 8)):
        inputs = [rng.normal(size=(b, t, F)), rng.normal(size=(b, 3)), rng.integers(0, 2, (b, t)) > 0]
        inputs = [a.astype("float32") if a.dtype == float else a for a in inputs]
        stock = dict(enumerate(model.predict_on_batch(inputs)))
        accelerate(model)
        ours = dict(enumerate(model.predict_on_batch(inputs)))
        for n, expected in stock.items():
            assert rms(ours[n] - expected) <= 1e-6 * rms(expected) + 1e-9
        accelerate(model, "keras")


class Block(layers.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.supports_masking = True
        self.inside = layers.LSTM(D, return_sequences=True)

    def call(self, x: Any, mask: Any = None) -> Any:
        return x + self.inside(x, mask=mask)


def stacked() -> keras.Model:
    x = keras.Input((T, F))
    y = layers.LSTM(H, return_sequences=True)(layers.Masking()(x))
    y = layers.LSTM(3, return_sequences=True, zero_output_for_mask=True)(layers.Dropout(0.1)(y))
    return keras.Model(x, layers.LSTM(H, go_backwards=True)(y))


def shared_and_nested() -> keras.Model:
    x = keras.Input((T, F))
    shared = layers.LSTM(D, return_sequences=True)
    inner = keras.Sequential([keras.Input((T, D)), shared, layers.LSTM(H)])
    y = shared(layers.Dense(D)(x))
    return keras.Model(x, [inner(y), Block()(shared(y), mask=ops.any(x > 0.5, axis=-1))])


def frozen() -> keras.Model:
    inputs = keras.Input((T, F))
    return keras.Model(inputs, layers.LSTM(H, trainable=False)(layers.Dense(D)(inputs)))


def two_different_directions() -> keras.Model:
    back = layers.LSTM(3, activation="relu", go_backwards=True, return_sequences=True)
    both = layers.Bidirectional(layers.LSTM(H, return_sequences=True), backward_layer=back)
    return keras.Sequential([keras.Input((T, F)), layers.Masking(), both])


@pytest.mark.parametrize(
    "build", quick([stacked, shared_and_nested, frozen, two_different_directions], stacked)
)
def test_model_with_lstms_equals_keras(build: Build) -> None:
    assert_accelerated_equals(build, data()[0] * MASK[:, :, None])


@QUICK
@pytest.mark.parametrize("masked", [False, True], ids=["plain", "masked"])
def test_stateful_lstm_continues_from_its_last_state(masked: bool) -> None:
    x = keras.Input(batch_shape=(B, T, F))
    lstm = layers.LSTM(H, stateful=True, return_sequences=True)
    model = keras.Model(x, lstm(layers.Masking()(x) if masked else x))
    x = ops.convert_to_tensor(data()[0] * MASK[:, :, None])

    def outputs() -> Measured:
        lstm.reset_state()
        found = {f"output {n}": ops.convert_to_numpy(model(x)) for n in range(2)}
        lstm.reset_state()
        # Without a mask Keras on torch cannot train on an empty batch; the kernels can.
        trains = is_accelerated(lstm) or masked or BACKEND != "torch"
        return found | (measure(model, x) if trains else {})

    stock = outputs()
    accelerate(model)
    ours = outputs()
    assert_close({name: ours[name] for name in stock}, stock)
    assert rms(ours["output 1"] - ours["output 0"]) > 1e-3


def test_nan_in_one_row_stays_in_that_row() -> None:
    model = accelerate(model_of(layers.LSTM(H), layers.LSTM(H)))
    x, s, mask = data()
    clean = [ops.convert_to_numpy(y) for y in model([ops.convert_to_tensor(a) for a in (x, s, mask)])]
    x[1, 3] = np.nan
    for good, y in zip(clean, model([ops.convert_to_tensor(a) for a in (x, s, mask)]), strict=True):
        y = ops.convert_to_numpy(y)
        assert np.isnan(y[1]).all()
        np.testing.assert_array_equal(np.delete(y, 1, 0), np.delete(good, 1, 0))


@pytest.mark.skipif(BACKEND == "tensorflow", reason="TensorFlow's own loop refuses it")
def test_empty_batch_gives_an_empty_output() -> None:
    model = accelerate(model_of(layers.LSTM(H), layers.LSTM(H, return_sequences=True)))
    outputs = model([ops.convert_to_tensor(a[:0]) for a in data()])
    assert [tuple(y.shape) for y in outputs] == [(0, H), (0, T, H)]
