import numpy as np
import pandas as pd
import pytest
from darts import TimeSeries, concatenate
from darts.metrics import mae
from darts.models import LinearRegressionModel

import cellerate
from cellerate.adapters import DartsLSTM
from cellerate.errors import ConfigError, DataError

pytestmark = [pytest.mark.keras, pytest.mark.filterwarnings("ignore")]

SMALL = {
    "input_chunk_length": 8,
    "output_chunk_length": 4,
    "units": 4,
    "n_epochs": 1,
    "validation_fraction": 0.2,
}
ROWS = 80


def series(seed=0, rows=ROWS, index="hours", **further):
    values = np.sin(np.arange(rows) / 3) + np.random.default_rng(seed).normal(0, 0.1, rows)
    times = (
        pd.date_range("2024-01-01", periods=rows, freq="h")
        if index == "hours"
        else pd.RangeIndex(10, 10 + rows)
    )
    return TimeSeries.from_times_and_values(times, values, **further)


@pytest.fixture(scope="module")
def fitted():
    return DartsLSTM(**SMALL).fit(series())


@pytest.fixture(scope="module")
def with_covariates():
    past, future = series(5), series(6, ROWS + 20)
    # Without the linear map, which would be all of a model that training has not made better.
    plain = {"options": {"residual": False, "linear": False}}
    return DartsLSTM(**SMALL, **plain).fit(series(), past_covariates=past, future_covariates=future)


def test_forecasts_are_those_of_train_series_and_forecast(fitted, tmp_path):
    path = tmp_path / "m.keras"
    frame = {"y": series().values()[:, 0]}
    how = {"window": 8, "horizon": 4, "train_fraction": 0.8, "validation_fraction": 0.2}
    cellerate.train_series(frame, path, target=["y"], units=4, epochs=1, **how)
    np.testing.assert_allclose(
        fitted.predict(4).values(), cellerate.forecast(path, frame)[0].forecast, rtol=1e-5
    )


@pytest.mark.parametrize("n", [1, 4, 10])
@pytest.mark.parametrize("index", ["hours", "range"])
def test_what_comes_out_looks_as_that_of_a_model_of_darts(n, index):
    given = concatenate([series(0, index=index), series(1, index=index) + 5], axis="component").astype(
        np.float32
    )
    given = given.with_columns_renamed(list(given.components), ["a", "b"])
    given = given.with_static_covariates(pd.DataFrame({"shop": [1.0]}))
    expected = LinearRegressionModel(8, output_chunk_length=4).fit(given).predict(n)
    found = DartsLSTM(**SMALL).fit(given).predict(n)
    pd.testing.assert_index_equal(found.time_index, expected.time_index)
    assert list(found.components) == ["a", "b"]
    assert (found.dtype, found.freq, found.n_samples) == (expected.dtype, expected.freq, 1)
    pd.testing.assert_frame_equal(found.static_covariates, expected.static_covariates)


@pytest.mark.parametrize("quantile", [[0.1, 0.9], [0.2, 0.5, 0.8]])
def test_a_model_with_quantiles_forecasts_their_median(quantile):
    model = DartsLSTM(**SMALL, options={"quantile": quantile}).fit(series())
    made = model.trained.model.forecast(series().values()[-8:])
    median = np.mean(made, axis=-1) if len(quantile) == 2 else made[..., 1]
    found = model.predict(4)
    assert found.n_samples == 1
    np.testing.assert_allclose(found.values(), median, rtol=1e-5)
    assert len(model.predict(10)) == 10


def test_options_that_series_decide_or_darts_does_not_know_are_refused():
    with pytest.raises(ConfigError, match="options has 'target', which the series themselves decide"):
        DartsLSTM(**SMALL, options={"target": ["y"]}).fit(series())
    for options in ({"series_embedding": 2}, {"scaling": "series"}):
        with pytest.raises(ConfigError, match="Darts does not say which of several series"):
            DartsLSTM(**SMALL, options=options).fit([series(), series(1)])
    assert len(DartsLSTM(**SMALL, options={"scaling": "series"}).fit(series()).predict(4)) == 4


def test_a_longer_horizon_goes_on_from_forecasts(fitted):
    model, values = fitted.trained.model, series().values()
    first = model.forecast(values[-8:])
    second = model.forecast(np.concatenate([values, first])[-8:])
    # The last chunk ends with n, as with Darts's own models.
    last = model.forecast(np.concatenate([values, first, second])[:-2][-8:])
    expected = np.concatenate([first, second, last[2:]])
    np.testing.assert_allclose(fitted.predict(10).values(), expected, rtol=1e-6)


def test_historical_forecasts_are_those_from_each_origin(fitted):
    given = series(3)
    found = fitted.historical_forecasts(
        given,
        start=60,
        start_format="position",
        forecast_horizon=3,
        stride=5,
        retrain=False,
        last_points_only=False,
    )
    assert len(found) == 4
    for one in found:
        np.testing.assert_allclose(
            one.values(), fitted.predict(3, series=given.drop_after(one.start_time())).values()
        )
    error = fitted.backtest(given, historical_forecasts=found, last_points_only=False, metric=mae)
    assert error == pytest.approx(np.mean([mae(given, one) for one in found]))


