"""Weekdays on which nobody trades or works, found from the data: they are missing in every series, year after year."""

from __future__ import annotations

import numpy as np

MOST_IN_A_ROW = 7
"""Weekdays that one holiday may take: a golden week has five, and an exchange was once closed for four."""

_DAY = np.timedelta64(1, "D")
_YEAR_DAYS = 365.2425
# A holiday comes back within so many days of its day a year later: most are on a weekday of their own.
_NEAR_DAYS = 7
_LEAST_YEARS, _LEAST_HOLIDAYS, _MOST_SHARE = 1.9, 6, 0.12
# How often they come back must be so many standard deviations above chance.
_DEVIATIONS = 3


def missing_weekdays(days: np.ndarray, inside: np.ndarray) -> np.ndarray:
    """The weekdays without a row in any series, between two rows of one, unless too many follow one another.

    Args:
        days: (N,) datetime64[D], rising inside each series.
        inside: (N - 1,) whether a row and the one after it are of the same series.

    Returns:
        (H,) datetime64[D], rising.
    """
    before, after = days[:-1][inside], days[1:][inside]
    skipped = np.busday_count(before, after) - 1
    wanted = (skipped >= 1) & (skipped <= MOST_IN_A_ROW)
    pairs = np.unique(np.stack([before[wanted], after[wanted]], axis=1), axis=0)
    between = [np.arange(first + _DAY, last) for first, last in pairs]
    found = np.unique(np.concatenate([*between, days[:0]]))
    return np.setdiff1d(found[np.is_busday(found)], days)


def come_back(missing: np.ndarray, first: np.datetime64, last: np.datetime64) -> bool:
    """True if missing weekdays are holidays: they come back in other years more often than chance has it.

    Args:
        missing: (H,) datetime64[D], rising.
        first: The first day of the data.
        last: The last day.
    """
    years = float((last - first) / _DAY) / _YEAR_DAYS
    weekdays = int(np.busday_count(first, last))
    if years < _LEAST_YEARS or len(missing) < _LEAST_HOLIDAYS or len(missing) > _MOST_SHARE * weekdays:
        return False
    numbers = missing.astype(np.int64)
    begin, end = int(first.astype(np.int64)), int(last.astype(np.int64))
    shifts = np.rint(np.arange(1, int(years) + 2) * _YEAR_DAYS).astype(np.int64)
    elsewhere = numbers[:, None] + np.concatenate([-shifts, shifts])
    covered = (elsewhere >= begin) & (elsewhere <= end)
    place = np.searchsorted(numbers, elsewhere)
    around = np.stack([numbers[np.maximum(place - 1, 0)], numbers[np.minimum(place, len(numbers) - 1)]])
    near = (np.abs(around - elsewhere) <= _NEAR_DAYS).any(axis=0)
    share = float((near & covered).sum(axis=1).sum() / max(1, covered.sum()))
    # A day drawn by chance is near one of them as often as days are.
    close = np.unique((numbers[:, None] + np.arange(-_NEAR_DAYS, _NEAR_DAYS + 1)).reshape(-1))
    chance = ((close >= begin) & (close <= end)).sum() / (end - begin + 1)
    deviation = np.sqrt(chance * (1 - chance) / len(numbers))
    return bool(share >= 0.5 and share - chance >= _DEVIATIONS * deviation)
