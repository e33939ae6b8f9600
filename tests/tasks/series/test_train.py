import csv
import itertools

import keras
import numpy as np
import pytest

import cellerate
from cellerate.data.series.packing import pack_series
from cellerate.data.series.series import open_series
from cellerate.data.settings import Reading
from cellerate.data.settings.tables import TableOptions
from cellerate.errors import ConfigError, DataError, ModelError, OutputError, TrainingError
from cellerate.models.storage import TaskRecord, load_model, save_model
from cellerate.models.text import build_text_model
from cellerate.runtime.forecast.calibrating import thinned
from cellerate.tasks.inference import forecast
from cellerate.tasks.judging import intervals
from cellerate.tasks.judging.evaluation import evaluate_forecaster
from cellerate.tasks.series.train import _missing_values, _plain_options, load_series_model, train_on_series
from cellerate.tasks.settings import ForecastArchitecture, SeriesOptions
from cellerate.training import divergence, time_limits
from cellerate.training.run import RunOptions
from cellerate.training.settings import TrainingSettings

pytestmark = pytest.mark.keras

WINDOW, HORIZON, ROWS = 8, 3, 240
START = np.datetime64("2024-02-26T00:00")


def wave(rows=ROWS, period=12, seed=0, level=20.0):
    noise = np.random.default_rng(seed).normal(0, 0.3, rows)
    return level + 5 * np.sin(2 * np.pi * np.arange(rows) / period) + noise


def hours(rows, start=START):
    return [str(start + np.timedelta64(n, "h")).replace("T", " ") + ":00" for n in range(rows)]


def write(path, **columns):
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(columns)
        table.writerows(zip(*columns.values(), strict=True))
    return path


@pytest.fixture
def data(tmp_path):
    return write(tmp_path / "data.csv", date=hours(ROWS), load=wave(), other=wave(seed=1, level=-3.0))


def options(path, **changes):
    settings = {
        "paths": [path],
        "target": ["load"],
        "window": WINDOW,
        "horizon": HORIZON,
        "batch_size": 16,
        "season": 6,
    }
    return SeriesOptions.of_record(settings | changes)


def fit(path, output="m.keras", *, epochs=1, model=None, units=8, quantile=(), linear=True, **changes):
    return train_on_series(
        options(path, **changes),
        RunOptions(output=path.parent / output, training=TrainingSettings(epochs=epochs, learning_rate=0.01)),
        architecture=ForecastArchitecture(units=units, dropout=0.0, quantile=quantile, linear=linear),
        model=model,
    )


