"""The coverage of intervals of forecasters that are plain NumPy; real models, on real data, in the slow tests."""

import numpy as np
import pytest

from cellerate.data.series.series import SeriesData, SeriesPart
from cellerate.data.settings import Reading
from cellerate.data.windows.scaler import Scaler
from cellerate.runtime.forecast.calibrating import Intervals, origins_of, score_origins
from cellerate.runtime.forecast.forecasting import ForecastSettings
from cellerate.runtime.forecast.intervals import conformal_quantile, interval, interval_coverage
from cellerate.tasks.judging.errors import SeriesForecaster
from cellerate.tasks.judging.intervals import calibrate, judge_intervals
from cellerate.tasks.settings import SeriesOptions
from support.data.retail import retail_counts, write_retail

START = np.datetime64("2024-01-01", "us")


def series(parts, step="h"):
    """Several series of one column y, one after another."""
    values = np.concatenate(parts).astype(np.float32)[:, None]
    ends = np.cumsum([len(part) for part in parts])
    names = [""] if len(parts) == 1 else [f"s{number}" for number in range(len(parts))]
    firsts = [0, *ends[:-1].tolist()]
    segments = tuple(zip(firsts, ends.tolist(), names, strict=True))
    spacing = np.timedelta64(1, step)
    times = np.concatenate([START + spacing * np.arange(len(part)) for part in parts])
    return SeriesData(values, ("y",), (0,), (0,), times, segments, spacing, "f")


def part(data, begin, stop):
    return SeriesPart(data, "some", ((0, begin, stop),))


def forecaster(window=8, horizon=4, quantiles=(), width=1.0):
    """Repeats the mean of the window; its quantiles are that many times its deviation around it."""

    def predict(scaled):
        middle = np.repeat(scaled.mean(axis=1, keepdims=True), horizon, axis=1)
        if not quantiles:
            return middle
        spread = scaled.std(axis=1, keepdims=True)
        return np.stack([middle + side * width * spread for side in (-1, 0, 1)], axis=-1)

    reading = Reading(targets=["y"], features=["y"])
    settings = ForecastSettings(reading, window, horizon, quantiles, Scaler(["y"], [0.0], [1.0]))
    return SeriesForecaster(predict, settings, SeriesOptions(target=["y"], window=window, horizon=horizon))


def judged(model, data):
    split = data.split()
    made, found = calibrate(model, split)
    return judge_intervals(model, split.test, made, found), made


@pytest.mark.parametrize(("quantiles", "width"), [((), 0), ((0.1, 0.5, 0.9), 0.5), ((0.1, 0.5, 0.9), 3.0)])
def test_intervals_of_steady_noise_cover_what_they_promise(quantiles, width):
    data = series([np.random.default_rng(1).normal(size=9000)])
    report, _ = judged(forecaster(quantiles=quantiles, width=width), data)
    assert report["0.8"]["coverage"] == pytest.approx(0.8, abs=0.02)
    assert report["0.95"]["coverage"] == pytest.approx(0.95, abs=0.01)
    # Quantiles that were too narrow or too wide are put right: normal noise is 2.56 and 3.92 deviations wide.
    if width < 3:
        assert report["0.8"]["width"] == pytest.approx(2.72, rel=0.05)
        assert report["0.95"]["width"] == pytest.approx(4.16, rel=0.06)


def test_intervals_of_a_series_that_has_grown_wilder_since_validation_still_cover():
    random = np.random.default_rng(2)
    data = series([random.normal(size=11_000) * np.where(np.arange(11_000) < 8000, 1.0, 3.0)])
    model = forecaster()
    split = data.split(0.6, 0.1)
    made, _ = calibrate(model, split)
    _, earlier = calibrate(model, type(split)(split.train, part(data, 8000, 9000), split.test))
    report = judge_intervals(model, part(data, 9000, 11_000), made, earlier)
    assert report["0.8"]["coverage"] == pytest.approx(0.8, abs=0.03)
    assert report["0.95"]["coverage"] == pytest.approx(0.95, abs=0.02)
    # What the validation part says alone does not.
    origins = np.arange(9000, 10_990)
    both = interval(model.forecast_at(data, origins), (), made.reach_at(0.8), np.array([False]))
    truth = data.values[origins[:, None] + np.arange(4)].astype(float)
    assert interval_coverage(truth, {0.8: both})["0.8"]["coverage"] < 0.5


