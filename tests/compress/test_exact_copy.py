"""Copies of models that a distillation compares."""

import keras
import numpy as np
import pytest

from cellerate.compress.distill import _exact_copy
from cellerate.layers.accelerate import accelerate
from cellerate.models.text import build_text_model

pytestmark = [pytest.mark.keras, pytest.mark.backends]


def test_copy_has_the_weights_of_its_model_and_drops_the_same():
    model = accelerate(build_text_model(6, embedding=4, units=5, dropout=0.5))
    copy = accelerate(_exact_copy(model))
    ids = np.ones((4, 8), np.int32)
    found = []
    for each in (model, copy):
        if keras.config.backend() == "torch":
            # Keras leaves dropout to torch there, which draws from one generator for all.
            keras.utils.set_random_seed(0)
        found.append(keras.ops.convert_to_numpy(each(ids, training=True)))
    np.testing.assert_allclose(*found, atol=1e-6)
    assert np.abs(found[0] - keras.ops.convert_to_numpy(model(ids))).max() > 1e-3
    for mine, its in zip(copy.get_weights(), model.get_weights(), strict=True):
        assert np.array_equal(mine, its)
