"""An accelerated LSTM with any options gives the results of Keras's own code."""

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
    H,
    T,
    assert_accelerated_equals,
    data,
    model_of,
    quick,
)

pytestmark = [
    pytest.mark.keras,
    pytest.mark.backends,
    # Keras's own convert_to_numpy calls np.array on a framework's tensor, which NumPy 2 warns about.
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword"),
]


@QUICK
@pytest.mark.parametrize("backwards", [False, True], ids=["forwards", "backwards"])
@pytest.mark.parametrize("states", [0, 2], ids=["zeros", "states"])
@pytest.mark.parametrize("sequences", [False, True], ids=["last", "sequences"])
def test_lstm_of_each_form_equals_keras(sequences: bool, states: int, backwards: bool) -> None:
    def lstm() -> layers.LSTM:
        return layers.LSTM(H, return_sequences=sequences, return_state=states > 0, go_backwards=backwards)

    assert_accelerated_equals(lambda: model_of(lstm(), lstm(), states=states), data())


VARIANTS: dict[str, dict[str, Any]] = {
    "no-bias": {"use_bias": False, "return_sequences": True},
    "zero-output": {"zero_output_for_mask": True, "return_sequences": True, "go_backwards": True},
    "zero-output-last": {"zero_output_for_mask": True, "return_state": True},
    "implementation-1": {"implementation": 1},
    "no-cudnn": {"use_cudnn": False},
    "regularized": {"kernel_regularizer": "l2", "activity_regularizer": "l2", "kernel_constraint": "non_neg"},
    "dropout": {"dropout": 0.4, "seed": 1, "return_sequences": True},
    "recurrent-dropout": {"recurrent_dropout": 0.4, "seed": 1, "return_sequences": True},
    "dropouts": {"dropout": 0.3, "recurrent_dropout": 0.4, "seed": 1, "go_backwards": True},
}


@pytest.mark.parametrize("name", quick(VARIANTS, "no-bias", "zero-output", "dropout", "dropouts"))
def test_lstm_of_each_variant_equals_keras(name: str) -> None:
    def build() -> keras.Model:
        return model_of(layers.LSTM(H, **VARIANTS[name]), layers.LSTM(H, **VARIANTS[name]), states=2)

    assert_accelerated_equals(build, data(), training="dropout" in name)


def test_dropout_of_an_lstm_changes_each_training_call_and_is_off_in_inference() -> None:
    model = assert_accelerated_equals(
        lambda: model_of(layers.LSTM(H, dropout=0.3, recurrent_dropout=0.3), layers.LSTM(H, dropout=0.3)),
        data(),
    )
    inputs = [ops.convert_to_tensor(a) for a in data()]
    for training in (True, False):
        first, second = (ops.convert_to_numpy(model(inputs, training=training)[0]) for _ in range(2))
        assert np.array_equal(first, second) is not training


@pytest.mark.parametrize("masked", [False, True], ids=["plain", "masked"])
@pytest.mark.parametrize("options", [{}, {"use_cudnn": False}, {"recurrent_dropout": 1.0}], ids=str)
def test_lstm_with_a_dropout_of_one_drops_what_keras_drops(
    options: dict[str, Any], masked: bool, implementation: str
) -> None:
    layer = layers.LSTM(H, dropout=1.0, return_sequences=True, **options)
    mask = MASK if masked else None
    x = data()[0]
    if (BACKEND, implementation, options, masked) == ("jax", "cellerate-cuda", {}, False):
        # On a real GPU Keras drops all inputs and takes cuDNN; beside the emulated GPU it runs on the CPU.
        x = np.zeros_like(x)
    before = ops.convert_to_numpy(layer(x, mask=mask, training=True))
    after = ops.convert_to_numpy(accelerate(layer)(data()[0], mask=mask, training=True))
    assert is_accelerated(layer)
    np.testing.assert_allclose(after, before, atol=1e-6)


@pytest.mark.parametrize("kept", [0, 1], ids=["nothing-left", "everything-left"])
def test_lstm_with_one_mask_for_all_rows_equals_keras(kept: int) -> None:
    def build() -> keras.Model:
        return model_of(masked=layers.LSTM(H, return_sequences=True, return_state=True), states=2)

    assert_accelerated_equals(build, data(np.full((B, T), bool(kept))))


@pytest.mark.parametrize("unrolled", ["plain", "masked"])
def test_unrolled_lstm_equals_keras_and_runs_on_keras_with_a_mask(unrolled: str, calls: list[Any]) -> None:
    def build() -> keras.Model:
        return model_of(**{unrolled: layers.LSTM(H, unroll=True, return_sequences=True)}, states=2)

    assert_accelerated_equals(build, data())
    assert bool(calls) is (unrolled == "plain")


@pytest.mark.parametrize("mode", quick(["concat", "sum", "ave", "mul", None], "concat"))
def test_bidirectional_in_each_merge_mode_equals_keras(mode: str | None) -> None:
    def both(**options: Any) -> layers.Bidirectional:
        return layers.Bidirectional(layers.LSTM(H, **options), merge_mode=mode)

    def build() -> keras.Model:
        return model_of(both(), both(return_sequences=True, return_state=True), states=4)

    assert_accelerated_equals(build, data())
