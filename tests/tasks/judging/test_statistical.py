import sys
import types
from typing import ClassVar

import numpy as np
import pytest

import cellerate
from cellerate.data.series.series import open_series
from cellerate.data.settings import Reading
from cellerate.errors import BackendError, ConfigError, DataError
from cellerate.tasks.judging.statistical import Statistical, check_statistical
from cellerate.tasks.opening import forecaster_of
from support import packed_forecaster
from support.packed_forecaster import HORIZON, WINDOW

SETTINGS = {"series_column": ["region"], "season": 4, "train_fraction": 0.5, "validation_fraction": 0.1}


class Mean:
    """Stands for a model of StatsForecast: it forecasts the mean it was fitted on plus the last value."""

    fits: ClassVar[list] = []

    def __init__(self, season_length, **settings):
        self.season_length, self.settings = season_length, settings

    def fit(self, known):
        if np.ptp(known) == 0:
            raise Exception("nothing changes")
        self.fitted, self.mean = known.copy(), known.mean()
        Mean.fits.append(self)
        return self

    def forward(self, known, horizon):
        np.testing.assert_array_equal(known[: len(self.fitted)], self.fitted)
        if (self.fitted > 0).all() and (known <= 0).any():
            return {"mean": np.full(horizon, np.nan)}
        return {"mean": np.full(horizon, self.mean + known[-1])}


@pytest.fixture
def stand_in(monkeypatch):
    """StatsForecast in three lines, so that what is given to it can be seen."""
    package, models = types.ModuleType("statsforecast"), types.ModuleType("statsforecast.models")
    models.AutoETS = models.AutoTheta = models.AutoARIMA = Mean
    package.models, package.__spec__ = models, types.SimpleNamespace()
    monkeypatch.setitem(sys.modules, "statsforecast", package)
    monkeypatch.setitem(sys.modules, "statsforecast.models", models)
    monkeypatch.setattr(Mean, "fits", [])


@pytest.fixture
def path(tmp_path):
    packed_forecaster.write_series(tmp_path / "s.csv")
    return tmp_path / "s.csv"


def model(**settings):
    return packed_forecaster.packed(**(SETTINGS | settings))


def rows(values):
    return open_series({"y": np.asarray(values, float)}, Reading(targets=["y"], features=["y"]))


def test_each_origin_sees_all_rows_before_it_and_parameters_of_the_first(stand_in):
    y = np.random.default_rng(0).random(60) + 1
    fitted = Statistical.fit(["theta"], rows(y), [(0, 40)], 12)
    made = fitted.forecast("theta", rows(y), np.array([40, 50]), 3)
    np.testing.assert_allclose(
        made[:, :, 0], [[y[:40].mean() + y[39]] * 3, [y[:40].mean() + y[49]] * 3], rtol=1e-6
    )
    assert [one.season_length for one in Mean.fits] == [12]


def test_a_model_that_no_longer_fits_is_fitted_again(stand_in):
    y = np.r_[np.linspace(1, 2, 40), np.linspace(-1, -2, 10)]
    fitted = Statistical.fit(["ets"], rows(y), [(0, 40)], None)
    made = fitted.forecast("ets", rows(y), np.array([45]), 2)
    np.testing.assert_allclose(made[0, :, 0], y[:45].mean() + y[44], rtol=1e-6)
    assert [len(one.fitted) for one in Mean.fits] == [40, 45]


def test_a_model_that_fails_is_left_out_with_the_reason(stand_in):
    fitted = Statistical.fit(["ets", "arima"], rows(np.ones(30)), [(0, 20)], None)
    assert not fitted.models
    assert fitted.left_out["arima"] == "AutoARIMA failed on 20 rows: nothing changes"


def test_a_model_that_fails_later_says_on_which_rows(stand_in, monkeypatch):
    y = np.r_[np.linspace(1, 2, 40), np.linspace(-1, -2, 10)]
    fitted = Statistical.fit(["ets"], rows(y), [(0, 40)], None)

    def fails(self, known):
        raise ValueError("no minimum")

    monkeypatch.setattr(Mean, "fit", fails)
    with pytest.raises(DataError, match="AutoETS failed on 45 rows: no minimum"):
        fitted.forecast("ets", rows(y), np.array([45]), 2)


def test_long_searches_are_approximated_as_in_r(stand_in):
    y = np.random.default_rng(0).random(400)
    Statistical.fit(["arima"], rows(y), [(0, 100)], None)
    Statistical.fit(["arima"], rows(y), [(0, 100)], 24)
    Statistical.fit(["arima"], rows(y), [(0, 300)], None)
    assert [one.settings["approximation"] for one in Mean.fits] == [False, True, True]


def test_backtest_judges_them_beside_the_model_and_in_the_verdict(stand_in, path):
    found = cellerate.backtest(model(), path, folds=4, step=2, statistical=["theta", "ets"])
    assert list(found.figures["theta"]) == list(found.figures["nlinear"])
    every = [(fold.number, example) for fold in found.folds for example in fold.examples]
    data = forecaster_of(model()).open([path])
    values = np.asarray(data.values, float)
    errors = []
    for number, example in every:
        first, end = {"n": (0, 30), "s": (30, 60)}[example.series]
        begin = end - HORIZON - 6
        known = values[first:begin, list(data.target_columns)]
        last = values[end - HORIZON - 2 * (4 - number) - 1, list(data.target_columns)]
        errors.append(np.abs(known.mean(axis=0) + last - example.truth).mean(axis=0))
    for place, name in enumerate(data.target_names):
        assert found.figures["by_target"][name]["theta"]["mae"] == pytest.approx(
            np.mean(errors, axis=0)[place], rel=1e-5
        )
    assert "theta" in found.folds[0].figures and "theta" in found.figures["by_series"][0]
    # Fitted once a target and series: 2 x 2 of each.
    assert len(Mean.fits) == 8


def test_evaluate_judges_them_on_every_window(stand_in, path):
    found = cellerate.evaluate(model(), path, part="all", statistical="theta")
    assert {"theta", "last_value"} <= set(found)
    # Known before the first window of each series: the rows of a window.
    assert {len(one.fitted) for one in Mean.fits} == {WINDOW}


def test_what_cannot_be_judged_is_named(path, monkeypatch):
    with pytest.raises(ConfigError, match="statistical must be one of ets, theta, arima, not 'prophet'"):
        cellerate.backtest(model(), path, statistical=["prophet"])
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(
        BackendError, match=r"AutoTheta needs the package 'statsforecast'.*cellerate\[statistical\]"
    ):
        check_statistical(["theta"])