def recomputed(path, values, columns, *, rows, train_rows, season=6):
    """Errors of the model and of naive forecasts on `rows`, by plain NumPy from the file's values."""
    table = np.column_stack([values[name] for name in columns]).astype(np.float32).astype(np.float64)
    mean, scale = table[:train_rows].mean(axis=0), table[:train_rows].std(axis=0)
    firsts = np.arange(rows[0] - WINDOW, rows[1] - WINDOW - HORIZON + 1)
    firsts = firsts[firsts >= 0]
    past = table[firsts[:, None] + np.arange(WINDOW)]
    truth = table[firsts[:, None] + WINDOW + np.arange(HORIZON), 0]
    model, _ = load_model(path)
    made = keras.ops.convert_to_numpy(model(((past - mean) / scale).astype(np.float32), training=False))
    made = made.astype(np.float64).reshape(*truth.shape, -1) * scale[0] + mean[0]
    seasonal = past[:, [WINDOW - season + n % season for n in range(HORIZON)], 0]
    forecasts = {
        "model": made[..., made.shape[-1] // 2],
        "last_value": np.repeat(past[:, -1:, 0], HORIZON, axis=1),
        "seasonal_naive": seasonal,
    }
    found = {}
    for name, one in forecasts.items():
        error = one - truth
        found[name] = {
            "mae": np.abs(error).mean(),
            "mse": (error**2).mean(),
            "scaled_mae": np.abs(error / scale[0]).mean(),
            "scaled_mse": ((error / scale[0]) ** 2).mean(),
        }
    coverage = (truth[..., None] <= made).mean(axis=(0, 1))
    return len(firsts), found, coverage


# --- train and judge


@pytest.mark.backends
def test_training_on_a_noisy_sine_beats_naive_and_figures_equal_plain_numpy(data):
    values = {"load": wave(), "other": wave(seed=1, level=-3.0)}
    run = fit(data, epochs=12)
    windows, expected, _ = recomputed(
        data.parent / "m.keras", values, ["load", "other"], rows=(192, 240), train_rows=168
    )
    assert run.test["windows"] == windows == 48 - HORIZON + 1
    for name, errors in expected.items():
        assert {key: run.test[name][key] for key in errors} == pytest.approx(errors, rel=1e-4), name
    assert run.test["model"]["mae"] < 0.5 * min(run.test[n]["mae"] for n in ("last_value", "seasonal_naive"))
    # Without a season given, hourly rows have one of a day, which a window of 8 rows does not hold.
    assert "seasonal_naive" not in fit(data, "n.keras", season=None).test


def test_evaluate_from_the_file_equals_the_training_and_judges_other_data(data):
    run = fit(data)
    series_model = load_series_model(data.parent / "m.keras")
    again = evaluate_forecaster(series_model.forecaster, [data])
    assert (again["part"], again["windows"]) == ("held-out", run.test["windows"])
    for name in ("model", "last_value", "seasonal_naive", "nlinear"):
        assert again[name] == pytest.approx(run.test[name], rel=1e-5)
    for level, held in run.test["intervals"].items():
        assert again["intervals"][level] == pytest.approx(held, rel=1e-4)
    values = {"load": wave(seed=5), "other": wave(seed=6)}
    other = write(data.parent / "other.csv", date=hours(ROWS), **values)
    table = {"load": wave(), "other": wave(seed=1, level=-3.0)}
    found = evaluate_forecaster(series_model.forecaster, [other])
    # The scaler is still that of the training data: put them in front, and judge what follows.
    joined = {name: np.concatenate([table[name][:168], values[name]]) for name in table}
    windows, expected, _ = recomputed(
        data.parent / "m.keras", joined, ["load", "other"], rows=(168 + WINDOW, 168 + ROWS), train_rows=168
    )
    assert found["windows"] == windows
    assert {key: found["model"][key] for key in expected["model"]} == pytest.approx(
        expected["model"], rel=1e-4
    )


def test_validation_loss_is_the_scaled_error_of_the_validation_part(data):
    run = fit(data, linear=False)
    values = {"load": wave(), "other": wave(seed=1, level=-3.0)}
    _, expected, _ = recomputed(
        data.parent / "m.keras", values, ["load", "other"], rows=(168, 192), train_rows=168
    )
    assert run.training.history[0]["val_loss"] == pytest.approx(expected["model"]["scaled_mse"], rel=1e-4)
    assert run.training.history[0]["val_mae"] == pytest.approx(expected["model"]["scaled_mae"], rel=1e-4)


@pytest.mark.backends
def test_quantiles_are_ordered_and_their_coverage_equals_plain_numpy(data):
    run = fit(data, quantile=(0.1, 0.5, 0.9), epochs=8, feature=["load"])
    _, expected, coverage = recomputed(
        data.parent / "m.keras", {"load": wave()}, ["load"], rows=(192, 240), train_rows=168
    )
    expected = expected["model"]
    assert {key: run.test["model"][key] for key in expected} == pytest.approx(expected, rel=1e-4)
    assert list(run.test["interval_coverage"]) == ["80%"]
    assert list(run.test["coverage"]) == ["q0.1", "q0.5", "q0.9"]
    assert list(run.test["coverage"].values()) == pytest.approx(coverage.tolist(), abs=1e-9)
    assert run.test["coverage"]["q0.1"] < run.test["coverage"]["q0.9"]
    (found,) = forecast(data.parent / "m.keras", [data])
    assert found.quantiles == (0.1, 0.5, 0.9)
    assert (np.diff(found.forecast, axis=-1) > 0).all()


def test_target_that_is_no_feature_is_forecast_in_its_own_units(data):
    run = fit(data, feature=["other"], epochs=3)
    assert run.training.model.input_shape == (None, WINDOW, 1)
    assert load_series_model(data.parent / "m.keras").scaler.columns == ("other", "load")
    (found,) = forecast(data.parent / "m.keras", [data])
    assert found.past[:, 0] == pytest.approx(wave()[-WINDOW:], rel=1e-6)
    assert abs(found.forecast.mean() - 20) < 10  # `other` has a mean of -3


def test_two_targets_keep_their_order(data):
    fit(data, target=["other", "load"], epochs=3)
    (found,) = forecast(data.parent / "m.keras", [data])
    assert found.targets == ("other", "load")
    assert found.forecast.shape == (HORIZON, 2)
    assert found.forecast[:, 0].max() < 8 < found.forecast[:, 1].min()


def test_test_size_holds_out_so_many_rows_and_trains_on_all_others_before_validation(data):
    run = fit(data, test_size=20)
    values = {"load": wave(), "other": wave(seed=1, level=-3.0)}
    windows, expected, _ = recomputed(
        data.parent / "m.keras", values, ["load", "other"], rows=(220, 240), train_rows=196
    )
    assert run.test["windows"] == windows == 20 - HORIZON + 1
    assert run.test["model"]["scaled_mae"] == pytest.approx(expected["model"]["scaled_mae"], rel=1e-4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"test_size": 0}, "test_size must be a whole number at least 1"),
        ({"test_size": 2}, "test_size must be at least horizon=3"),
        ({"test_size": 20, "train_fraction": 0.6}, "test_size=20 and train_fraction=0.6 both say"),
    ],
)
def test_test_size_that_cannot_be_is_refused(data, changes, message):
    with pytest.raises(ConfigError, match=message):
        options(data, **changes)


