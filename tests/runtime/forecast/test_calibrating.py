import dataclasses
import tracemalloc

import numpy as np
import pytest

from cellerate.data.series.series import SeriesData
from cellerate.data.settings import Reading
from cellerate.data.times.frequency import parse_frequency
from cellerate.data.windows.covariates import Covariates
from cellerate.data.windows.scaler import Scaler
from cellerate.errors import ConfigError
from cellerate.runtime.forecast import calibrating
from cellerate.runtime.forecast.calibrating import (
    Intervals,
    forecast_with_intervals,
    newest_origins,
    row_forecasts,
    score_origins,
    score_rows,
    windows_of,
)
from cellerate.runtime.forecast.forecasting import ForecastSettings
from cellerate.runtime.forecast.intervals import Calibration, conformal_quantile
from cellerate.tasks.backtest.folds import rows_around

WINDOW, HORIZON = 4, 2
START = np.datetime64("2024-01-01T00:00", "us")
HOUR = np.timedelta64(1, "h")


def series(values, segments=None, *, times=True):
    values = np.asarray(values, np.float32).reshape(-1, 1)
    segments = segments or ((0, len(values), ""),)
    when = np.concatenate([START + HOUR * np.arange(stop - first) for first, stop, _ in segments])
    clock = {"step": HOUR, "frequency": parse_frequency("hour")} if times else {"step": None}
    return SeriesData(values, ("y",), (0,), (0,), when if times else None, segments, fingerprint="f", **clock)


def settings(calibration=None, horizon=HORIZON):
    reading = Reading(targets=["y"], features=["y"])
    return ForecastSettings(
        reading, WINDOW, horizon, (), Scaler(["y"], [0.0], [1.0]), calibration=calibration
    )


def last_value(horizon=HORIZON):
    return lambda scaled: np.repeat(scaled[:, -1:, :], horizon, axis=1)


def kept(reach=1.0, windows=200, until=100, floor=None, horizon=HORIZON):
    scores = np.full((windows, horizon, 1), reach)
    moment = START + HOUR * until
    return Calibration.of(
        scores,
        scores[:, 0],
        floor=floor,
        non_negative=np.array([False]),
        until=int(moment.astype(np.int64)),
    )


def test_windows_of_one_target_among_many_columns_copy_that_target_alone():
    rows, columns = 400, 500
    data = SeriesData(
        np.arange(rows * columns, dtype=np.float32).reshape(rows, columns),
        tuple(map(str, range(columns))),
        tuple(range(columns)),
        (3,),
        None,
        ((0, rows, ""),),
        None,
        "f",
    )
    origins = np.arange(50, rows)
    for read in (lambda: windows_of(data, origins, 50), lambda: rows_around(data, origins, -50, 0)):
        tracemalloc.start()
        found = read()
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert found.shape == (350, 50, 1)
        np.testing.assert_array_equal(found[7, :, 0], data.values[7:57, 3])
        # All columns would be 35 MB.
        assert peak < 2_000_000


def at(data, given, predict=None):
    return lambda origins: calibrating.forecast_at(predict or last_value(given.horizon), data, given, origins)


def test_intervals_follow_the_newest_rows_where_a_series_has_become_wilder():
    random = np.random.default_rng(0)
    steps = random.normal(size=1500) * np.where(np.arange(1500) < 700, 1.0, 4.0)
    data = series(steps.cumsum())
    given = settings(kept(reach=1.3, until=99))
    made = Intervals.of(data, given, at(data, given), [0.8])
    assert made.newest == 720
    newest = np.arange(1500 - HORIZON + 1 - 720, 1500 - HORIZON + 1)
    errors = np.abs(
        data.values[newest[:, None] + np.arange(HORIZON), 0].astype(float)
        - data.values[newest - 1].astype(float)
    )
    np.testing.assert_allclose(made.reach[0.8][:, 0], conformal_quantile(errors, 0.8), rtol=1e-6)
    (example,) = forecast_with_intervals(last_value(), data, given, levels=[0.8])
    low, high = example.intervals[0.8][..., 0], example.intervals[0.8][..., 1]
    np.testing.assert_allclose((low + high) / 2, example.forecast)
    np.testing.assert_allclose((high - low) / 2, made.reach[0.8], rtol=1e-6)


