"""Sheets of Excel files, read with openpyxl."""

import datetime
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from cellerate.data.csv_header import header_rows, names_of
from cellerate.data.frames import FrameTable
from cellerate.data.table import MISSING
from cellerate.data.table_options import TableOptions
from cellerate.errors import ConfigError, DataError

_MOST_SHOWN = 10


def excel_table(path: Path, options: TableOptions) -> FrameTable:
    """Reads a sheet, of which formulas count as the values that Excel stored for them.

    A sheet has at most a million rows, so it is held in memory.

    Raises:
        ConfigError: There is no such sheet.
        DataError: The file is damaged, or the sheet is empty.
    """
    import zipfile

    import openpyxl
    import pyarrow as pa
    from openpyxl.utils.exceptions import InvalidFileException

    try:
        book = openpyxl.load_workbook(path, read_only=True, data_only=True)
    except (InvalidFileException, zipfile.BadZipFile, KeyError, ValueError, OSError) as error:
        raise DataError(f"{path} cannot be read as an Excel file: {error}") from error
    try:
        sheets = book.sheetnames
        if options.sheet is not None and options.sheet not in sheets:
            raise ConfigError(
                f"sheet is {options.sheet!r}, but {path} has the sheets {', '.join(map(repr, sheets[:_MOST_SHOWN]))}."
            )
        name = options.sheet or sheets[0]
        rows = [list(row) for row in book[name].iter_rows(values_only=True)]
    finally:
        book.close()
    rows = [row for row in rows[options.skip_lines :] if any(value is not None for value in row)]
    if not rows:
        raise DataError(f"{path} is empty: the sheet {name!r} holds no value. Name another one (sheet).")
    width = max(max(place for place, value in enumerate(row) if value is not None) for row in rows) + 1
    rows = [[*row[:width], *[None] * (width - len(row))] for row in rows]
    header = _has_header(rows, options)
    top = header_rows(rows, lambda cell: cell is not None and not isinstance(cell, str)) if header else 0
    named = [[_name(value) for value in row] for row in rows[:top]]
    names = names_of(named) if header else [str(place) for place in range(width)]
    body = rows[top:]
    missing = {*MISSING, *options.missing_values}
    columns = [_column([row[place] for row in body], missing) for place in range(width)]
    table = FrameTable(pa.Table.from_arrays(columns, names), path, options)
    told = []
    if options.sheet is None and len(sheets) > 1:
        told.append(f"the sheet {name!r}, the first of {len(sheets)}")
    if top > 1:
        told.append(f"{top} rows of names")
    if not header:
        told.append(f"no header, so the columns are 0 to {width - 1}")
    table.read_as = ", ".join(filter(None, [*told, table.read_as]))
    return table


def _has_header(rows: Sequence[Sequence[Any]], options: TableOptions) -> bool:
    if options.header != "auto":
        return options.header == "yes"
    return any(isinstance(value, str) for value in rows[0]) or len(rows) == 1


def _name(value: Any) -> str:
    if isinstance(value, datetime.datetime) and value.time() == datetime.time():
        return value.date().isoformat()
    return "" if value is None else str(value).strip()


def _column(values: list[Any], missing: Collection[str]) -> Any:
    """An Arrow array: of numbers or of times if all values are, else of strings."""
    import pyarrow as pa

    values = [None if isinstance(value, str) and value.strip() in missing else value for value in values]
    there = [value for value in values if value is not None]
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in there):
        return pa.array(values, pa.float64() if there else pa.null())
    if all(isinstance(value, datetime.date) for value in there):
        whole = [
            value
            if isinstance(value, datetime.datetime) or value is None
            else datetime.datetime.combine(value, datetime.time())
            for value in values
        ]
        return pa.array(whole, pa.timestamp("us"))
    return pa.array([None if value is None else str(value) for value in values], pa.string())
