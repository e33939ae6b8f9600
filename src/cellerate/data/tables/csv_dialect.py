"""Detects the dialect of a CSV file: encoding, separator, marks in numbers, and whether it has a header.

The dialect is detected from the beginning of the file and reported; `TableOptions` overrides it. If two different
readings are possible, the file is refused with both; only commas in numbers beside semicolons are decimal commas.
"""

from __future__ import annotations

import csv
import dataclasses
import functools
import io
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from cellerate.data.files import likely_encoding
from cellerate.data.settings import TableOptions
from cellerate.data.tables.csv_blanks import stands_apart, tabbed
from cellerate.data.tables.csv_header import has_header, header_rows, is_plain, names_of, without_header
from cellerate.data.tables.number_forms import bare
from cellerate.data.tables.number_marks import WORDS, Marks, columns_of, is_number, readings
from cellerate.data.tables.table import MISSING
from cellerate.errors import DataError
from cellerate.messages import argument

_SEPARATORS = (",", ";", "\t", "|")
_SAMPLE_BYTES = 1 << 16
_SAMPLE_ROWS = 500
_SAMPLE_CELLS = 20_000
_MORE_BYTES = 1 << 20
_SHOWN = 40
_NAMES = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "'|'"}
_FORMATS = {
    b"PAR1": "a Parquet file; name it *.parquet",
    b"PK\x03\x04": "an Excel file or another archive; name it *.xlsx if it is one",
    b"\xd0\xcf\x11\xe0": "an old Excel file (.xls); save it as .xlsx or as CSV",
    b"\x1f\x8b": "compressed; name it *.csv.gz",
    b"ARROW1": "an Arrow file; name it *.arrow",
    b"%PDF": "a PDF; copy the table out of it first",
    b"SQLite format 3": "a database of SQLite; export the table as CSV",
}


@dataclasses.dataclass(frozen=True)
class Dialect:
    """The dialect of a CSV file.

    Attributes:
        encoding: Python's name of the encoding.
        separator: The separator of columns.
        decimal: "." or ",".
        thousands: The mark that groups digits, or "".
        names: The names of the columns.
        header: Whether the file has their names.
        skip_lines: Lines before the table.
        newlines: Whether quoted values hold line ends.
        open_marks: Whether the sample leaves the meaning of "." and "," open, so that later values decide.
        numbers: Columns that hold numbers in the sample.
        unclear: The column, a value and why it is unclear, if the file does not say how to read it.
        by_separator: Whether the separator alone decides the decimal mark.
        header_rows: The number of rows with names of columns.
        blanks: Whether any number of blanks separates columns; `separator` is then the tab that replaces them.
        header_lines: The lines of the header; 0 if it is one row that has the names as they are.
    """

    encoding: str
    separator: str
    decimal: str
    thousands: str
    names: tuple[str, ...]
    header: bool
    skip_lines: int = 0
    newlines: bool = False
    open_marks: bool = False
    numbers: tuple[str, ...] = ()
    unclear: tuple[str, str, str] | None = None
    by_separator: bool = False
    header_rows: int = 1
    blanks: bool = False
    header_lines: int = 0

    @property
    def in_words(self) -> str:
        """The dialect in words, or "" for the plain one: UTF-8, a header, commas, and points in numbers."""
        words = []
        if self.encoding not in ("utf-8", "utf-8-sig"):
            words.append({"cp1252": "Windows-1252"}.get(self.encoding, self.encoding.upper()))
        if self.blanks:
            words.append("blanks between columns")
        elif self.separator != ",":
            mark = "tabs" if self.separator == "\t" else repr(self.separator)
            words.append(f"{mark} between columns")
        if self.decimal != ".":
            words.append(
                "',' decimal" + self.by_separator * " (the separator decides, or the option decimal)"
            )
        if self.thousands:
            words.append("thousands apart" if self.thousands == " " else f"{self.thousands!r} for thousands")
        if self.header_rows > 1:
            words.append(f"{self.header_rows} rows of names")
        if not self.header:
            words.append(without_header(self.names[0], self.names[-1]))
        return ", ".join(words)

    @property
    def settings(self) -> dict[str, Any]:
        """The parts that differ from the plain dialect, for the key of a cache."""
        plain = Dialect("utf-8", ",", ".", "", (), True)
        kept = (
            "encoding",
            "separator",
            "decimal",
            "thousands",
            "header",
            "skip_lines",
            "header_rows",
            "blanks",
        )
        return {name: getattr(self, name) for name in kept if getattr(self, name) != getattr(plain, name)}


