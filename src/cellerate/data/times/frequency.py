"""The frequency of a series: constant steps, business or trading days, or months, and which times follow its last.

The frequency is found from the times. It defines gaps, and it gives the times of forecasts by the calendar: month ends,
no weekends if the data have none, local clock times in a time zone.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from cellerate.data.times.trading_days import come_back, missing_weekdays
from cellerate.data.times.zones import and_an_hour_beside, to_instants, to_local
from cellerate.errors import ConfigError, DataError
from cellerate.messages import argument

_DAY = np.timedelta64(1, "D")
_MONTH = np.timedelta64(1, "M")
_SUMMER = np.timedelta64(1, "h")
_UNITS_US = {"second": 10**6, "minute": 60 * 10**6, "hour": 3600 * 10**6, "day": 86_400 * 10**6}
_UNITS_US["week"] = 7 * _UNITS_US["day"]
_MONTHS = {"month": 1, "quarter": 3, "year": 12}
_MONTH_US = 365.25 / 12 * _UNITS_US["day"]
# Steps that differ by less may be one frequency: a few rows of business days look like days.
_APART = 1.5
# Short names, as in pandas and other libraries.
_SHORT = {
    **dict.fromkeys(["s", "sec"], "second"),
    **dict.fromkeys(["min", "t"], "minute"),
    **dict.fromkeys(["h", "hourly"], "hour"),
    **dict.fromkeys(["d", "daily"], "day"),
    **dict.fromkeys(["w", "weekly"], "week"),
    **dict.fromkeys(["m", "ms", "me", "monthly"], "month"),
    **dict.fromkeys(["q", "qs", "qe", "quarterly"], "quarter"),
    **dict.fromkeys(["y", "ys", "ye", "a", "yearly", "annual"], "year"),
    **dict.fromkeys(["b", "businessday", "bday", "weekday"], "business-day"),
    **dict.fromkeys(["c", "tradingday"], "trading-day"),
}
WEEKDAYS = ("business-day", "trading-day")
_EXAMPLES = "'15min', 'hour', 'day', 'business-day', 'trading-day', 'week', 'month', 'quarter', 'year'"
_MOST_HOLIDAYS = 100_000
# The days of the month that stand for its last day, and for its first and last day from Monday to Friday.
_MONTH_END, _FIRST_WEEKDAY, _LAST_WEEKDAY = 31, 32, 33
# How many days holidays move the first or last business day of a month.
_MOVED = np.timedelta64(3, "D")
_OF_ITS_OWN_STEPS = 8
# The least and the most days between rows of which a month has two.
_HALF_A_MONTH = 13, 17
# The range of NumPy's times, in microseconds.
_MOST_STEP = 2.0**63


@dataclasses.dataclass(frozen=True)
class Frequency:
    """The frequency of a series.

    Attributes:
        unit: "time" for constant steps, "business-day" (Monday to Friday), "trading-day" (without holidays), "month",
            or "number" where times are plain numbers.
        step: For "time" in microseconds, for "month" in months, for weekdays 1, for "number" the step.
        day: For "month" the day of the month, 31 for its end, 32 for its first and 33 for its last day from Monday to
            Friday, 0 for that of the last row; else 0.
        zone: The time zone or offset of the calendar; "" for the times as they stand.
        holidays: For "trading-day" the weekdays on which no series has a row: ISO dates, rising.
    """

    unit: str
    step: float
    day: int = 0
    zone: str = ""
    holidays: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """In words: "15 minutes", "days", "business days", "trading days", "months", "quarters"."""
        if self.unit == "number":
            return f"steps of {self.step:g}"
        if self.unit in WEEKDAYS:
            return f"{self.unit.replace('-', ' ')}s"
        sizes = _MONTHS if self.unit == "month" else _UNITS_US
        for word, size in sorted(sizes.items(), key=lambda item: -item[1]):
            count = self.step / size
            if count == int(count) and (count == 1 or word not in ("week", "quarter")):
                return f"{word}s" if count == 1 else f"{int(count)} {word}s"
        return str(np.timedelta64(round(self.step), "us"))

    @property
    def each(self) -> str:
        """The step in words, for "a row every …": "15 minutes", "day", "business day", "month"."""
        return self.name if self.name[0].isdigit() else self.name.removesuffix("s")

    def is_another(self, other: Frequency) -> bool:
        """True if the steps of two frequencies clearly differ; never for times that are plain numbers."""
        if "number" in (self.unit, other.unit):
            return False
        sizes = {"time": 1.0, "month": _MONTH_US, **dict.fromkeys(WEEKDAYS, float(_UNITS_US["day"]))}
        one, two = (each.step * sizes[each.unit] for each in (self, other))
        return max(one, two) >= _APART * min(one, two)

    def after(self, last: Any, count: int) -> np.ndarray:
        """The (count,) times that follow `last`, a datetime64[us] (in a zone the instant) or a number.

        Future holidays are not known, so trading days continue as business days.
        """
        numbers = np.arange(1, count + 1)
        if self.unit == "number":
            return float(last) + self.step * numbers
        last = np.datetime64(last, "us")
        if self.unit == "time" and self.step % _UNITS_US["day"]:
            return last + (numbers * round(self.step)).astype("timedelta64[us]")
        local = to_local(np.array([last]), self.zone)[0]
        return to_instants(self._local_after(local, numbers), self.zone)

    def gaps(self, before: np.ndarray, after: np.ndarray) -> np.ndarray:
        """(N,) True where the row at `after` does not follow the row at `before`, both (N,) in the type of times.

        A constant step may be half a step early or late; a calendar is exact to the day.
        """
        if self.unit == "number" or (self.unit == "time" and self.step % _UNITS_US["day"]):
            return np.abs((after - before).astype(np.float64) - self.step) > 0.5 * self.step
        before, after = to_local(before, self.zone), to_local(after, self.zone)
        if self.unit == "time":
            return np.abs((after - before).astype(np.float64) - self.step) > 0.5 * self.step
        if self.unit == "month":
            return _months(after) - _months(before) != self.step
        days = before.astype("datetime64[D]"), after.astype("datetime64[D]")
        return np.busday_count(*days, holidays=np.array(self.holidays, "M8[D]")) != 1

    def fits(self, times: np.ndarray, inside: np.ndarray) -> bool:
        """True if rows lie exactly as this frequency has it: a few of them may look like another one.

        Args:
            times: See `find_frequency`; dates.
            inside: See `find_frequency`.
        """
        local = to_local(times, self.zone)
        if self.unit == "time":
            return bool((np.diff(local)[inside].astype(np.int64) == self.step).all())
        if self.unit != "month" or (np.diff(_months(local))[inside] != self.step).any():
            return False
        return not self.day or _lie_on(local.astype("datetime64[D]"), self.day)

    def to_config(self) -> dict[str, Any]:
        """The frequency as JSON values."""
        return dataclasses.asdict(self)

    @classmethod
    def from_config(cls, config: Mapping[str, Any] | None) -> Frequency | None:
        """The frequency that `to_config` gave; None for None.

        Raises:
            ValueError: It is damaged.
        """
        if config is None:
            return None
        holidays = config.get("holidays", ())
        if len(holidays) > _MOST_HOLIDAYS:
            raise ValueError(f"a frequency with {len(holidays):,} holidays")
        days = tuple(np.datetime_as_string(np.array(holidays, "M8[D]")).tolist())
        found = cls(str(config["unit"]), float(config["step"]), int(config["day"]), str(config["zone"]), days)
        units = ("time", *WEEKDAYS, "month", "number")
        if found.unit not in units or not 0 < found.step < _MOST_STEP or not 0 <= found.day <= _LAST_WEEKDAY:
            raise ValueError(f"a frequency of {config!r:.80}")
        return found

    def _local_after(self, local: np.datetime64, numbers: np.ndarray) -> np.ndarray:
        day = local.astype("datetime64[D]")
        clock = local - day.astype("datetime64[us]")
        if self.unit == "time":
            return local + (numbers * round(self.step)).astype("timedelta64[us]")
        if self.unit in WEEKDAYS:
            return np.busday_offset(day, numbers, roll="backward").astype("datetime64[us]") + clock
        month = local.astype("datetime64[M]") + (numbers * round(self.step)).astype("timedelta64[M]")
        if self.day in (_FIRST_WEEKDAY, _LAST_WEEKDAY):
            return _weekday_of(month, self.day).astype("datetime64[us]") + clock
        ends = (month + _MONTH).astype("datetime64[D]") - _DAY
        # A last row on another day than the others (because of a holiday) does not move the times that follow.
        wanted = (self.day or int((day - day.astype("datetime64[M]")).astype(int)) + 1) - 1
        days = np.minimum(month.astype("datetime64[D]") + np.timedelta64(wanted, "D"), ends)
        return days.astype("datetime64[us]") + clock


def parse_frequency(text: str) -> Frequency:
    """A frequency by its name, such as "month", "business-day", "15min" or "2 hours".

    Raises:
        ConfigError: The text is not a frequency.
    """
    match = re.fullmatch(r"(\d{0,6})\s*([A-Za-z _-]+)", text.strip()[:64]) if isinstance(text, str) else None
    word = match[2].lower().replace("_", "-").replace(" ", "-") if match else ""
    word = _SHORT.get(word, word)
    single = word.removesuffix("s")
    word = _SHORT.get(single, single) if word not in WEEKDAYS else word
    count = int(match[1] or 1) if match else 0
    if count >= 1:
        if word in _UNITS_US:
            return Frequency("time", count * _UNITS_US[word])
        if word in _MONTHS:
            return Frequency("month", count * _MONTHS[word])
        if word in WEEKDAYS and count == 1:
            return Frequency(word, 1)
    raise ConfigError(f"{argument('frequency')} is {text!r}; expected one such as {_EXAMPLES}.")


def find_frequency(times: np.ndarray, inside: np.ndarray, zone: str = "") -> Frequency | None:
    """Finds the frequency of some rows.

    Args:
        times: (N,) datetime64[us] or float64, rising inside each series.
        inside: (N - 1,) whether a row and the one after it are of the same series.
        zone: The time zone whose calendar holds.

    Returns:
        The frequency; None if there is no step.
    """
    if times.dtype.kind != "M":
        steps = np.diff(times)[inside]
        return Frequency("number", float(np.median(steps))) if len(steps) else None
    local = to_local(times, zone)
    steps = np.diff(local)[inside].astype(np.int64)
    if not len(steps):
        return None
    median = round(float(np.median(steps)))
    if median >= 28 * _UNITS_US["day"]:
        monthly = _monthly(times, inside, zone)
        if monthly is not None:
            return monthly
    if median == _UNITS_US["day"]:
        weekdays = _weekdays(times, inside, zone)
        if weekdays is not None:
            return weekdays
    if median % _UNITS_US["day"] == 0 and median:
        return Frequency("time", median, zone=zone)
    # Shorter steps continue across a clock change.
    median = round(float(np.median(np.diff(times)[inside].astype(np.int64))))
    return Frequency("time", median, zone=zone) if median else None


def settled(wanted: Frequency, times: np.ndarray, inside: np.ndarray, zone: str) -> Frequency:
    """A named frequency, with its day of the month and its holidays from the times of some rows.

    Args:
        wanted: The frequency.
        times: See `find_frequency`.
        inside: See `find_frequency`.
        zone: See `find_frequency`.

    Raises:
        ConfigError: The times are plain numbers.
    """
    if times.dtype.kind != "M":
        raise ConfigError(
            f"{argument('frequency')} is {wanted.name}, but the times are plain numbers: leave it out, or name the "
            f"column of dates ({argument('time_column')})."
        )
    if wanted.unit in WEEKDAYS:
        zone = _zone_of_weekdays(times, zone) or zone
    if wanted.unit == "trading-day":
        return _trading(missing_weekdays(to_local(times, zone).astype("datetime64[D]"), inside), zone)
    days = _days_of_months(times, zone) if wanted.unit == "month" else None
    day, zone = days or (0, zone)
    return dataclasses.replace(wanted, day=day, zone=zone)


def days_apart(frequency: Frequency, times: np.ndarray, inside: np.ndarray) -> tuple[int, int] | None:
    """The least and the most days between rows on two days of each month, which no frequency keeps; None for others.

    Args:
        frequency: The one that was found.
        times: See `find_frequency`; dates.
        inside: See `find_frequency`.
    """
    least, most = _HALF_A_MONTH
    if frequency.unit != "time" or not least <= frequency.step / _UNITS_US["day"] <= most:
        return None
    days = to_local(times, frequency.zone).astype("datetime64[D]")
    steps, months = np.diff(days)[inside].astype(np.int64), np.diff(_months(days))
    together = inside & (months == 0)
    first, second = np.append(together, False), np.insert(together, 0, False)
    regular = (months[inside] <= 1).all() and not (first & second).any() and (steps != steps[0]).any()
    if not regular or not together.any() or None in (_day_of_month(days[first]), _day_of_month(days[second])):
        return None
    return int(steps.min()), int(steps.max())


def season_of(frequency: Frequency | None) -> int | None:
    """Rows of a season: a day for steps below a day, a week for days, a year for the rest; None if not whole."""
    if frequency is None or frequency.unit == "number":
        return None
    if frequency.unit in WEEKDAYS:
        return 5
    if frequency.unit == "month":
        return int(12 / frequency.step) if frequency.step < 12 and 12 % frequency.step == 0 else None
    for size, rows in ((_UNITS_US["day"], 7), (_UNITS_US["week"], 52)):
        if frequency.step == size:
            return rows
    in_a_day = _UNITS_US["day"] / frequency.step
    return round(in_a_day) if in_a_day >= 2 and abs(in_a_day - round(in_a_day)) < 1e-9 else None


def check_agreement(frequency: Frequency, times: np.ndarray, series: np.ndarray, names: Any) -> None:
    """Raises `DataError` if a series has another constant step, so that each of its steps would be a gap.

    Args:
        frequency: The frequency of all series together.
        times: (N,) of some rows, rising within each series.
        series: (N,) the number of each row's series, rising.
        names: The names of the series.
    """
    inside = series[1:] == series[:-1]
    gap = np.zeros(len(times), bool)
    gap[1:][inside] = frequency.gaps(times[:-1][inside], times[1:][inside])
    codes, starts, counts = np.unique(series, return_index=True, return_counts=True)
    lost = np.add.reduceat(gap, starts) == counts - 1
    regular = np.flatnonzero(lost & (counts > _OF_ITS_OWN_STEPS))
    if not len(regular) or len(codes) < 2:
        return
    for place in regular.tolist():
        own = times[starts[place] : starts[place] + counts[place]]
        found = find_frequency(own, np.ones(len(own) - 1, bool), frequency.zone)
        if found is None or found.name == frequency.name or found.gaps(own[:-1], own[1:]).mean() > 0.1:
            continue
        other = next((code for code, few in zip(codes, lost, strict=True) if not few), codes[0])
        raise DataError(
            f"series {names[codes[place]]!r} has rows every {found.each}, but series {names[other]!r} and most rows "
            f"every {frequency.each}. Train on series of one frequency, or choose "
            f"{argument('gaps', 'ignore')}."
        )


def _trading(holidays: np.ndarray, zone: str) -> Frequency:
    return Frequency("trading-day", 1, zone=zone, holidays=tuple(np.datetime_as_string(holidays).tolist()))


def _weekdays(times: np.ndarray, inside: np.ndarray, zone: str) -> Frequency | None:
    """Business days, or trading days; None if rows lie on weekends, or none are left out."""
    beside = _zone_of_weekdays(times, zone)
    if beside is None:
        return None
    days = to_local(times, beside).astype("datetime64[D]")
    before, after = days[:-1][inside], days[1:][inside]
    if not (np.busday_count(before, after) < (after - before).astype(np.int64)).any():
        return None
    missing = missing_weekdays(days, inside)
    if come_back(missing, days.min(), days.max()):
        return _trading(missing, beside)
    return Frequency("business-day", 1, zone=beside)


def _zone_of_weekdays(times: np.ndarray, zone: str) -> str | None:
    """The zone by whose clock all rows lie between Monday and Friday; None if there is none."""
    return next((beside for beside, days in _days_beside(times, zone) if np.is_busday(days).all()), None)


def _monthly(times: np.ndarray, inside: np.ndarray, zone: str) -> Frequency | None:
    found = _days_of_months(times, zone)
    day, zone = found or (0, zone)
    local = to_local(times, zone)
    months = np.diff(_months(local))[inside]
    count = round(float(np.median(months)))
    if count < 1 or months.min() < 1 or (months % count).any():
        return None
    if found is None:
        # On other days, such as third Fridays, but without a gap, and not in steps of as many days.
        steps = np.diff(local.astype("datetime64[D]"))[inside]
        if len(steps) < _OF_ITS_OWN_STEPS or (months != count).any() or (steps == steps[0]).all():
            return None
    return Frequency("month", count, day, zone)


def _days_of_months(times: np.ndarray, zone: str) -> tuple[int, str] | None:
    """The day of the month on which all rows lie, and the zone whose clock shows it; None if there is none."""
    for beside, days in _days_beside(times, zone):
        day = _day_of_month(days)
        if day is not None:
            return day, beside
    return None


def _days_beside(times: np.ndarray, zone: str) -> Iterator[tuple[str, np.ndarray]]:
    """A zone and those an hour beside it, each with the days of the rows, if it shows about one time of day for all.

    A clock that is put forward in summer and was written in UTC, or with its offsets, differs by an hour there.
    """
    for beside in and_an_hour_beside(zone):
        local = to_local(times, beside)
        days = local.astype("datetime64[D]")
        if np.ptp(local - days.astype("datetime64[us]")) <= _SUMMER:
            yield beside, days


def _day_of_month(days: np.ndarray) -> int | None:
    """The day on which all rows lie, as in `Frequency.day`, or None."""
    highest = int((days - days.astype("datetime64[M]").astype("datetime64[D]")).astype(np.int64).max()) + 1
    return next(
        (day for day in (_MONTH_END, highest, _FIRST_WEEKDAY, _LAST_WEEKDAY) if _lie_on(days, day)), None
    )


def _lie_on(days: np.ndarray, day: int) -> bool:
    """True if all rows lie on a day as in `Frequency.day`, above 0.

    Holidays may move single rows that lie on the first or last weekday.
    """
    month = days.astype("datetime64[M]")
    if day in (_FIRST_WEEKDAY, _LAST_WEEKDAY):
        moved = (1 if day == _FIRST_WEEKDAY else -1) * (days - _weekday_of(month, day))
        near = (moved >= np.timedelta64(0, "D")) & (moved <= _MOVED)
        return bool(near.all() and np.is_busday(days).all())
    first = month.astype("datetime64[D]")
    length = ((month + _MONTH).astype("datetime64[D]") - first).astype(np.int64)
    return bool(((days - first).astype(np.int64) + 1 == np.minimum(day, length)).all())


def _weekday_of(month: np.ndarray, day: int) -> np.ndarray:
    """The first or last weekday of months."""
    if day == _FIRST_WEEKDAY:
        return np.busday_offset(month.astype("datetime64[D]"), 0, roll="forward")
    return np.busday_offset((month + _MONTH).astype("datetime64[D]") - _DAY, 0, roll="backward")


def _months(times: np.ndarray) -> np.ndarray:
    return times.astype("datetime64[M]").astype(np.int64)