def test_run_without_a_test_part_has_no_test_and_no_examples(data):
    run = fit(data, train_fraction=0.9, validation_fraction=0.1)
    assert run.test is None
    assert run.examples == ()


def test_several_series_whose_test_parts_are_too_short_still_finish(tmp_path):
    # 40 rows each: test parts of 2 rows, fewer than the horizon, but 8 in all.
    names = np.repeat(["a", "b", "c", "d"], 40)
    path = write(
        tmp_path / "many.csv", date=hours(40) * 4, shop=names, load=np.concatenate([wave(40, seed=s) for s in range(4)])
    )  # fmt: skip
    run = fit(path, series_column="shop", train_fraction=0.7, validation_fraction=0.25)
    assert run.test is None
    assert run.training.status == "finished"


# --- forecast


def test_forecast_continues_hours_across_midnight_and_is_the_models_own(data):
    fit(data)
    series_model = load_series_model(data.parent / "m.keras")
    short = write(
        data.parent / "now.csv", date=hours(23 + 48), load=wave(71), other=wave(71, seed=1, level=-3.0)
    )
    (found,) = forecast(series_model.model, [short], record=TaskRecord("series", series_model.record))
    assert found.times.astype("datetime64[h]").astype(str).tolist() == [
        "2024-02-28T23", "2024-02-29T00", "2024-02-29T01"
    ]  # fmt: skip
    assert found.truth is None
    rows = np.column_stack([wave(71), wave(71, seed=1, level=-3.0)])[-WINDOW:].astype(np.float32)
    scaler = series_model.scaler
    made = series_model.model(((rows - scaler.mean) / scaler.scale).astype(np.float32)[None])
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
    ],
    ids=[
        "plain",
        "two-targets",
        "not-residual",
        "quantiles",
        "quantiles-not-residual",
        "median",
        "no-feature",
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


# --- models of one's own


def own_model(output, *, features=2, window=WINDOW, batch_size=None):
    return keras.Sequential(
        [
            keras.Input((window, features), batch_size),
            keras.layers.LSTM(4),
            keras.layers.Dense(int(np.prod(output))),
            keras.layers.Reshape(output),
        ]
    )


def test_own_model_of_one_target_without_a_last_axis_trains_and_forecasts(data):
    run = fit(data, model=own_model((HORIZON,)))
    values = {"load": wave(), "other": wave(seed=1, level=-3.0)}
    _, expected, _ = recomputed(
        data.parent / "m.keras", values, ["load", "other"], rows=(192, 240), train_rows=168
    )
    expected = expected["model"]
    assert {key: run.test["model"][key] for key in expected} == pytest.approx(expected, rel=1e-4)
    assert run.training.history[0]["val_loss"] < 3
    (found,) = forecast(data.parent / "m.keras", [data])
    assert found.forecast.shape == (HORIZON, 1)
    cellerate.pack(data.parent / "m.keras", data.parent / "m.cell")
    (packed,) = cellerate.load(data.parent / "m.cell").forecast_files([data])
    np.testing.assert_allclose(packed.forecast, found.forecast, atol=1e-5 * np.ptp(found.past), rtol=0)


def test_own_model_of_a_file_trains(data):
    own_model((HORIZON, 1)).save(data.parent / "own.keras")
    assert fit(data, model=data.parent / "own.keras").test["windows"] == 46


@pytest.mark.parametrize(
    "model",
    [
        lambda: own_model((HORIZON + 1,)),
        lambda: own_model((HORIZON, 2)),
        lambda: own_model((HORIZON,), features=3),
        lambda: own_model((HORIZON,), window=WINDOW + 1),
        lambda: own_model((HORIZON,), batch_size=16),
        lambda: build_text_model(5, embedding=2, units=3),
        lambda: keras.Sequential([keras.layers.LSTM(4)]),
    ],
    ids=["horizon", "targets", "features", "window", "batch", "text", "unbuilt"],
)
def test_own_model_that_does_not_fit_raises_before_training(data, model):
    with pytest.raises(ModelError, match=f"{WINDOW}, 2"):
        fit(data, model=model())
    assert not list(data.parent.glob("m.*"))


def test_own_point_model_with_quantiles_raises(data):
    with pytest.raises(ModelError, match=r"\(None, 3, 1, 2\)"):
        fit(data, model=own_model((HORIZON, 1)), quantile=(0.1, 0.9))


def test_model_of_another_task_and_a_damaged_record_raise(tmp_path):
    save_model(build_text_model(5, embedding=2, units=3), tmp_path / "t.keras", TaskRecord("text", {}))
    with pytest.raises(ModelError, match="holds a text model"):
        load_series_model(tmp_path / "t.keras")
    for number, payload in enumerate(({}, {"options": {"windows": 3}, "quantiles": [], "scaler": {}})):
        path = tmp_path / f"bad{number}.keras"
        save_model(own_model((HORIZON,)), path, TaskRecord("series", payload))
        with pytest.raises(ModelError, match=r"bad\d.keras is damaged"):
            load_series_model(path)


# --- data that cannot be used


def with_hole(values):
    holed = list(values)
    holed[100] = ""
    return holed


@pytest.mark.parametrize(
    ("columns", "changes", "error", "message"),
    [
        ({"load": ["x"] * ROWS}, {}, DataError, "holds .x. in data row 1, which is not a number"),
        ({"load": ["x"] * ROWS, "other": wave()}, {}, DataError, "load"),
        ({"load": [*wave()[:-1], "x"], "other": wave()}, {}, DataError, "load"),
        ({"load": [""] * ROWS}, {}, DataError, "load"),
        ({"load": [""] * ROWS}, {"missing": "interpolate"}, DataError, "load"),
        ({"load": ["nan"] * ROWS}, {"missing": "ffill"}, DataError, "load"),
        ({"load": with_hole(wave())}, {}, DataError, "row 102|row 101|missing"),
        ({"load": wave()}, {"target": ["nope"]}, DataError, "'nope'"),
        ({"load": wave()}, {"feature": ["nope"]}, DataError, "'nope'"),
        ({"load": wave()}, {"series_column": "nope"}, DataError, "'nope'"),
        ({"load": wave()}, {"target": []}, ConfigError, "no target"),
        ({"load": wave()}, {"window": 400}, DataError, "400|window"),
        ({"load": wave()}, {"train_fraction": 0.8, "validation_fraction": 0.4}, ConfigError, "0.4"),
    ],
    ids=[
        "words",
        "words-beside-numbers",
        "one-word",
        "empty",
        "empty-interpolate",
        "nan-ffill",
        "hole",
        "target",
        "feature",
        "series",
        "no-target",
        "short",
        "fractions",
    ],
)
def test_unusable_data_raises_and_writes_nothing(tmp_path, columns, changes, error, message):
    path = write(tmp_path / "data.csv", date=hours(ROWS), **columns)
    with pytest.raises(error, match=message):
        fit(path, **changes)
    assert [found.name for found in tmp_path.iterdir()] == ["data.csv"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *itertools.product(["window", "horizon", "stride", "batch_size", "season"], [0, -1, 2.5]),
        ("train_fraction", 0.0),
        ("validation_fraction", 1.0),
        ("validation_fraction", float("nan")),
        ("missing", "guess"),
        ("gaps", "leap"),
        ("storage", "int8"),
        ("loss", "l7"),
    ],
)
def test_options_with_a_wrong_value_raise_naming_it(name, value):
    with pytest.raises(ConfigError, match=name):
        SeriesOptions.of_record({name: value})


