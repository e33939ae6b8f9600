"""Statistical baselines against StatsForecast's own cross-validation."""

import json

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import cellerate
from cellerate.cli.main import app
from cellerate.data.series.series import open_series
from cellerate.data.settings import Reading
from cellerate.errors import ConfigError
from cellerate.tasks.judging.statistical import STATISTICAL, Statistical

pytestmark = pytest.mark.filterwarnings("ignore")

ROWS, HORIZON, STEP, FOLDS, SEASON = 240, 6, 6, 4, 12


def values(seed):
    noise = np.random.default_rng(seed).normal(0, 0.5, ROWS).cumsum()
    return 100 + noise + 10 * np.sin(2 * np.pi * np.arange(ROWS) / SEASON)


@pytest.mark.parametrize("name", list(STATISTICAL))
def test_forecasts_are_those_of_its_own_cross_validation(name):
    from statsforecast import StatsForecast, models

    y = values(0)
    further = {"approximation": True} if name == "arima" else {}
    judged = StatsForecast([getattr(models, STATISTICAL[name])(season_length=SEASON, **further)], freq=1)
    frame = pd.DataFrame({"unique_id": "a", "ds": np.arange(ROWS), "y": y})
    expected = judged.cross_validation(HORIZON, frame, n_windows=FOLDS, step_size=STEP, refit=False)
    data = open_series({"y": y}, Reading(targets=["y"], features=["y"], storage="float32"))
    origins = np.array([ROWS - HORIZON - STEP * fold for fold in reversed(range(FOLDS))])
    fitted = Statistical.fit([name], data, [(0, int(origins[0]))], SEASON)
    made = fitted.forecast(name, data, origins, HORIZON)
    np.testing.assert_allclose(made.ravel(), expected[STATISTICAL[name]], rtol=2e-3)


@pytest.mark.parametrize("name", list(STATISTICAL))
def test_forecasts_of_the_first_origin_are_those_of_a_plain_fit(name):
    from statsforecast import models

    y = values(1).astype(np.float32).astype(float)
    data = open_series({"y": y}, Reading(targets=["y"], features=["y"]))
    fitted = Statistical.fit([name], data, [(0, 200)], SEASON)
    further = {"approximation": True} if name == "arima" else {}
    plain = getattr(models, STATISTICAL[name])(season_length=SEASON, **further).fit(y[:200])
    made = fitted.forecast(name, data, np.array([200]), HORIZON)
    np.testing.assert_allclose(made[0, :, 0], plain.predict(HORIZON)["mean"], rtol=1e-6)


def test_a_series_that_falls_below_zero_is_forecast_all_the_same():
    y = np.r_[values(2)[:120], values(2)[120:] - 300]
    data = open_series({"y": y}, Reading(targets=["y"], features=["y"]))
    fitted = Statistical.fit(list(STATISTICAL), data, [(0, 110)], SEASON)
    for name in STATISTICAL:
        assert np.isfinite(fitted.forecast(name, data, np.array([110, 180]), HORIZON)).all()


def trained(tmp_path, rows=150):
    path = tmp_path / "s.csv"
    path.write_text("y\n" + "\n".join(f"{value:.6f}" for value in values(3)[:rows]))
    options = {"window": 24, "horizon": HORIZON, "units": 2, "epochs": 1, "season": SEASON}
    cellerate.train_series(path, tmp_path / "m.keras", target="y", **options)
    return tmp_path / "m.keras", path


@pytest.mark.keras
def test_refit_fits_them_before_each_fold(tmp_path):
    from statsforecast.models import AutoTheta

    model, path = trained(tmp_path)
    found = cellerate.backtest(
        model, path, folds=3, refit=True, epochs=1, statistical="theta", baselines=False
    )
    y = np.loadtxt(path, skiprows=1).astype(np.float32).astype(float)
    errors = []
    for origin in (132, 138, 144):
        made = AutoTheta(season_length=SEASON).fit(y[:origin]).predict(HORIZON)["mean"]
        errors.append(np.abs(made - y[origin : origin + HORIZON]).mean())
    assert [fold.figures["theta"]["mae"] for fold in found.folds] == pytest.approx(errors, rel=1e-5)


@pytest.mark.keras
def test_verbs_show_them_beside_the_others(tmp_path):
    model, path = trained(tmp_path)
    done = CliRunner().invoke(
        app, ["backtest", str(model), str(path), "--folds", "3", "--statistical", "theta"]
    )
    assert done.exit_code == 0
    assert "NLinear  AutoTheta" in done.output
    done = CliRunner().invoke(app, ["evaluate", str(model), str(path), "--statistical", "ets", "--json"])
    figures = json.loads(done.output[done.output.index("{") :])
    assert figures["ets"].keys() == figures["nlinear"].keys()
    folder = ["-o", str(tmp_path / "errors"), "--statistical", "ets"]
    done = CliRunner().invoke(app, ["evaluate", str(model), str(path), *folder])
    assert isinstance(done.exception, ConfigError)
    assert "statistical is for one process that writes no folder" in str(done.exception)
