"""Sparsifying: as many zeros as asked for, which training leaves alone, in a model of the same shape."""

import json
import zlib
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

from cellerate.compress.sparsify import sparsify
from cellerate.errors import ConfigError, DataError, ModelError
from cellerate.keras_graph.to_program import read_program
from cellerate.layers.accelerate import is_accelerated
from cellerate.models.text import build_text_model
from cellerate.runtime.cell import write_cell

pytestmark = pytest.mark.keras

LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
V = 7
IDS = np.arange(61 * 8).reshape(61, 8) % V
DATA = (IDS, (IDS + 1) % V)


def text(**arguments: Any) -> keras.Model:
    return build_text_model(V, embedding=8, units=16, seed=1, **arguments)


def shares(model: keras.Model) -> dict[str, float]:
    """The share of zeros of each matrix."""
    values = {w.path: keras.ops.convert_to_numpy(w) for w in model.weights if len(w.shape) == 2}
    return {path: float(np.mean(value == 0)) for path, value in values.items()}


def test_each_matrix_has_the_share_of_zeros_after_training_and_the_record_says_so():
    model = text()
    found, record = sparsify(model, DATA, loss=LOSS, sparsity=0.75, rounds=2, steps=12, batch_size=8)
    zeros = shares(found)
    assert len(zeros) == 4
    for share, weight in zip(zeros.values(), (V * 8, 8 * 64, 16 * 64, 16 * V), strict=True):
        assert share == pytest.approx(0.75, abs=1 / weight)
    assert record.details["matrices"] == pytest.approx(zeros)
    assert record.details["sparsity"] == pytest.approx(0.75)  # of each matrix a quarter is a whole number
    assert [w.shape for w in found.weights] == [w.shape for w in model.weights]
    assert record.parameters_before == record.parameters_after == model.count_params()
    assert not any(np.mean(w == 0) > 0.5 for w in found.get_weights() if w.ndim == 1)
    assert "No kernel here skips zeros" in record.details["remark"]
    assert json.loads(json.dumps(record.to_json()))["method"] == "sparsify"


def test_model_as_a_whole_loses_its_smallest_weights():
    model = text()
    values = [np.array(w) for w in model.get_weights()]
    # The head's are all larger than any other's.
    values[-2] = np.sign(values[-2]) * (10 + np.abs(values[-2]))
    model.set_weights(values)
    found, record = sparsify(
        model, DATA, loss=LOSS, sparsity=0.5, scope="model", rounds=1, steps=0, judge=lambda model: 1.0
    )
    *others, head = shares(found).values()
    assert head == 0.0
    assert min(others) > 0.0
    assert record.details["sparsity"] == pytest.approx(0.5, abs=1e-3)
    kept = [np.abs(w[w != 0]).min() for w in found.get_weights() if w.ndim == 2]
    gone = [np.abs(v[w == 0]).max(initial=0) for v, w in zip(values, found.get_weights(), strict=True)]
    assert min(kept) >= max(gone)


@pytest.mark.backends
def test_training_makes_up_for_zeros_and_leaves_the_model_that_was_given_alone():
    model = text()
    model.compile("adam", LOSS)
    model.fit(*DATA, epochs=30, batch_size=16, verbose=0)
    before, optimizer = model.get_weights(), model.optimizer
    qualities = []
    for steps in (0, 60):
        found, record = sparsify(
            model, DATA, sparsity=0.8, rounds=2, steps=steps, batch_size=16, learning_rate=0.02
        )
        qualities.append(record.quality_after)
    assert qualities[1] < qualities[0]
    for mine, its in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(mine, its)
    assert model.optimizer is optimizer
    assert all(weight.constraint is None for weight in (*model.weights, *found.weights))
    assert found.compiled and found.loss is LOSS
    assert not is_accelerated(found.get_layer("lstm_1"))