def test_output_below_a_file_raises_before_anything_is_read(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="is a file"):
        train_on_series(options(tmp_path / "missing.csv"), RunOptions(output=tmp_path / "file" / "m.keras"))


# --- intervals


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


def test_model_remembers_what_stands_for_missing_values(tmp_path):
    (tmp_path / "s.csv").write_text("y\n" + "1\n-999\nn/e\n4\n" * 9)
    filled = Reading(missing="ffill")
    options = SeriesOptions(paths=[tmp_path / "s.csv"], target=["y"], reading=filled, window=2, horizon=1)
    table = TableOptions(missing_values=["-999,n/e"])
    data = open_series(options.paths, Reading(targets=["y"], missing="ffill"), table=table)
    assert data.values[:4, 0].tolist() == [1, 1, 1, 4]
    run = train_on_series(
        options, RunOptions(output=tmp_path / "m.keras", training=TrainingSettings(epochs=1)), table=table
    )
    assert run.training.status == "finished"
    reading = load_series_model(tmp_path / "m.keras").forecaster.settings.reading
    assert open_series(options.paths, reading).values[:4, 0].tolist() == [1, 1, 1, 4]
    other = open_series(options.paths, reading, table=TableOptions(missing_values=["4", "n/e"]))
    assert other.values[:4, 0].tolist() == [1, -999, -999, -999]
    packed = pack_series(options.paths, tmp_path / "s.series", Reading(missing="ffill"), table=table)
    data = open_series([tmp_path / "s.series"], Reading(targets=["y"]))
    assert packed.settings["missing_values"] == ["-999", "n/e"] == _missing_values(data, None)
    assert _missing_values(data, TableOptions(missing_values=["x"])) == ["x"]


