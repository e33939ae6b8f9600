import re
from typing import get_args

import keras
import numpy as np
import pytest

from cellerate.errors import ConfigError
from cellerate.models.cells import Cell
from cellerate.models.forecast import build_forecast_model

pytestmark = [
    pytest.mark.keras,
    # Keras 3.15 variables have the __array__ of NumPy 1; saving and reading weights meets it.
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning"),
]

SERIES = np.random.default_rng(0).normal(size=(4, 9, 5)).astype("float32")


def small(**arguments: object) -> keras.Model:
    settings = {"target_columns": [3, 1], "units": 6, "seed": 1, **arguments}
    return build_forecast_model(9, 5, 4, 2, **settings)


def run(model: keras.Model, series: np.ndarray = SERIES) -> np.ndarray:
    return np.asarray(model.predict(series, verbose=0))


def stir(model: keras.Model, scale: float = 2.0) -> keras.Model:
    """Gives every weight a large random value, as no training would."""
    random = np.random.default_rng(5)
    model.set_weights([random.normal(size=w.shape, scale=scale) for w in model.get_weights()])
    return model


@pytest.mark.backends
@pytest.mark.parametrize(
    ("arguments", "shape"),
    [
        ({"residual": False}, (4, 4, 2)),
        ({"bidirectional": True, "layers": 2, "dropout": 0.1}, (4, 4, 2)),
        ({"bidirectional": True, "cell": "gru"}, (4, 4, 2)),
        ({"quantiles": (0.5,)}, (4, 4, 2, 1)),
        ({"quantiles": (0.1, 0.5, 0.9), "dtype_policy": "mixed_bfloat16"}, (4, 4, 2, 3)),
        ({"quantiles": (0.6, 0.7, 0.9), "residual": False}, (4, 4, 2, 3)),
    ],
    ids=["no-residual", "bidirectional", "bidirectional-gru", "one", "three-bf16", "upper"],
)
def test_forecast_model_saved_and_loaded_in_safe_mode_gives_the_same(arguments, shape, tmp_path):
    model = stir(small(**arguments), 0.3)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras", safe_mode=True)
    expected = run(model)
    assert expected.shape == shape
    assert loaded.output.dtype == "float32"
    np.testing.assert_array_equal(run(loaded), expected)


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_forecast_model_before_training_repeats_the_last_value_of_each_target(policy):
    last = SERIES[:, -1][:, [3, 1]]
    expected = np.repeat(last[:, None], 4, axis=1)
    np.testing.assert_array_equal(run(small(dtype_policy=policy)), expected)


def test_forecast_model_all_columns_as_targets_in_order_repeats_them_too():
    model = build_forecast_model(9, 5, 4, 5, target_columns=range(5), units=3)
    np.testing.assert_array_equal(run(model)[:, 0], SERIES[:, -1])


def test_forecast_model_with_residual_moves_with_the_level_of_the_targets():
    model = small()
    head = model.get_layer("center")
    head.set_weights([np.full_like(w, 0.2) for w in head.get_weights()])
    moved = SERIES.copy()
    moved[:, -1, 3] += 100.0
    difference = run(model, moved) - run(model)
    assert (difference[..., 0] > 98).all()
    assert (np.abs(difference[..., 1]) < 3).all()


@pytest.mark.parametrize("absolute", [(), (0, 4)])
def test_forecast_model_with_residual_takes_a_shift_of_all_levels_over(absolute):
    model = stir(small(absolute=absolute), 0.3)
    moved = SERIES + np.where(np.isin(np.arange(5), absolute), 0, [3.0, 40.0, -5.0, 8.0, 2.0]).astype(
        "float32"
    )
    np.testing.assert_allclose(run(model, moved) - run(model), [[[8, 40]] * 4] * 4, atol=1e-4)


def test_forecast_model_sees_the_level_of_absolute_columns_only():
    moved = SERIES.copy()
    moved[..., 4] += 2.0
    blind, seeing = (stir(small(absolute=absolute), 0.3) for absolute in ((0,), (0, 4)))
    np.testing.assert_allclose(run(blind, moved), run(blind), atol=1e-5)
    assert np.abs(run(seeing, moved) - run(seeing)).max() > 0.01


@pytest.mark.backends
@pytest.mark.parametrize("shared", [False, True])
def test_forecast_model_adds_a_linear_map_of_the_changes_of_each_target(shared):
    model = small(shared_linear=shared)
    random = np.random.default_rng(3)
    weights, bias = random.normal(size=(2, 9, 4)).astype("float32"), random.normal(size=(2, 4))
    if shared:
        weights[1], bias[1] = weights[0], bias[0]
    model.get_layer("linear").set_weights([weights[0], bias[0]] if shared else [weights, bias])
    change = (SERIES - SERIES[:, -1:])[..., [3, 1]]
    expected = np.einsum("bwt,twh->bht", change, weights) + bias.T + SERIES[:, -1:][..., [3, 1]]
    np.testing.assert_allclose(run(model), expected, rtol=1e-4, atol=1e-5)
    assert all(layer.name != "linear" for layer in small(linear=False).layers)


def test_forecast_model_without_residual_ignores_the_last_level():
    moved = SERIES.copy()
    moved[:, -1, 3] += 100.0
    model = stir(small(residual=False), 0.1)
    assert np.abs(run(model, moved) - run(model)).max() < 3


