"""Decides whether day or month is first in ambiguous dates: the reading that gives regular steps wins."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np

from cellerate.data.times.form import TimeForm
from cellerate.data.times.frequency import Frequency, find_frequency
from cellerate.errors import DataError
from cellerate.messages import argument

LOOKED_AT = 200_000


def swap_day_and_month(times: np.ndarray) -> np.ndarray:
    """(N,) datetime64[us] of dates read day first, read month first; each day is at most 12."""
    days = times.astype("datetime64[D]")
    months = days.astype("datetime64[M]")
    years = months.astype("datetime64[Y]")
    day = (days - months.astype("datetime64[D]")).astype(np.int64)
    month = (months - years.astype("datetime64[M]")).astype(np.int64)
    swapped = years.astype("datetime64[M]") + day.astype("timedelta64[M]")
    swapped = swapped.astype("datetime64[D]") + month.astype("timedelta64[D]")
    return swapped.astype("datetime64[us]") + (times - days.astype("datetime64[us]"))


def decide_order(
    form: TimeForm, times: np.ndarray, series: np.ndarray, path: Path, column: str
) -> tuple[TimeForm, str]:
    """The form of ambiguous dates, and the note on it.

    Args:
        form: Their form so far, with the day first.
        times: (N,) of some rows, with the day first.
        series: (N,) the number of each row's series.
        path: The file, for messages.
        column: The column, for messages.

    Raises:
        DataError: Both readings or neither are regular.
    """
    times, series = times[:LOOKED_AT], series[:LOOKED_AT]
    other = swap_day_and_month(times)
    if (times == other).all():
        return form, ""
    found = [_regular(each, series) for each in (times, other)]
    if bool(found[0]) != bool(found[1]):
        chosen = found[0] or found[1]
        assert chosen is not None  # noqa: S101 (one is)
        first, decided = (
            ("day", dataclasses.replace(form, order="dmy")) if found[0] else ("month", form.month_first())
        )
        return decided, f"dates {first} first, because only then the steps are regular ({chosen.name})"
    at = int(np.argmax(times != other))
    text = form.write(times[at : at + 1])[0]
    steps = [each.name if each is not None else "irregular steps" for each in found]
    raise DataError(
        f"{path}: the time column {column!r} holds {text!r}, and no value says whether day or month is first: it may "
        f"be {str(times[at])[:10]} (day first, {steps[0]}) or {str(other[at])[:10]} (month first, {steps[1]}). Say "
        f"which: {argument('date_order', 'dmy', 'mdy')}."
    )


def _regular(times: np.ndarray, series: np.ndarray) -> Frequency | None:
    """The frequency of rows without any gap, or None."""
    rows = np.unique(np.stack([series.astype(np.int64), times.astype(np.int64)], axis=1), axis=0)
    inside = rows[1:, 0] == rows[:-1, 0]
    sorted_times = rows[:, 1].copy().view("datetime64[us]")
    found = find_frequency(sorted_times, inside)
    if found is None or found.gaps(sorted_times[:-1][inside], sorted_times[1:][inside]).any():
        return None
    return found
