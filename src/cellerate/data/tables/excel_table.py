"""Sheets of Excel files, read with openpyxl."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cellerate.data.settings import TableOptions
from cellerate.data.tables.csv_header import header_rows, names_of, without_header
from cellerate.data.tables.frames import FrameTable
from cellerate.data.tables.joined_times import columns_of_time
from cellerate.data.tables.table import MISSING, Block
from cellerate.errors import ConfigError, DataError
from cellerate.messages import argument

_MOST_SHOWN = 10
# Rows times columns; a sheet of Excel may have a million rows of 16,384 cells.
_MOST_CELLS = 1 << 27
# The XML of a sheet packs to a tenth, of equal rows to a hundredth.
_SMALL_BYTES, _MOST_PACKED, _MOST_BYTES = 16 << 20, 300, 4 << 30


class ExcelTable(FrameTable):
    """The rows of a sheet.

    Args:
        table: The rows.
        path: The file.
        options: The format of its dates.
        sheet: The name of the sheet.
        places: For each column its place in the sheet, from 0.
    """

    def __init__(
        self, table: Any, path: Path, options: TableOptions, sheet: str, places: Mapping[str, int]
    ) -> None:
        super().__init__(table, path, options)
        self._sheet, self._places = sheet, places

    def blocks(
        self, numbers: Sequence[str], time: str | None, series: Sequence[str], part: int
    ) -> Iterator[Block]:
        """See `Table.blocks`; formulas without results are refused, which would count as missing values."""
        read = [*numbers, *series, *([] if time is None else columns_of_time(time, self.columns))]
        lacking = {self._places[name]: name for name in read if self._table.column(name).null_count}
        if lacking and (found := _without_result(self.path, self._sheet, lacking)):
            place, cell = found
            raise DataError(
                f"{self.path}: column {lacking[place]!r} holds formulas without results, the first in the cell {cell}. "
                "Open the file in Excel or LibreOffice and save it, which stores the results; or leave the column out."
            )
        yield from super().blocks(numbers, time, series, part)


def excel_table(path: Path, options: TableOptions) -> FrameTable:
    """Reads a sheet; a formula counts as the value that Excel stored for it.

    A sheet has at most a million rows, so it is held in memory.

    Raises:
        ConfigError: There is no such sheet.
        DataError: The file is damaged, or the sheet is empty.
    """
    import pyarrow as pa

    name, sheets, rows = _sheet(path, options)
    if not rows:
        raise DataError(
            f"{path} is empty: the sheet {name!r} holds no value. Name another one ({argument('sheet')})."
        )
    width = max(max(place for place, value in enumerate(row) if value is not None) for row in rows) + 1
    if width * len(rows) > _MOST_CELLS:
        raise DataError(
            f"{path} has {len(rows):,} rows of up to {width:,} cells, of which most are empty: write the table as "
            "CSV, or remove the cells far away from it."
        )
    rows = [[*row[:width], *[None] * (width - len(row))] for row in rows]
    header = _has_header(rows, options)
    missing = {*MISSING, *options.missing_values}
    top = (
        header_rows(rows, lambda cell: cell is not None and not isinstance(cell, str), missing)
        if header
        else 0
    )
    named = [[_name(value) for value in row] for row in rows[:top]]
    names = names_of(named) if header else [str(place) for place in range(width)]
    body = rows[top:]
    columns = [_column([row[place] for row in body], missing) for place in range(width)]
    notes, places = [], list(range(width))
    if unnamed := names.count(""):
        if unnamed == width:
            raise DataError(
                f"{path} has no column with a name in row {top}. Give the header ({argument('header', 'no')} for none)."
            )
        notes.append(
            f"without {unnamed} columns that have no name"
            if unnamed > 1
            else "without a column that has no name"
        )
        places = [place for place, name in enumerate(names) if name]
        columns, names = [columns[place] for place in places], [names[place] for place in places]
    placed = dict(zip(names, places, strict=True))
    table = ExcelTable(pa.Table.from_arrays(columns, names), path, options, name, placed)
    if options.sheet is None and len(sheets) > 1:
        notes.append(f"the sheet {name!r}, the first of {len(sheets)}")
    if top > 1:
        notes.append(f"{top} rows of names")
    if not header:
        notes.append(without_header("0", str(width - 1)))
    table.read_as = ", ".join(filter(None, [*notes, table.read_as]))
    return table


def _sheet(path: Path, options: TableOptions) -> tuple[str, list[str], list[list[Any]]]:
    """The name of the sheet to read, the names of all sheets, and its rows that are not empty."""
    import zipfile
    import zlib

    import openpyxl
    from openpyxl.utils.exceptions import InvalidFileException

    # The parser of XML raises a SyntaxError, also for entities that grow without end.
    wrong = (
        InvalidFileException,
        zipfile.BadZipFile,
        zlib.error,
        SyntaxError,
        KeyError,
        ValueError,
        TypeError,
    )
    try:
        _check_parts(path)
        # A book that fails to open would leave its file open.
        with (
            path.open("rb") as file,
            contextlib.closing(openpyxl.load_workbook(file, read_only=True, data_only=True)) as book,
        ):
            sheets = book.sheetnames
            if options.sheet is not None and options.sheet not in sheets:
                named = ", ".join(map(repr, sheets[:_MOST_SHOWN]))
                raise ConfigError(
                    f"{argument('sheet')} is {options.sheet!r}, but {path} has the sheets {named}."
                )
            name = options.sheet or sheets[0]
            sheet = book[name]
            # openpyxl would fill the size that the file claims with empty cells.
            sheet.reset_dimensions()
            rows = [
                list(row)
                for number, row in enumerate(sheet.iter_rows(values_only=True))
                if number >= options.skip_lines and any(value is not None for value in row)
            ]
    except (ConfigError, DataError):
        raise
    except (*wrong, OSError, EOFError, IndexError, AttributeError) as error:
        raise DataError(f"{path} cannot be read as an Excel file: {error}") from error
    return name, sheets, rows


def _without_result(path: Path, sheet: str, places: Collection[int]) -> tuple[int, str] | None:
    """The place and the name of the first cell in some columns with a formula that nothing computed; None without one.

    Programs that do not compute write formulas without their results.
    """
    import zipfile

    import openpyxl

    with zipfile.ZipFile(path) as archive:
        if not any(_holds_formulas(archive, part) for part in archive.namelist()):
            return None
    with contextlib.ExitStack() as opened:
        stored, written = (
            opened.enter_context(
                contextlib.closing(openpyxl.load_workbook(path, read_only=True, data_only=only))
            )[sheet]
            for only in (True, False)
        )
        stored.reset_dimensions()
        written.reset_dimensions()
        for results, formulas in zip(stored.iter_rows(), written.iter_rows(), strict=True):
            for place in places:
                # A result that is an empty text is one.
                if (
                    place < len(formulas)
                    and formulas[place].data_type == "f"
                    and results[place].value is None
                    and results[place].data_type != "str"
                ):
                    return place, formulas[place].coordinate
    return None


def _holds_formulas(archive: Any, part: str) -> bool:
    """True if a part of a file is a sheet with formulas, in a fraction of the time that reading its cells takes."""
    if not part.startswith("xl/worksheets/"):
        return False
    with archive.open(part) as file:
        return any(b"<f" in block for block in iter(lambda: file.read(1 << 20), b""))


def _check_parts(path: Path) -> None:
    """Raises `DataError` for parts that unpack to far more than sheets do, or than memory may hold."""
    import zipfile

    with zipfile.ZipFile(path) as archive:
        for part in archive.infolist():
            packed = part.file_size > _SMALL_BYTES and part.file_size > _MOST_PACKED * max(
                1, part.compress_size
            )
            if packed or part.file_size > _MOST_BYTES:
                raise DataError(
                    f"{path} is refused: its part {part.filename!r:.80} becomes {part.file_size:,} bytes out of "
                    f"{part.compress_size:,}, as in no usual Excel file. Write the table as CSV."
                )


def _has_header(rows: Sequence[Sequence[Any]], options: TableOptions) -> bool:
    if options.header != "auto":
        return options.header == "yes"
    return any(isinstance(value, str) for value in rows[0]) or len(rows) == 1


def _name(value: Any) -> str:
    if isinstance(value, datetime.datetime) and value.time() == datetime.time():
        return value.date().isoformat()
    return "" if value is None else str(value).strip()


def _column(values: list[Any], missing: Collection[str]) -> Any:
    """An Arrow array: of numbers or of times if all values are, else of strings, as they stand.

    Only the reader of a text knows if "NA" is a missing value or the id of a series.
    """
    import pyarrow as pa

    texts = values
    values = [None if isinstance(value, str) and value.strip() in missing else value for value in values]
    # A column of such words alone may be ids.
    known = values if any(value is not None for value in values) else texts
    there = [value for value in known if value is not None]
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in there):
        # Arrow refuses whole numbers that float64 has to round.
        numbers = [None if value is None else float(value) for value in values]
        return pa.array(numbers, pa.float64() if there else pa.null())
    if all(isinstance(value, datetime.date) for value in there):
        whole = [
            value
            if isinstance(value, datetime.datetime) or value is None
            else datetime.datetime.combine(value, datetime.time())
            for value in values
        ]
        return pa.array(whole, pa.timestamp("us"))
    return pa.array([None if value is None else str(value) for value in texts], pa.string())
