import csv

import numpy as np
import pytest

import cellerate
from cellerate.errors import ConfigError, DataError
from cellerate.runtime.forecast.intervals import Calibration
from cellerate.tasks.backtest.run import backtest
from cellerate.tasks.opening import forecaster_of
from support import packed_forecaster
from support.packed_forecaster import HORIZON, WINDOW

SETTINGS = {"series_column": ["region"], "season": 4, "train_fraction": 0.5, "validation_fraction": 0.1}


@pytest.fixture
def path(tmp_path):
    packed_forecaster.write_series(tmp_path / "s.csv")
    return tmp_path / "s.csv"


def model(quantiles=(), **settings):
    return packed_forecaster.packed(quantiles=quantiles, **(SETTINGS | settings))


def test_folds_end_with_the_data_and_each_forecasts_from_the_rows_before_it_alone(path):
    packed = model()
    found = backtest(packed, path, folds=4, step=2)
    assert (found.horizon, found.step, found.left_out) == (HORIZON, 2, ())
    assert [fold.number for fold in found.folds] == [1, 2, 3, 4]
    data = forecaster_of(packed).open([path])
    for fold in found.folds:
        assert [example.series for example in fold.examples] == ["n", "s"]
        for example, end in zip(fold.examples, (30, 60), strict=True):
            origin = end - HORIZON - 2 * (4 - fold.number)
            np.testing.assert_array_equal(example.times, data.times[origin : origin + HORIZON])
            np.testing.assert_array_equal(example.past_times, data.times[origin - WINDOW : origin])
            np.testing.assert_array_equal(example.truth, data.values[origin : origin + HORIZON][:, [2, 0]])
            expected = packed.forecast(data.values[origin - WINDOW : origin, :2])
            np.testing.assert_allclose(example.forecast, expected, rtol=1e-5, atol=1e-5)
    assert found.folds[-1].origin_time == np.datetime64("2024-02-29T03:00")


def test_figures_of_folds_and_of_all_together_are_those_of_the_examples(path):
    found = backtest(model(), path, folds=3)
    every = [example for fold in found.folds for example in fold.examples]
    error = np.abs([example.forecast - example.truth for example in every])
    assert found.figures["windows"] == 6
    assert found.figures["by_target"]["price"]["model"]["mae"] == pytest.approx(error[..., 0].mean())
    assert found.folds[1].figures["by_target"]["load"]["model"]["mae"] == pytest.approx(
        error[2:4, :, 1].mean()
    )
    naive = np.abs([example.past[-1:] - example.truth for example in every])
    assert found.figures["by_target"]["load"]["last_value"]["mae"] == pytest.approx(naive[..., 1].mean())
    # MASE: by the mean change over a season in the rows before the first fold, 21 of each series.
    values = np.asarray(forecaster_of(model()).open([path]).values, float)[:, 2]
    scales = [np.abs(values[f + 4 : f + 21] - values[f : f + 17]).mean() for f in (0, 30)]
    expected = np.mean(error[..., 0].mean(axis=1) / np.tile(scales, 3))
    assert found.figures["by_target"]["price"]["model"]["mase"] == pytest.approx(expected, rel=1e-5)
    assert {"nlinear", "seasonal_naive"} <= set(found.figures)
    assert {row["series"] for row in found.figures["by_series"]} == {"n", "s"}
    assert found.figures["verdict"]["sentence"]


def test_rows_behind_a_fold_change_nothing_that_is_forecast_from_it(path):
    before = backtest(model(), path, folds=2)
    rows = path.read_text().splitlines()
    # The last rows of each series, which only the last fold's truth is.
    changed = [
        line.rsplit(",", 3)[0] + ",1,1,1" if number - 1 in (28, 29, 58, 59) else line
        for number, line in enumerate(rows)
    ]
    path.write_text("\n".join(changed) + "\n")
    after = backtest(model(), path, folds=2)
    for one, other in zip(before.folds, after.folds, strict=True):
        for example, changed_example in zip(one.examples, other.examples, strict=True):
            np.testing.assert_array_equal(example.forecast, changed_example.forecast)
    first = [one.folds[0].figures["nlinear"] for one in (before, after)]
    assert first[0]["scaled_mae"] == pytest.approx(first[1]["scaled_mae"], rel=1e-12)
    assert before.folds[1].figures["model"] != after.folds[1].figures["model"]


