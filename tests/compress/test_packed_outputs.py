"""`quantize` judges a model by the outputs that its packed file gives, whatever loss, masks and weights count them."""

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

import cellerate
from cellerate.compress.quantize import quantize
from cellerate.compress.record import QualityGate
from cellerate.errors import ConfigError
from cellerate.keras_graph.to_program import read_program
from cellerate.runtime.cell import write_cell

pytestmark = pytest.mark.keras

B, T, F, V = 48, 12, 5, 11  # rows, steps, features, ids
RNG = np.random.default_rng(3)
X = RNG.normal(size=(B, T, F)).astype("float32")
Y = X[:, -1, :1] * 3 + X[:, 0, 1:2]


def outputs_of_file(model: keras.Model, precision: str, x: Any, folder: Path) -> Any:
    write_cell(folder / "a.cell", read_program(model), precision=precision)
    return cellerate.load(folder / "a.cell").predict(x)


def regressor(**head: Any) -> keras.Model:
    keras.utils.set_random_seed(1)
    x = keras.Input((T, F), name="x")
    y = layers.LSTM(32)(layers.LSTM(32, return_sequences=True)(x))
    return keras.Model(x, layers.Dense(1, **head)(y))


@pytest.mark.backends
@pytest.mark.parametrize("precision", ["int8", "int4", "bfloat16"])
def test_quality_is_that_of_the_file(precision: str, tmp_path: Path) -> None:
    model = regressor()
    found, record = quantize(model, (X, Y), loss="mse", precision=precision, batch_size=20)
    after = np.square(outputs_of_file(found, precision, X, tmp_path) - Y).mean()
    before = np.square(outputs_of_file(model, "float32", X, tmp_path) - Y).mean()
    assert record.quality_after == pytest.approx(after, rel=1e-5)
    assert record.quality_before == pytest.approx(before, rel=1e-5)


def test_gate_is_held_against_the_file(tmp_path: Path) -> None:
    """A gate that float32 arithmetic on the rounded weights passes, and the file does not."""
    model = regressor()
    # Targets that the model meets almost exactly: each rounding is a loss.
    targets = np.asarray(model.predict(X, verbose=0)) + 0.01
    found, record = quantize(model, (X, targets), loss="mse")
    file, in_keras = (
        float(np.square(np.asarray(outputs) - targets).mean())
        for outputs in (outputs_of_file(found, "int8", X, tmp_path), found.predict(X, verbose=0))
    )
    assert record.quality_after == pytest.approx(file, rel=1e-4)
    assert abs(file - in_keras) > 1e-3 * in_keras
    allowed = (file + in_keras) / 2 / record.quality_before - 1
    _, judged = quantize(model, (X, targets), loss="mse", gate=QualityGate(max(allowed, 0.0)), steps=0)
    assert judged.details["passed"] == (file < in_keras)


def test_judge_of_files_gets_the_precision_of_each() -> None:
    model, asked = regressor(), []

    def judge(given: keras.Model, precision: str) -> float:
        asked.append(precision)
        same = [np.array_equal(one, other) for one, other in zip(given.get_weights(), weights, strict=True)]
        assert all(same) == (precision == "float32")
        return float(len(asked))

    weights = model.get_weights()
    gate = QualityGate(0.5)
    _, record = quantize(model, (X, Y), loss="mse", gate=gate, judge_packed=judge, steps=4, batch_size=16)
    # The original, plain, calibrated, and four times after training.
    assert asked == ["float32", *["int8"] * 6]
    assert (record.quality_before, record.quality_after, record.details["passed"]) == (1.0, 2.0, False)
    with pytest.raises(ConfigError, match="there are judge and judge_packed; expected one of them"):
        quantize(model, (X, Y), judge=lambda given: 1.0, judge_packed=judge)


@pytest.mark.backends
def test_masked_steps_and_weights_count_as_in_keras(tmp_path: Path) -> None:
    keras.utils.set_random_seed(2)
    chain = [layers.Embedding(V, 16, mask_zero=True), layers.LSTM(32, return_sequences=True), layers.Dense(V)]
    model = keras.Sequential([keras.Input((T,), dtype="int32"), *chain])
    ids, targets = RNG.integers(1, V, (B, T)), RNG.integers(0, V, (B, T))
    ids[:, 7:] = 0
    ids[0] = 1
    weights = RNG.uniform(0.5, 2.0, (B, T)).astype("float32")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    found, record = quantize(model, (ids, targets, weights), loss=loss, batch_size=B)
    logits = outputs_of_file(found, "int8", ids, tmp_path).astype(np.float64)
    losses = np.log(np.exp(logits).sum(-1)) - np.take_along_axis(logits, targets[..., None], -1)[..., 0]
    counted = (ids != 0) * weights
    # Keras's mean over the steps of a batch that no mask leaves out.
    expected = (losses * counted).sum() / (ids != 0).sum()
    assert record.quality_after == pytest.approx(expected, rel=1e-4)
    unmasked = (losses * weights).mean()
    assert abs(unmasked - expected) > 1e-3


@pytest.mark.backends
def test_several_outputs_and_losses_that_layers_add_count_as_in_keras(tmp_path: Path) -> None:
    keras.utils.set_random_seed(0)
    x = keras.Input((T, F), name="x")
    hidden = layers.LSTM(32, activity_regularizer=keras.regularizers.L2(0.1))(x)
    # The order of the keys is not that of the layers.
    heads = {"b": layers.Dense(2, name="first")(hidden), "a": layers.Dense(1, name="second")(hidden)}
    model = keras.Model(x, heads)
    model.compile("sgd", {"a": "mse", "b": "mae"}, loss_weights={"a": 2.0, "b": 0.5})
    targets = {"a": Y, "b": X[:, 0, :2]}
    found, record = quantize(model, (X, targets), batch_size=B)
    outputs = outputs_of_file(found, "int8", X, tmp_path)
    own = (
        2.0 * np.square(outputs["a"] - targets["a"]).mean() + 0.5 * np.abs(outputs["b"] - targets["b"]).mean()
    )
    states = keras.Model(found.input, found.layers[1].output).predict(X, verbose=0)
    assert record.quality_after == pytest.approx(own + 0.1 * np.square(states).sum() / B, rel=1e-4)
    assert found.compiled
    # Nothing that judging needs is left on the models.
    for one in (model, found):
        assert "compute_loss" not in vars(one)
        assert not one.run_eagerly
