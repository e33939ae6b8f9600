import datetime
import math

import numpy as np
import pytest

from cellerate.data.times.calendar_features import Calendar, Holidays, make_calendar
from cellerate.errors import ConfigError, DataError, ModelError

TIMES = np.array(["2024-02-29T18:30", "2024-12-25T00:00", "1969-07-20T20:17"], "M8[us]")


def share(value):
    return [math.sin(2 * math.pi * value), math.cos(2 * math.pi * value)]


def test_features_of_known_times_equal_the_calendar_of_python():
    found = Calendar(("hour", "weekday", "day", "month")).features(TIMES)
    for row, time in zip(found, TIMES.tolist(), strict=True):
        assert isinstance(time, datetime.datetime)
        expected = [
            *share((time.hour + time.minute / 60) / 24),
            *share(time.weekday() / 7),
            *share((time.day - 1) / 31),
            *share((time.month - 1) / 12),
        ]
        assert row.tolist() == pytest.approx(expected, abs=1e-6)
    assert found.dtype == np.float32


def test_features_of_many_windows_keep_their_axes():
    calendar = Calendar(("weekday",))
    many = np.broadcast_to(TIMES, (2, 3))
    assert calendar.features(many).shape == (2, 3, 2)
    assert np.array_equal(calendar.features(many)[1], calendar.features(TIMES))


def test_holidays_of_a_country_are_ones_and_outlive_the_package():
    times = np.array(["2023-12-24T10", "2023-12-25T23", "2023-12-27"], "M8[us]")
    calendar = make_calendar(["holiday"], "DE", times)
    assert calendar.features(times)[:, 0].tolist() == [0, 1, 0]
    again = Calendar.from_config(calendar.to_config())
    later = np.array(["2033-10-03T12:00", "2033-10-04"], "M8[us]")
    assert again.features(later)[:, 0].tolist() == [1, 0]
    with pytest.raises(DataError, match=r"2023-01-01 to 2033-12-31.*2034-01-01"):
        again.features(np.array(["2034-01-01"], "M8[us]"))


@pytest.mark.parametrize(
    ("parts", "country", "words"),
    [
        (["hours"], None, "calendar may hold hour, weekday.*'hours'"),
        (["hour", "hour"], None, "twice"),
        (["holiday"], None, "names no country"),
        (["hour"], "DE", "does not hold 'holiday'"),
        (["holiday"], "Atlantis", "'Atlantis'"),
        ("hour", None, "expected a list"),
    ],
)
def test_parts_that_do_not_fit_are_refused(parts, country, words):
    with pytest.raises(ConfigError, match=words):
        make_calendar(parts, country, TIMES)


@pytest.mark.parametrize("times", [None, np.arange(3.0)], ids=["none", "numbers"])
def test_series_without_dates_is_refused(times):
    with pytest.raises(DataError, match="calendar needs"):
        make_calendar(["hour"], None, times)


@pytest.mark.parametrize(
    "config",
    [
        None,
        {"parts": []},
        {"parts": ["hours"]},
        {"parts": ["holiday"]},
        {
            "parts": ["holiday"],
            "holidays": {"country": "DE", "dates": ["x"], "first": "2024", "last": "2025"},
        },
    ],
)
def test_damaged_description_raises(config):
    with pytest.raises(ModelError, match="calendar"):
        Calendar.from_config(config)


def test_no_parts_make_no_calendar():
    assert make_calendar([], None, None) is None


def test_width_counts_a_holiday_once():
    days = np.array(["2024-01-01"], "M8[D]")
    holidays = Holidays("DE", days, days[0], days[0])
    assert Calendar(("holiday", "hour"), holidays).features(days.astype("M8[us]")).shape == (1, 3)