def test_rows_that_the_model_was_trained_on_and_too_few_newer_ones_are_not_calibrated_on():
    data = series(np.arange(400.0))
    given = settings(kept(until=99))
    assert newest_origins(data, given).tolist() == list(range(100, 399))
    few = settings(kept(until=250))
    assert newest_origins(data, few).tolist() == list(range(251, 399))
    made = Intervals.of(data, few, at(data, few), [0.8, 0.95])
    assert made.newest == 0
    assert made.reach[0.95].tolist() == [[1.0], [1.0]]
    for other in (
        series(np.arange(400.0), times=False),
        dataclasses.replace(data, times=np.arange(400.0)),
    ):
        assert not len(newest_origins(other, given))


def test_newest_origins_of_several_series_never_cross_a_border_and_are_thinned(monkeypatch):
    segments = ((0, 300, "a"), (300, 305, "b"), (305, 800, "c"), (800, 900, "c"))
    data = series(np.zeros(900), segments)
    given = settings(kept(until=99))
    found = newest_origins(data, given)
    for origin in found:
        first, stop = next((f, s) for f, s, _ in segments if f <= origin < s)
        assert first + WINDOW <= origin <= stop - HORIZON
    assert found[0] == 100
    assert (np.diff(found) > 0).all()
    monkeypatch.setattr(calibrating, "MOST_WINDOWS", 50)
    assert len(calibrating.thinned(found, 50)) == 50
    # At most 720 origins of each series.
    assert len(newest_origins(series(np.zeros(2000)), given)) == 720


def test_without_calibration_a_model_gives_none_by_itself_and_refuses_a_level():
    data, given = series(np.arange(50.0)), settings()
    (example,) = forecast_with_intervals(last_value(), data, given)
    assert example.intervals == {}
    with pytest.raises(ConfigError, match="levels were given, but the model was not calibrated"):
        forecast_with_intervals(last_value(), data, given, levels=[0.9])
    with pytest.raises(ConfigError, match="level must be between 0 and 1"):
        forecast_with_intervals(last_value(), data, given, levels=[90])


def test_levels_are_those_asked_for_or_those_that_the_calibration_allows():
    data = series(np.arange(50.0))
    for windows, levels, expected in (
        (200, None, [0.8, 0.95]),
        (10, None, [0.8]),
        (3, None, []),
        (200, [0.5], [0.5]),
        (200, (), []),
    ):
        given = settings(kept(windows=windows))
        (example,) = forecast_with_intervals(last_value(), data, given, levels=levels)
        assert list(example.intervals) == expected
    with pytest.raises(ConfigError, match=r"enough for levels up to 0\.9"):
        forecast_with_intervals(last_value(), data, settings(kept(windows=10)), levels=[0.95])


def test_interval_of_a_series_is_in_scales_of_its_own_window():
    values = np.concatenate([np.tile([0.0, 2.0], 25), np.tile([0.0, 200.0], 25)])
    data = series(values, ((0, 50, "small"), (50, 100, "large")))
    given = settings(kept(reach=3.0, floor=np.array([0.5])))
    small, large = forecast_with_intervals(last_value(), data, given, levels=[0.8])
    for example, spread in ((small, 1.0), (large, 100.0)):
        low, high = np.moveaxis(example.intervals[0.8], -1, 0)
        np.testing.assert_allclose(high - low, 2 * 3.0 * (spread + 0.5), rtol=1e-6)


