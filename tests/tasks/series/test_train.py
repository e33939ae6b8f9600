"""Training a forecaster: its figures, parts, refusals and limits."""

import itertools

import numpy as np
import pytest

from cellerate.data.series.packing import pack_series
from cellerate.data.series.series import open_series
from cellerate.data.settings import Reading
from cellerate.data.settings.tables import TableOptions
from cellerate.errors import ConfigError, DataError, OutputError, TrainingError
from cellerate.runtime.forecast.calibrating import thinned
from cellerate.tasks.inference import forecast
from cellerate.tasks.judging import intervals
from cellerate.tasks.judging.evaluation import evaluate_forecaster
from cellerate.tasks.opening import forecaster_of, open_model
from cellerate.tasks.packing import pack
from cellerate.tasks.series import train as train_module
from cellerate.tasks.series.train import _missing_values, train_on_series
from cellerate.tasks.settings import ForecastArchitecture, SeriesOptions
from cellerate.training import divergence, time_limits
from cellerate.training.run import RunOptions
from cellerate.training.settings import TrainingSettings
from support.runs.wave_runs import HORIZON, ROWS, WINDOW, fit, hours, options, recomputed, wave, write

pytestmark = pytest.mark.keras


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
    known = forecaster_of(open_model(data.parent / "m.keras"))
    again = evaluate_forecaster(known, [data])
    assert (again["part"], again["windows"]) == ("held-out", run.test["windows"])
    for name in ("model", "last_value", "seasonal_naive", "nlinear"):
        assert again[name] == pytest.approx(run.test[name], rel=1e-5)
    for level, held in run.test["intervals"].items():
        assert again["intervals"][level] == pytest.approx(held, rel=1e-4)
    values = {"load": wave(seed=5), "other": wave(seed=6)}
    other = write(data.parent / "other.csv", date=hours(ROWS), **values)
    table = {"load": wave(), "other": wave(seed=1, level=-3.0)}
    found = evaluate_forecaster(known, [other])
    # The scaler is still that of the training data: put them in front, and judge what follows.
    joined = {name: np.concatenate([table[name][:168], values[name]]) for name in table}
    windows, expected, _ = recomputed(
        data.parent / "m.keras", joined, ["load", "other"], rows=(168 + WINDOW, 168 + ROWS), train_rows=168
    )
    assert found["windows"] == windows
    assert {key: found["model"][key] for key in expected["model"]} == pytest.approx(
        expected["model"], rel=1e-4
    )


@pytest.mark.parametrize("patience", [None, 1])
def test_run_that_was_stopped_while_it_was_judged_is_ended_by_a_resume(data, monkeypatch, patience):
    # A rate of which the second epoch gets no better, so that `patience` ends the run.
    rate = 0.01 if patience is None else 1e-12
    settings = TrainingSettings(epochs=3, patience=patience, learning_rate=rate)

    def trained(name, *, resume=False):
        return train_on_series(
            options(data),
            RunOptions(output=data.parent / name, training=settings, resume=resume),
            architecture=ForecastArchitecture(units=8, dropout=0.0),
        )

    whole = trained("whole.keras")
    assert whole.training.status == ("finished" if patience is None else "stopped early")
    with monkeypatch.context() as stopped:
        stopped.setattr(train_module, "calibrate", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            trained("cut.keras")
    with pytest.raises(ConfigError, match="holds a run that has not ended"):
        trained("cut.keras")
    again = trained("cut.keras", resume=True)
    assert again.training.status == whole.training.status
    assert (again.test, len(again.training.history)) == (whole.test, len(whole.training.history))
    for one, other in zip(again.training.model.weights, whole.training.model.weights, strict=True):
        np.testing.assert_array_equal(one, other)
    if patience is None:
        with pytest.raises(ConfigError, match="already trained 3 epochs"):
            trained("cut.keras", resume=True)


@pytest.mark.parametrize("cell", ["gru", "simple_rnn"])
def test_forecaster_of_another_cell_forecasts_the_same_from_its_packed_file(data, cell):
    trained, file = data.parent / "m.keras", data.parent / "m.cell"
    fit(data, cell=cell)
    assert cell in str(open_model(trained)[0].get_config())
    pack(trained, file)
    (expected,), (found,) = forecast(trained, data), forecast(file, data)
    np.testing.assert_allclose(found.forecast, expected.forecast, rtol=1e-4)


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
    assert forecaster_of(open_model(data.parent / "m.keras")).settings.scaler.columns == ("other", "load")
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


def test_training_part_shorter_than_a_window_is_refused_with_its_rows_and_those_of_the_series(tmp_path):
    path = write(tmp_path / "s.csv", date=hours(15), load=wave(15))
    with pytest.raises(DataError, match="10 of the 15 rows are trained on, but a window of 30"):
        fit(path, window=30, horizon=4)


def test_several_series_whose_test_parts_are_too_short_still_finish(tmp_path):
    # 40 rows each: test parts of 2 rows, fewer than the horizon, but 8 in all.
    names = np.repeat(["a", "b", "c", "d"], 40)
    path = write(
        tmp_path / "many.csv", date=hours(40) * 4, shop=names, load=np.concatenate([wave(40, seed=s) for s in range(4)])
    )  # fmt: skip
    run = fit(path, series_column="shop", train_fraction=0.7, validation_fraction=0.25)
    assert run.test is None
    assert run.training.status == "finished"


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
    reading = forecaster_of(open_model(tmp_path / "m.keras")).settings.reading
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
    known = forecaster_of(open_model(tmp_path / "m.keras"))
    calibration = known.settings.calibration
    assert calibration.windows == 64 - HORIZON + 1
    # Only training has a limit: what is judged later is judged whole.
    again = evaluate_forecaster(known, [path])
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
