"""The common part of tables of Arrow arrays: their columns as NumPy arrays; and Parquet and Arrow files.

It reads in blocks because a file may be larger than memory.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cellerate.data.settings import TableOptions
from cellerate.data.tables.arrow_text import (
    decoded,
    distinct,
    is_text,
    is_text_type,
    trimmed,
    without_missing,
)
from cellerate.data.tables.joined_times import columns_of_time, joined
from cellerate.data.tables.number_forms import NumberForm, find_form
from cellerate.data.tables.number_marks import is_number
from cellerate.data.tables.series_keys import series_of
from cellerate.data.tables.table import Block, Kind, TableFile
from cellerate.data.times import TimeParser
from cellerate.errors import DataError
from cellerate.format import listed
from cellerate.messages import Message, argument, marked

_BLOCK_ROWS = 1 << 16
_PART_ROWS = 1 << 20
_PARQUET_BUFFER = 1 << 20
_NAMED, _SAMPLE_ROWS = 5, 1000


class ArrowTable(TableFile):
    """A table whose rows come as Arrow record batches."""

    path: Path
    columns: tuple[str, ...]
    kinds: dict[str, Kind]
    rows: int | None = None
    parts = 1
    options = TableOptions()
    written: Mapping[str, Any] = {}
    forms: Mapping[str, NumberForm] = {}
    types: Mapping[str, Any] = {}

    @property
    def reading(self) -> Mapping[str, Any]:
        """See `Table.reading`."""
        order = self.options.date_order
        return {**self.written, **({} if order == "auto" else {"date_order": order})}

    def _batches(self, columns: list[str], numbers: Sequence[str], part: int) -> Iterator[Any]:
        raise NotImplementedError

    def _first_row(self, part: int) -> int:
        return 0

    def _numbers(self, values: Any, column: str, row: int) -> np.ndarray:
        if is_text(values):
            values = self._texts(values)
            values = self.forms[column].plain_all(values) if column in self.forms else values
        return as_float(values, self.path, column, row)

    def _texts(self, values: Any) -> Any:
        """Strings without blanks around them, null where a number is missing."""
        return trimmed(values, self.options.missing_values)

    def _is_number(self, text: str) -> bool:
        """True if a text without marks is a number in this table."""
        return is_number(text, ".", "")

    def _find_forms(self, batch: Any, *, plain: bool = False) -> None:
        """Finds the text columns that hold numbers with marks; if `plain`, also those that hold plain numbers.

        Args:
            batch: The first rows, of any columns.
            plain: Whether a text column may hold plain numbers, as a CSV column with a blank cell does.
        """
        forms, words = {}, []
        for name, values in zip(batch.schema.names, batch.columns, strict=True):
            if not is_text(values) or self.kinds.get(name) == "number":
                continue
            texts = distinct(self._texts(values))
            form = find_form(texts, self._is_number)
            if form is not None:
                forms[name] = form
                words.append(f"{name!r} with {form.in_words}")
            if form is not None or (plain and texts and all(map(self._is_number, texts))):
                self.kinds[name] = "number"
        self.forms = forms
        self.read_as = ", ".join(filter(None, [self.read_as, *words]))

    def _take_schema(self, schema: Any) -> None:
        self.columns = tuple(schema.names)
        self.kinds = {field.name: _kind(field.type) for field in schema}
        self.types = dict(zip(schema.names, schema.types, strict=True))

    def _look_at_texts(self) -> None:
        """Finds marks in the first rows of a file whose schema says which columns are texts."""
        texts = [name for name, kind in self.types.items() if is_text_type(kind)]
        for batch in self._batches(texts, [], 0) if texts else ():
            self._find_forms(batch)
            break

    def texts(self, column: str) -> list[str]:
        """See `Table.texts`."""
        import pyarrow as pa
        import pyarrow.compute as pc

        for batch in self._batches([column], [], 0):
            values = batch.column(column)[:_SAMPLE_ROWS]
            if not is_text(values):
                values = pc.cast(values, pa.string())
            return [value for value in trimmed(values).to_pylist() if value is not None]
        return []

    def left_out(self, columns: Sequence[str]) -> list[str]:
        """See `Table.left_out`."""
        named = [name for name in columns if name]
        said = ["left out: a column without a name"] * (len(named) < len(columns))
        # Others may be large: images, lists.
        read = [name for name in named if is_text_type(self.types[name])]
        said += [
            f"left out: column {name!r} holds {_held(self.types[name])}" for name in named if name not in read
        ]
        texts = []
        for batch in self._batches(read, [], 0) if read else ():
            for name in read:
                found = self._no_number(batch.column(name))
                if found is None:
                    said.append(f"left out: column {name!r} has no value in the first rows")
                elif found[2]:
                    said.append(
                        Message(
                            f"left out: column {name!r} holds {found[0]!r} in data row {found[1] + 1}, which is not a "
                            f"number (if it marks a missing value: {argument('missing_values', found[0])})"
                        )
                    )
                else:
                    texts.append(f"{name!r} ({found[0]!r} in data row {found[1] + 1})")
            break
        if texts:
            said.append(f"left out, because they hold text: {listed(texts, _NAMED)}")
        return said

    def _no_number(self, values: Any) -> tuple[str, int, bool] | None:
        """The first value that is not a number, its row, and whether most others are; None if all are missing."""
        import pyarrow.compute as pc

        known = self._texts(values)
        counts = {one["values"]: one["counts"] for one in known.value_counts().to_pylist()}
        counts.pop(None, None)
        if not counts:
            return None
        wrong = [value for value in counts if not self._is_number(value)]
        # Values are counted in the order in which they appear.
        value = (wrong or list(counts))[0]
        few = 2 * sum(counts[one] for one in wrong) < sum(counts.values())
        return value, pc.index(known, value).as_py(), bool(wrong) and few

    def blocks(
        self, numbers: Sequence[str], time: str | None, series: Sequence[str], part: int
    ) -> Iterator[Block]:
        """See `Table.blocks`."""
        of_time = [] if time is None else columns_of_time(time, self.columns)
        wanted = list(dict.fromkeys([*numbers, *of_time, *series]))
        parser = TimeParser(self.path, time or "", date_order=self.options.date_order)
        row = self._first_row(part)
        batches = self._batches(wanted, numbers, part)
        for batch in _to_the_last(batches) if of_time else batches:
            values = np.empty((batch.num_rows, len(numbers)))
            for place, name in enumerate(numbers):
                values[:, place] = self._numbers(batch.column(name), name, row)
            times = parser.parse(_times(batch, of_time), row) if of_time else None
            found = Block(values, times, None, form=parser.form)
            if series:
                keys = [without_missing(batch.column(name), ("",)) for name in series]
                codes, ids = series_of(keys, series, self.path, row)
                found = dataclasses.replace(found, series=codes, ids=ids)
            yield found
            row += batch.num_rows


class ParquetTable(ArrowTable):
    """A Parquet file."""

    def __init__(self, path: Path, options: TableOptions) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        self.path, self.options = path, options
        try:
            with pq.ParquetFile(path) as file:
                schema = file.schema_arrow
                groups = [file.metadata.row_group(n).num_rows for n in range(file.num_row_groups)]
        except (pa.ArrowInvalid, pa.ArrowException, OSError) as error:
            raise DataError(f"{path} cannot be read as Parquet: {error}") from error
        self._take_schema(schema)
        self.rows = sum(groups)
        # Row groups, several together where they are small, and the row with which each part begins.
        self._parts = [(range(0, len(groups)), 0)] if self.rows <= _PART_ROWS else list(_parts(groups))
        self.parts = len(self._parts)
        self._look_at_texts()

    def _first_row(self, part: int) -> int:
        return self._parts[part][1]

    def _batches(self, columns: list[str], numbers: Sequence[str], part: int) -> Iterator[Any]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        del numbers
        try:
            # A row group may have any size, so it is not buffered whole.
            with pq.ParquetFile(self.path, pre_buffer=False, buffer_size=_PARQUET_BUFFER) as file:
                groups = list(self._parts[part][0])
                yield from file.iter_batches(batch_size=_BLOCK_ROWS, row_groups=groups, columns=columns)
        except (pa.ArrowInvalid, OSError) as error:
            raise DataError(f"{self.path} cannot be read as Parquet: {error}") from error


class ArrowFileTable(ArrowTable):
    """An Arrow file (Feather, version 2), through a memory map."""

    def __init__(self, path: Path, options: TableOptions) -> None:
        import pyarrow as pa

        self.path, self.options = path, options
        try:
            with pa.memory_map(str(path)) as source:
                schema = pa.ipc.open_file(source).schema
        except (pa.ArrowInvalid, pa.ArrowException, OSError) as error:
            raise DataError(f"{path} cannot be read as an Arrow file: {error}") from error
        self._take_schema(schema)
        self._look_at_texts()

    def _batches(self, columns: list[str], numbers: Sequence[str], part: int) -> Iterator[Any]:
        import pyarrow as pa

        del numbers, part
        try:
            with pa.memory_map(str(self.path)) as source:
                reader = pa.ipc.open_file(source)
                for number in range(reader.num_record_batches):
                    batch = reader.get_batch(number).select(columns)
                    for first in range(0, batch.num_rows, _BLOCK_ROWS):
                        yield batch.slice(first, _BLOCK_ROWS)
        except (pa.ArrowInvalid, OSError) as error:
            raise DataError(f"{self.path} cannot be read as an Arrow file: {error}") from error


def _parts(groups: Sequence[int]) -> Iterator[tuple[range, int]]:
    """Runs of row groups with at least `_PART_ROWS` rows each, and the number of rows before each run."""
    first, before, rows = 0, 0, 0
    for group, count in enumerate(groups):
        rows += count
        if rows >= _PART_ROWS or group == len(groups) - 1:
            yield range(first, group + 1), before
            first, before, rows = group + 1, before + rows, 0


def _held(kind: Any) -> str:
    """The kind of values in a column of an Arrow type, in words."""
    import pyarrow as pa

    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return "dates"
    return "times of day" if pa.types.is_time(kind) else f"values of type {kind}"


def _kind(kind: Any) -> Kind:
    import pyarrow as pa

    types = pa.types
    # A null type means that all values of the first block are missing; numbers may follow later.
    numeric = (types.is_integer, types.is_floating, types.is_decimal, types.is_boolean, types.is_null)
    if any(one(kind) for one in numeric):
        return "number"
    if types.is_timestamp(kind) or types.is_date(kind):
        return "time"
    return "other"


def _to_the_last(batches: Iterator[Any]) -> Iterator[Any]:
    """The rows up to the last one with a value: spreadsheets leave rows of separators at the end."""
    waiting: list[Any] = []
    for batch in batches:
        rows = batch.num_rows - _empty_at_end(batch)
        if rows:
            yield from waiting
            waiting = []
            yield batch.slice(0, rows)
        if rows < batch.num_rows:
            waiting.append(batch.slice(rows))


def _empty_at_end(batch: Any) -> int:
    """The number of rows without any value at the end of a batch."""
    count, size = 0, 1
    while count < batch.num_rows:
        end = batch.num_rows - count
        part = batch.slice(max(0, end - size), min(size, end))
        missing = np.logical_and.reduce([np.asarray(without_missing(one).is_null()) for one in part.columns])
        if not missing.all():
            return count + int(np.argmin(missing[::-1]))
        count, size = count + len(missing), 64 * size
    return count


def _times(batch: Any, columns: Sequence[str]) -> Any:
    """The column of times of some rows, joined from several columns if needed."""
    found = [without_missing(decoded(batch.column(name))) for name in columns]
    return joined(found) if len(found) > 1 else found[0]


def as_float(values: Any, path: Path, column: str, row: int) -> np.ndarray:
    """Float64 with NaN for missing values.

    Args:
        values: An Arrow array.
        path: Its table, for messages.
        column: Its name.
        row: The rows of the table before it.

    Raises:
        DataError: Names the first value that is not a number.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    values = trimmed(values) if is_text(values) else decoded(values)
    try:
        return np.asarray(pc.fill_null(pc.cast(values, pa.float64(), safe=False), float("nan")))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        for place, value in enumerate(values.to_pylist()):
            try:
                float("nan" if value is None else value)
            except (TypeError, ValueError):
                raise no_number(path, column, value, row + place) from error
        raise DataError(f"{path}: column {column!r} of type {values.type} holds no numbers.") from error


def no_number(path: Path, column: str, value: object, row: int, advice: str = "") -> DataError:
    """The error of a value that is not a number, in a row counted from 0."""
    missing = f"if it marks a missing value, give {argument('missing_values', value)}"
    advice = marked(advice) or (
        f"Correct it; {missing}; or leave the column out of {argument('targets')} and {argument('features')}."
    )
    return DataError(
        f"{path}: column {column!r} holds {value!r} in data row {row + 1}, which is not a number. {advice}"
    )
