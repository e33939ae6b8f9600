import dataclasses
import datetime
import warnings

import numpy as np
import pandas as pd
import polars as pl
import pytest

from cellerate.data.series.series import SeriesData
from cellerate.data.settings import Reading
from cellerate.data.times.calendar_features import Calendar
from cellerate.data.times.frequency import Frequency, parse_frequency
from cellerate.data.windows.covariates import Covariates
from cellerate.data.windows.scaler import Scaler
from cellerate.data.windows.series_scaler import SeriesScaler
from cellerate.errors import ConfigError, DataError
from cellerate.listener import Callbacks
from cellerate.runtime.forecast.forecast_rows import RowForecaster
from cellerate.runtime.forecast.origins import forecast_at, units_at
from cellerate.runtime.forecast.settings import ForecastSettings

WINDOW, HORIZON, ROWS = 4, 2, 12
CALENDAR = Calendar(("hour",))
SCALER = Scaler(["y", "price"], [10.0, 1.0], [2.0, 0.5])
SCALING = SeriesScaler(["b"], np.array([[1000.0, 3.0]]), np.array([[50.0, 4.0]]), SCALER)
COVARIATES = Covariates(("price",), CALENDAR, ("b",), SCALING)
HOUR = np.timedelta64(1, "h")


class Ahead:
    """Covariates known in advance: a price of 7 and 8 in the two hours after the end of series b, and 6 before."""

    def __init__(self, end):
        self.end = end

    def rows(self, series, times):
        assert series == "b"
        known = {self.end: 7.0, self.end + HOUR: 8.0, self.end - HOUR: 6.0}
        return np.array([[known[time]] for time in times], np.float32)


@pytest.fixture
def data():
    values = np.random.default_rng(0).normal(10, 2, (2 * ROWS, 2)).astype(np.float32)
    hours = np.datetime64("2024-05-01T00", "us") + np.arange(ROWS) * HOUR
    times = np.concatenate([hours, hours])
    segments = ((0, ROWS, "a"), (ROWS, 2 * ROWS, "b"))
    ahead = Ahead(times[-1] + HOUR)
    return SeriesData(
        values,
        ("y", "price"),
        (0, 1),
        (0,),
        times,
        segments,
        HOUR,
        "f",
        frequency=parse_frequency("hour"),
        ahead=ahead,
    )


def settings(covariates=COVARIATES):
    return ForecastSettings(Reading(), WINDOW, HORIZON, (), SCALER, covariates)


class Model:
    """Keep the inputs and forecast the scaled price of each step, or the last value if there is no price."""

    def __call__(self, inputs):
        self.given = inputs
        if isinstance(inputs, dict):
            return inputs["future"][..., :1]
        return np.repeat(inputs[:, -1:, :1], HORIZON, axis=1)


def at(model, data, origins, covariates=COVARIATES):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return forecast_at(model, data, settings(covariates), np.array(origins))


def test_inputs_are_the_scaled_rows_the_calendar_and_the_id(data):
    model = Model()
    at(model, data, [ROWS + 5])
    past, after = data.values[ROWS + 1 : ROWS + 5], data.values[ROWS + 5 : ROWS + 7]
    series, future = model.given["series"][0], model.given["future"][0]
    np.testing.assert_allclose(series[:, :2], (past - [1000, 3]) / [50, 4], rtol=1e-5)
    np.testing.assert_array_equal(series[:, 2:], CALENDAR.features(data.times[ROWS + 1 : ROWS + 5]))
    np.testing.assert_allclose(future[:, 0], (after[:, 1] - 3) / 4, rtol=1e-5)
    np.testing.assert_array_equal(future[:, 1:], CALENDAR.features(data.times[ROWS + 5 : ROWS + 7]))
    assert model.given["series_id"].tolist() == [[1]]


def test_rows_beyond_the_end_are_looked_up_and_timed(data):
    model = Model()
    made = at(model, data, [2 * ROWS, 2 * ROWS - 1, ROWS + 6])
    # The model forecasts the scaled price of b, which is unscaled as b's y.
    np.testing.assert_allclose(made[0, :, 0], (np.array([7, 8]) - 3) / 4 * 50 + 1000, rtol=1e-5)
    np.testing.assert_allclose(made[1, :, 0], (np.array([6, 7]) - 3) / 4 * 50 + 1000, rtol=1e-5)
    end = data.times[-1]
    expected = CALENDAR.features(np.array([end + HOUR, end + 2 * HOUR]))
    np.testing.assert_array_equal(model.given["future"][0, :, 1:], expected)


