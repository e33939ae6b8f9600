"""Finds whether a table begins with the names of its columns, in one row or in several, and what they are."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from cellerate.data.settings import TableOptions
from cellerate.data.tables.number_marks import columns_of, is_number
from cellerate.data.tables.table import MISSING
from cellerate.data.times import WEEKDAY, way_of
from cellerate.errors import DataError
from cellerate.messages import argument

_DATE = re.compile(r"\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}(?:[ T]\d.*)?|\d{4}-\d{2}|\d{1,2}:\d{2}(?::\d{2})?")
_SHOWN = 40
_MOST_ROWS = 4


def has_header(
    path: Path, options: TableOptions, rows: list[list[str]], decimal: str, thousands: str, *, alone: bool
) -> bool:
    """True if the first of the rows of a CSV file has the names of the columns.

    Args:
        path: The file, for messages.
        options: What the caller knows of it.
        rows: The first rows.
        decimal: The decimal mark.
        thousands: What groups digits, or "".
        alone: True if there are no others.

    Raises:
        DataError: The first row may be either.
    """
    if options.header != "auto":
        return options.header == "yes"

    def plain(cell: str) -> bool:
        return is_plain(cell, decimal, thousands)

    missing = {*MISSING, *options.missing_values}
    below = columns_of(rows[1:], [str(place) for place in range(len(rows[0]))])
    votes = 0
    for place, cell in enumerate(rows[0]):
        there = [value for value in below[str(place)] if value.strip() not in missing]
        if there and all(map(plain, there)) and cell.strip():
            if not plain(cell) and cell.strip() not in missing:
                return True
            # A date above numbers is the name of a column, as in a wide table with a row for each series.
            if _DATE.fullmatch(cell.strip()) and not any(_DATE.fullmatch(value.strip()) for value in there):
                return True
            votes += plain(cell)
    if alone or not votes:
        return True
    numbers = [cell.strip() for cell in rows[0] if cell.strip().isdecimal()]
    steps = {after - before for before, after in itertools.pairwise(map(int, numbers))}
    if len(numbers) == len(rows[0]) > 1 and steps == {1}:
        raise DataError(
            f"{path}: the first row is {', '.join(rows[0])[:_SHOWN]}, which may be the names of the columns or values. "
            f"Say which: {argument('header', 'yes')} or {argument('header', 'no')}."
        )
    return False


def is_plain(cell: str, decimal: str, thousands: str) -> bool:
    """True for a date or a number."""
    cell = cell.strip()
    return bool(_DATE.fullmatch(cell)) or (cell not in MISSING and is_number(cell, decimal, thousands))


def header_rows(
    rows: Sequence[Sequence[Any]], plain: Callable[[Any], bool], missing: Collection[str] = MISSING
) -> int:
    """The number of rows of names at the beginning of a table, which has one at least.

    Further rows of names have text wherever the rows below them have numbers or dates; the last may have the name of
    the first column alone, as the tables of pandas with names of two levels do. A row with a time where the last row
    has one, or with text that a later row repeats, is one of values.

    Args:
        rows: The first rows.
        plain: Whether a cell is a number or a date.
        missing: The marks of missing values.
    """

    def text(cell: Any) -> bool:
        return (
            not plain(cell)
            and (not isinstance(cell, str) or cell.strip() not in missing)
            and cell is not None
        )

    last_row = next((row for row in reversed(rows) if any(cell not in ("", None) for cell in row)), rows[0])
    timed = [place for place, cell in enumerate(last_row) if _is_time(cell)]

    def of_values(row: Sequence[Any]) -> bool:
        return any(map(plain, row)) or any(_is_time(row[place]) for place in timed if place < len(row))

    first = next((number for number, row in enumerate(rows) if number and of_values(row)), 0)
    if not 1 < first <= _MOST_ROWS:
        return 1
    below = rows[first:]
    numeric = [
        place
        for place in range(1, len(rows[0]))
        if any(place < len(row) and plain(row[place]) for row in below)
        and not any(place < len(row) and text(row[place]) for row in below)
    ]
    last = first - int(_names_first(rows[first - 1]))
    named = last > 1 and all(
        text(row[place]) for row in rows[1:last] for place in numeric if place < len(row)
    )
    repeated = any(
        text(cell) and any(place < len(row) and row[place] == cell for row in below)
        for row_of_names in rows[1:last]
        for place, cell in enumerate(row_of_names)
        if place not in numeric
    )
    return first if numeric and named and not repeated else 1


def _is_time(cell: Any) -> bool:
    return isinstance(cell, str) and way_of(re.sub(WEEKDAY, "", cell.strip())) is not None


def without_header(first: str, last: str) -> str:
    """The note on a table that has no header, with the names of its first and of its last column."""
    return "no header, so the " + (
        f"columns are {first} to {last}" if first != last else f"only column is {first}"
    )


def names_of(rows: Sequence[Sequence[str]]) -> list[str]:
    """The names of the columns from their rows: those of the first row where they are different, else all joined."""
    first, *others = [[cell.strip() for cell in row] for row in rows]
    if others and _names_first(rows[-1]):
        first[0] = others.pop()[0]
    if not others:
        return first
    named = first[1:]
    if all(named) and len(set(named)) == len(named):
        return first
    # What all columns share tells none of them apart; a single one needs no telling apart.
    kept = [row for row in (first, *others) if len(named) == 1 or len(set(row[1:])) > 1]
    return [
        first[0] or next((row[0] for row in others if row[0]), ""),
        *(" ".join(dict.fromkeys(filter(None, cells))) for cells in list(zip(*kept, strict=True))[1:]),
    ]


def _names_first(row: Sequence[Any]) -> bool:
    return bool(row) and row[0] not in ("", None) and all(cell in ("", None) for cell in row[1:])