def test_training_under_a_time_limit_judges_a_sample_of_every_part_and_says_of_how_many(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(time_limits, "_LEAST_S", 0.0)
    path = write(tmp_path / "long.csv", date=hours(3000), load=wave(3000))
    seen = []
    monkeypatch.setattr(
        intervals,
        "thinned",
        lambda origins, *most: seen.append((len(origins), *most)) or thinned(origins, *most),
    )
    run = train_on_series(
        options(path),
        RunOptions(output=tmp_path / "m.keras", training=TrainingSettings(max_seconds=1e-9)),
        architecture=ForecastArchitecture(units=8, dropout=0.0),
    )
    assert run.training.judged == (4 * 16, 19 * 16)
    every = 600 - HORIZON + 1
    assert run.test["sampled_from"] == every
    assert run.test["windows"] == 256
    assert (every, 256) in seen
    assert run.test["intervals"]
    # Calibrated on as many windows as each epoch was judged on.
    calibration = load_series_model(tmp_path / "m.keras").calibration
    assert calibration.windows == 64 - HORIZON + 1
    # Only training has a limit: what is judged later is judged whole.
    again = evaluate_forecaster(load_series_model(tmp_path / "m.keras").forecaster, [path])
    assert again["windows"] == every
    assert "sampled_from" not in again


def test_training_that_goes_astray_says_why_the_model_is_no_better_than_the_baselines(data, monkeypatch):
    monkeypatch.setattr(divergence, "_FAR", np.inf)
    settings = TrainingSettings(epochs=1, learning_rate=50.0, optimizer="sgd", clipnorm=1.0)
    architecture = ForecastArchitecture(units=8, dropout=0.0, linear=False)
    run = train_on_series(
        options(data),
        RunOptions(output=data.parent / "m.keras", training=settings),
        architecture=architecture,
    )
    said = run.test["verdict"]["sentence"]
    assert said.startswith("Not better than the baselines")
    assert "Training made it worse: the loss rose from" in said
    assert "Try learning_rate=0.01." in said
    monkeypatch.setattr(divergence, "_FAR", 10.0)
    with pytest.raises(TrainingError, match="training diverged: the loss of epoch 1 is"):
        train_on_series(
            options(data),
            RunOptions(output=data.parent / "n.keras", training=settings),
            architecture=architecture,
        )