def test_it_is_trained_again_where_darts_asks_for_that():
    found = DartsLSTM(**SMALL).historical_forecasts(
        series(), start=0.9, forecast_horizon=4, stride=4, retrain=True
    )
    assert len(found) == 2 and np.isfinite(found.values()).all()


def test_covariates_are_those_of_the_rows_they_stand_beside(with_covariates):
    model, target = with_covariates.trained.model, series()
    past, future = series(5), series(6, ROWS + 20)
    rows = np.concatenate([one.values()[ROWS - 8 : ROWS] for one in (target, past, future)], axis=1)
    expected = model.forecast(rows, future=future.values()[ROWS : ROWS + 4])
    np.testing.assert_allclose(with_covariates.predict(4).values(), expected, rtol=1e-6)
    assert not np.allclose(
        model.forecast(rows, future=future.values()[ROWS + 1 : ROWS + 5]), expected, rtol=1e-4
    )
    # Wherever they begin.
    shorter = {"past_covariates": past[-10:], "future_covariates": future[60:]}
    np.testing.assert_allclose(with_covariates.predict(4, series=target[-9:], **shorter).values(), expected)
    assert with_covariates.extreme_lags == (-8, 3, -8, -1, -8, 3, 0)


def test_covariates_that_are_too_short_say_how_many_rows_are_missing(with_covariates):
    past, future = series(5), series(6, ROWS + 20)
    with pytest.raises(DataError, match="begins 3 rows later than the 8 rows"):
        with_covariates.predict(4, series=series(), past_covariates=past[-5:], future_covariates=future)
    with pytest.raises(DataError, match="ends 2 rows before the series"):
        with_covariates.predict(4, series=series(), past_covariates=past[:-2], future_covariates=future)
    with pytest.raises(DataError, match="4 rows after the last one, and got 2"):
        with_covariates.predict(
            4, series=series(), past_covariates=past, future_covariates=future[: ROWS + 2]
        )
    with pytest.raises(DataError, match=r"\(past0\) ends 4 rows too early"):
        with_covariates.predict(8, series=series(), past_covariates=past, future_covariates=future)
    with pytest.raises(ValueError, match="must be passed to `predict"):
        DartsLSTM(**SMALL).fit([series()], past_covariates=[past]).predict(4, series=series())


def test_training_takes_the_rows_that_have_all_covariates():
    late = series(5)[10:-5]
    model = DartsLSTM(**SMALL).fit(series(), past_covariates=late)
    assert np.isfinite(model.predict(4, series=series()[:-5]).values()).all()


def test_encoders_are_known_in_advance():
    model = DartsLSTM(
        **SMALL, add_encoders={"cyclic": {"future": ["hour"]}, "position": {"past": ["relative"]}}
    )
    model.fit(series())
    assert model.trained.model.forecaster.settings.covariates.future == ("known0", "known1")
    assert len(model.predict(11)) == 11


def test_many_series_have_one_model():
    given = [series(0), series(1, 60), series(2, 70)]
    model = DartsLSTM(**SMALL).fit(given)
    with pytest.raises(ValueError, match="give the `series` to forecast"):
        model.predict(4)
    found = model.predict(4, series=given)
    for one, own in zip(found, given, strict=True):
        np.testing.assert_allclose(one.values(), model.predict(4, series=own).values(), rtol=1e-6)
        assert one.start_time() == own.end_time() + own.freq


def test_a_saved_model_forecasts_the_same_without_trust(fitted, tmp_path):
    for clean in (False, True):
        fitted.save(tmp_path / "m.pkl", clean=clean)
        again = DartsLSTM.load(tmp_path / "m.pkl")
        np.testing.assert_array_equal(again.predict(4, series=series()).values(), fitted.predict(4).values())


def test_darts_can_search_its_settings():
    best, settings, error = DartsLSTM.gridsearch(
        {**{name: [value] for name, value in SMALL.items()}, "units": [2, 3]},
        series()[:60],
        val_series=series()[60:],
    )
    assert settings["units"] in (2, 3) and np.isfinite(error)
    assert best.untrained_model().model_params["units"] == settings["units"]


def test_what_it_cannot_read_is_said():
    two = concatenate([series(0), series(1)], axis="component")
    model = DartsLSTM(**SMALL).fit(two)
    with pytest.raises(
        ConfigError, match="2 targets, 0 past and 0 future covariates, and this series has 1 targets"
    ):
        model.predict(4, series=series())
    with pytest.raises(DataError, match=r"the series has 5 rows, and the model reads 8 \(window\)"):
        model.predict(4, series=two[:5])
    drawn = TimeSeries.from_values(np.random.default_rng(0).normal(size=(60, 1, 3)))
    with pytest.raises(ConfigError, match="stochastic"):
        DartsLSTM(**SMALL).fit(drawn)
    with pytest.raises(ConfigError, match="1 past_covariates for 2 series"):
        DartsLSTM(**SMALL).fit([series(), series(1)], past_covariates=[series(2)])
    with pytest.raises(ConfigError, match="a covariate has the frequency"):
        days = TimeSeries.from_times_and_values(
            pd.date_range("2024-01-01", periods=90, freq="D"), np.zeros(90)
        )
        DartsLSTM(**SMALL).fit(series(), past_covariates=days)
    with pytest.raises(ValueError, match="fit"):
        DartsLSTM(**SMALL).predict(4, series=series())
