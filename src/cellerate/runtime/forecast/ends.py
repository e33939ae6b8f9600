"""The ends of series: the rows from which they are forecast, and the series that are too short for a forecast."""

from __future__ import annotations

import numpy as np

from cellerate.data.series import SeriesData
from cellerate.errors import DataError
from cellerate.format import listed
from cellerate.messages import argument

_NAMED = 5


def series_ends(data: SeriesData, window: int) -> dict[str, int]:
    """Return the row after the last one of each series that is long enough, in the order in which the series begin.

    Raises:
        DataError: Each series has fewer than `window` rows after its last gap.
    """
    # The last stretch of each series.
    ends = {series: (first, stop) for first, stop, series in data.segments}
    found = {series: stop for series, (first, stop) in ends.items() if stop - first >= window}
    if not found:
        series, (first, stop) = max(ends.items(), key=lambda item: item[1][1] - item[1][0])
        which = f"the longest of {len(ends):,} series, {series!r}," if len(ends) > 1 else "the series"
        raise DataError(
            f"{which} ends with {stop - first} rows without a gap, but the model needs {window}: give more rows, "
            f"fill the gap, or read on over usual gaps ({argument('gaps', 'ignore')})."
        )
    return found


def too_short(data: SeriesData, window: int) -> dict[str, int]:
    """The series that `series_ends` leaves out, with the number of rows after their last gap."""
    ends = {series: stop - first for first, stop, series in data.segments}
    return {series: rows for series, rows in ends.items() if rows < window}


def left_out(data: SeriesData, window: int) -> str:
    """A sentence about the series that `series_ends` leaves out; "" if there are none."""
    short, every = too_short(data, window), {series for _, _, series in data.segments}
    if not short:
        return ""
    named = listed([f"{series or 'the series'} ({rows} rows)" for series, rows in short.items()], _NAMED)
    return (
        f"{len(short):,} of {len(every):,} series left out, because they end with fewer than {window} rows without a "
        f"gap: {named}"
    )


def row_times(data: SeriesData, first: int, stop: int) -> np.ndarray:
    """The times of rows of a series, or their numbers."""
    return np.arange(first, stop) if data.times is None else np.asarray(data.times[first:stop])
