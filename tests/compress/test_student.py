"""The student: the same layers, fewer units, new weights."""

import keras
import numpy as np
import pytest
from keras import layers

from cellerate.compress.student import smaller
from cellerate.errors import ConfigError, ModelError
from cellerate.models.autoencoder import build_autoencoder
from cellerate.models.forecast import build_forecast_model
from cellerate.models.text import build_text_model

pytestmark = pytest.mark.keras


def units(model: keras.Model) -> list[int]:
    """Units of every LSTM, those in nested models and wrappers too, each once."""
    found = model._flatten_layers(include_self=False)
    return [layer.units for layer in dict.fromkeys(found) if isinstance(layer, layers.LSTM)]


def text(*, units: int | tuple[int, ...] = 32, **options) -> keras.Model:
    return build_text_model(11, embedding=5, units=units, **({"layers": 1} | options))


@pytest.mark.parametrize(
    ("keep", "multiple_of", "left"),
    [(0.5, 8, 16), (0.6, 8, 16), (0.7, 8, 24), (0.01, 8, 8), (0.5, 1, 16), (0.3, 1, 10), (0.8, 5, 25)],
)
def test_smaller_keeps_the_share_rounded_to_a_multiple_and_one_at_least(keep, multiple_of, left):
    assert units(smaller(text(), keep, multiple_of=multiple_of)) == [left]


@pytest.mark.parametrize(
    ("build", "inputs", "left"),
    [
        (lambda: text(units=(16, 32), layers=2), np.ones((2, 3), "int32"), [8, 16]),
        (
            lambda: build_forecast_model(
                5,
                3,
                2,
                1,
                target_columns=[1],
                units=16,
                layers=2,
                bidirectional=True,
                quantiles=[0.1, 0.5, 0.9],
            ),
            np.ones((2, 5, 3), "float32"),
            None,
        ),
        (
            lambda: build_autoencoder(9, embedding=4, units=16, latent=5),
            {"source": np.ones((2, 4), "int32"), "target_in": np.ones((2, 4), "int32")},
            None,
        ),
    ],
    ids=["text", "forecast", "autoencoder"],
)
def test_smaller_of_each_task_runs_on_the_same_inputs_and_gives_the_same_shape(build, inputs, left):
    model = build()
    student = smaller(model, 0.5)
    assert student.count_params() < model.count_params()
    assert all(few == many // 2 for few, many in zip(units(student), units(model), strict=True))
    if left:
        assert units(student) == left
    mine, its = student.predict_on_batch(inputs), model.predict_on_batch(inputs)
    mine, its = keras.tree.flatten(mine), keras.tree.flatten(its)
    assert [np.shape(one) for one in mine] == [np.shape(one) for one in its]
    assert all(np.isfinite(np.asarray(one)).all() for one in mine)


def test_smaller_has_weights_of_its_own_and_leaves_the_model_as_it_was():
    model = text()
    for weight in model.weights:
        weight.assign(keras.ops.full(weight.shape, 7.0))
    student = smaller(model, 0.5)
    assert not any((np.asarray(value) == 7.0).any() for value in student.get_weights())
    assert all((np.asarray(value) == 7.0).all() for value in model.get_weights())
    assert units(model) == [32]
    assert not student.compiled


def test_smaller_takes_what_layers_share_out_of_all_of_them():
    inputs = keras.Input((None, 4))
    first = layers.LSTM(16, return_sequences=True)(inputs)
    second = layers.LSTM(16, return_sequences=True)(first)
    model = keras.Model(inputs, layers.Dense(2)(first + second))
    student = smaller(model, 0.5)
    assert units(student) == [8, 8]
    assert student.predict_on_batch(np.ones((1, 3, 4), "float32")).shape == (1, 3, 2)


@pytest.mark.parametrize("keep", [0, 1, 1.5, -0.5, float("nan"), "half"])
def test_smaller_by_no_share_raises_config_error(keep):
    with pytest.raises(ConfigError, match="keep"):
        smaller(text(), keep)


def test_smaller_of_a_layer_of_one_multiple_raises_model_error():
    with pytest.raises(ModelError, match="fewer units"):
        smaller(text(units=8), 0.5)


def test_smaller_of_a_model_without_an_lstm_raises_model_error():
    inputs = keras.Input((None, 4))
    with pytest.raises(ModelError, match="fewer units"):
        smaller(keras.Model(inputs, layers.GRU(16)(inputs)), 0.5)


def test_smaller_of_units_that_must_stay_says_why():
    inputs = keras.Input((None, 4))
    with pytest.raises(ModelError, match="'visible'"):
        smaller(keras.Model(inputs, layers.LSTM(16, name="visible")(inputs)), 0.5)
