"""Features of times that a model can learn from: hour, weekday, day, month and holidays.

They need NumPy alone, so a packed model needs no other package to forecast. The dates of holidays come from the package
`holidays` in training, and are kept in the model's record.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cellerate.data.settings import PARTS, check_calendar
from cellerate.data.times.zones import to_local
from cellerate.errors import BackendError, ConfigError, DataError, ModelError
from cellerate.machine.environment import require
from cellerate.messages import argument

_YEARS_AHEAD = np.timedelta64(10, "Y")
_MOST_HOLIDAYS = 100_000
_DAY_US = 86_400_000_000


@dataclasses.dataclass(frozen=True, eq=False)
class Holidays:
    """The holidays of a country.

    Attributes:
        country: Its code, such as "DE".
        dates: (D,) datetime64[D], rising.
        first: The first day that the dates cover.
        last: The last day that they cover.
    """

    country: str
    dates: np.ndarray
    first: np.datetime64
    last: np.datetime64

    def are(self, days: np.ndarray) -> np.ndarray:
        """True for each of some days that is a holiday.

        Args:
            days: Of any shape, datetime64[D].

        Raises:
            DataError: A day lies outside the covered days.
        """
        outside = days[(days < self.first) | (days > self.last)]
        if outside.size:
            raise DataError(
                f"the model knows the holidays of {self.country} from {self.first} to {self.last}, and the data reach "
                f"{outside.reshape(-1)[0]}: train it again with newer data."
            )
        return np.isin(days, self.dates)


@dataclasses.dataclass(frozen=True, eq=False)
class Calendar:
    """The features computed from times.

    Attributes:
        parts: Some of `PARTS`, in the order of the features.
        holidays: The holidays, if "holiday" is one of them.
    """

    parts: tuple[str, ...]
    holidays: Holidays | None = None

    @property
    def width(self) -> int:
        """The number of features: a holiday is one, everything else two."""
        return sum(1 if part == "holiday" else 2 for part in self.parts)

    def features(self, times: np.ndarray) -> np.ndarray:
        """The features of times: sine and cosine of the share of the day, week, month or year that has passed.

        So 23:00 and 0:00 are neighbours. A holiday is 1, any other day 0.

        Args:
            times: Of any shape, datetime64[us]; with a zone, its clock time.

        Returns:
            times.shape + (width,), float32.

        Raises:
            DataError: A time lies outside the known holidays.
        """
        made = np.empty((*times.shape, self.width), np.float32)
        days = times.astype("M8[D]")
        place = 0
        for part in self.parts:
            if part == "holiday":
                assert self.holidays is not None  # noqa: S101 (`make_calendar` and `from_config` see to it)
                made[..., place] = self.holidays.are(days)
                place += 1
                continue
            angle = 2 * np.pi * _SHARES[part](times, days)
            made[..., place], made[..., place + 1] = np.sin(angle), np.cos(angle)
            place += 2
        return made

    def to_config(self) -> dict[str, Any]:
        """A description for `from_config`, ready for JSON."""
        found: dict[str, Any] = {"parts": list(self.parts)}
        if self.holidays is not None:
            found["holidays"] = {
                "country": self.holidays.country,
                "dates": np.datetime_as_string(self.holidays.dates).tolist(),
                "first": str(self.holidays.first),
                "last": str(self.holidays.last),
            }
        return found

    @classmethod
    def from_config(cls, config: Any) -> Calendar:
        """The calendar that `to_config` described.

        Raises:
            ModelError: The description is not valid; a model file may hold anything.
        """
        damaged = "the model's calendar cannot be used: the file is damaged."
        if not isinstance(config, Mapping) or not isinstance(config.get("parts"), list):
            raise ModelError(damaged)
        parts = config["parts"]
        if not parts or not all(part in PARTS for part in parts) or len(set(parts)) < len(parts):
            raise ModelError(damaged)
        holidays = None
        if "holiday" in parts:
            try:
                found = config["holidays"]
                if len(found["dates"]) > _MOST_HOLIDAYS:
                    raise ValueError("too many")
                holidays = Holidays(
                    str(found["country"])[:16],
                    np.sort(np.array(found["dates"], "M8[D]")),
                    np.datetime64(found["first"], "D"),
                    np.datetime64(found["last"], "D"),
                )
            except (LookupError, TypeError, ValueError) as error:
                raise ModelError(damaged) from error
        return cls(tuple(parts), holidays)


def make_calendar(
    parts: Sequence[str], country: str | None, times: np.ndarray | None, zone: str = ""
) -> Calendar | None:
    """The calendar for a series, with the holidays of its years and of ten more.

    Args:
        parts: Some of `PARTS`; without any there is no calendar.
        country: A code that the package `holidays` knows, optionally with a subdivision such as "DE-BY".
        times: (N,) the times of the series, in any order; None if it has none.
        zone: The time zone whose clock counts, if the times are instants.

    Raises:
        BackendError: The package `holidays` is needed and missing.
        ConfigError: A part or the country is unknown.
        DataError: The series has no times, or they are not dates.
    """
    check_calendar(parts, country)
    if not parts:
        return None
    times = check_times(times)
    if "holiday" not in parts:
        return Calendar(tuple(parts))
    assert country is not None  # noqa: S101 (checked above)
    ends = to_local(np.array([np.min(times), np.max(times)]), zone).astype("M8[Y]")
    first, last = ends[0], ends[1] + _YEARS_AHEAD
    years = range(int(first.astype(int)) + 1970, int(last.astype(int)) + 1971)
    dates = _holidays(country, years)
    end = (last + np.timedelta64(1, "Y")).astype("M8[D]") - np.timedelta64(1, "D")
    return Calendar(tuple(parts), Holidays(country, dates, first.astype("M8[D]"), end))


def check_holidays(parts: Sequence[str], country: str | None) -> None:
    """Refuse, before data are read, a country whose holidays are not known here.

    Args:
        parts: See `make_calendar`.
        country: See `make_calendar`.

    Raises:
        BackendError: The package `holidays` is needed and missing.
        ConfigError: The country is unknown.
    """
    if "holiday" in parts and country is not None:
        _holidays(country, range(2000, 2001))


def check_times(times: np.ndarray | None) -> np.ndarray:
    """The times, if a calendar can be made from them. Raises `DataError` otherwise."""
    if times is None:
        raise DataError(
            f"{argument('calendar')} needs the time of each row, but the series has no time column: name it "
            f"({argument('time_column')}), or leave {argument('calendar')} out."
        )
    if times.dtype.kind != "M":
        raise DataError(
            f"{argument('calendar')} needs dates, but the time column holds plain numbers: write dates, or leave "
            f"{argument('calendar')} out."
        )
    return times


def _holidays(country: str, years: range) -> np.ndarray:
    require("holidays", "holidays", "calendar with 'holiday'")
    import holidays

    code, _, subdivision = country.partition("-")
    try:
        found = holidays.country_holidays(code, subdiv=subdivision or None, years=years)
    except NotImplementedError as error:
        raise ConfigError(
            f"{argument('holidays')} is {country!r}, which the package `holidays` does not know: give the code of a "
            "country, such as 'DE', or of a part of one, such as 'DE-BY'."
        ) from error
    except ImportError as error:
        raise BackendError(f"the package `holidays` cannot be used: {error}.") from error
    return np.array(sorted(map(str, found)), "M8[D]")


def _of_day(times: np.ndarray, days: np.ndarray) -> np.ndarray:
    return (times - days).astype("m8[us]").astype(np.int64) / _DAY_US


def _of_week(times: np.ndarray, days: np.ndarray) -> np.ndarray:
    # Day 0, 1 January 1970, was a Thursday; weeks begin on Monday.
    return (days.astype(np.int64) + 3) % 7 / 7


def _of_month(times: np.ndarray, days: np.ndarray) -> np.ndarray:
    return (days - days.astype("M8[M]").astype("M8[D]")).astype(np.int64) / 31


def _of_year(times: np.ndarray, days: np.ndarray) -> np.ndarray:
    return times.astype("M8[M]").astype(np.int64) % 12 / 12


_SHARES = {"hour": _of_day, "weekday": _of_week, "day": _of_month, "month": _of_year}
