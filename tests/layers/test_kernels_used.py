"""The line that names the kernels of a training."""

import keras
import pytest

from cellerate.kernels import native
from cellerate.layers.accelerate import accelerate
from cellerate.layers.kernels_used import kernels_used

pytestmark = [pytest.mark.keras, pytest.mark.backends]


def model(*layers):
    return keras.Sequential([keras.Input((5, 3)), *layers])


def test_kernels_of_an_accelerated_model_are_named_with_target_and_threads():
    accelerated = accelerate(model(keras.layers.LSTM(4)), "cellerate-cpu", engine="off")
    threads = native.num_threads()
    kernels = f"cellerate-cpu kernels ({native.target()}) on {threads} thread{'' if threads == 1 else 's'}"
    assert kernels_used(accelerated) == f"{keras.config.backend()}, {kernels}"
    assert (
        kernels_used(accelerated, "mixed_bfloat16") == f"{keras.config.backend()}, {kernels}, mixed_bfloat16"
    )


def test_whole_steps_are_named():
    accelerated = accelerate(model(keras.layers.LSTM(4)))
    assert kernels_used(accelerated).endswith(", whole steps in one native call")


def test_different_kernels_are_counted():
    mixed = model(keras.layers.LSTM(4, return_sequences=True), keras.layers.LSTM(4, activation="gelu"))
    accelerate(mixed.layers[0], "cellerate-cpu")
    said = kernels_used(mixed)
    assert "1 of 2 recurrent layers: cellerate-cpu kernels (" in said
    assert "1 of 2 recurrent layers: Keras's own kernels" in said


def test_model_without_recurrent_layers_says_so():
    assert kernels_used(model(keras.layers.Dense(2))) == f"{keras.config.backend()}, no recurrent layers"
