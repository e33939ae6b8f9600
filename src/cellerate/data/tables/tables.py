"""Opens tables, each by the format of its file, and finds those that paths name."""

from __future__ import annotations

import collections
import glob
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cellerate.data.settings import TableOptions
from cellerate.data.tables.arrow_table import ArrowFileTable, ParquetTable
from cellerate.data.tables.csv_table import CsvTable
from cellerate.data.tables.frames import FrameTable, as_sources
from cellerate.data.tables.npy_table import NpyTable
from cellerate.data.tables.table import Block, Kind, Table
from cellerate.errors import ConfigError, DataError
from cellerate.listener import SILENT, Listener
from cellerate.machine.environment import require
from cellerate.messages import argument

__all__ = ["Block", "Kind", "NpyTable", "Table", "find_tables", "open_table", "open_tables"]

_NUMBER = re.compile(r"[0-9]+")
_TEXT_SUFFIXES = (".csv", ".tsv", ".txt")
_JSON_SUFFIXES = (".jsonl", ".ndjson")
_PARQUET_SUFFIXES = (".parquet", ".pq")
_ARROW_SUFFIXES = (".arrow", ".feather")
_EXCEL_SUFFIXES = (".xlsx", ".xlsm")
_SUFFIXES = (
    *(*_TEXT_SUFFIXES, ".csv.gz", *_JSON_SUFFIXES, *(f"{one}.gz" for one in _JSON_SUFFIXES)),
    *(*_PARQUET_SUFFIXES, *_ARROW_SUFFIXES, *_EXCEL_SUFFIXES, ".npy"),
)


def find_tables(paths: Any) -> list[Path | Table]:
    """The tables that `paths` names: files, folders (the tables in them, sorted), patterns, and tables.

    Files whose names differ in numbers are in the order of these: `sales-2.csv` comes before `sales-10.csv`. Named one
    by one, they keep their order unless it is the alphabetical one, which a shell gives to the matches of a pattern.

    Raises:
        ConfigError: `paths` is something else.
        DataError: A path does not exist, or nothing is found.
    """
    found: list[Path | Table] = []
    for name in as_sources(paths):
        if not isinstance(name, str | os.PathLike):
            found.append(name)
            continue
        path = Path(name)
        if path.is_dir():
            inside = sorted(
                p for p in path.rglob("*") if p.name.lower().endswith(_SUFFIXES) and _is_table(p, path)
            )
            if not inside:
                raise DataError(f"the folder {path} holds no table ({', '.join(_SUFFIXES)}).")
            found += inside
        elif path.is_file():
            found.append(path)
        elif glob.has_magic(str(path)):
            matched = sorted(Path(hit) for hit in glob.glob(str(path), recursive=True))  # noqa: PTH207
            matched = [hit for hit in matched if hit.is_file()]
            if not matched:
                raise DataError(f"no file matches {path}.")
            found += matched
        else:
            raise DataError(f"there is no file {path}.")
    if not found:
        raise DataError(
            "no file was given; expected at least one table, such as a CSV, Parquet or .npy file."
        )
    return _by_numbers(found)


def _by_numbers(tables: list[Path | Table]) -> list[Path | Table]:
    """The tables with files whose names differ in numbers only in the order of these, if they are alphabetical."""
    alike: dict[str, list[int]] = {}
    for place, table in enumerate(tables):
        if isinstance(table, Path):
            alike.setdefault(_NUMBER.sub("#", str(table)), []).append(place)
    found = list(tables)
    for places in alike.values():
        names = [str(tables[place]) for place in places]
        # Shells compare characters, or letters and digits alone.
        if any(
            names == sorted(names, key=key) for key in (str, lambda name: re.sub(r"\W", "", name).casefold())
        ):
            by_number = sorted(
                places, key=lambda place: [int(n) for n in _NUMBER.findall(str(tables[place]))]
            )
            for place, other in zip(places, by_number, strict=True):
                found[place] = tables[other]
    return found


def _is_table(path: Path, folder: Path) -> bool:
    """True for a file that does not belong to a packed series, finished or not."""
    above = path.relative_to(folder).parents
    return path.is_file() and not any(one.name.endswith((".series", ".series.building")) for one in above)


def open_table(path: Path | Table, options: TableOptions | None = None) -> Table:
    """Opens a table by its suffix: NumPy, Parquet, Arrow, Excel, JSON lines, everything else as CSV.

    Args:
        path: The file; a table that is open already is only checked.
        options: Its format.

    Raises:
        DataError: The file is empty, damaged, can be read in two ways, or has two columns of the same name.
        BackendError: A package that reads such files is not installed.
    """
    options = options or TableOptions()
    if isinstance(path, Path):
        table = _by_suffix(path, options)
    else:
        table = path.with_options(options) if isinstance(path, FrameTable) else path
    # Separators at the ends of lines create columns without a name.
    twice = sorted(name for name, count in collections.Counter(table.columns).items() if name and count > 1)
    if twice:
        raise DataError(f"{table.path} has more than one column named {twice[0]!r}; rename one of them.")
    return table


def check_readers(paths: Sequence[Path | Table]) -> None:
    """Raise `BackendError`, before anything is read, if a package that reads one of the files is not installed."""
    for path in paths:
        name = path.name.lower() if isinstance(path, Path) else ".npy"
        if not name.endswith(".npy"):
            require("pyarrow", "tables", "reading tables")
        if name.endswith(_EXCEL_SUFFIXES):
            require("openpyxl", "excel", f"reading the Excel file {path}")


def _by_suffix(path: Path, options: TableOptions) -> Table:
    name = path.name.lower()
    if name.endswith(".npy"):
        return NpyTable(path)
    check_readers([path])
    if name.endswith(_PARQUET_SUFFIXES):
        return ParquetTable(path, options)
    if name.endswith(_ARROW_SUFFIXES):
        return ArrowFileTable(path, options)
    if name.endswith(_EXCEL_SUFFIXES):
        from cellerate.data.tables.excel_table import excel_table

        return excel_table(path, options)
    if name.removesuffix(".gz").endswith(_JSON_SUFFIXES):
        from cellerate.data.tables.json_table import JsonTable

        return JsonTable(path, options)
    if options.sheet is not None:
        raise ConfigError(f"{argument('sheet')} is for Excel files, and {path} is not one: leave it out.")
    return CsvTable(path, options)


def open_tables(
    paths: Sequence[Path | Table],
    options: TableOptions | None = None,
    listener: Listener = SILENT,
) -> list[Table]:
    """Opens tables of the same columns; see `open_table`.

    Args:
        paths: The tables.
        options: See `open_table`.
        listener: Receives their format if it is not the plain one; once for many tables of the same format.

    Raises:
        DataError: One of them is unusable, or has other columns.
        BackendError: See `open_table`.
    """
    check_readers(paths)
    tables: list[Table] = []
    announced = set()
    for path in paths:
        table = open_table(path, options)
        tables.append(table)
        if table.read_as and table.read_as not in announced:
            announced.add(table.read_as)
            listener.message(f"{table.path} read as: {table.read_as}")
    for table in tables[1:]:
        if table.columns != tables[0].columns:
            raise DataError(
                f"{table.path} has the columns {', '.join(table.columns)}, but {tables[0].path} has "
                f"{', '.join(tables[0].columns)}; files of one series need the same columns in the same order."
            )
    return tables