def test_without_baselines_the_linear_one_is_left_out_and_said_so(path):
    found = backtest(model(), path, folds=2, baselines=False)
    assert "nlinear" not in found.figures
    assert found.figures["left_out"] == {"nlinear": "it was not asked for"}


def test_quantiles_have_their_coverage(path):
    found = backtest(model((0.1, 0.5, 0.9)), path, folds=3)
    assert set(found.figures["interval_coverage"]) == {"80%"}
    assert found.folds[0].examples[0].forecast.shape == (HORIZON, 2, 3)


def test_record_and_table_hold_every_fold_series_and_time(path):
    found = backtest(model(), path, folds=2)
    record = found.record()
    assert [fold["origin"] for fold in record["folds"]] == ["2024-02-29T00:00", "2024-02-29T03:00"]
    names, rows = found.table()
    assert names == ["fold", "origin", "series", "time", "price", "load", "price_true", "load_true"]
    assert list(found.columns()) == names
    assert len(rows) == 2 * 2 * HORIZON
    with path.open() as file:
        given = list(csv.DictReader(file))
    assert rows[-1][:4] == [2, "2024-02-29T03:00", "s", "2024-02-29T05:00"]
    assert rows[-1][6:] == pytest.approx([float(given[-1]["price"]), float(given[-1]["load"])], rel=1e-6)


def test_series_too_short_for_the_first_folds_take_part_in_the_others(path):
    lines = path.read_text().splitlines()
    # 30 rows of n, and 12 of s, which has room for two folds.
    path.write_text("\n".join(lines[:43]) + "\n")
    found = backtest(model(), path, folds=4)
    assert [len(fold.examples) for fold in found.folds] == [1, 1, 2, 2]
    path.write_text("\n".join(lines[: 31 + WINDOW]) + "\n")
    assert backtest(model(), path, folds=4).left_out == ("s",)


def test_too_many_folds_are_refused_with_the_most_there_can_be(path):
    with pytest.raises(
        DataError, match=r"30 rows .* 9 folds of horizon 3 every 3 rows need 33 .* folds=8 is the most"
    ):
        backtest(model(), path, folds=9)
    # A list of as many folds would not end.
    with pytest.raises(DataError, match="folds=8 is the most"):
        backtest(model(), path, folds=10**15)
    assert len(backtest(model(), path, folds=8).folds) == 8


def test_packed_model_cannot_be_trained_anew(path):
    with pytest.raises(ConfigError, match=r"refit=True .* give the \.keras file"):
        backtest(model(), path, refit=True)