@pytest.mark.parametrize(
    ("quantiles", "residual"),
    [
        ((0.1, 0.25, 0.5, 0.75, 0.9), True),
        ((0.7, 0.8, 0.99), False),
        ((0.01, 0.02), True),
        ((0.2, 0.8), False),
    ],
)
def test_forecast_model_quantiles_with_any_weights_never_cross(quantiles, residual):
    values = run(stir(small(quantiles=quantiles, residual=residual)))
    assert (np.diff(values, axis=-1) >= 0).all()
    assert np.abs(np.diff(values, axis=-1)).max() > 0.1


def test_forecast_model_point_output_equals_the_middle_quantile():
    model = small(quantiles=(0.1, 0.5, 0.9))
    np.testing.assert_array_equal(run(model)[..., 1], run(small()))


@pytest.mark.parametrize("cell", get_args(Cell))
def test_forecast_model_directions_start_with_different_weights(cell):
    layer = small(bidirectional=True, cell=cell).get_layer(f"{cell}_1")
    forward, backward = layer.forward_layer.get_weights(), layer.backward_layer.get_weights()
    assert not np.allclose(forward[0], backward[0])
    assert not np.allclose(forward[1], backward[1])


def test_forecast_model_same_seed_gives_the_same_weights():
    arguments = {"bidirectional": True, "layers": 2, "quantiles": (0.1, 0.5)}
    for a, b in zip(small(**arguments).get_weights(), small(**arguments).get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.backends
def test_forecast_model_learns_a_step_it_cannot_repeat():
    random = np.random.default_rng(2)
    x = random.normal(size=(64, 9, 5)).astype("float32")
    y = np.repeat((x[:, -1, [3, 1]] + x[:, -1, :2])[:, None], 4, axis=1)
    model = small(units=16)
    model.compile(keras.optimizers.Adam(0.02), "mse")
    model.fit(x, y, epochs=25, batch_size=32, verbose=0)
    persistence = np.repeat(x[:, -1:, [3, 1]], 4, axis=1)
    assert np.square(run(model, x) - y).mean() < 0.3 * np.square(persistence - y).mean()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"target_columns": [1]}, "target_columns"),
        ({"target_columns": [1, 1]}, "target_columns"),
        ({"target_columns": [1, 5]}, "target_columns"),
        ({"target_columns": [-1, 2]}, "target_columns"),
        ({"target_columns": ["a", "b"]}, "target_columns"),
        ({"quantiles": (0.5, 0.1)}, "quantiles"),
        ({"quantiles": (0.0, 0.5)}, "quantiles"),
        ({"quantiles": ()}, "quantiles"),
        ({"units": 0}, "units"),
        ({"cell": "rnn"}, "cell must be one of"),
        ({"dropout": 2}, "dropout"),
    ],
)
def test_forecast_model_with_a_bad_argument_raises_config_error_naming_it(arguments, named):
    with pytest.raises(ConfigError, match=re.escape(named)):
        small(**arguments)


@pytest.mark.parametrize("place", range(4))
def test_forecast_model_with_a_size_of_zero_raises_config_error_naming_it(place):
    sizes = [9, 5, 4, 2]
    sizes[place] = 0
    with pytest.raises(ConfigError, match=("window", "features", "horizon", "targets")[place]):
        build_forecast_model(*sizes, target_columns=[3, 1])


# --- what is known in advance, and whose series it is


FUTURE = np.random.default_rng(1).normal(size=(4, 4, 3)).astype("float32")
IDS = np.array([[0], [1], [2], [1]], "int32")


def predicted(model, **inputs):
    given = {"series": SERIES, "future": FUTURE, "series_id": IDS} | inputs
    return np.asarray(model.predict_on_batch({name: given[name] for name in model.input}))


@pytest.mark.backends
@pytest.mark.parametrize("quantiles", [None, (0.1, 0.5, 0.9)], ids=["point", "quantiles"])
@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_model_with_covariates_learns_from_each_of_them(quantiles, policy):
    model = stir(small(future=3, series=2, series_embedding=4, quantiles=quantiles, dtype_policy=policy), 0.5)
    made = predicted(model)
    assert made.shape == (4, 4, 2, *([3] if quantiles else []))
    assert made.dtype == np.float32
    if quantiles:
        assert (np.diff(made, axis=-1) >= 0).all()
    other = FUTURE.copy()
    other[:, 2] += 1
    changed = np.abs(predicted(model, future=other) - made).reshape(4, 4, -1).max(axis=2)
    # What is known of a step counts for this step alone.
    assert (changed[:, 2] > 1e-3).all()
    assert (changed[:, [0, 1, 3]] == 0).all()
    apart = np.abs(predicted(model, series_id=IDS[::-1].copy()) - made).reshape(4, -1).max(axis=1)
    assert (apart > 1e-3).tolist() == [True, True, True, True]


def test_untrained_model_with_covariates_repeats_the_last_value():
    model = small(future=3, series=2, series_embedding=4)
    last = np.repeat(SERIES[:, -1:, [3, 1]], 4, axis=1)
    np.testing.assert_array_equal(predicted(model), last)


def test_model_without_covariates_keeps_its_single_input_and_weights():
    model = small(quantiles=(0.1, 0.5, 0.9))
    assert not isinstance(model.input, dict)
    names = [weight.path for weight in model.weights]
    assert not any("future" in name or "series" in name for name in names)
