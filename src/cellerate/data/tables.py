"""Reads tables from CSV, Parquet and NumPy files in blocks of rows, with numbers and times apart.

Only this module knows file formats. It reads in blocks because a file may be larger than memory.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from cellerate.data.series_keys import JOINED_BY, series_of
from cellerate.data.time_column import TimeParser
from cellerate.data.time_form import TimeForm
from cellerate.errors import DataError
from cellerate.machine.environment import require

Kind = Literal["number", "time", "other"]
_MISSING = ["", "NA", "N/A", "NaN", "nan", "NAN", "-nan", "null", "NULL", "None", "none", "?", "-"]
_BLOCK_BYTES = 4 << 20
_BLOCK_ROWS = 1 << 16
_PART_ROWS = 1 << 20
_PARQUET_BUFFER = 1 << 20
_SUFFIXES = (".csv", ".tsv", ".txt", ".csv.gz", ".parquet", ".pq", ".npy")


@dataclasses.dataclass(frozen=True)
class Block:
    """Some rows of a table.

    Attributes:
        numbers: (rows, columns asked for) float64, NaN where a value is missing.
        times: (rows,) datetime64[us], or float64 if the time column holds numbers; None without a time column.
        series: (rows,) integers, the place of each row's id in `ids`; None without a series column.
        ids: The ids of series in this block as text, each once.
        form: How the times are written, as far as the table was read; None for numbers of a `.npy` file.
    """

    numbers: np.ndarray
    times: np.ndarray | None
    series: np.ndarray | None
    ids: list[str] = dataclasses.field(default_factory=list)
    form: TimeForm | None = None


class Table(Protocol):
    """A table that is read in blocks.

    Attributes:
        path: The file.
        columns: All names, in order.
        kinds: What each column seems to hold, judging by its type or its first block.
        rows: The number of rows if the file says so, else None.
        parts: How many parts it has that can be read each by itself, at least 1.
    """

    path: Path
    columns: tuple[str, ...]
    kinds: dict[str, Kind]
    rows: int | None
    parts: int

    def blocks(
        self, numbers: Sequence[str], time: str | None, series: Sequence[str], part: int
    ) -> Iterator[Block]:
        """The rows of a part in order."""
        ...


def find_tables(paths: Sequence[str | Path] | str | Path) -> list[Path]:
    """The table files that `paths` names: files, folders (the tables in them, sorted) or patterns with `*`.

    Raises:
        DataError: A path does not exist, or nothing is found.
    """
    given = [paths] if isinstance(paths, str | Path) else list(paths)
    found: list[Path] = []
    for name in given:
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
        elif "*" in path.name:
            matched = sorted(p for p in path.parent.glob(path.name) if p.is_file())
            if not matched:
                raise DataError(f"no file matches {path}.")
            found += matched
        else:
            raise DataError(f"there is no file {path}.")
    if not found:
        raise DataError("no file was given; expected at least one CSV, Parquet or .npy file.")
    return found


def _is_table(path: Path, folder: Path) -> bool:
    """Whether it is a file, and none of those of a packed series in the folder, finished or not."""
    above = path.relative_to(folder).parents
    return path.is_file() and not any(one.name.endswith((".series", ".series.building")) for one in above)


def open_table(path: Path, names: Sequence[str] | None = None) -> Table:
    """Opens a table by its suffix: `.npy`, `.parquet` or `.pq`, everything else as CSV.

    Args:
        path: The file.
        names: Column names for a `.npy` file; None for "0", "1", ...

    Raises:
        DataError: The file is empty, damaged, or has two columns of the same name.
        BackendError: It is not a `.npy` file and the package `pyarrow` is not installed.
    """
    suffix = path.suffix.lower()
    if suffix != ".npy":
        require("pyarrow", "train", "reading CSV and Parquet files")
    if suffix == ".npy":
        table: Table = NpyTable(path, names)
    elif suffix in (".parquet", ".pq"):
        table = ParquetTable(path)
    else:
        table = CsvTable(path)
    twice = sorted({name for name in table.columns if table.columns.count(name) > 1})
    if twice:
        raise DataError(f"{path} has more than one column named {twice[0]!r}; rename one of them.")
    return table


def open_tables(paths: Sequence[Path], names: Sequence[str] | None = None) -> list[Table]:
    """Opens tables of the same columns; see `open_table`.

    Raises:
        DataError: One of them is unusable, or has other columns.
        BackendError: See `open_table`.
    """
    tables = [open_table(path, names) for path in paths]
    for table in tables[1:]:
        if table.columns != tables[0].columns:
            raise DataError(
                f"{table.path} has the columns {', '.join(table.columns)}, but {tables[0].path} has "
                f"{', '.join(tables[0].columns)}; files of one series need the same columns in the same order."
            )
    return tables


class NpyTable:
    """A two-dimensional `.npy` file (or a one-dimensional one, as one column), through a memory map."""

    def __init__(self, path: Path, names: Sequence[str] | None = None) -> None:
        self.path = path
        try:
            values = np.load(path, mmap_mode="r", allow_pickle=False)
        except (ValueError, OSError, EOFError) as error:
            raise DataError(f"{path} is not a usable .npy file: {error}") from error
        if values.dtype.kind not in "fiub" or values.ndim not in (1, 2) or not values.size:
            raise DataError(
                f"{path} holds an array of shape {values.shape} and dtype {values.dtype}; expected numbers "
                f"of shape (rows,) or (rows, columns)."
            )
        self.values = values.reshape(len(values), -1)
        width = self.values.shape[1]
        if names is not None and len(names) != width:
            raise DataError(f"{path} has {width} columns, but {len(names)} names were given.")
        self.columns = tuple(names) if names is not None else tuple(str(i) for i in range(width))
        self.kinds: dict[str, Kind] = dict.fromkeys(self.columns, "number")
        self.rows: int | None = len(self.values)
        self.parts = 1

    def blocks(
        self, numbers: Sequence[str], time: str | None, series: Sequence[str], part: int
    ) -> Iterator[Block]:
        """See `Table.blocks`. Here a time or series column always holds numbers."""
        del part
        places = [self.columns.index(name) for name in numbers]
        rows = max(1, _BLOCK_BYTES // (8 * self.values.shape[1]))
        for first in range(0, len(self.values), rows):
            block = self.values[first : first + rows]
            times = None if time is None else block[:, self.columns.index(time)].astype(np.float64)
            found = Block(block[:, places].astype(np.float64), times, None)
            if series:
                keys = block[:, [self.columns.index(name) for name in series]]
                ids, codes = np.unique(keys, axis=0, return_inverse=True)
                names = [JOINED_BY.join(_id_of(float(value)) for value in key) for key in ids]
                found = dataclasses.replace(found, series=codes.reshape(-1), ids=names)
            yield found


def _id_of(value: float) -> str:
    return str(int(value)) if value.is_integer() else repr(value)


class _ArrowTable:
    """What CSV and Parquet share: turning columns of Arrow arrays into NumPy."""

    path: Path
    columns: tuple[str, ...]
    kinds: dict[str, Kind]
    rows: int | None = None
    parts = 1

    def _batches(self, columns: list[str], numbers: Sequence[str], part: int) -> Iterator[Any]:
        raise NotImplementedError

    def _first_row(self, part: int) -> int:
        del part
        return 0

    def blocks(
        self, numbers: Sequence[str], time: str | None, series: Sequence[str], part: int
    ) -> Iterator[Block]:
        """See `Table.blocks`."""
        wanted = list(dict.fromkeys([*numbers, *([] if time is None else [time]), *series]))
        parser = TimeParser(self.path, time or "")
        row = self._first_row(part)
        for batch in self._batches(wanted, numbers, part):
            values = np.empty((batch.num_rows, len(numbers)))
            for place, name in enumerate(numbers):
                values[:, place] = _as_float(batch.column(name), self.path, name, row)
            times = parser.parse(batch.column(time), row) if time is not None else None
            found = Block(values, times, None, form=parser.form)
            if series:
                codes, ids = series_of([batch.column(name) for name in series], series, self.path, row)
                found = dataclasses.replace(found, series=codes, ids=ids)
            yield found
            row += batch.num_rows


class CsvTable(_ArrowTable):
    """A CSV file with a header. The separator is a comma, or a semicolon or tab if the header says so."""

    def __init__(self, path: Path) -> None:
        import pyarrow as pa
        from pyarrow import csv

        self.path = path
        try:
            with pa.input_stream(str(path), compression="detect") as stream:
                header = stream.read(1 << 16).split(b"\n", 1)[0]
            separators = [mark for mark in (b",", b";", b"\t") if mark in header]
            separator = separators[0].decode() if len(separators) == 1 else ","
            self._parse = csv.ParseOptions(delimiter=separator)
            self._read = csv.ReadOptions(block_size=_BLOCK_BYTES)
            convert = csv.ConvertOptions(null_values=_MISSING, strings_can_be_null=True)
            with csv.open_csv(str(path), self._read, self._parse, convert) as reader:
                schema = reader.schema
        except (pa.ArrowInvalid, pa.ArrowKeyError, OSError, UnicodeDecodeError) as error:
            if "Empty CSV" in str(error):
                raise DataError(f"{path} is empty; expected a header and rows.") from error
            raise DataError(f"{path} cannot be read as CSV: {error}") from error
        self.columns = tuple(schema.names)
        self.kinds = {field.name: _kind(field.type) for field in schema}

    def _batches(self, columns: list[str], numbers: Sequence[str], part: int) -> Iterator[Any]:
        import pyarrow as pa

        del part
        # The fast read does not say in which row a value is not a number; a second read, as text, finds it.
        asked = set(numbers)
        types = {name: pa.float64() if name in asked else pa.string() for name in columns}
        try:
            yield from self._read_as(types)
        except pa.ArrowInvalid as error:
            self._explain(list(numbers))
            raise DataError(f"{self.path} cannot be read as CSV: {error}") from error
        except OSError as error:
            raise DataError(f"{self.path} cannot be read: {error}") from error

    def _read_as(self, types: dict[str, Any]) -> Iterator[Any]:
        from pyarrow import csv

        convert = csv.ConvertOptions(
            column_types=types,
            include_columns=list(types),
            null_values=_MISSING,
            strings_can_be_null=True,
        )
        with csv.open_csv(str(self.path), self._read, self._parse, convert) as reader:
            yield from reader

    def _explain(self, numbers: list[str]) -> None:
        """Raises `DataError` at the first value that is not a number."""
        import pyarrow as pa

        row = 0
        try:
            for part in self._read_as(dict.fromkeys(numbers, pa.string())):
                for name in numbers:
                    _as_float(part.column(name), self.path, name, row)
                row += part.num_rows
        except pa.ArrowInvalid:
            return  # not about numbers: the caller reports it


class ParquetTable(_ArrowTable):
    """A Parquet file."""

    def __init__(self, path: Path) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        self.path = path
        try:
            with pq.ParquetFile(path) as file:
                schema = file.schema_arrow
                groups = [file.metadata.row_group(n).num_rows for n in range(file.num_row_groups)]
        except (pa.ArrowInvalid, pa.ArrowException, OSError) as error:
            raise DataError(f"{path} cannot be read as Parquet: {error}") from error
        self.columns = tuple(schema.names)
        self.kinds = {field.name: _kind(field.type) for field in schema}
        self.rows = sum(groups)
        # Row groups, several together where they are small, and the row with which each part begins.
        self._parts = [(range(0, len(groups)), 0)] if self.rows <= _PART_ROWS else list(_parts(groups))
        self.parts = len(self._parts)

    def _first_row(self, part: int) -> int:
        return self._parts[part][1]

    def _batches(self, columns: list[str], numbers: Sequence[str], part: int) -> Iterator[Any]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        del numbers
        try:
            # Without a buffer for all of a row group, which may be of any size.
            with pq.ParquetFile(self.path, pre_buffer=False, buffer_size=_PARQUET_BUFFER) as file:
                groups = list(self._parts[part][0])
                yield from file.iter_batches(batch_size=_BLOCK_ROWS, row_groups=groups, columns=columns)
        except (pa.ArrowInvalid, OSError) as error:
            raise DataError(f"{self.path} cannot be read as Parquet: {error}") from error


def _parts(groups: Sequence[int]) -> Iterator[tuple[range, int]]:
    """Row groups that follow one another, of `_PART_ROWS` rows and more, and the rows before them."""
    first, before, rows = 0, 0, 0
    for group, count in enumerate(groups):
        rows += count
        if rows >= _PART_ROWS or group == len(groups) - 1:
            yield range(first, group + 1), before
            first, before, rows = group + 1, before + rows, 0


def _kind(kind: Any) -> Kind:
    import pyarrow as pa

    types = pa.types
    # A null type means only missing values in the first block; numbers may well follow later.
    if types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind) or types.is_null(kind):
        return "number"
    if types.is_timestamp(kind) or types.is_date(kind):
        return "time"
    return "other"


def _as_float(values: Any, path: Path, column: str, row: int) -> np.ndarray:
    """Float64 with NaN for missing values; raises `DataError` naming the first value that is not a number."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
        values = pc.utf8_trim_whitespace(values)
        values = pc.if_else(pc.is_in(values, pa.array(_MISSING, values.type)), None, values)
    try:
        return np.asarray(pc.fill_null(pc.cast(values, pa.float64(), safe=False), float("nan")))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        for place, value in enumerate(values.to_pylist()):
            try:
                float("nan" if value is None else value)
            except (TypeError, ValueError):
                raise DataError(
                    f"{path}: column {column!r} holds {value!r} in data row {row + place + 1}, which is no "
                    f"number. Correct it, or leave the column out of targets and features."
                ) from error
        raise DataError(f"{path}: column {column!r} of type {values.type} holds no numbers.") from error
