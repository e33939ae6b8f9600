import math

import numpy as np
import pytest

from cellerate.data.times.frequency import (
    Frequency,
    check_agreement,
    days_apart,
    find_frequency,
    parse_frequency,
    season_of,
    settled,
)
from cellerate.data.times.zones import to_instants, to_local
from cellerate.errors import ConfigError, DataError

DAY_US = 86_400 * 10**6


def times(*texts):
    return np.array(texts, "datetime64[us]")


def every(start, count, step, unit):
    return np.datetime64(start, "us") + np.arange(count) * np.timedelta64(step, unit).astype(
        "timedelta64[us]"
    )


def months(first, last, *, end=False, day=1):
    found = np.arange(first, last, dtype="datetime64[M]")
    return (
        (found + np.timedelta64(1, "M")).astype("datetime64[D]") - np.timedelta64(1, "D")
        if end
        else found.astype("datetime64[D]") + np.timedelta64(day - 1, "D")
    ).astype("datetime64[us]")


def weekdays(first, last):
    days = np.arange(first, last, dtype="datetime64[D]")
    return days[np.is_busday(days)].astype("datetime64[us]")


def found(rows, zone=""):
    return find_frequency(rows, np.ones(len(rows) - 1, bool), zone)


@pytest.mark.parametrize(
    ("rows", "name", "season", "following"),
    [
        (every("2020-02-28T23:30", 9, 15, "m"), "15 minutes", 96, "2020-02-29T01:45"),
        (every("2020-02-28T22:00", 3, 1, "h"), "hours", 24, "2020-02-29T01:00"),
        (every("2020-02-26", 3, 1, "D"), "days", 7, "2020-02-29"),
        (every("2020-02-10", 3, 7, "D"), "weeks", 52, "2020-03-02"),
        (every("2020-01-01", 5, 14, "D"), "14 days", None, "2020-03-11"),
        (weekdays("2020-02-17", "2020-02-29"), "business days", 5, "2020-03-02"),
        (months("2019-01", "2020-02", end=True), "months", 12, "2020-02-29"),
        (months("2019-01", "2020-02"), "months", 12, "2020-02-01"),
        (months("2019-01", "2020-02", day=15), "months", 12, "2020-02-15"),
        (months("2015-01", "2020-01")[::3], "quarters", 4, "2020-01-01"),
        (months("2000-01", "2020-01")[::12], "years", None, "2020-01-01"),
        (np.array([0.0, 0.5, 1.0]), "steps of 0.5", None, 1.5),
    ],
)
def test_frequency_of_times_has_a_name_a_season_and_a_next_time(rows, name, season, following):
    frequency = found(rows)
    assert (frequency.name, season_of(frequency)) == (name, season)
    expected = following if isinstance(following, float) else np.datetime64(following)
    assert frequency.after(rows[-1], 1)[0] == expected
    assert not frequency.gaps(rows[:-1], rows[1:]).any()
    assert Frequency.from_config(frequency.to_config()) == frequency


def on_weekdays(rows, roll):
    return np.busday_offset(rows.astype("datetime64[D]"), 0, roll=roll).astype("datetime64[us]")


@pytest.mark.parametrize("step", [1, 3, 12])
@pytest.mark.parametrize(("end", "roll"), [(True, "backward"), (False, "forward")])
def test_business_months_go_on_at_business_months(step, end, roll):
    rows = on_weekdays(months("1990-01", "2021-01", end=end), roll)[::step]
    half = len(rows) // 2
    frequency = found(rows[:half])
    assert frequency.name == {1: "months", 3: "quarters", 12: "years"}[step]
    np.testing.assert_array_equal(frequency.after(rows[half - 1], len(rows) - half), rows[half:])
    assert not frequency.gaps(rows[:-1], rows[1:]).any()
    assert Frequency.from_config(frequency.to_config()) == frequency


def test_business_months_go_on_after_holidays_moved_some_of_them():
    rows = on_weekdays(months("2012-01", "2020-01", end=True), "backward")
    moved = rows - np.timedelta64(1, "D") * np.isin(np.arange(len(rows)), [14, 50, 95])
    following = found(moved).after(moved[-1], 3)
    np.testing.assert_array_equal(following, times("2020-01-31", "2020-02-28", "2020-03-31"))


