"""Wide tables: each column of numbers is a series of its own, beside one column of times."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cellerate.data.tables.joined_times import columns_of_time
from cellerate.data.tables.table import Block, Kind, Table
from cellerate.data.times import way_of
from cellerate.errors import ConfigError, DataError

VALUE, SERIES = "value", "series"
_YEAR = re.compile(r"1[5-9]\d\d|20\d\d")


class WideTable:
    """A wide table as a long one with the columns time, `SERIES` and `VALUE`.

    Args:
        table: The wide table.
        time: Its column of times, or None.

    Raises:
        DataError: The table has no other numeric column.
    """

    parts: int
    rows: int | None

    def __init__(self, table: Table, time: str | None) -> None:
        self._table = table
        self._of_time = of_time = [] if time is None else columns_of_time(time, table.columns)
        self.path: Path = table.path
        self._names = [n for n in table.columns if table.kinds[n] == "number" and n not in (*of_time, "")]
        if not self._names:
            raise DataError(f"{table.path} has no column of numbers; a wide table needs one for each series.")
        if time is None:
            _check_direction(table.path, self._names)
        self.columns = (*([] if time is None else [time]), SERIES, VALUE)
        self.kinds: dict[str, Kind] = {SERIES: "other", VALUE: "number"}
        if time is not None:
            self.kinds[time] = "time"
        self.rows = None if table.rows is None else table.rows * len(self._names)
        self.parts = table.parts
        self.read_as = ""  # the wide table reported it

    def blocks(
        self, numbers: Sequence[str], time: str | None, series: Sequence[str], part: int
    ) -> Iterator[Block]:
        """See `Table.blocks`; the series of one row follow one another."""
        if list(numbers) != [VALUE] or list(series) != [SERIES]:
            raise ConfigError(f"a wide table has only the target {VALUE!r}, and its columns are the series.")
        count = len(self._names)
        for block in self._table.blocks(self._names, time, [], part):
            times = None if block.times is None else np.repeat(block.times, count)
            codes = np.tile(np.arange(count), len(block.numbers))
            yield dataclasses.replace(
                block,
                numbers=block.numbers.reshape(-1, 1),
                times=times,
                series=codes,
                ids=list(self._names),
            )

    @property
    def reading(self) -> Mapping[str, Any]:
        """See `Table.reading`."""
        return {**self._table.reading, "wide": self._names}

    def texts(self, column: str) -> list[str]:
        """See `Table.texts`."""
        return self._table.texts(column)

    def left_out(self, columns: Sequence[str]) -> list[str]:
        """See `Table.left_out`; all columns of numbers are read."""
        return self._table.left_out(
            [name for name in self._table.columns if name not in (*self._names, *self._of_time)]
        )

    def digest(self) -> str:
        """See `Table.digest`."""
        return self._table.digest()

    def place(self, row: int) -> str:
        """See `Table.place`."""
        count = len(self._names)
        return f"{self._table.place(row // count)}, series {self._names[row % count]!r}"


def _check_direction(path: Path, names: Sequence[str]) -> None:
    """Raises `DataError` for columns that are named by times: rows would be the series then, and not the columns."""
    if len(names) > 1 and all(way_of(name) or _YEAR.fullmatch(name) for name in names):
        raise DataError(
            f"{path}: a wide table has a column for each series and a row for each time, but its columns are named by "
            f"times, {names[0]!r} to {names[-1]!r}. Transpose it: in pandas, "
            "table.set_index(<the column that names the series>).T"
        )
