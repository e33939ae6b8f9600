"""Finds numbers that may mark missing values, such as -9999: far from all others of their column.

They are only reported, because only the owner of the data knows whether such a number marks a missing value.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from cellerate.data.series.rows_read import in_float32
from cellerate.messages import Message, argument

USUAL = (
    *(-99.0, -999.0, -9999.0, -99999.0, -999999.0, 9999.0, 99999.0, 999999.0),
    *(-99.9, -99.99, -999.9, -999.99, -999.25, -9999.99, 1e20, -1e20),
)
_EITHER = (*USUAL, *in_float32(USUAL))
# Its least distance from all other values, in multiples of their range.
_FAR = 3.0
_NAMED = 3
_SIDE_BY_SIDE = 64


@dataclasses.dataclass
class Sentinels:
    """The findings so far.

    Attributes:
        found: For each column the suspicious number, or None; as JSON values, like the others.
        counts: For each column how often the number occurs.
        low: For each column the least of the other values, or None.
        high: For each column the largest of them, or None.
    """

    found: list[float | None]
    counts: list[int]
    low: list[float | None]
    high: list[float | None]

    @classmethod
    def of(cls, columns: int) -> Sentinels:
        """Nothing found yet in a number of columns."""
        return cls([None] * columns, [0] * columns, [None] * columns, [None] * columns)

    def add(self, numbers: np.ndarray) -> None:
        """Takes some rows into account, (N, C) with NaN where a value is missing."""
        low, high = (_by_column(one, numbers) for one in (np.fmin, np.fmax))
        for column in np.flatnonzero(np.isin(low, _EITHER) | np.isin(high, _EITHER)).tolist():
            known = self.found[column]
            end = float(low[column] if low[column] in _EITHER else high[column])
            if known not in (None, end):
                continue
            values = numbers[:, column]
            there = values == end
            others = values[~there & np.isfinite(values)]
            self.found[column], self.counts[column] = end, self.counts[column] + int(there.sum())
            low[column], high[column] = (others.min(), others.max()) if len(others) else (np.nan, np.nan)
        for place, (least, most) in enumerate(zip(low.tolist(), high.tolist(), strict=True)):
            self.low[place] = _of(min, self.low[place], least)
            self.high[place] = _of(max, self.high[place], most)

    def notes(self, columns: Sequence[str]) -> list[str]:
        """The messages for the user, by the names of the columns."""
        named: dict[float, list[str]] = {}
        for place, (end, low, high) in enumerate(zip(self.found, self.low, self.high, strict=True)):
            if end is not None and low is not None and high is not None:
                away = max(low - end, end - high)
                if away > _FAR * (high - low) and away > 0:
                    named.setdefault(end, []).append(f"{columns[place]!r} ({self.counts[place]:,} times)")
        return [
            Message(
                f"{end:g} is far from all other values of {', '.join(where[:_NAMED])}"
                + (f" and {len(where) - _NAMED} more columns" if len(where) > _NAMED else "")
                + f": if it marks missing values, give {argument('missing_values', f'{end:g}')}"
            )
            for end, where in named.items()
        ]


def _by_column(which: np.ufunc, numbers: np.ndarray) -> np.ndarray:
    """(C,) the least or largest of each column. NumPy is fast along long rows, so many rows are joined into one."""
    rows, columns = len(numbers) // _SIDE_BY_SIDE, numbers.shape[1]
    if rows > 1:
        together = numbers[: rows * _SIDE_BY_SIDE].reshape(rows, _SIDE_BY_SIDE * columns)
        ends = which.reduce(together, axis=0).reshape(_SIDE_BY_SIDE, columns)
        numbers = np.concatenate([ends, numbers[rows * _SIDE_BY_SIDE :]])
    found: np.ndarray = which.reduce(numbers, axis=0)
    return found


def _of(which: Any, one: float | None, other: float) -> float | None:
    if not np.isfinite(other):
        return one
    return other if one is None else float(which(one, other))