def test_intervals_of_large_and_small_series_cover_each_of_them():
    counts = retail_counts(60, 400)
    data = series(list(counts.astype(float)), "D")
    model = forecaster(window=56, horizon=7)
    report, made = judged(model, data)
    assert report["0.8"]["coverage"] == pytest.approx(0.8, abs=0.03)
    assert report["0.95"]["coverage"] == pytest.approx(0.95, abs=0.02)
    assert made.floor is not None
    assert made.non_negative.tolist() == [True]
    # The quarter of the series that sells most: one reach for all, in sales, would hold a third of it.
    split, levels = data.split(), counts.mean(axis=1)
    large = [
        bound for bound, one in zip(split.test.bounds, levels > np.quantile(levels, 0.75), strict=True) if one
    ]
    found = score_origins(
        lambda some: model.forecast_at(data, some), data, model.settings, origins_of(split.validation, 56, 7)
    )
    test = score_origins(
        lambda some: model.forecast_at(data, some),
        data,
        model.settings,
        origins_of(SeriesPart(data, "test", tuple(large)), 56, 7),
    )
    one_reach = (test.scores <= conformal_quantile(found.scores, 0.8)).mean()
    scaled = judge_intervals(model, SeriesPart(data, "test", tuple(large)), made)["0.8"]["coverage"]
    assert one_reach < 0.4
    assert scaled > 0.65


def test_intervals_of_a_forecast_are_those_that_the_test_part_was_judged_by():
    random = np.random.default_rng(3)
    data = series([random.normal(size=6000) * np.where(np.arange(6000) < 5000, 1.0, 2.0)])
    model = forecaster()
    split = data.split()
    made, _ = calibrate(model, split)
    settings = ForecastSettings(**(vars(model.settings) | {"calibration": made}))
    # The last origin of the test part, as it was: with the rows before it alone.
    origin = 6000 - model.settings.horizon
    past = SeriesData(
        data.values[:origin], ("y",), (0,), (0,), data.times[:origin], ((0, origin, ""),), data.step, "g"
    )
    known = Intervals.of(past, settings, lambda some: model.forecast_at(past, some), [0.8])
    _, before = calibrate(model, type(split)(split.train, part(data, 4200, origin), split.test))
    report = judge_intervals(model, part(data, origin, 6000), made, before, [0.8])
    assert known.newest == 720
    assert report["0.8"]["width"] == pytest.approx(2 * known.reach[0.8].mean(), rel=0.01)


def test_calibration_needs_a_validation_part_with_a_window():
    data = series([np.arange(40.0)])
    model = forecaster()
    assert calibrate(model, data.split(0.8, 0.0)) is None
    assert calibrate(model, data.split(0.8, 0.05)) is None
    made, found = calibrate(model, data.split(0.6, 0.2))
    assert made.windows == len(found.origins) == 5
    assert judge_intervals(model, data.split(1.0, 0.0).test, made) == {}


def test_training_rows_below_0_or_their_absence_is_noticed():
    values = np.random.default_rng(0).uniform(1, 2, 400)
    assert calibrate(forecaster(), series([values]).split())[0].non_negative.tolist() == [True]
    values[5] = -0.5
    assert calibrate(forecaster(), series([values]).split())[0].non_negative.tolist() == [False]


# --- with trained models


def covers(report):
    return abs(report["0.8"]["coverage"] - 0.8) <= 0.03 and abs(report["0.95"]["coverage"] - 0.95) <= 0.02


def trained(tmp_path, data, quantile=(), **options):
    from cellerate.tasks.series.train import train_on_series
    from cellerate.tasks.settings import ForecastArchitecture
    from cellerate.training.run import RunOptions
    from cellerate.training.settings import TrainingSettings

    return train_on_series(
        SeriesOptions.of_record({"paths": [data], **options}),
        RunOptions(output=tmp_path / "m.keras", training=TrainingSettings(epochs=3)),
        architecture=ForecastArchitecture(units=32, quantile=quantile),
    ).test["intervals"]


@pytest.mark.keras
@pytest.mark.slow
@pytest.mark.parametrize(
    ("targets", "quantile"),
    [
        (["OT"], ()),
        (["OT"], (0.1, 0.5, 0.9)),
        (["OT", "HUFL", "HULL", "MUFL", "MULL", "LUFL", "LULL"], ()),
    ],
    ids=["OT", "OT-quantiles", "all"],
)
def test_intervals_of_trained_models_cover_the_test_part_of_ett(targets, quantile, tmp_path, shared_data):
    report = trained(tmp_path, shared_data / "ETTh1.csv", quantile, target=targets, window=96, horizon=24)
    assert covers(report), report


@pytest.mark.keras
@pytest.mark.slow
@pytest.mark.parametrize("quantile", [(), (0.1, 0.5, 0.9)], ids=["point", "quantiles"])
def test_intervals_of_trained_models_cover_the_test_part_of_500_series(quantile, tmp_path):
    table = write_retail(tmp_path / "retail.csv", one_key=True)
    report = trained(
        tmp_path,
        table,
        quantile,
        target=["units"],
        series_column="id",
        window=56,
        horizon=14,
        stride=3,
        batch_size=256,
    )
    assert covers(report), report
