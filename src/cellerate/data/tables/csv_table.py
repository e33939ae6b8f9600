"""CSV files, in blocks: Arrow reads numbers as fast as the disk gives them; only grouped digits are read as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cellerate.data.settings import TableOptions
from cellerate.data.tables.arrow_table import ArrowTable, as_float, no_number
from cellerate.data.tables.arrow_text import is_text
from cellerate.data.tables.csv_blanks import tabbed_chunks
from cellerate.data.tables.csv_dialect import Dialect, find_dialect, unclear_number
from cellerate.data.tables.number_forms import NumberForm
from cellerate.data.tables.number_marks import SPACES, WORDS, is_number, number_pattern
from cellerate.data.tables.table import MISSING
from cellerate.errors import DataError
from cellerate.messages import Message, argument

_BLOCK_BYTES = 4 << 20
# Arrow compares whole cells with what stands for missing values.
_BLANK = tuple(" " * width for width in range(1, 9))


class CsvTable(ArrowTable):
    """A CSV file, however it is written; see `find_dialect`."""

    def __init__(self, path: Path, options: TableOptions) -> None:
        import pyarrow as pa
        from pyarrow import csv

        self.path, self.options = path, options
        self.dialect = dialect = find_dialect(path, options)
        self._parse = csv.ParseOptions(delimiter=dialect.separator, newlines_in_values=dialect.newlines)
        self._read = csv.ReadOptions(
            block_size=_BLOCK_BYTES,
            encoding="utf8" if dialect.encoding == "utf-8" else dialect.encoding,
            skip_rows=dialect.skip_lines + dialect.header_lines,
            column_names=list(dialect.names) if dialect.header_lines or not dialect.header else None,
        )
        try:
            if dialect.blanks:
                first = next(self._between_blanks(self._convert()))
                schema = first.schema
            else:
                with csv.open_csv(str(path), self._read, self._parse, self._convert()) as reader:
                    schema = reader.schema
                    first = next(iter(reader), None)
        except (pa.ArrowInvalid, pa.ArrowKeyError, OSError, UnicodeError) as error:
            if "Empty CSV" in str(error):
                raise DataError(f"{path} is empty; expected a header and rows.") from error
            if "Could not skip initial" in str(error):
                raise DataError(f"{path} has a header but no rows.") from error
            raise self._unreadable(error) from error
        self._take_schema(schema)
        if dialect.thousands or dialect.open_marks or dialect.unclear:
            self.kinds |= dict.fromkeys(
                (name for name in dialect.numbers if self.kinds.get(name) == "other"), "number"
            )
        if dialect.unclear is not None:
            self.kinds[dialect.unclear[0]] = "number"
        self.written = dialect.settings
        self.read_as = dialect.in_words
        if first is not None:
            self._find_forms(first, plain=True)
        # Arrow reads TRUE and 1.5 in one column as neither.
        switch = NumberForm(booleans=True)
        for name, kind in zip(schema.names, schema.types, strict=True):
            if kind == pa.bool_():
                self.forms = {**self.forms, name: switch}
                self.read_as = ", ".join(filter(None, [self.read_as, f"{name!r} with {switch.in_words}"]))

    def _between_blanks(self, convert: Any) -> Iterator[Any]:
        """The batches of a file with blanks between columns."""
        import pyarrow as pa
        from pyarrow import csv

        top, below = csv.ReadOptions(), csv.ReadOptions(column_names=self.dialect.names)
        top.skip_rows, top.column_names = self._read.skip_rows, self._read.column_names
        for number, chunk in enumerate(tabbed_chunks(self.path, self.dialect.encoding)):
            table = csv.read_csv(pa.BufferReader(chunk), below if number else top, self._parse, convert)
            yield from table.to_batches()

    def _convert(self, **further: Any) -> Any:
        from pyarrow import csv

        return csv.ConvertOptions(
            null_values=[*MISSING, *_BLANK, *self.options.missing_values],
            # A series may be called NA.
            strings_can_be_null=False,
            decimal_point=self.dialect.decimal,
            **further,
        )

    def _batches(self, columns: list[str], numbers: Sequence[str], part: int) -> Iterator[Any]:
        import pyarrow as pa

        del part
        dialect = self.dialect
        if dialect.unclear is not None and dialect.unclear[0] in numbers:
            raise unclear_number(self.path, *dialect.unclear)
        # The fast read does not report the row of a value that is not a number; a second read, as text, does.
        asked = set() if dialect.thousands or dialect.open_marks else set(numbers) - set(self.forms)
        types = {name: pa.float64() if name in asked else pa.string() for name in columns}
        rows = 0
        try:
            for batch in self._read_as(types):
                yield batch
                rows += batch.num_rows
        except (pa.ArrowInvalid, UnicodeError) as error:
            self._explain(list(numbers))
            if not asked:
                raise self._unreadable(error) from error
            # All of them are numbers once blanks around them are gone.
            yield from self._after(rows, columns)
        except OSError as error:
            raise DataError(f"{self.path} cannot be read: {error}") from error

    def _after(self, rows: int, columns: list[str]) -> Iterator[Any]:
        """The batches after some rows, with all values as text."""
        import pyarrow as pa

        try:
            for batch in self._read_as(dict.fromkeys(columns, pa.string())):
                if rows < batch.num_rows:
                    yield batch.slice(rows)
                rows = max(0, rows - batch.num_rows)
        except (pa.ArrowInvalid, UnicodeError) as error:
            raise self._unreadable(error) from error

    def _read_as(self, types: dict[str, Any]) -> Iterator[Any]:
        from pyarrow import csv

        convert = self._convert(column_types=types, include_columns=list(types))
        if self.dialect.blanks:
            yield from self._between_blanks(convert)
            return
        with csv.open_csv(str(self.path), self._read, self._parse, convert) as reader:
            yield from reader

    def _numbers(self, values: Any, column: str, row: int) -> np.ndarray:
        if not is_text(values):
            return as_float(values, self.path, column, row)
        return self._from_text(values, column, row)

    def _is_number(self, text: str) -> bool:
        return is_number(text, self.dialect.decimal, self.dialect.thousands)

    def _from_text(self, values: Any, column: str, row: int) -> np.ndarray:
        """Numbers from strings in the dialect; raises `DataError` at the first value that is not a number."""
        import pyarrow as pa
        import pyarrow.compute as pc

        dialect = self.dialect
        decimal, thousands = dialect.decimal, dialect.thousands
        values = self._texts(values)
        plain = self.forms[column].plain_all(values) if column in self.forms else values
        if dialect.open_marks:
            unclear = pc.fill_null(pc.match_substring_regex(plain, r"^[+-]?[1-9]\d{0,2}[.,]\d{3}$"), False)
            if pc.any(unclear).as_py():
                raise unclear_number(self.path, column, values.filter(unclear)[0].as_py())
        if thousands:
            fits = pc.match_substring_regex(plain, f"^(?:{number_pattern(decimal, thousands)})$")
            bare = plain
            for mark in SPACES if thousands == " " else thousands:
                bare = pc.replace_substring(bare, mark, "")
            plain = pc.if_else(fits, bare, plain)
        if decimal == ",":
            # Such a number has no point; a value with a point stays unchanged, and is refused below.
            points = pc.match_substring(plain, ".")
            plain = pc.if_else(points, pc.binary_join_element_wise(plain, ",", ""), plain)
            plain = pc.if_else(points, plain, pc.replace_substring(plain, ",", "."))
        try:
            return np.asarray(pc.fill_null(pc.cast(plain, pa.float64()), float("nan")))
        except pa.ArrowInvalid as error:
            for place, (value, said) in enumerate(zip(plain.to_pylist(), values.to_pylist(), strict=True)):
                try:
                    pc.cast(pa.array([value], pa.string()), pa.float64())
                except pa.ArrowInvalid:
                    raise no_number(self.path, column, said, row + place, self._advice(said)) from error
            raise self._unreadable(error) from error

    def _advice(self, value: str) -> str:
        """The option with which a value would be read, if there is one."""
        return number_advice(value, self.dialect)

    def _explain(self, numbers: list[str]) -> None:
        """Raises `DataError` at the first value that is not a number."""
        import pyarrow as pa

        row = 0
        try:
            for part in self._read_as(dict.fromkeys(numbers, pa.string())):
                for name in numbers:
                    self._from_text(part.column(name), name, row)
                row += part.num_rows
        except pa.ArrowInvalid:
            return  # not about numbers: the caller reports it

    def _unreadable(self, error: Exception) -> DataError:
        """The error for a file that Arrow refuses."""
        text = str(error)
        hint = ""
        if "Expected" in text and "columns" in text:
            mark = "a tab" if self.dialect.separator == "\t" else repr(self.dialect.separator)
            hint = (
                f" The separator of columns seems to be {mark}; if it is not, give {argument('separator')}. Correct a "
                f"row of more or fewer values; skip lines before the table with {argument('skip_lines')}."
            )
        elif "UTF8" in text or isinstance(error, UnicodeError):
            hint = f" Give the encoding that it has ({argument('encoding')})."
        return DataError(f"{self.path} cannot be read as CSV: {text.rstrip('.')}.{hint}")


def number_advice(value: str, dialect: Dialect) -> str:
    """The argument with which a value would be a number, as a sentence; "" if there is none."""
    other = "," if dialect.decimal == "." else "."
    own_word, word = WORDS[dialect.decimal], WORDS[other]
    for decimal, thousands, given in (
        (dialect.decimal, other, {"thousands": word}),
        (dialect.decimal, " ", {"thousands": "space"}),
        (other, "", {"decimal": word}),
        (other, dialect.decimal, {"decimal": word, "thousands": own_word}),
    ):
        if is_number(value, decimal, thousands):
            words = " and ".join(argument(name, mark) for name, mark in given.items())
            return Message(f"Correct it, or if it is one, say how numbers are written ({words}).")
    if value.rstrip().endswith("%"):
        return Message(
            f"Take the sign out of the column, or leave the column out of {argument('targets')} and "
            f"{argument('features')}."
        )
    return ""
