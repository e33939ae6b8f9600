"""Fills the missing values of series block by block, with the same result as one pass over all rows.

From outside itself, a block needs only the last value of each column before it and the first value after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from cellerate.data.arrays import open_rows

_LOOK_AHEAD_ROWS = 64


class Filler:
    """Fills block after block, from the first row on.

    Args:
        values: (N, C) with NaN where a value is missing; rows before the current block may be filled already.
        cut: Takes the first row and the row after the last, and returns where a stretch begins; nothing is filled
            across its beginning.
        interpolate: Whether to interpolate linearly between neighbours, with the nearest value at the ends of a
            stretch; otherwise the last value before a hole is repeated.
    """

    def __init__(
        self, values: np.ndarray, cut: Callable[[int, int], np.ndarray], *, interpolate: bool
    ) -> None:
        self._values, self._cut, self._interpolate = values, cut, interpolate
        columns = values.shape[1]
        # The last value of each column in the current stretch, NaN without one, and its row.
        self._before = np.full(columns, np.nan)
        self._before_row = np.zeros(columns, np.int64)
        # The next value of each column; NaN if there is none up to that row, where its stretch ends.
        self._after = np.full(columns, np.nan)
        self._after_row = np.zeros(columns, np.int64)

    def fill(self, first: int, block: np.ndarray, cut: np.ndarray) -> np.ndarray:
        """Fills a block in place.

        Args:
            first: Its first row, the one after the previous block.
            block: (n, C).
            cut: (n,) True where a stretch begins.

        Returns:
            (n,) True for the rows that are complete now.
        """
        missing = np.isnan(block)
        kept = np.ones(len(block), bool)
        starts = np.flatnonzero(cut) if cut[0] else np.concatenate([[0], np.flatnonzero(cut)])
        stops = np.append(starts[1:], len(block))
        holes = np.flatnonzero(missing.any(axis=1))
        touched = set((np.searchsorted(starts, holes, side="right") - 1).tolist())
        for number in sorted({*touched, len(starts) - 1}):
            start, stop = int(starts[number]), int(stops[number])
            goes_on, last = start == 0 and not cut[0], number == len(starts) - 1
            if not goes_on:
                self._before[:] = np.nan
            if self._interpolate and last and missing[-1].any():
                self._look_ahead(first + len(block), np.flatnonzero(missing[-1]))
            for column in range(block.shape[1]):
                self._fill_column(first, block, missing, kept, start, stop, column, last=last)
        return kept

    def _fill_column(
        self,
        first: int,
        block: np.ndarray,
        missing: np.ndarray,
        kept: np.ndarray,
        start: int,
        stop: int,
        column: int,
        *,
        last: bool,
    ) -> None:
        """Fills a column of a stretch within the block; keeps its last value if the stretch continues."""
        absent = missing[start:stop, column]
        holes, good = np.flatnonzero(absent), np.flatnonzero(~absent)
        series = block[start:stop, column].astype(np.float64)
        places, values = good, series[good]
        if len(holes):
            if np.isfinite(self._before[column]):
                places = np.concatenate([[self._before_row[column] - first - start], places])
                values = np.concatenate([[self._before[column]], values])
            if self._interpolate and last and absent[-1] and np.isfinite(self._after[column]):
                places = np.concatenate([places, [self._after_row[column] - first - start]])
                values = np.concatenate([values, [self._after[column]]])
            if not len(places):
                kept[start:stop] = False
            elif self._interpolate:
                block[start + holes, column] = np.interp(holes, places, values)
            else:
                nearest = np.searchsorted(places, holes) - 1
                known = nearest >= 0
                kept[start + holes[~known]] = False  # nothing to carry forward yet
                block[start + holes[known], column] = values[nearest[known]]
        if last and len(good):
            self._before[column] = series[good[-1]]
            self._before_row[column] = first + start + int(good[-1])

    def _look_ahead(self, row: int, columns: np.ndarray) -> None:
        """Finds the next value of some columns in the stretch that continues at a row."""
        wanted = [column for column in columns.tolist() if self._after_row[column] < row]
        self._after[wanted] = np.nan
        count = _LOOK_AHEAD_ROWS
        while wanted and row < len(self._values):
            stop = min(len(self._values), row + count)
            begins = np.flatnonzero(self._cut(row, stop))
            stop = row + int(begins[0]) if len(begins) else stop
            if stop > row:
                (part,) = blocks_of(self._values[row:stop], stop - row)
                for column in list(wanted):
                    good = np.flatnonzero(~np.isnan(part[:, column]))
                    if len(good):
                        self._after[column] = part[good[0], column]
                        self._after_row[column] = row + int(good[0])
                        wanted.remove(column)
            row = stop
            if len(begins):
                break
            count = min(4 * count, 1 << 18)
        self._after_row[wanted] = row


def blocks_of(table: np.ndarray, rows: int) -> Iterator[np.ndarray]:
    """The rows of (N, C), at most `rows` at a time."""
    reader = open_rows(table)
    for first in range(0, len(table), max(1, rows)):
        block = np.empty((min(rows, len(table) - first), table.shape[1]), table.dtype)
        reader.read(first, block)
        yield block
