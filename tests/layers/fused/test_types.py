"""Accelerated layers in narrow types have at most twice the error of Keras."""

import keras
import pytest
from keras import layers, ops

from cellerate.layers.accelerate import accelerate, is_accelerated
from support.keras_models.fused_layers import (
    IDS,
    H,
    assert_accelerated_equals,
    data,
    model_of,
    policy,
    quick,
    text_model,
)

pytestmark = [
    pytest.mark.keras,
    pytest.mark.backends,
    # Keras's own convert_to_numpy calls np.array on a framework's tensor, which NumPy 2 warns about.
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword"),
]


@pytest.mark.parametrize(
    "name", quick(["bfloat16", "mixed_bfloat16", "mixed_float16", "one-layer"], "mixed_bfloat16")
)
def test_narrow_type_has_at_most_twice_the_error_of_keras(name: str) -> None:
    def build() -> keras.Model:
        half = "mixed_bfloat16" if name == "one-layer" and keras.config.floatx() == "float32" else None
        options = {
            "recurrent_initializer": "glorot_uniform",
            "dtype": half,
        }  # orthogonal does not work in bfloat16
        return model_of(
            layers.LSTM(H, return_sequences=True, return_state=True, **options),
            layers.LSTM(H, recurrent_activation="hard_sigmoid", **options),
            states=2,
        )

    dtype = "float16" if name == "mixed_float16" else "bfloat16"
    with policy("float32" if name == "one-layer" else name):
        model = assert_accelerated_equals(build, data(), dtype=dtype)
    outputs = model([ops.convert_to_tensor(a) for a in data()])
    assert {keras.backend.standardize_dtype(y.dtype) for y in outputs} == {dtype}


def test_embedding_in_a_narrow_type_has_at_most_twice_the_error_of_keras(calls: list[list[str]]) -> None:
    with policy("mixed_bfloat16"):
        assert_accelerated_equals(lambda: text_model(layers.LSTM(H), mask_zero=True), IDS, dtype="bfloat16")
    assert all("ids" in given for given in calls)


def test_float64_layer_stays_unchanged() -> None:
    layer = layers.LSTM(H, dtype="float64")
    assert not is_accelerated(accelerate(layer))