def test_unknown_series_has_id_0_its_own_scale_and_is_told_of_once(data):
    model, known = Model(), settings()
    with pytest.warns(UserWarning, match="not trained on the series 'a'"):
        forecast_at(model, data, known, np.array([WINDOW]))
    # Warnings are errors here.
    forecast_at(model, data, known, np.array([WINDOW]))
    past = data.values[:WINDOW].astype(np.float64)
    scaled = (past - past.mean(axis=0)) / past.std(axis=0)
    np.testing.assert_allclose(model.given["series"][0, :, :2], scaled, atol=1e-5)
    assert model.given["series_id"].tolist() == [[0]]
    units = units_at(data, known, np.array([WINDOW, 2 * ROWS]))
    np.testing.assert_allclose(units.scale, [past.std(axis=0), [50, 4]], rtol=1e-6)


def test_unknown_series_too_short_for_a_window_is_not_told_of(data):
    # Nothing forecasts it. Warnings are errors here.
    stretches = ((0, WINDOW - 1, "a"), *data.segments[1:])
    short = dataclasses.replace(data, segments=stretches)
    forecast_at(Model(), short, settings(), np.array([2 * ROWS]))


def test_model_without_covariates_has_one_input(data):
    model = Model()
    made = at(model, data, [ROWS], Covariates())
    assert isinstance(model.given, np.ndarray)
    np.testing.assert_allclose(made[0, :, 0], data.values[ROWS - 1, 0], rtol=1e-6)


@pytest.mark.parametrize("origin", [WINDOW - 1, ROWS + 2, 2 * ROWS + 1, 0])
def test_origin_without_a_window_before_it_is_refused(data, origin):
    with pytest.raises(DataError, match=rf"row {origin} .* needs {WINDOW} rows"):
        at(Model(), data, [ROWS, origin])


# --- rows in an array


def rows_of(model, covariates=COVARIATES):
    return RowForecaster(
        model,
        SCALER,
        covariates,
        window=WINDOW,
        horizon=HORIZON,
        features=["y", "price"],
        targets=[0],
        quantiles=False,
    )


@pytest.mark.parametrize(("origin", "name"), [(ROWS + 5, "b"), (5, "a"), (5, None)])
def test_rows_are_forecast_as_the_same_rows_of_a_series(data, origin, name):
    model = Model()
    expected, given = at(model, data, [origin]), model.given
    span = slice(origin - WINDOW, origin + HORIZON)
    made = rows_of(model).forecast(
        data.values[None, origin - WINDOW : origin],
        data.values[origin : origin + HORIZON, 1:],
        data.times[span],
        name,
    )
    np.testing.assert_allclose(made, expected, rtol=1e-6)
    for part in given:
        np.testing.assert_allclose(model.given[part], given[part], atol=1e-5)


FUTURE = {"price": [1.0, 2.0], "when": ["Mon", "Tue"], "open": [True, False]}


@pytest.mark.parametrize("form", [dict, pd.DataFrame, pl.DataFrame, lambda columns: [pd.DataFrame(columns)]])
def test_columns_of_the_future_are_taken_by_name(data, form):
    covariates = Covariates(("price", "open"))
    scaler = Scaler(["y", "open", "price"], [0.0] * 3, [1.0] * 3)
    model = Model()
    forecaster = RowForecaster(
        model,
        scaler,
        covariates,
        window=WINDOW,
        horizon=HORIZON,
        features=scaler.columns,
        targets=[0],
        quantiles=False,
    )
    rows = np.ones((1, WINDOW, 3))
    forecaster.forecast(rows, form(FUTURE), None, None)
    np.testing.assert_array_equal(model.given["future"], [[[1, 1], [2, 0]]])
    with pytest.raises(DataError, match=r"future has no column 'open'.* It has: price, when"):
        forecaster.forecast(rows, form({name: FUTURE[name] for name in ("price", "when")}), None, None)


def test_rows_without_what_the_model_needs_are_refused(data):
    rows, future = data.values[None, :WINDOW], np.ones((HORIZON, 1))
    times = data.times[: WINDOW + HORIZON]
    for arguments, words in (
        ((None, times, None), r"future is missing: the model sees price.*\(2, 1\)"),
        ((future[:1], times, None), r"future must be.*, not float64 \(1, 1\)"),
        ((future * np.nan, times, None), "missing, infinite"),
        ((future * 1e300, times, None), "too large for float32"),
        ((future, [None] * 6, None), "a missing time"),
        ((future, None, None), "times is missing: the model sees a calendar"),
        ((future, times[:-1], None), r"T at least 6, not datetime64\[us\] \(5,\)"),
        ((future, np.arange(6.0), None), "times must be"),
        ((future, times, ["a", "b"]), "series must be a name, or 1 of them"),
    ):
        with pytest.raises(DataError, match=words):
            rows_of(Model()).forecast(rows, *arguments)
    for arguments, words in (
        ((future, None, None), "future is for models"),
        ((None, times, None), "times is for models"),
        ((None, None, "b"), "series is for models"),
    ):
        with pytest.raises(ConfigError, match=words):
            rows_of(Model(), Covariates()).forecast(rows, *arguments)