def test_third_fridays_are_months_and_other_long_steps_are_not():
    starts = months("2012-01", "2020-01").astype("datetime64[D]")
    fridays = np.busday_offset(starts, 2, roll="forward", weekmask="Fri").astype("datetime64[us]")
    frequency = found(fridays)
    assert frequency.name == "months"
    months_on = frequency.after(fridays[-1], 14).astype("datetime64[M]")
    np.testing.assert_array_equal(months_on, np.datetime64("2020-01") + np.arange(14))
    assert found(every("2020-01-10", 12, 30, "D")).name == "30 days"
    assert found(np.delete(fridays, 5)).name != "months"


MONTH_ENDS = ["2013-12-31", "2014-01-31", "2014-02-28"]


@pytest.mark.parametrize(
    ("frequency", "rows", "fits"),
    [
        (Frequency("month", 1, 31), MONTH_ENDS, True),
        (Frequency("month", 1, 33), MONTH_ENDS, True),
        (Frequency("month", 1, 33), ["2014-04-30", "2014-05-31"], False),
        (Frequency("month", 1, 32), ["2014-05-01", "2014-06-02"], True),
        (Frequency("month", 1, 32), MONTH_ENDS, False),
        (Frequency("month", 1, 30), ["2014-01-30", "2014-02-28"], True),
        (Frequency("month", 1, 30), MONTH_ENDS, False),
        (Frequency("month", 1), ["2014-02-21", "2014-03-21", "2014-04-18"], True),
        (Frequency("month", 2, 31), MONTH_ENDS, False),
        (parse_frequency("28 days"), ["2014-02-01", "2014-03-01"], True),
        (parse_frequency("28 days"), ["2014-02-01", "2014-03-01", "2014-04-01"], False),
        (Frequency("business-day", 1), ["2014-02-03", "2014-02-04"], False),
    ],
)
def test_rows_fit_a_frequency_only_if_they_lie_exactly_on_it(frequency, rows, fits):
    assert frequency.fits(times(*rows), np.ones(len(rows) - 1, bool)) == fits


def test_steps_between_series_do_not_count_for_a_frequency():
    rows = times(*MONTH_ENDS, *MONTH_ENDS)
    assert Frequency("month", 1, 31).fits(rows, np.arange(5) != 2)


def test_month_ends_go_on_at_month_ends():
    frequency = found(months("2019-01", "2020-02", end=True))
    assert frequency.after(np.datetime64("2020-01-31"), 3).astype("datetime64[D]").astype(str).tolist() == [
        "2020-02-29",
        "2020-03-31",
        "2020-04-30",
    ]


def test_business_days_have_no_gap_at_weekends_and_one_at_a_holiday():
    rows = np.delete(weekdays("2020-01-01", "2020-03-01"), 10)
    frequency = found(rows)
    assert np.flatnonzero(frequency.gaps(rows[:-1], rows[1:])).tolist() == [9]


@pytest.mark.parametrize("left_out", [[], [63, 260, 323]])
@pytest.mark.parametrize("last", ["-05:00", "-04:00"])
def test_business_days_of_offsets_that_change_in_summer_are_business_days(last, left_out):
    days = np.delete(weekdays("2020-01-01", "2023-01-01"), left_out)
    rows = to_instants(days, "America/New_York")
    rows = rows[: len(rows) - 100 if last == "-04:00" else None]
    for zone in (last, "UTC"):
        frequency = found(rows, zone)
        assert frequency.name == "business days" and season_of(frequency) == 5
        assert np.flatnonzero(frequency.gaps(rows[:-1], rows[1:])).tolist() == [
            place - number - 1 for number, place in enumerate(left_out)
        ]
        named = settled(parse_frequency("business-day"), rows, np.ones(len(rows) - 1, bool), zone)
        assert named == frequency
        following = frequency.after(rows[-1], 10)
        assert (
            to_local(following, frequency.zone).astype("datetime64[D]") == weekdays_after(rows[-1], 10)
        ).all()