def test_interval_ends_at_0_only_if_neither_training_nor_the_window_was_below():
    given = settings(dataclasses.replace(kept(reach=5.0), non_negative=np.array([True])))
    for values, low in (([3.0, 2.0, 1.0, 2.0], 0.0), ([3.0, -2.0, 1.0, 2.0], -3.0)):
        (example,) = forecast_with_intervals(last_value(), series(values), given, levels=[0.8])
        np.testing.assert_allclose(example.intervals[0.8][..., 0], low, atol=1e-9)


def brute_force(values, segments, predict):
    expected = {}
    for first, stop, _ in segments:
        for row in range(first + WINDOW, stop):
            made = [
                predict(values[None, row - step - WINDOW : row - step])[0, step, 0]
                for step in range(HORIZON)
                if row - step - WINDOW >= first
            ]
            expected[row] = np.median(made)
    return expected


@pytest.mark.parametrize("block", [3, 16_384])
def test_row_forecasts_are_medians_over_all_steps_that_reach_a_row(block, monkeypatch):
    monkeypatch.setattr(calibrating, "_ROWS", block)
    monkeypatch.setattr(calibrating, "_BATCH", 5)
    segments = ((0, 20, "a"), (20, 24, "b"), (24, 40, "c"))
    data = series(np.random.default_rng(2).normal(size=40), segments)
    given = settings()
    bounds = [(first, first, stop) for first, stop, _ in segments]
    blocks = list(row_forecasts(at(data, given), data, given, bounds))
    rows = np.concatenate([rows for rows, _, _ in blocks])
    found = dict(zip(rows.tolist(), np.concatenate([one for _, one, _ in blocks])[:, 0], strict=True))
    assert (len(blocks) > 5) == (block == 3)
    expected = brute_force(data.values, segments, last_value())
    assert list(found) == list(expected)
    assert found == pytest.approx(expected, rel=1e-6)


def test_what_is_known_in_advance_is_asked_for_rows_of_the_series_alone():
    segments = ((0, 20, "a"), (20, 25, "b"), (25, 40, "c"))
    data = series(np.random.default_rng(2).normal(size=40), segments)
    given = dataclasses.replace(settings(), covariates=Covariates(future=("y",)))
    asked = []

    def forecast(origins):
        asked.extend(origins.tolist())
        return at(data, settings())(origins)

    blocks = list(row_forecasts(forecast, data, given, [(first, first, stop) for first, stop, _ in segments]))
    rows = np.concatenate([rows for rows, _, _ in blocks])
    # In b, no whole horizon follows a window.
    assert sorted(set(asked)) == [*range(4, 19), *range(29, 39)]
    assert rows.tolist() == [*range(4, 20), *range(29, 40)]
    # For the last row of a stretch there is only the forecast whose horizon ends with it.
    found = dict(zip(rows.tolist(), np.concatenate([one for _, one, _ in blocks])[:, 0], strict=True))
    expected = brute_force(data.values, segments, last_value())
    assert found[39] == pytest.approx(data.values[37, 0])
    assert {row: value for row, value in found.items() if row not in (19, 39)} == pytest.approx(
        {row: expected[row] for row in found if row not in (19, 39)}
    )
    assert score_rows(forecast, data, given, [(20, 20, 25)])[0] is None


def test_score_rows_scores_windows_and_rows_of_the_bounds_in_one_pass():
    data = series(np.random.default_rng(4).normal(size=60))
    given = settings()
    calls = []

    def forecast(origins):
        calls.append(len(origins))
        return at(data, given)(origins)

    found, off, spread = score_rows(forecast, data, given, [(0, 40, 60)])
    assert calls == [21]
    apart = score_origins(at(data, given), data, given, np.arange(40, 59))
    np.testing.assert_array_equal(found.origins, apart.origins)
    np.testing.assert_allclose(found.scores, apart.scores)
    expected = brute_force(data.values, ((0, 60, ""),), last_value())
    np.testing.assert_allclose(
        off[:, 0], [abs(data.values[row, 0] - expected[row]) for row in range(40, 60)], rtol=1e-5
    )
    assert spread.shape == (20, 1)