@pytest.mark.parametrize("zoned", [str, datetime.datetime.fromisoformat])
@pytest.mark.filterwarnings("error")
def test_times_with_a_zone_count_as_its_clock_shows_them(data, zoned):
    rows, future, times = data.values[None, :WINDOW], np.ones((HORIZON, 1)), data.times[: WINDOW + HORIZON]
    expected, given = Model(), Model()
    rows_of(expected).forecast(rows, future, times, "a")
    rows_of(given).forecast(rows, future, [zoned(f"{time.item().isoformat()}+02:00") for time in times], "a")
    np.testing.assert_array_equal(given.given["future"], expected.given["future"])


@pytest.mark.parametrize(("trained", "notes"), [("day", 1), ("hour", 0), (None, 0)])
def test_data_of_another_frequency_than_the_training_are_noted(tmp_path, trained, notes):
    path, said = tmp_path / "s.csv", []
    path.write_text("time,y\n" + "".join(f"2024-05-01 {hour:02}:00,{hour}\n" for hour in range(20)))
    reading = Reading(targets=["y"], features=["y"], time_column="time")
    frequency = None if trained is None else parse_frequency(trained)
    made = ForecastSettings(reading, WINDOW, HORIZON, (), SCALER, frequency=frequency)
    made.open([path], listener=Callbacks(message=said.append))
    assert len(said) == notes and all("every hour" in one and "every day" in one for one in said)


BUSINESS_MONTHS, FRIDAYS = Frequency("month", 1, 33), Frequency("month", 1)


@pytest.mark.parametrize(
    ("trained", "rows", "changes", "following"),
    [
        (BUSINESS_MONTHS, ["2014-03-31", "2014-04-30"], {}, "2014-05-30"),
        (BUSINESS_MONTHS, ["2014-03-31", "2014-04-30"], {"frequency": "month"}, "2014-05-30"),
        (BUSINESS_MONTHS, ["2014-03-31", "2014-04-30"], {"frequency": "30 days"}, "2014-05-30"),
        (BUSINESS_MONTHS, ["2014-04-30", "2014-05-31"], {}, "2014-06-30"),
        (BUSINESS_MONTHS, ["2014-03-01", "2014-04-01"], {}, "2014-05-01"),
        (FRIDAYS, ["2013-05-17", "2013-06-21", "2013-07-19", "2013-08-16"], {}, "2013-09-16"),
        (FRIDAYS, ["2014-04-30", "2014-05-31"], {}, "2014-06-30"),
        (parse_frequency("28 days"), ["2014-02-01", "2014-03-01"], {}, "2014-03-29"),
        (parse_frequency("28 days"), ["2014-02-01", "2014-03-01"], {"frequency": "month"}, "2014-04-01"),
    ],
)
def test_rows_that_fit_the_frequency_of_the_training_go_on_in_it(tmp_path, trained, rows, changes, following):
    path = tmp_path / "s.csv"
    path.write_text("time,y\n" + "".join(f"{day},1\n" for day in rows))
    reading = Reading(targets=["y"], features=["y"], time_column="time")
    made = ForecastSettings(reading, WINDOW, HORIZON, (), SCALER, frequency=trained)
    data = made.open([path], changes=changes)
    assert data.times_after(len(rows), 1) == [np.datetime64(following)]


@pytest.mark.parametrize(
    ("header", "changes", "problem"),
    [
        ("time,y,cost", {}, r"has no column 'price', which the model reads\. It has: time, y, cost\."),
        ("when,y,price", {}, r"has no column 'time', which the model reads\."),
        ("time,y,price", {"time_column": "when"}, r"has no column 'when' \(time_column\)\."),
    ],
)
def test_table_without_a_column_of_the_training_is_refused(tmp_path, header, changes, problem):
    path = tmp_path / "s.csv"
    path.write_text(f"{header}\n2024-05-01 00:00,1,2\n2024-05-01 01:00,1,2\n")
    reading = Reading(targets=["y"], features=["y", "price"], time_column="time")
    trained = dataclasses.replace(settings(), reading=reading)
    with pytest.raises(DataError, match=problem):
        trained.open([path], changes=changes)