def weekdays_after(row, count):
    return np.busday_offset(row.astype("datetime64[D]"), np.arange(1, count + 1))


def test_days_within_one_week_are_days():
    assert found(every("2020-02-17", 5, 1, "D")).name == "days"


def test_missing_month_is_a_gap_and_jitter_of_hours_is_none():
    rows = np.delete(months("2019-01", "2020-02"), 5)
    assert np.flatnonzero(found(rows).gaps(rows[:-1], rows[1:])).tolist() == [4]
    rows = every("2020-01-01", 9, 60, "m")
    rows[3] += np.timedelta64(20, "m")
    assert not found(rows).gaps(rows[:-1], rows[1:]).any()


def test_days_of_a_zone_go_on_at_local_midnight_across_a_change_of_the_clock():
    # Midnight in Berlin: 23:00 UTC in winter, 22:00 in summer.
    rows = times("2024-03-27T23:00", "2024-03-28T23:00", "2024-03-29T23:00")
    frequency = found(rows, "Europe/Berlin")
    assert frequency.name == "days"
    assert frequency.after(rows[-1], 2).astype(str).tolist() == [
        "2024-03-30T23:00:00.000000",
        "2024-03-31T22:00:00.000000",
    ]
    hours = found(every("2024-03-30T23:00", 5, 1, "h"), "Europe/Berlin")
    assert hours.after(np.datetime64("2024-03-31T00:00"), 2).astype("datetime64[h]").astype(str).tolist() == [
        "2024-03-31T01",
        "2024-03-31T02",
    ]


def test_months_of_an_offset_begin_when_its_clock_says():
    rows = months("2019-01", "2020-02") - np.timedelta64(2, "h")
    assert found(rows).name != "months" or found(rows).day == 31
    frequency = found(rows, "+02:00")
    assert (frequency.name, frequency.day) == ("months", 1)
    assert frequency.after(rows[-1], 1)[0] == np.datetime64("2020-01-31T22:00")


@pytest.mark.parametrize(
    ("zone", "written", "end", "clock_s"),
    [
        ("Europe/Berlin", "+02:00", False, 0),
        ("Europe/Berlin", "+01:00", False, 0),
        ("Europe/Berlin", "UTC", False, 0),
        ("Europe/Berlin", "", False, 0),
        ("Europe/Berlin", "+02:00", True, 86_399),
        ("Europe/London", "UTC", False, 0),
        ("America/New_York", "-05:00", True, 0),
        ("America/New_York", "-04:00", False, 0),
    ],
)
def test_months_of_a_clock_with_summers_are_found_in_every_offset(zone, written, end, clock_s):
    local = months("2019-01", "2021-08", end=end) + np.timedelta64(clock_s, "s")
    rows = to_instants(local, zone)
    frequency = found(rows, written)
    assert frequency.name == "months"
    assert not frequency.gaps(rows[:-1], rows[1:]).any()
    assert settled(parse_frequency("month"), rows, np.ones(len(rows) - 1, bool), written) == frequency
    # From a winter into a summer, the clock of one offset is an hour late.
    for first in (10, 20):
        late = frequency.after(rows[first], 6) - rows[first + 1 : first + 7]
        assert (np.abs(late) <= np.timedelta64(1, "h")).all()
    assert found(rows[::3], written).name == "quarters"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("15min", "15 minutes"), ("hour", "hours"), ("2 hours", "2 hours"), ("h", "hours"), ("D", "days"),
        ("daily", "days"), ("business-day", "business days"), ("B", "business days"),
        ("week", "weeks"), ("months", "months"), ("MS", "months"), ("quarter", "quarters"), ("year", "years"),
    ],
)  # fmt: skip
def test_frequency_is_known_by_its_names(text, name):
    assert parse_frequency(text).name == name


@pytest.mark.parametrize(
    "text", ["fortnightly", "", "0 days", "-1 day", "3 business-days", "15", "9" * 5000 + " days"]
)
def test_unknown_frequency_is_refused(text):
    with pytest.raises(ConfigError, match=r"frequency is .*'15min'"):
        parse_frequency(text)