@pytest.mark.parametrize("wrong", [{"folds": 0}, {"step": 0}, {"epochs": 0}, {"max_seconds": 0}])
def test_arguments_out_of_range_are_named(path, wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        backtest(model(), path, **wrong)


@pytest.mark.parametrize("name", ["epochs", "max_seconds"])
def test_limits_of_a_training_without_one_are_refused(path, name):
    with pytest.raises(ConfigError, match=rf"{name} is for .*: add refit=True"):
        backtest(model(), path, **{name: 3})


def test_folds_in_rows_of_the_training_are_told(path):
    packed = model()
    assert "not known" in backtest(packed, path, folds=2).told
    header = dict(packed.cell.header)
    fingerprint = forecaster_of(packed).open([path]).fingerprint
    header["payload"] = header["payload"] | {"data": {"fingerprint": fingerprint}}
    object.__setattr__(packed.cell, "header", header)
    assert "held out" in backtest(packed, path, folds=4).told
    # The test part begins at row 18 of 30; the first two of six folds begin at rows 12 and 15.
    assert backtest(packed, path, folds=6).told.startswith("2 of 6 folds lie, wholly or partly, in rows that")


def test_backtest_is_public():
    assert cellerate.backtest is backtest


def kept(model, until=None):
    """Calibrates a model by hand: the level p reaches 100 p."""
    scores = np.linspace(0.1, 100, 1000)[:, None, None] * np.ones((1, HORIZON, 2))
    made = Calibration.of(scores, scores[:, 0], floor=None, non_negative=np.zeros(2, bool), until=until)
    model.cell.header["payload"]["calibration"] = made.to_config()
    return made


def test_intervals_are_those_the_model_keeps_where_newer_rows_are_too_few(path):
    packed = model()
    made = kept(packed)
    found = backtest(packed, path, folds=2, levels=[0.5])
    examples = [example for fold in found.folds for example in fold.examples]
    for example in examples:
        reach = made.reach_at(0.5)
        np.testing.assert_allclose(example.intervals[0.5][..., 1] - example.forecast, reach, rtol=1e-5)
        np.testing.assert_allclose(example.forecast - example.intervals[0.5][..., 0], reach, rtol=1e-5)
    inside = np.mean([np.abs(one.forecast - one.truth) <= made.reach_at(0.5) for one in examples])
    assert found.figures["intervals"]["0.5"]["coverage"] == pytest.approx(inside)
    assert found.folds[0].figures["intervals"].keys() == {"0.5"}
    assert {"price_low50", "price_high50", "load_low50"} <= set(found.columns())
    assert set(backtest(packed, path, folds=2).figures["intervals"]) == {"0.8", "0.95"}
    assert "intervals" not in backtest(packed, path, folds=2, levels=()).figures
    with pytest.raises(ConfigError, match="the model was not calibrated"):
        backtest(model(), path, folds=2, levels=[0.5])


def test_intervals_are_calibrated_on_rows_before_the_first_fold_alone():
    rows = np.random.default_rng(1).normal(size=(1000, 3))
    times = np.datetime64("2024-01-01", "us") + np.arange(1000) * np.timedelta64(1, "h")

    def intervals(values):
        table = {"date": times, "load": values[:, 0], "wind": values[:, 1], "price": values[:, 2]}
        packed = model(series_column=[])
        # Trained on nothing that is here.
        made = kept(packed, until=0)
        found = backtest(packed, table, folds=2, levels=[0.8])
        return made, [fold.examples[0].intervals[0.8] for fold in found.folds]

    made, before = intervals(rows)
    later = rows.copy()
    later[1000 - 2 * HORIZON :] *= 50
    np.testing.assert_array_equal(intervals(later)[1][0], before[0])
    # Rows that are far wilder before it make them wider.
    wild = rows.copy()
    wild[: 1000 - 2 * HORIZON - WINDOW] *= 1000
    width = [np.diff(one[0], axis=-1).mean() for one in (before, intervals(wild)[1])]
    assert width[1] > 2 * width[0]
    assert width[0] != pytest.approx(2 * made.reach_at(0.8).mean(), rel=0.01)


def test_backtest_and_detect_take_frames_and_options_as_forecast_does(path, tmp_path):
    pa = pytest.importorskip("pyarrow")
    from pyarrow import csv as arrow_csv

    packed = model()
    kept(packed)
    frame = arrow_csv.read_csv(path)
    of_file, of_frame = backtest(packed, path, folds=2), backtest(packed, frame, folds=2)
    assert of_frame.figures == of_file.figures
    np.testing.assert_array_equal(cellerate.detect(packed, frame).score, cellerate.detect(packed, path).score)
    # The same with commas in numbers, and a row twice.
    lines = [line.replace(",", ";").replace(".", ",") for line in path.read_text().splitlines()]
    (tmp_path / "de.csv").write_text("\n".join([*lines[:3], lines[2], *lines[3:]]) + "\n")
    said = []
    options = {"separator": ";", "decimal": ",", "duplicates": "first", "notify": said.append}
    other = backtest(packed, tmp_path / "de.csv", folds=2, **options)
    assert other.figures["model"] == pytest.approx(of_file.figures["model"])
    assert cellerate.detect(packed, tmp_path / "de.csv", **options).score.shape == (96,)
    assert said
    with pytest.raises(ConfigError, match="'missin' is not an argument of backtest; did you mean 'missing'"):
        backtest(packed, path, missin="drop")
    assert isinstance(frame, pa.Table)
