"""Weekdays without a row are holidays where they come back every year, and gaps where they do not."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cellerate.data.series.series import SeriesData, open_series
from cellerate.data.settings import Reading
from cellerate.data.times.frequency import Frequency, find_frequency, parse_frequency

DAY = np.timedelta64(1, "D")


def third(year: int, month: int, which: int, weekday: int = 0) -> np.datetime64:
    """The first, second … Monday (or other weekday) of a month."""
    found: np.datetime64 = np.busday_offset(
        f"{year}-{month:02}", which - 1, roll="forward", weekmask=[number == weekday for number in range(7)]
    )
    return found


def american(year: int) -> list[np.datetime64]:
    """Holidays of rules like those of New York: some on a weekday of their month, some moved from weekends."""
    fixed = [np.datetime64(f"{year}-{day}") for day in ("01-01", "06-19", "07-04", "12-25")]
    kept = [np.busday_offset(day, 0, roll="forward") for day in fixed]
    return [
        *kept,
        *(third(year, month, which) for month, which in ((1, 3), (2, 3), (5, 4), (9, 1))),
        third(year, 11, 4, 3),
    ]


def lunar(year: int) -> list[np.datetime64]:
    """A week that moves with the moon, and one in autumn."""
    new_year = np.datetime64(f"{year}-02-01") + (11 * (2024 - year) % 29 - 14) * DAY
    weeks = [np.arange(first, first + 7 * DAY) for first in (new_year, np.datetime64(f"{year}-10-01"))]
    return [day for week in weeks for day in week if np.is_busday(day)]


def days_but(holidays: Sequence[np.datetime64], first: str, last: str) -> np.ndarray:
    days = np.arange(first, last, dtype="M8[D]")
    return np.setdiff1d(days[np.is_busday(days)], holidays).astype("M8[us]")


def found(days: np.ndarray, inside: np.ndarray | None = None) -> Frequency:
    frequency = find_frequency(days, np.ones(len(days) - 1, bool) if inside is None else inside)
    assert frequency is not None
    return frequency


@pytest.mark.parametrize(
    ("rule", "years"), [(american, 2), (american, 3), (american, 12), (lunar, 4), (lunar, 9)]
)
def test_holidays_that_come_back_are_no_gaps(rule: Any, years: int) -> None:
    last = 2016 + years
    holidays = [day for year in range(2016, last) for day in rule(year)]
    days = days_but(holidays, "2016-01-04", f"{last}-01-01")
    frequency = found(days)
    assert frequency.name == "trading days"
    assert set(frequency.holidays) <= set(map(str, holidays))
    assert not frequency.gaps(days[:-1], days[1:]).any()


@pytest.mark.parametrize("years", [2, 3, 10])
@pytest.mark.parametrize("each", [4, 9, 18])
@pytest.mark.parametrize("seed", range(5))
def test_days_that_are_missing_by_chance_stay_gaps(years: int, each: int, seed: int) -> None:
    whole = days_but([], "2016-01-01", f"{2016 + years}-01-01")
    lost = np.random.default_rng(seed).choice(np.arange(1, len(whole) - 1), each * years, replace=False)
    days = np.delete(whole, lost)
    frequency = found(days)
    assert frequency.name == "business days"
    assert frequency.gaps(days[:-1], days[1:]).any()


def test_long_outage_among_holidays_stays_a_gap() -> None:
    holidays = [day for year in range(2016, 2021) for day in american(year)]
    days = days_but(holidays, "2016-01-04", "2021-01-01")
    outage = (days >= np.datetime64("2018-03-05")) & (days < np.datetime64("2018-03-19"))
    days = days[~outage]
    frequency = found(days)
    assert frequency.name == "trading days"
    assert days[1:][frequency.gaps(days[:-1], days[1:])].astype("M8[D]").astype(str).tolist() == [
        "2018-03-19"
    ]


def test_day_that_another_series_has_is_no_holiday() -> None:
    holidays = [day for year in range(2016, 2021) for day in american(year)]
    one = days_but(holidays, "2016-01-04", "2021-01-01")
    other = np.delete(one, 700)
    days = np.concatenate([one, other])
    inside = np.ones(len(days) - 1, bool)
    inside[len(one) - 1] = False
    frequency = found(days, inside)
    assert str(one[700].astype("M8[D]")) not in frequency.holidays
    assert np.flatnonzero(frequency.gaps(other[:-1], other[1:])).tolist() == [699]


def test_one_year_says_nothing_of_what_comes_back() -> None:
    assert found(days_but(american(2016), "2016-01-04", "2017-01-01")).name == "business days"


def write(path: Path, days: np.ndarray) -> Path:
    lines = [f"{day},{number % 97}" for number, day in enumerate(days.astype("M8[D]").astype(str))]
    path.write_text("\n".join(["date,close", *lines]) + "\n")
    return path


def opened(path: Path, **settings: Any) -> SeriesData:
    return open_series([path], Reading(targets=["close"], **settings))


def test_stock_is_one_stretch_and_says_which_days_are_holidays(tmp_path: Path) -> None:
    holidays = [day for year in range(2020, 2024) for day in american(year)]
    path = write(tmp_path / "stock.csv", days_but(holidays, "2020-01-06", "2024-01-01"))
    for _ in range(2):  # the second time from the cache
        data = opened(path)
        assert len(data.segments) == 1
        assert any("trading days: 3" in note and "2020-01-20" in note for note in data.notes)
        assert data.times_after(data.rows, 2).astype("M8[D]").astype(str).tolist() == [
            "2024-01-01",
            "2024-01-02",
        ]
    assert len(opened(path, frequency="business-day").segments) > 20


def test_few_rows_are_read_over_holidays_if_trading_days_are_named(tmp_path: Path) -> None:
    path = write(tmp_path / "stock.csv", days_but(american(2020), "2020-01-06", "2020-06-01"))
    assert len(opened(path).segments) > 1
    assert len(opened(path, frequency="trading-day").segments) == 1


def test_trading_days_are_kept_with_their_holidays() -> None:
    frequency = dataclasses.replace(parse_frequency("trading days"), holidays=("2020-01-20", "2020-02-17"))
    config = frequency.to_config()
    assert Frequency.from_config(config) == frequency
    config["holidays"] = ["midsummer"]
    with pytest.raises(ValueError, match="midsummer"):
        Frequency.from_config(config)
    without = {key: value for key, value in frequency.to_config().items() if key != "holidays"}
    assert Frequency.from_config(without) == parse_frequency("trading-day")