@pytest.mark.parametrize(
    ("one", "other", "another"),
    [
        ("hour", "day", True),
        ("hour", "2 hours", True),
        ("day", "month", True),
        ("month", "quarter", True),
        ("hour", "60min", False),
        ("day", "business-day", False),
        ("trading-day", "business-day", False),
        ("month", "30 days", False),
    ],
)
def test_other_steps_are_another_frequency(one, other, another):
    found = [parse_frequency(text) for text in (one, other)]
    assert found[0].is_another(found[1]) == found[1].is_another(found[0]) == another
    assert not found[0].is_another(Frequency("number", 1e9))


def test_rows_on_two_days_of_each_month_are_known():
    firsts, ends = months("2023-01", "2024-12"), months("2023-01", "2024-12", end=True)
    middles = firsts + np.timedelta64(14, "D")
    work = [on_weekdays(middles, "forward"), on_weekdays(ends, "backward")]

    def apart(rows, inside=None):
        inside = np.ones(len(rows) - 1, bool) if inside is None else inside
        return days_apart(find_frequency(rows, inside), rows, inside)

    begin_and_middle = np.sort(np.concatenate([firsts, middles]))
    assert apart(begin_and_middle) == apart(begin_and_middle[1:]) == (14, 17)
    assert apart(np.sort(np.concatenate([middles, ends]))) == (13, 16)
    assert apart(begin_and_middle[:4]) == (14, 17)
    several = np.concatenate([begin_and_middle[:9], begin_and_middle[3:20]])
    assert apart(several, np.arange(25) != 8) == (14, 17)
    # On other days in each month, in constant steps, and with more rows in a month.
    for rows in (
        np.sort(np.concatenate(work)),
        every("2023-01-01", 100, 14, "D"),
        every("2023-01-01", 100, 15, "D"),
        np.sort(np.concatenate([begin_and_middle, firsts + np.timedelta64(6, "D")])),
        np.delete(begin_and_middle, [4, 5]),
        firsts,
    ):
        assert apart(rows) is None


def test_named_frequency_takes_its_day_from_the_times():
    inside = np.ones(1, bool)
    assert settled(parse_frequency("month"), times("2020-01-31", "2020-02-29"), inside, "").day == 31
    with pytest.raises(ConfigError, match="plain numbers"):
        settled(parse_frequency("month"), np.array([1.0, 2.0]), inside, "")


def test_series_of_another_frequency_is_named():
    hourly, daily = every("2020-01-01", 200, 1, "h"), every("2020-01-01", 20, 1, "D")
    rows, series = np.concatenate([hourly, daily]), np.repeat([0, 1], [200, 20])
    frequency = find_frequency(rows, series[1:] == series[:-1])
    with pytest.raises(
        DataError, match="series 'b' has rows every day, but series 'a' and most rows every hour"
    ):
        check_agreement(frequency, rows, series, ["a", "b"])
    check_agreement(frequency, rows[:205], series[:205], ["a", "b"])  # too few rows to say


def test_series_with_irregular_steps_beside_others_is_no_error():
    daily = every("2020-01-01", 200, 1, "D")
    sparse = every("2020-01-01", 200, 1, "D")[np.cumsum([2, 5, 2, 9, 3, 7, 2, 11, 4, 6, 13])]
    rows, series = np.concatenate([daily, sparse]), np.repeat([0, 1], [200, 11])
    check_agreement(Frequency("time", DAY_US), rows, series, ["a", "b"])


def test_damaged_frequency_is_refused():
    good = {"unit": "month", "step": 1, "day": 31, "zone": ""}
    assert Frequency.from_config(good) == Frequency("month", 1, 31)
    for damage in (
        {"unit": "moon"},
        {"step": 0},
        {"step": math.inf},
        {"step": math.nan},
        {"day": 34},
        {"day": -1},
    ):
        with pytest.raises(ValueError, match="frequency"):
            Frequency.from_config(good | damage)
