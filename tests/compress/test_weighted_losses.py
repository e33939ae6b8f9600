"""The weights of outputs: a model with several is trained and judged by the sum that it was compiled with."""

import keras
import numpy as np
import pytest
from keras import layers

from cellerate.compress.fitting import loss_of, loss_on
from cellerate.compress.prune import prune
from cellerate.compress.quantize import quantize
from cellerate.compress.sparsify import sparsify

pytestmark = pytest.mark.keras

RNG = np.random.default_rng(0)
X = RNG.normal(size=(24, 5, 3)).astype("float32")
Y = X[:, -1, :1].copy()


def two_headed() -> keras.Model:
    keras.utils.set_random_seed(0)
    inputs = keras.Input((5, 3))
    hidden = layers.LSTM(16)(inputs)
    heads = {"level": layers.Dense(1, name="level")(hidden), "kind": layers.Dense(3, name="kind")(hidden)}
    model = keras.Model(inputs, heads)
    kinds = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", {"level": "mse", "kind": kinds}, loss_weights={"level": 10.0, "kind": 0.1})
    return model


def test_outputs_count_as_much_as_they_were_compiled_to():
    model, kinds = two_headed(), np.arange(24) % 3
    data = X, {"level": Y, "kind": kinds}
    right = model.evaluate(*data, verbose=0, return_dict=True)["loss"]
    assert loss_on(model, data, loss=loss_of(model, None), batch_size=32) == pytest.approx(right, rel=1e-5)
    # `test_packed_outputs` has the loss after `quantize`, which is that of the packed file.
    assert quantize(model, data)[1].quality_before == pytest.approx(right, rel=1e-5)
    for found, record in (
        prune(model, data, steps=2, validation=data),
        sparsify(model, data, steps=2),
    ):
        assert record.quality_before == pytest.approx(right, rel=1e-5), record.method
        after = found.evaluate(*data, verbose=0, return_dict=True)["loss"]
        assert record.quality_after == pytest.approx(after, rel=1e-4), record.method


def test_outputs_are_trained_as_much_as_they_were_compiled_to():
    model, kinds = two_headed(), np.arange(24) % 3
    model.compile("adam", model.loss, loss_weights={"level": 1.0, "kind": 0.0})
    head = model.get_layer("kind").kernel
    before = np.array(keras.ops.convert_to_numpy(head))
    found, _ = sparsify(model, (X, {"level": Y, "kind": kinds}), steps=3, rounds=1)
    after = keras.ops.convert_to_numpy(found.get_layer("kind").kernel)
    np.testing.assert_array_equal(after[after != 0], before[after != 0])
    # A loss that is given anew has no weights.
    assert loss_of(model, "mse") == "mse"
