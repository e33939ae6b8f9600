"""Forecasts and intervals of a trained model, in Keras and packed."""

import keras
import numpy as np
import pytest

import cellerate
from cellerate.data.series.series import open_series
from cellerate.data.settings import Reading
from cellerate.errors import DataError, ModelError
from cellerate.models.storage import TaskRecord, load_model, save_model
from cellerate.tasks.inference import forecast
from cellerate.tasks.opening import forecaster_of, open_model
from cellerate.tasks.series.train import _plain_options, train_on_series
from cellerate.tasks.settings import ForecastArchitecture, SeriesOptions
from cellerate.training.run import RunOptions
from cellerate.training.settings import TrainingSettings
from support.runs.wave_runs import HORIZON, ROWS, WINDOW, fit, hours, options, wave, write

pytestmark = pytest.mark.keras


def test_forecast_continues_hours_across_midnight_and_is_the_models_own(data):
    fit(data)
    model, record, _ = opened = open_model(data.parent / "m.keras")
    short = write(
        data.parent / "now.csv", date=hours(23 + 48), load=wave(71), other=wave(71, seed=1, level=-3.0)
    )
    (found,) = forecast(model, [short], record=record)
    assert found.times.astype("datetime64[h]").astype(str).tolist() == [
        "2024-02-28T23", "2024-02-29T00", "2024-02-29T01"
    ]  # fmt: skip
    assert found.truth is None
    rows = np.column_stack([wave(71), wave(71, seed=1, level=-3.0)])[-WINDOW:].astype(np.float32)
    scaler = forecaster_of(opened).settings.scaler
    made = model(((rows - scaler.mean) / scaler.scale).astype(np.float32)[None])
    expected = keras.ops.convert_to_numpy(made)[0] * scaler.scale[0] + scaler.mean[0]
    assert found.forecast == pytest.approx(expected, rel=1e-4)


def test_forecast_of_several_series_gives_one_each_in_order(tmp_path):
    names = np.repeat(["north", "south"], 60)
    load = np.concatenate([wave(60), wave(60, seed=2, level=900.0)])
    path = write(tmp_path / "many.csv", date=hours(60) * 2, region=names, load=load)
    run = fit(path, series_column="region", epochs=2)
    found = forecast(tmp_path / "m.keras", [path])
    assert [example.series for example in found] == ["north", "south"]
    assert found[0].past[:, 0] == pytest.approx(load[52:60], rel=1e-5)
    assert found[1].past[:, 0] == pytest.approx(load[112:], rel=1e-5)
    assert abs(found[0].forecast.mean() - 20) < 200 < found[1].forecast.mean()
    # Examples of the test part name their series, and none mixes two.
    assert {example.series for example in run.examples} == {"north", "south"}
    for example in run.examples:
        together = np.concatenate([example.past, example.truth])[:, 0]
        assert np.ptp(together) < 100
        assert (together.mean() > 400) == (example.series == "south")


def test_forecast_of_a_file_that_is_too_short_raises(data):
    fit(data)
    short = write(data.parent / "short.csv", date=hours(5), load=wave(5), other=wave(5))
    with pytest.raises(DataError, match=f"ends with 5 rows .* needs {WINDOW}"):
        forecast(data.parent / "m.keras", [short])


def test_forecast_of_a_file_without_a_feature_raises(data):
    fit(data)
    other = write(data.parent / "other.csv", date=hours(ROWS), load=wave())
    with pytest.raises(DataError, match="'other'"):
        forecast(data.parent / "m.keras", [other])


def test_npy_without_times_counts_rows(tmp_path):
    np.save(tmp_path / "data.npy", np.column_stack([wave(), wave(seed=1)]).astype(np.float32))
    train_on_series(
        options(tmp_path / "data.npy", target=["1"]),
        RunOptions(output=tmp_path / "m.keras", training=TrainingSettings(epochs=1)),
        architecture=ForecastArchitecture(units=4),
    )
    (found,) = forecast(tmp_path / "m.keras", [tmp_path / "data.npy"])
    assert found.times.tolist() == [240, 241, 242]


