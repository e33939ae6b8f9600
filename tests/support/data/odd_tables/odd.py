"""An odd file that people bring, and the means to write one."""

import dataclasses
import io
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather


@dataclasses.dataclass(frozen=True)
class Odd:
    """A file, and the result of reading it.

    Attributes:
        about: The oddity.
        name: The name of the file.
        content: The bytes of the file.
        values: The values of the target, series after series; None if the file is refused.
        times: The times of the rows, as NumPy reads them; None where they do not matter.
        words: A regular expression that matches the refusal.
        told: The note on how the file was read, or "".
        arguments: Arguments of `open_series`.
        options: Arguments of `TableOptions`.
        series: The names of the series, in their order.
    """

    about: str
    name: str
    content: bytes
    values: tuple[float, ...] | None = None
    times: tuple[str, ...] | None = None
    words: str = ""
    told: str = ""
    arguments: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    series: tuple[str, ...] | None = None


DAYS = ("2024-01-01", "2024-01-02", "2024-01-03", "2024-01-04")
GERMAN_DAYS = ("01.01.2024", "02.01.2024", "03.01.2024", "04.01.2024")
NUMBERS = ("10.5", "11.25", "12", "13.75")
VALUES = (10.5, 11.25, 12.0, 13.75)
THOUSANDTHS = (1.234, 2.345, -3.456, 4.567)
THOUSANDTHS_COMMA = ("1,234", "2,345", "-3,456", "4,567")
BY_SEPARATOR = "';' between columns, ',' decimal (the separator decides, or the option decimal)"
LARGE = (1234.56, 2345.6, 12345.0, 1234567.89)


def rows(
    values: tuple[str, ...],
    times: tuple[str, ...] = DAYS,
    *,
    separator: str = ",",
    header: str = "date,y",
    end: str = "\n",
) -> str:
    """A table of times and one target."""
    lines = [header.replace(",", separator)] if header else []
    return end.join([*lines, *(separator.join(row) for row in zip(times, values, strict=True))]) + end


def text(about: str, content: str, encoding: str = "utf-8", name: str = "t.csv", **facts: Any) -> Odd:
    """A text file."""
    return Odd(about, name, content.encode(encoding), **facts)


def comma(values: tuple[str, ...]) -> tuple[str, ...]:
    """Numbers with a decimal comma."""
    return tuple(value.replace(".", ",") for value in values)


def quoted(values: tuple[str, ...]) -> tuple[str, ...]:
    """Values in quotes."""
    return tuple(f'"{value}"' for value in values)


def workbook(table: list[list[Any]], sheets: tuple[str, ...] = ("Sheet1",)) -> bytes:
    """An Excel file; the table is in its first sheet."""
    import openpyxl

    book = openpyxl.Workbook()
    book.active.title = sheets[0]
    for row in table:
        book.active.append(row)
    for name in sheets[1:]:
        book.create_sheet(name).append(["something", "else"])
    file = io.BytesIO()
    book.save(file)
    return file.getvalue()


def arrow_file() -> bytes:
    """A Feather file."""
    table = pa.table({"date": np.array(DAYS, "datetime64[D]"), "y": pa.array(VALUES)})
    file = io.BytesIO()
    pyarrow.feather.write_feather(table, file, compression="uncompressed")
    return file.getvalue()


def written(times: np.ndarray) -> tuple[str, ...]:
    """Times as text."""
    return tuple(str(time) for time in times)
