"""The facts about the rows of tables read so far."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from cellerate.errors import DataError
from cellerate.format import listed
from cellerate.messages import argument

_NAMED = 5


class EmptyColumnsError(DataError):
    """Columns have no value in any row.

    Attributes:
        columns: Their names.
    """

    def __init__(self, columns: Sequence[str], rows: int) -> None:
        self.columns = tuple(columns)
        super().__init__(
            f"column {columns[0]!r} has no value in any of the {rows} rows; leave it out of "
            f"{argument('targets')} and {argument('features')}."
        )


@dataclasses.dataclass(frozen=True)
class Columns:
    """The columns to read: `values` are stored; `missing_values` mark a missing value."""

    values: list[str]
    time: str | None
    series: Sequence[str] = ()
    missing_values: Sequence[str] = ()

    @property
    def missing_numbers(self) -> list[float]:
        """Those of `missing_values` that are numbers, as float64 and as float32 hold them."""
        found = []
        for value in self.missing_values:
            with contextlib.suppress(ValueError):
                found.append(float(value))
        return [*found, *in_float32(found)]


def in_float32(numbers: Iterable[float]) -> list[float]:
    """The numbers as a column of float32 holds them, such as -99.9000015258789; without those that none can hold."""
    with np.errstate(over="ignore"):
        return [float(number) for number in np.array(list(numbers), np.float32) if np.isfinite(number)]


@dataclasses.dataclass
class RowsRead:
    """The facts about the rows read so far.

    Attributes:
        key: A hash of the tables and settings.
        table: The index of the next table, from 0.
        part: The index of its next part.
        rows: The number of rows read.
        names: The name of each series, in the order in which they appear.
        counts: The rows of each series.
        sorted: Whether the rows of each series are contiguous.
        last_series: The series of the last row, or -1.
        last_time: The latest time of the last series as an integer or float, or None.
        time_type: NumPy's name of the type of times, or "".
        holes: Missing values in each column.
        first_hole: Row and column of the first missing value, or None.
        file_starts: The rows before each table.
        form: How the times are written, as `TimeForm.to_config` gives it, or None.
        latest: The latest time of all, whose offset forecasts use; or None.
        last_month_first: `last_time` with the month read first, if the order of dates is still undecided; or None.
        undecided: The number of first rows that were read day first before the order was decided.
        widened: Why values are stored in float64 although float32 was requested, or "".
        too_large: The column whose digits not even float64 can hold, or "".
        sentinels: Numbers that may mark missing values, as the fields of `Sentinels`; empty before the first row.
    """

    key: str
    table: int = 0
    part: int = 0
    rows: int = 0
    names: list[str] = dataclasses.field(default_factory=list)
    counts: list[int] = dataclasses.field(default_factory=list)
    sorted: bool = True
    last_series: int = -1
    last_time: float | None = None
    time_type: str = ""
    holes: list[int] = dataclasses.field(default_factory=list)
    first_hole: list[int] | None = None
    file_starts: list[int] = dataclasses.field(default_factory=list)
    form: dict[str, Any] | None = None
    latest: float | None = None
    last_month_first: float | None = None
    undecided: int = 0
    widened: str = ""
    too_large: str = ""
    sentinels: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """True if no value is missing."""
        return not any(self.holes)

    @property
    def notes(self) -> list[str]:
        """The messages on the numbers."""
        large = (
            f"{self.too_large!r} holds whole numbers of which float64 keeps 15 digits: neighbouring rows may be the "
            "same; subtract a constant before"
        )
        return [self.widened] * bool(self.widened) + [large] * bool(self.too_large)


def without_value(columns: Sequence[str]) -> list[str]:
    """Say which columns are left out because they are empty; an empty list without any."""
    if not columns:
        return []
    return [f"left out, because they have no value in any row: {listed(list(map(repr, columns)), _NAMED)}"]
