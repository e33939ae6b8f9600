"""A table, whatever its file's format: named columns that are read in blocks of rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from cellerate.data.times import TimeForm

Kind = Literal["number", "time", "other"]
MISSING = (
    *("", "NA", "N/A", "n/a", "N.A.", "n.a.", "#N/A", "#NA", "<NA>", "#N/A N/A", "na", "n.d."),
    *("NaN", "nan", "NAN", "-nan", "-NaN", "NaT", "1.#IND", "-1.#IND", "1.#QNAN", "-1.#QNAN"),
    *("null", "NULL", "Null", "None", "none", "nil", "missing", "(blank)"),
    *("#DIV/0!", "#VALUE!", "#REF!", "#NUM!", "#NAME?", "#NULL!", "#WERT!"),
    *("?", "-", "--", "---", "\u2013", "\u2014", ".", "..", "..."),
)
"""The usual words and signs for a missing number or time."""


@dataclasses.dataclass(frozen=True)
class Block:
    """Some rows of a table.

    Attributes:
        numbers: (rows, requested columns) float64, NaN where a value is missing.
        times: (rows,) datetime64[us], or float64 if the time column holds numbers; None without a time column.
        series: (rows,) integers, the index of each row's id in `ids`; None without a series column.
        ids: The ids of series in this block as text, each once.
        form: The form of the times read so far; None for numbers of a `.npy` file.
    """

    numbers: np.ndarray
    times: np.ndarray | None
    series: np.ndarray | None
    ids: list[str] = dataclasses.field(default_factory=list)
    form: TimeForm | None = None


class Table(Protocol):
    """A table that is read in blocks.

    Attributes:
        path: The file; for a table in memory, its name in messages.
        columns: All names, in order.
        kinds: The apparent kind of each column, judging by its type or its first block.
        rows: The number of rows if the file states it, else None.
        parts: The number of parts that can be read independently, at least 1.
        read_as: The detected format in words, "" for the plain one.
    """

    path: Path
    columns: tuple[str, ...]
    kinds: dict[str, Kind]
    rows: int | None
    parts: int
    read_as: str

    @property
    def reading(self) -> Mapping[str, Any]:
        """The settings of reading that its content does not show: JSON values, empty for the plain format."""
        ...

    def blocks(
        self, numbers: Sequence[str], time: str | None, series: Sequence[str], part: int
    ) -> Iterator[Block]:
        """The rows of a part in order.

        Args:
            numbers: Columns of numbers.
            time: The column of times, or None.
            series: The columns whose values together are the id of a row's series; empty for none.
            part: The index of the part, from 0.
        """
        ...

    def texts(self, column: str) -> list[str]:
        """The first values of a column as texts, without those that are missing."""
        ...

    def left_out(self, columns: Sequence[str]) -> list[str]:
        """Say why some columns are not numeric, with the row of a value that is not a number."""
        ...

    def digest(self) -> str:
        """A hash of its content."""
        ...

    def place(self, row: int) -> str:
        """The name of a row in messages, counted from 0 over all parts."""
        ...


class TableFile:
    """The common part of tables in files."""

    path: Path
    read_as = ""

    def texts(self, column: str) -> list[str]:
        """See `Table.texts`."""
        return []

    def left_out(self, columns: Sequence[str]) -> list[str]:
        """See `Table.left_out`."""
        return []

    @property
    def reading(self) -> Mapping[str, Any]:
        """See `Table.reading`."""
        return {}

    def digest(self) -> str:
        """See `Table.digest`."""
        from cellerate.data.files import file_digest

        return file_digest(self.path)

    def place(self, row: int) -> str:
        """See `Table.place`."""
        return f"{self.path}, data row {row + 1}"