def find_dialect(path: Path, options: TableOptions) -> Dialect:
    """Detects the dialect of a CSV file.

    Args:
        path: The file, which may be compressed.
        options: The parts of the dialect that the caller gives.

    Raises:
        DataError: The file is empty, is not a CSV, or two readings fit it.
    """
    data = next(_chunks(path, _SAMPLE_BYTES), b"")
    whole = len(data) < _SAMPLE_BYTES
    if not data.strip():
        raise DataError(f"{path} is empty; expected a header and rows.")
    encoding = options.encoding or _encoding(path, data)
    text = _decoded(path, data, encoding)
    lines = text.splitlines(keepends=True)
    if not whole and len(lines) > 1:
        lines.pop()
    _check_top(path, lines, options)
    lines = lines[options.skip_lines :]
    if not any(line.strip() for line in lines):
        raise DataError(
            f"{path} is empty after {argument('skip_lines', options.skip_lines)}; expected a header and rows."
        )
    separator = options.separator or _separator(path, lines)
    blanks = options.separator is None and separator not in lines[0] and stands_apart(lines[:_SAMPLE_ROWS])
    if blanks:
        separator, lines = "\t", list(map(tabbed, lines))
    rows = _rows(lines, separator)
    rows = rows[: max(2, min(_SAMPLE_ROWS, _SAMPLE_CELLS // max(1, len(rows[0]))))]
    if len(rows) > 2 and len({len(row) for row in rows[1:]}) == 1 and len(rows[0]) == 1 < len(rows[1]):
        raise DataError(
            f"{path} begins with the line {lines[0].strip()[:_SHOWN]!r}, which is not a row of the table below it. "
            f"Leave it out with {argument('skip_lines', 1)}."
        )
    places = [str(place) for place in range(len(rows[0]))]
    marks = Marks()
    for name, values in columns_of(rows[1:], places).items():
        marks.add(name, map(bare, values))
    if options.decimal is None and not marks.settled(separator):
        _look_further(path, encoding, separator, len(places), marks, blanks=blanks)
    decimal, thousands, unclear, by_separator = _marks(path, options, separator, marks)
    header = has_header(path, options, rows, decimal, thousands, alone=len(rows) == 1)
    plain = functools.partial(is_plain, decimal=decimal, thousands=thousands)
    marked = {*MISSING, *options.missing_values}
    top = header_rows(rows, lambda cell: plain(bare(cell)), marked) if header else 0
    columns = names_of(rows[:top]) if header else places
    body = columns_of(rows[top:], columns)
    return Dialect(
        encoding,
        separator,
        decimal,
        thousands,
        tuple(columns),
        header,
        options.skip_lines,
        any("\n" in cell or "\r" in cell for row in rows for cell in row),
        options.decimal is None and separator != "," and not marks.seen and not marks.either,
        tuple(
            name
            for name, values in body.items()
            if values and all(is_number(value, decimal, thousands) for value in values)
        ),
        None if unclear is None else (columns[int(unclear[0])], *unclear[1:]),
        by_separator,
        top,
        blanks,
        _lines_of(lines, separator, top) if top > 1 or (header and columns != rows[0]) else 0,
    )


def unclear_number(path: Path, column: str, value: str, why: str = "") -> DataError:
    """The error of a value that can be read in two ways.

    Args:
        path: The file.
        column: The column.
        value: The value.
        why: The evidence for each reading; "" if the file has none.
    """
    mark = "," if "," in value else "."
    other = "." if mark == "," else ","
    decimals, grouped = readings(value)
    return DataError(
        f"{path}: column {column!r} holds {value!r}, which is {decimals} or {grouped}, and "
        f"{why or 'nothing in the file says which'}. For {decimals} give {argument('decimal', WORDS[mark])}, for "
        f"{grouped} give {argument('decimal', WORDS[other])}."
    )


def _chunks(path: Path, size: int) -> Iterator[bytes]:
    import pyarrow as pa

    try:
        with pa.input_stream(str(path), compression="detect") as stream:
            while chunk := stream.read(size):
                yield chunk
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error


def _encoding(path: Path, data: bytes) -> str:
    for mark, words in _FORMATS.items():
        if data.startswith(mark):
            raise DataError(f"{path} is not a CSV file but {words}.")
    found = likely_encoding(data)
    if found is None:
        where = f"byte 0 at offset {data.index(0)}" if 0 in data else "bytes of no usual encoding"
        raise DataError(
            f"{path} is not text: it holds {where}. If it is text, give its encoding ({argument('encoding')}); else "
            "write it anew."
        )
    return {"utf-8-sig": "utf-8"}.get(found, found)


def _decoded(path: Path, data: bytes, encoding: str) -> str:
    import codecs

    try:
        text = codecs.getincrementaldecoder(encoding)().decode(data, False)
    except UnicodeError as error:
        raise DataError(
            f"{path} is not {encoding}: {error}. Give the encoding that it has ({argument('encoding')})."
        ) from error
    if "\0" in text:
        raise DataError(
            f"{path} is not text in {encoding}: it holds zero bytes. Give the encoding that it has "
            f"({argument('encoding')}), or write it anew."
        )
    text = text.removeprefix("\ufeff")
    start = text.lstrip()[:200].lower()
    if start.startswith(("<!doctype", "<html", "<?xml", "<head", "<body", "<table")):
        raise DataError(
            f"{path} is a web page (HTML or XML), not a table: it begins with {text.lstrip()[:_SHOWN]!r}. Download the "
            "file itself."
        )
    if start.startswith(("{", "[{", "[\n")):
        raise DataError(f"{path} is JSON, not CSV: write one record per line, and name it *.jsonl.")
    return text


def _check_top(path: Path, lines: Sequence[str], options: TableOptions) -> None:
    if options.skip_lines:
        return
    top = 0
    for line in lines:
        if line.strip() and not line.lstrip('"').startswith(("# ", "#\t", "//", "sep=")):
            break
        top += 1
    if top and top < len(lines):
        first = lines[0].strip()
        what = f"the comment {first[:_SHOWN]!r}" if first else "an empty line"
        raise DataError(
            f"{path} begins with {what}, and the table in line {top + 1}. Leave {top} "
            f"{'lines' if top > 1 else 'line'} out with {argument('skip_lines', top)}."
        )


def _rows(lines: Sequence[str], separator: str) -> list[list[str]]:
    reader = csv.reader(io.StringIO("".join(lines[: _SAMPLE_ROWS * 4]), newline=""), delimiter=separator)
    rows = []
    try:
        for row in reader:
            if row:
                rows.append(row)
            if len(rows) > _SAMPLE_ROWS:
                break
    except csv.Error:
        pass  # a quote that is never closed, or a very long value: Arrow says where
    return rows or [[""]]


def _lines_of(lines: Sequence[str], separator: str, rows: int) -> int:
    """The number of lines of the first rows, with empty lines, and with line ends in quotes."""
    reader = csv.reader(io.StringIO("".join(lines), newline=""), delimiter=separator)
    count = 0
    while count < rows:
        count += bool(next(reader))
    return reader.line_num


def _separator(path: Path, lines: Sequence[str]) -> str:
    """The separator with which most rows have as many values as the first one, and most values are not empty."""
    found: dict[str, tuple[float, float]] = {}
    for separator in _SEPARATORS:
        rows = _rows(lines[:200], separator)
        width = len(rows[0])
        if width < 2:
            width = Counter(map(len, rows)).most_common(1)[0][0]
            if width < 2 or len(rows) < 4:
                continue
        fitting = sum(len(row) == width for row in rows) / len(rows)
        cells = [cell for row in rows for cell in row if len(row) == width]
        clear = sum(not any(mark in cell for mark in _SEPARATORS[1:]) for cell in cells) / max(1, len(cells))
        found[separator] = (round(fitting, 2), round(clear, 2))
    if not found:
        return ","
    best = max(found, key=lambda one: found[one])
    same = [one for one in found if found[one] == found[best]]
    if len(same) > 1:
        raise DataError(
            f"{path}: its rows divide equally well at {_NAMES[same[0]]} and at {_NAMES[same[1]]}. "
            f"Say which it is: {argument('separator', same[0])} or {argument('separator', same[1])}."
        )
    return best


def _look_further(
    path: Path, encoding: str, separator: str, width: int, marks: Marks, *, blanks: bool
) -> None:
    """Reads on until a value shows the meaning of the marks, or to the end."""
    import codecs

    decoder, rest = codecs.getincrementaldecoder(encoding)("replace"), ""
    for number, chunk in enumerate(_chunks(path, _MORE_BYTES)):
        text = rest + decoder.decode(chunk)
        text, _, rest = text.rpartition("\n")
        lines = text.splitlines()[0 if number else 1 :]
        lines = list(map(tabbed, lines)) if blanks else lines
        try:
            rows = [row for row in csv.reader(lines, delimiter=separator) if len(row) == width]
        except csv.Error:
            continue  # as in `_rows`
        for name, values in columns_of(rows, [str(place) for place in range(width)]).items():
            marks.add(name, map(bare, values))
        if marks.settled(separator):
            return


def _marks(
    path: Path, options: TableOptions, separator: str, marks: Marks
) -> tuple[str, str, tuple[str, str, str] | None, bool]:
    """The decimal mark, the grouping mark, an unclear value, and whether the separator alone decided."""
    groups = options.thousands
    decimals, thousands = marks.of("decimal"), marks.of("thousands")
    spaced = next((mark for mark in thousands if mark in " '"), "")
    points = [mark for mark in thousands if mark in ".,"]
    decimal, unclear, by_separator = ".", None, False
    if options.decimal is not None:
        decimal = options.decimal
    elif groups in (".", ","):
        decimal = "," if groups == "." else "."
    elif len(decimals) > 1 or len(points) > 1 or set(decimals) & set(points):
        found = sorted(set(marks.seen.values()), key=lambda one: (int(one[0]), one[1]))
        shown = " and ".join(f"{value!r} in column {int(place) + 1}" for place, value in found[:3])
        raise DataError(
            f"{path} writes numbers in two ways: {shown}. Say what '.' and ',' mean ({argument('decimal', 'point')} or "
            f"{argument('decimal', 'comma')}); then values that do not fit are refused by their row."
        )
    elif decimals:
        decimal = decimals[0]
    elif points:
        decimal = "," if points[0] == "." else "."
    elif len(marks.either) == 1 and (spaced or groups is not None):
        decimal = next(iter(marks.either))
    elif not marks.settled(separator):
        unclear = _unclear(separator, marks, spaced)
        decimal, by_separator = (".", False) if unclear else (",", True)
    if groups is not None:
        return decimal, groups, unclear, by_separator
    other = "," if decimal == "." else "."
    if other in points or (other in marks.either and unclear is None):
        return decimal, other, unclear, by_separator
    return decimal, spaced, unclear, by_separator


def _unclear(separator: str, marks: Marks, spaced: str) -> tuple[str, str, str] | None:
    """A value that the file does not say how to read, its column and why; None if the comma is decimal by `;`."""
    if separator != ";" or "," not in marks.either or spaced:
        return (*next(iter(marks.either.values())), "")
    if (against := marks.contradiction()) is None:
        return None
    column, value, reason = against
    decimals, grouped = readings(value)
    return column, value, f"';' between columns speaks for {decimals}, {reason} for {grouped}"
