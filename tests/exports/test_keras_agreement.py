"""A program beside the Keras model that it was read from, on numbers that the model's inputs can hold."""

import keras
import pytest
from keras import layers, ops

from cellerate.errors import ModelError
from cellerate.exports.keras_agreement import check_against_keras
from cellerate.keras_graph.to_program import read_program

pytestmark = pytest.mark.keras


def model_of(dtype: str) -> keras.Model:
    """Reads numbers of a dtype, and ids beside them."""
    x, ids = keras.Input((5, 3), dtype=dtype, name="x"), keras.Input((5,), dtype="int32", name="ids")
    joined = layers.Concatenate()([ops.cast(x, "float32") * 0.5, layers.Embedding(7, 2, mask_zero=True)(ids)])
    return keras.Model({"x": x, "ids": ids}, layers.LSTM(4)(joined))


@pytest.mark.parametrize("dtype", ["float32", "int32", "uint8", "bool"])
def test_program_of_inputs_of_any_dtype_agrees_with_keras(dtype: str) -> None:
    model = model_of(dtype)
    check_against_keras(model, read_program(model))


@pytest.mark.parametrize("dtype", ["float32", "uint8", "bool"])
def test_program_of_another_model_is_refused(dtype: str) -> None:
    with pytest.raises(ModelError, match="gives other numbers than in Keras"):
        check_against_keras(model_of(dtype), read_program(model_of(dtype)))
