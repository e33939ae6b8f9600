"""The rows to forecast, in runs, and the median of several forecasts of a row: plain arithmetic."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from cellerate.data.series import SeriesData
from cellerate.runtime.forecast.settings import ForecastSettings


class Piece(NamedTuple):
    """A run of rows and the run of origins whose forecasts reach them, each as its first and the one after its last."""

    begin: int
    stop: int
    first_origin: int
    stop_origin: int


def pieces_of(
    bounds: Sequence[tuple[int, int, int]],
    settings: ForecastSettings,
    data: SeriesData,
    most: int,
) -> list[Piece]:
    """Cuts the rows of bounds into runs, without those that no forecast reaches."""
    firsts = [first for first, _, _ in data.segments]
    found = []
    for first, begin, stop in bounds:
        earliest = first + settings.window
        # Columns known in advance are sure to be there only for rows of the series.
        latest = stop
        if settings.covariates.future:
            latest = data.segments[bisect.bisect_right(firsts, begin) - 1][1] - settings.horizon + 1
        if latest <= earliest:
            continue
        for row in range(max(begin, earliest), stop, most):
            end = min(stop, row + most)
            found.append(Piece(row, end, max(earliest, row - settings.horizon + 1), min(end, latest)))
    return found


def laid_out(pieces: Sequence[Piece]) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return the origins of pieces, the first row and the row after the last of each origin's piece, and the rows."""
    origins = [np.arange(one.first_origin, one.stop_origin, dtype=np.int64) for one in pieces]
    rows = [np.arange(one.begin, one.stop, dtype=np.int64) for one in pieces]
    counts = list(map(len, origins))
    begins, ends = (np.repeat([getattr(one, name) for one in pieces], counts) for name in ("begin", "stop"))
    return np.concatenate(origins), begins, ends, np.concatenate(rows)


def over_steps(
    rows: np.ndarray,
    origins: np.ndarray,
    ends: np.ndarray,
    point: np.ndarray,
    spread: np.ndarray,
    horizon: int,
) -> tuple[np.ndarray, np.ndarray]:
    """The medians, over all steps that reach a row, of forecasts (B, horizon, targets) and scales (B, targets)."""
    shape = (len(rows), horizon, spread.shape[1])
    table, spreads = np.full(shape, np.nan), np.full(shape, np.nan)
    for step in range(horizon):
        places = np.searchsorted(rows, origins + step)
        fits = (origins + step < ends) & (places < len(rows))
        fits[fits] = rows[places[fits]] == origins[fits] + step
        table[places[fits], step] = point[fits, step]
        spreads[places[fits], step] = spread[fits]
    return np.nanmedian(table, axis=1), np.nanmedian(spreads, axis=1)