@pytest.mark.parametrize(
    ("changes", "architecture"),
    [
        ({}, {}),
        ({"target": ["other", "load"]}, {"layers": 2, "dropout": 0.2}),
        ({"target": ["other", "load"]}, {"residual": False, "bidirectional": True}),
        ({"target": ["other", "load"]}, {"quantile": (0.1, 0.5, 0.9)}),
        ({}, {"quantile": (0.2, 0.3, 0.6, 0.9), "residual": False}),
        ({}, {"quantile": (0.5,)}),
        ({"feature": ["other"], "storage": "float16"}, {}),
        ({"feature": ["other"], "target": ["load", "other"]}, {"quantile": (0.1, 0.9)}),
    ],
    ids=[
        "plain",
        "two-targets",
        "not-residual",
        "quantiles",
        "quantiles-not-residual",
        "median",
        "no-feature",
        "fewer-features",
    ],
)
def test_packed_model_forecasts_what_its_keras_model_does(data, changes, architecture):
    train_on_series(
        options(data, **changes),
        RunOptions(output=data.parent / "m.keras", training=TrainingSettings(epochs=1, learning_rate=0.01)),
        architecture=ForecastArchitecture(units=8, **architecture),
    )
    cellerate.pack(data.parent / "m.keras", data.parent / "m.cell")
    packed = cellerate.load(data.parent / "m.cell")
    (expected,) = forecast(data.parent / "m.keras", [data])
    (found,) = packed.forecast_files([data])
    close = {"atol": 1e-5 * np.ptp(expected.past, axis=0).max(), "rtol": 0}
    np.testing.assert_allclose(found.forecast, expected.forecast, **close)
    assert found.times.tolist() == expected.times.tolist()
    assert found.past.tolist() == expected.past.tolist()
    assert (found.targets, found.quantiles, found.series) == (expected.targets, expected.quantiles, "")
    rows = np.column_stack(
        [wave(seed=1, level=-3.0)] if "feature" in changes else [wave(), wave(seed=1, level=-3.0)]
    )
    if "storage" not in changes:
        np.testing.assert_allclose(packed.forecast(rows), expected.forecast, **close)


@pytest.mark.parametrize("quantile", [(), (0.1, 0.5, 0.9)])
def test_training_calibrates_intervals_that_a_packed_model_gives_too(quantile, data):
    run = fit(data, quantile=quantile)
    assert set(run.test["intervals"]) == {"0.8", "0.95"}
    # So does the chart of the test part.
    assert [list(example.intervals) for example in run.examples] == [[0.8, 0.95]] * len(run.examples)
    assert 0 < run.test["intervals"]["0.8"]["coverage"] <= run.test["intervals"]["0.95"]["coverage"] <= 1
    (example,) = forecast(data.parent / "m.keras", data)
    assert list(example.intervals) == [0.8, 0.95]
    low, high = np.moveaxis(example.intervals[0.8], -1, 0)
    assert low.shape == (HORIZON, 1)
    assert (low < high).all()
    assert (low >= 0).all()
    (none,) = forecast(data.parent / "m.keras", data, levels=())
    assert none.intervals == {}
    cellerate.pack(data.parent / "m.keras", data.parent / "m.cell")
    (packed,) = cellerate.load(data.parent / "m.cell").forecast_files([data], levels=[0.5, 0.8])
    np.testing.assert_allclose(packed.intervals[0.8], example.intervals[0.8], rtol=1e-4)
    assert (np.ptp(packed.intervals[0.5], axis=-1) <= np.ptp(packed.intervals[0.8], axis=-1)).all()
    found = cellerate.detect(data.parent / "m.cell", data, level=0.9)
    assert len(found) == ROWS - WINDOW
    assert found.anomaly.mean() < 0.5


def test_model_without_or_with_a_damaged_calibration_forecasts_or_is_refused(data):
    fit(data, validation_fraction=0.0)
    (example,) = forecast(data.parent / "m.keras", data)
    assert example.intervals == {}
    with pytest.raises(ModelError, match="was not calibrated"):
        cellerate.detect(data.parent / "m.keras", data)
    model, record = load_model(data.parent / "m.keras")
    damaged = TaskRecord("series", record.payload | {"calibration": {"reach": "much"}})
    save_model(model, data.parent / "d.keras", damaged)
    with pytest.raises(ModelError, match="is damaged: its calibration must have grid"):
        forecast(data.parent / "d.keras", data)


def test_model_of_business_days_notes_that_for_short_files(tmp_path):
    days = np.arange("2024-01-01", "2024-03-01", dtype="datetime64[D]")
    lines = ["date,load", *(f"{day},{n}" for n, day in enumerate(days[np.is_busday(days)]))]
    (tmp_path / "s.csv").write_text("\n".join(lines) + "\n")
    options = SeriesOptions(paths=[tmp_path / "s.csv"], target=["load"])
    plain = _plain_options(options, open_series(options.paths, Reading(targets=["load"])))
    assert (plain["frequency"], plain["season"], plain["series_column"]) == ("business-day", 5, ())
