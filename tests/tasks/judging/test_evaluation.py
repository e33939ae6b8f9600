import dataclasses

import numpy as np
import pytest

import cellerate
from cellerate.data.settings import Reading
from cellerate.data.windows.scaler import Scaler
from cellerate.errors import ConfigError
from cellerate.listener import Callbacks
from cellerate.runtime.forecast.forecasting import ForecastSettings
from cellerate.tasks.judging.errors import SeriesForecaster
from cellerate.tasks.judging.evaluation import EvaluationOptions, evaluate_forecaster
from cellerate.tasks.judging.intervals import calibrate, judge_intervals
from cellerate.tasks.settings import ReadingOptions, SeriesOptions
from support import packed_forecaster

WINDOW, HORIZON, ROWS = 24, 4, 1200


def table(rows=ROWS, seed=0, begin="2024-01-01"):
    random = np.random.default_rng(seed)
    y = 50 + 10 * np.sin(2 * np.pi * np.arange(rows) / 24) + random.normal(0, 1, rows)
    return {"date": np.datetime64(begin, "us") + np.arange(rows) * np.timedelta64(1, "h"), "y": y}


@pytest.fixture
def model():
    """A forecaster of plain NumPy that repeats the day before, trained and calibrated on `table()`."""
    reading = Reading(targets=["y"], features=["y"])
    settings = ForecastSettings(reading, WINDOW, HORIZON, (), Scaler(["y"], [50.0], [7.0]))
    options = SeriesOptions(target=["y"], window=WINDOW, horizon=HORIZON, season=24)
    plain = SeriesForecaster(lambda scaled: scaled[:, :HORIZON], settings, options)
    data = plain.open(table())
    made, _ = calibrate(plain, options.split(data))
    settings = dataclasses.replace(settings, calibration=made)
    return dataclasses.replace(plain, settings=settings, trained_on=data.fingerprint)


def test_intervals_of_the_held_out_part_are_those_of_the_end_of_training(model):
    found = evaluate_forecaster(model, table())
    split = model.options.split(model.open(table()))
    expected = judge_intervals(model, split.test, *calibrate(model, split))
    assert found["part"] == "held-out"
    assert found["intervals"] == expected
    assert set(expected) == {"0.8", "0.95"}


def test_intervals_are_not_judged_on_rows_that_the_model_was_trained_on(model):
    assert "intervals" not in evaluate_forecaster(model, table(), part="all")
    # Other data, all of them older than the last row of the training.
    assert "intervals" not in evaluate_forecaster(model, table(seed=1, rows=300))
    # And the same with what came since: that alone is judged.
    more = table(rows=ROWS + 200)
    found = evaluate_forecaster(model, more)
    assert found["seen_by_training"] is None
    data = model.open(more)
    until = int(ROWS * 0.7)
    newer = dataclasses.replace(data.whole(), bounds=((0, until, ROWS + 200),))
    assert found["intervals"] == judge_intervals(model, newer, model.settings.calibration)
    numbers = {"y": table()["y"]}
    assert "intervals" not in evaluate_forecaster(model, numbers)


def test_errors_by_step_are_those_of_each_step(model):
    found = evaluate_forecaster(model, table(), by_step=True)
    y = np.asarray(model.open(table()).values, float)[:, 0]
    begin = int(ROWS * 0.8)
    origins = np.arange(begin, ROWS - HORIZON + 1)
    for step in range(HORIZON):
        truth = y[origins + step]
        assert found["by_step"]["model"][step] == pytest.approx(
            np.abs(y[origins + step - 24] - truth).mean(), rel=1e-5
        )
        assert found["by_step"]["last_value"][step] == pytest.approx(np.abs(y[origins - 1] - truth).mean())
    assert set(found["by_step"]) == {"model", "last_value", "seasonal_naive", "nlinear"}
    assert np.mean(found["by_step"]["model"]) == pytest.approx(found["model"]["mae"])
    assert "by_step" not in evaluate_forecaster(model, table())


def test_errors_by_step_of_several_targets_are_in_standard_deviations(tmp_path):
    packed_forecaster.write_series(tmp_path / "s.csv")
    packed = packed_forecaster.packed(series_column=["region"])
    found = cellerate.evaluate(packed, tmp_path / "s.csv", by_step=True)
    assert np.mean(found["by_step"]["model"]) == pytest.approx(found["model"]["scaled_mae"])


def test_options_of_reading_hold_and_what_is_told_of_the_tables_arrives(model):
    told = []
    broken = table()
    broken["y"][1000:1002] = np.nan
    shuffled = {name: values[::-1] for name, values in broken.items()}
    filled, heard = ReadingOptions(missing="ffill"), Callbacks(message=told.append)
    found = evaluate_forecaster(model, shuffled, reading=filled, listener=heard)
    assert found["windows"] > 0
    assert any("sorted" in sentence for sentence in told)


@pytest.mark.parametrize(
    ("asked", "named"),
    [({"by_step": True}, "by_step=True"), ({"reading": ReadingOptions(gaps="error")}, "gaps='error'")],
)
def test_what_is_for_forecasters_alone_is_refused_by_other_models(asked, named):
    EvaluationOptions(part="all").check_unused()
    with pytest.raises(ConfigError, match=f"this model is not a forecaster.*leave out {named}"):
        EvaluationOptions(**asked).check_unused()