def test_compressed_bytes_are_those_of_the_packed_file(tmp_path):
    found, record = sparsify(
        text(), DATA, loss=LOSS, sparsity=0.9, rounds=1, steps=0, judge=lambda model: 1.0
    )
    sizes = record.details["zlib_bytes"]
    for precision in ("float32", "bfloat16", "int8"):
        write_cell(tmp_path / "m.cell", read_program(found), precision=precision)
        assert sizes["after"][precision] == len(zlib.compress((tmp_path / "m.cell").read_bytes()))
        assert sizes["after"][precision] < sizes["before"][precision]


def test_model_that_cannot_be_packed_is_sparsified_all_the_same():
    model = keras.Sequential(
        [keras.Input((None, 4)), layers.GRU(8), layers.Lambda(lambda x: x), layers.Dense(2)]
    )
    x = np.random.default_rng(0).normal(size=(6, 3, 4)).astype("float32")
    found, record = sparsify(model, (x, x[:, 0, :2]), loss="mse", rounds=1, steps=0)
    assert record.details["zlib_bytes"] == {"before": None, "after": None}
    kernels = [share for path, share in shares(found).items() if "kernel" in path]
    for share, weights in zip(kernels, (4 * 24, 8 * 24, 8 * 2), strict=True):
        assert share == pytest.approx(0.8, abs=0.5 / weights)  # the nearest whole number of zeros


def test_frozen_layers_keep_all_their_weights_and_constraints_hold():
    x = keras.Input((6,))
    y = layers.Dense(20, name="frozen", trainable=False)(x)
    y = layers.Dense(20, kernel_constraint=keras.constraints.NonNeg(), name="positive")(y)
    model = keras.Model(x, layers.Dense(2)(y))
    rows = np.random.default_rng(0).normal(size=(32, 6)).astype("float32")
    found, record = sparsify(
        model, (rows, rows[:, :2]), loss="mse", rounds=2, steps=6, batch_size=8, sparsity=0.25
    )
    assert not any("frozen" in path for path in record.details["matrices"])
    assert shares(found)[model.get_layer("frozen").kernel.path] == 0.0
    assert found.get_layer("positive").get_weights()[0].min() >= 0.0


def test_model_that_is_judged_and_not_trained_needs_no_loss():
    found, record = sparsify(text(), DATA, sparsity=0.5, steps=0, judge=lambda model: 2.0)
    assert (record.quality_before, record.quality_after) == (2.0, 2.0)
    assert min(shares(found).values()) >= 0.5


def test_steps_of_all_rounds_are_told_and_kept():
    told = []
    _, record = sparsify(
        text(), DATA, loss=LOSS, rounds=2, steps=5, batch_size=8, on_step=lambda *s: told.append(s)
    )
    assert [step[:2] for step in told] == [(done, 5) for done in range(1, 6)]
    assert [step[2] for step in told] == record.details["losses"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"sparsity": 1.0}, "sparsity must be a number above 0 and below 1, not 1.0"),
        ({"sparsity": 0}, "sparsity must be"),
        ({"scope": "layer"}, "scope must be one of matrix, model"),
        ({"rounds": 0}, "rounds must be"),
        ({"steps": -1}, "steps must be"),
        ({"learning_rate": 0}, "learning_rate must be"),
        ({"loss": None}, "give `loss`"),
    ],
)
def test_argument_out_of_range_is_a_config_error(arguments, says):
    with pytest.raises(ConfigError, match=says):
        sparsify(text(), DATA, **{"loss": LOSS} | arguments)


def test_what_has_no_matrix_or_no_rows_is_refused():
    model = keras.Sequential([keras.Input((3,)), layers.BatchNormalization()])
    with pytest.raises(ModelError, match="no matrix that can be trained"):
        sparsify(model, DATA, loss="mse")
    with pytest.raises(DataError, match="rows"):
        sparsify(text(), (IDS, IDS[1:]), loss=LOSS)
