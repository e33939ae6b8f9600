"""Every LSTM that the builders make starts with its forget gates open, as Keras's own does."""

import keras
import numpy as np
import pytest

from cellerate.models.autoencoder import build_autoencoder
from cellerate.models.forecast import build_forecast_model
from cellerate.models.text import build_text_model

pytestmark = pytest.mark.keras

MODELS = {
    "text": lambda: build_text_model(11, embedding=5, units=6, layers=2),
    "forecast": lambda: build_forecast_model(9, 5, 4, 2, target_columns=[3, 1], units=6, bidirectional=True),
    "autoencoder": lambda: build_autoencoder(13, embedding=5, units=6, latent=4),
}


@pytest.mark.parametrize("name", MODELS)
def test_forget_gates_of_a_new_model_are_open(name):
    found = [layer for layer in MODELS[name]()._flatten_layers() if isinstance(layer, keras.layers.LSTM)]
    assert found
    for layer in found:
        bias = keras.ops.convert_to_numpy(layer.cell.bias).reshape(4, 6)
        np.testing.assert_array_equal(bias, [[0] * 6, [1] * 6, [0] * 6, [0] * 6])
