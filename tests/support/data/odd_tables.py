"""Makes the odd files that people bring: each with what is to be read from it, or the words of its refusal."""

import dataclasses
import gzip
import io
import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather


@dataclasses.dataclass(frozen=True)
class Odd:
    """A file, and what comes of it.

    Attributes:
        about: What is odd.
        name: Of the file.
        content: Its bytes.
        values: What the target holds, series after series; None if the file is refused.
        times: The times of the rows, as NumPy reads them; None where they do not matter.
        words: A regular expression that the refusal fits.
        told: What is said of the way it was read, or "".
        arguments: Those of `open_series`.
        options: Those of `TableOptions`.
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
    """A file of text."""
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


def m5() -> str:
    """Two key columns, with the series interleaved by day."""
    lines = ["store,item,date,sold"]
    for place, day in enumerate(DAYS):
        for store in ("CA_1", "TX_1"):
            lines += [
                f"{store},{item},{day},{place + 10 * bonus}" for bonus, item in enumerate(("food", "toys"))
            ]
    return "\n".join(lines)


def written(times: np.ndarray) -> tuple[str, ...]:
    """Times as text."""
    return tuple(str(time) for time in times)


def clean() -> list[Odd]:
    """Files that are read."""
    plain = {"values": VALUES, "times": DAYS}
    large = {"values": LARGE, "times": DAYS}
    german = rows(comma(NUMBERS), GERMAN_DAYS, separator=";", header="Datum,y")
    return [
        text("plain", rows(NUMBERS), **plain),
        text("line ends of Windows", rows(NUMBERS, end="\r\n"), **plain),
        text("no line end at the end", rows(NUMBERS).rstrip("\n"), **plain),
        text(
            "German",
            german,
            **plain,
            arguments={"time_column": "Datum"},
            told="';' between columns, ',' decimal",
        ),
        text(
            "German with thousands",
            rows(("1.234,56", "2.345,6", "12.345", "1.234.567,89"), separator=";"),
            **large,
            told="';' between columns, ',' decimal, '.' for thousands",
        ),
        text(
            "English with thousands",
            rows(quoted(("1,234.56", "2,345.6", "12,345", "1,234,567.89"))),
            **large,
            told="',' for thousands",
        ),
        text(
            "French with thousands",
            rows(("1 234,56", "2\u202f345,6", "12\u00a0345", "1 234 567,89"), separator=";"),
            **large,
            told="';' between columns, ',' decimal, thousands apart",
        ),
        text(
            "Swiss with thousands",
            rows(("1'234.56", "2'345.6", "12'345", "1'234'567.89"), separator=";"),
            **large,
            told="';' between columns, \"'\" for thousands",
        ),
        text(
            "another column says what the comma is",
            "date;y;z\n2024-01-01;1,234;0,5\n2024-01-02;2,345;1\n",
            values=(1.234, 2.345),
            told="';' between columns, ',' decimal",
        ),
        text(
            "only the end of the file says what the comma is",
            "y;z\n" + "1,234;a\n" * 20_000 + "1,5;a\n",
            values=(1.234,) * 20_000 + (1.5,),
            told="';' between columns, ',' decimal",
        ),
        *(
            text(
                f"1,234 between semicolons and {name}",
                rows(THOUSANDTHS_COMMA, times, separator=";"),
                values=THOUSANDTHS,
                times=DAYS,
                told=BY_SEPARATOR,
            )
            for name, times in (("German dates", GERMAN_DAYS), ("ISO dates", DAYS))
        ),
        text(
            "1,234 between semicolons, with words in English",
            "date;note;y\n2024-01-01;up, by a lot;1,234\n2024-01-02;costs 1,234.50;2,345\n",
            values=(1.234, 2.345),
            told=BY_SEPARATOR,
        ),
        text(
            "1,234 between semicolons, beside zeros and whole numbers above a thousand",
            rows(("0", "1,234", "1500", "2,345"), separator=";"),
            values=(0, 1.234, 1500, 2.345),
            told=BY_SEPARATOR,
        ),
        text(
            "1,234 between semicolons, beside 1.234",
            "y;z\n1,234;9.052\n2,345;8.500\n",
            values=(1.234, 2.345),
            told=BY_SEPARATOR + ", '.' for thousands",
        ),
        text(
            "1,234 between semicolons, and 1,234,567",
            rows(("1,234", "2,345", "1,234,567", "4,567"), separator=";"),
            values=(1234, 2345, 1234567, 4567),
            told="';' between columns, ',' for thousands",
        ),
        text(
            "1,234 between semicolons, and 1,234.5 at the end",
            "y;z\n" + "1,234;a\n" * 20_000 + "1,234.5;a\n",
            values=(1234,) * 20_000 + (1234.5,),
            told="';' between columns, ',' for thousands",
        ),
        text(
            "1,234 between semicolons, and 0.5 in another column",
            "y;z\n1,234;0.5\n2,345;1\n",
            values=(1234, 2345),
            told="';' between columns, ',' for thousands",
        ),
        text(
            "1,234 beside blanks that group digits",
            "x|y\n1 234|1,234\n2 345|2,345\n",
            values=(1.234, 2.345),
            told="'|' between columns, ',' decimal, thousands apart",
        ),
        text(
            "1,234 of which nothing groups digits",
            rows(THOUSANDTHS_COMMA, separator="|"),
            values=THOUSANDTHS,
            options={"thousands": "none"},
            told="'|' between columns, ',' decimal",
        ),
        text("tabs", rows(NUMBERS, separator="\t"), name="t.tsv", **plain, told="tabs between columns"),
        text("bars", rows(NUMBERS, separator="|"), **plain, told="'|' between columns"),
        text("decimal commas in quotes", rows(quoted(comma(NUMBERS))), **plain, told="',' decimal"),
        text(
            "1,234 with the mark said",
            rows(("1,234", "2,345", "3,456", "4,567"), separator=";"),
            values=(1234, 2345, 3456, 4567),
            options={"decimal": "."},
            told="';' between columns, ',' for thousands",
        ),
        text(
            "three decimals in a plain file",
            rows(("1.234", "2.345", "3.456", "4.567")),
            values=(1.234, 2.345, 3.456, 4.567),
        ),
        text("byte-order mark", rows(NUMBERS), "utf-8-sig", **plain),
        text("UTF-16", rows(NUMBERS), "utf-16", **plain, told="UTF-16"),
        text("UTF-16 without a mark", rows(NUMBERS), "utf-16-le", **plain, told="UTF-16-LE"),
        text(
            "Windows-1252",
            "date;größe\n2024-01-01;1,5\n2024-01-02;2,5\n",
            "cp1252",
            values=(1.5, 2.5),
            arguments={"targets": ["größe"]},
            told="Windows-1252, ';' between columns, ',' decimal",
        ),
        text(
            "no header",
            rows(NUMBERS, header=""),
            **plain,
            arguments={"targets": ["1"], "time_column": "0"},
            told="no header, so the columns are 0 to 1",
        ),
        text(
            "no header, with names",
            rows(NUMBERS, header=""),
            **plain,
            arguments={"names": ["date", "y"]},
            told="no header, so the columns are date to y",
        ),
        text(
            "numbers as names, said",
            "1,2\n3,4\n5,6\n",
            values=(4, 6),
            arguments={"targets": ["2"]},
            options={"header": "yes"},
        ),
        text(
            "quoted line ends",
            'date,y,note\n2024-01-01,1,"a\nb"\n2024-01-02,2,"c"\n',
            values=(1, 2),
            times=DAYS[:2],
        ),
        text(
            "quoted separators",
            'date;y;note\n2024-01-01;1,5;"a;b"\n2024-01-02;2;"c"\n',
            values=(1.5, 2),
            told="';' between columns, ',' decimal",
        ),
        text("blank lines inside", rows(NUMBERS).replace("\n2024-01-03", "\n\n2024-01-03"), **plain),
        text(
            "trailing separators", "date,y,,\n2024-01-01,1,,\n2024-01-02,2,,\n", values=(1, 2), times=DAYS[:2]
        ),
        text("an index without a name", ",date,y\n0,2024-01-01,1\n1,2024-01-02,2\n", values=(1, 2)),
        text("blanks around values", rows(tuple(f" {value} " for value in NUMBERS)), **plain),
        text(
            "boolean columns",
            "date,y,open\n2024-01-01,1,true\n2024-01-02,2,false\n",
            values=(1, 2),
            told="'open' with TRUE as 1",
        ),
        text(
            "a boolean target",
            rows(("true", "false", "TRUE", "NA")),
            values=(1, 0, 1, 1),
            told="'y' with TRUE as 1",
            arguments={"missing": "ffill"},
        ),
        text(
            "percent signs", rows(("1%", "2 %", "0", "-4%")), values=(1, 2, 0, -4), told="'y' with '5%' as 5"
        ),
        text(
            "currency", rows(("€1", "-€2", "€-3", "€ 4")), values=(1, -2, -3, 4), told="'y' with '€' left out"
        ),
        text(
            "a code after the number",
            rows(("1 EUR", "2 EUR", "3 EUR", "4 EUR")),
            values=(1, 2, 3, 4),
            told="'y' with 'EUR' left out",
        ),
        text(
            "thousands of dollars in brackets",
            rows(quoted(("$1,234.50", "($2,000.00)", "$0.50", "$3,000,000.00"))),
            values=(1234.5, -2000, 0.5, 3e6),
            told="',' for thousands, 'y' with '$' left out and '(1.5)' as -1.5",
        ),
        text(
            "brackets beside plain numbers",
            rows(("1", "(2)", "(3.5)", "4")),
            values=(1, -2, -3.5, 4),
            told="'y' with '(1.5)' as -1.5",
        ),
        text(
            "sizes by letters",
            rows(("1.5K", "2M", "-2.5B", "950")),
            values=(1500, 2e6, -2.5e9, 950),
            told="'y' with '1.2M' as 1,200,000",
        ),
        text(
            "1,234 and a sign of percent",
            rows(("1,234 %", "2,345 %", "3,456 %", "4,567 %"), separator=";"),
            values=(1.234, 2.345, 3.456, 4.567),
            told="';' between columns, ',' decimal (the separator decides, or the option decimal), 'y' with '5%' as 5",
        ),
        *(
            text(
                f"{word!r} for a missing value",
                rows(("1", word, "3", "4")),
                values=(1, 1, 3, 4),
                arguments={"missing": "ffill"},
            )
            for word in ("n/a", "--", "#DIV/0!", "#N/A", "..", "   ", "NaT", "(blank)")
        ),
        text(
            "numbers and words that stand for missing values",
            rows(("1", "-999.0", "n/e", "-200")),
            values=(1, 1, 1, 1),
            arguments={"missing": "ffill", "missing_marks": ("-999,-200", "n/e")},
        ),
        text(
            "a series called NA",
            "date,y,id\n2024-01-01,1,NA\n2024-01-01,2,null\n2024-01-02,3,NA\n",
            values=(1, 3, 2),
            arguments={"series_column": "id"},
            series=("NA", "null"),
        ),
        text(
            "two time columns",
            "date,sent,y\n2024-01-01,2024-02-01,1\n2024-01-02,2024-02-02,2\n",
            values=(1, 2),
            times=DAYS[:2],
        ),
        text("a comment, left out", "# from the scale\n" + rows(NUMBERS), **plain, options={"skip_lines": 1}),
        text("1e5", rows(("1e5", "2E5", "3e+5", "4e-1")), values=(1e5, 2e5, 3e5, 0.4)),
        Odd("gzip", "t.csv.gz", gzip.compress(rows(NUMBERS).encode()), **plain),
        Odd(
            "JSON lines",
            "t.jsonl",
            "\n".join(json.dumps({"date": d, "y": v}) for d, v in zip(DAYS, VALUES, strict=True)).encode(),
            **plain,
        ),
        Odd("Arrow file", "t.arrow", arrow_file(), **plain),
        Odd(
            "Excel",
            "t.xlsx",
            workbook(
                [
                    ["date", "y"],
                    *([np.datetime64(d).astype(object), v] for d, v in zip(DAYS, VALUES, strict=True)),
                ]
            ),
            **plain,
        ),
        Odd(
            "Excel of two sheets",
            "t.xlsx",
            workbook([["y"], [1], [2]], ("a", "b")),
            values=(1, 2),
            told="the sheet 'a', the first of 2",
        ),
        text(
            "wide",
            "date,north,south\n2024-01-01,1,10\n2024-01-02,2,20\n2024-01-03,3,30\n",
            values=(1, 2, 3, 10, 20, 30),
            arguments={"targets": [], "wide": True},
            series=("north", "south"),
        ),
    ]


def refused() -> list[Odd]:
    """Files that are refused."""
    return [
        *(
            text(
                f"1,234 and no more between {name}",
                rows(
                    quoted(THOUSANDTHS_COMMA) if separator == "," else THOUSANDTHS_COMMA, separator=separator
                ),
                words=r"'1,234', which is 1\.234 or 1234, and nothing.*decimal='comma'.*decimal='point'",
            )
            for name, separator in (("tabs", "\t"), ("bars", "|"), ("commas, in quotes", ","))
        ),
        text(
            "1,234 beside a whole number below a thousand",
            rows(("870", "1,234", "12,345", "0"), GERMAN_DAYS, separator=";"),
            words=r"'1,234', which is 1\.234 or 1234, and ';' between columns speaks for 1\.234, the whole number "
            r"'870' in the same column for 1234\. .*decimal='comma'.*decimal='point'",
        ),
        text(
            "1,234 beside dates with the month first",
            rows(THOUSANDTHS_COMMA, ("01/28/2024", "01/29/2024", "01/30/2024", "01/31/2024"), separator=";"),
            words=r"'1,234', which is 1\.234 or 1234, and .* the date '01/28/2024' with the month first for 1234",
        ),
        text(
            "whole numbers between semicolons, and 1,234 far below",
            "y;z\n" + "1;2\n" * 20_000 + "1,234;2\n",
            words=r"'1,234', which is 1\.234 or 1234",
        ),
        text(
            "1.234 and German dates",
            rows(("9.052", "2.345", "3.456", "4.567"), GERMAN_DAYS, separator=";"),
            words=r"'9\.052', which is 9\.052 or 9052.*decimal='point'.*decimal='comma'",
        ),
        text(
            "1,234 and 1.234 beside blanks that group digits",
            "x;y;z\n1 234;1,234;1.234\n2 345;2,345;2.345\n",
            words=r"'1,234', which is 1\.234 or 1234|'1\.234', which is 1\.234 or 1234",
        ),
        text(
            "1.234 and no more",
            rows(("1.234", "2.345", "3.456", "4.567"), separator=";"),
            words=r"'1\.234', which is 1\.234 or 1234.*decimal='point'.*decimal='comma'",
        ),
        text(
            "whole numbers, and 1.234 far below",
            "y;z\n" + "1;2\n" * 20_000 + "1.234;2\n",
            words=r"'1\.234', which is 1\.234 or 1234",
        ),
        text(
            "numbers in two ways",
            "y;z\n1,5;2.5\n3,5;1.5\n",
            words=r"numbers in two ways: '1,5' in column 1 and '2.5' in column 2.*decimal=",
        ),
        text(
            "thousands below the sample",
            "y,z\n" + "1.5,2\n" * 20_000 + '"1,234.5",2\n',
            words=r"'1,234\.5' in data row 20001.*thousands='comma'",
        ),
        text(
            "a decimal comma below the sample",
            "y;z\n" + "1;2\n" * 20_000 + "1,5;2\n",
            words=r"'1,5' in data row 20001.*decimal='comma'",
        ),
        text(
            "two rows of numbers",
            "1,2\n3,4\n5,6\n",
            arguments={"targets": ["1"]},
            words=r"names of the columns or values.*header='yes' or header='no'",
        ),
        text("empty", "", words="is empty"),
        text("blank", "\n\n \n", words="is empty"),
        text("a header only", "date,y\n", words="no rows"),
        text(
            "a short row",
            "date,y\n2024-01-01,1\n2024-01-02\n",
            words=r"cannot be read as CSV.*Expected 2 columns, got 1",
        ),
        text("a long row", "date,y\n2024-01-01,1\n2024-01-02,2,3\n", words=r"Expected 2 columns, got 3"),
        text(
            "trailing separators in rows only",
            "date,y\n2024-01-01,1,\n2024-01-02,2,\n",
            words=r"Expected 2 columns, got 3",
        ),
        text("zero bytes", "date,y\n2024-01-01,1\0\0\n", words="not text: it holds byte 0 at offset 19"),
        text(
            "1e308",
            rows(("1", "1e308", "3", "4")),
            words=r"data row 2: column 'y' holds 1e\+308, too large for float32",
        ),
        text("inf", rows(("1", "inf", "3", "4")), words=r"data row 2: column 'y' has no value.*missing="),
        text(
            "percent signs in a part of a column",
            rows(("1%", "2", "3", "4%")),
            words=r"holds '1%' in data row 1, which is not a number.*Take the sign out",
        ),
        text(
            "currency in one cell",
            rows(("1", "2", "€3", "4")),
            words=r"holds '€3' in data row 3, which is not a number",
        ),
        text(
            "two currencies",
            rows(("€1", "$2", "€3", "€4")),
            words=r"holds '€1' in data row 1, which is not a number",
        ),
        text(
            "one size by a letter",
            rows(("1", "2", "1.2M", "4")),
            words=r"holds '1\.2M' in data row 3, which is not a number",
        ),
        text(
            "brackets beside signs",
            rows(("-1", "(2)", "3", "4")),
            words=r"holds '\(2\)' in data row 2, which is not a number",
        ),
        text(
            "a truth among numbers",
            rows(("1", "0", "TRUE", "1.5")),
            words=r"holds 'TRUE' in data row 3, which is not a number",
        ),
        text(
            "a word among numbers",
            rows(("1", "2", "closed", "4")),
            words=r"column 'y' holds 'closed' in data row 3",
        ),
        text("two columns of one name", "date,y,y\n2024-01-01,1,2\n", words="more than one column named 'y'"),
        text(
            "a comment at the top",
            "# from the scale\n" + rows(NUMBERS),
            words=r"begins with the comment '# from the scale'.*skip_lines=1",
        ),
        text(
            "blank lines at the top",
            "\n\n" + rows(NUMBERS),
            words=r"begins with an empty line.*line 3.*skip_lines=2",
        ),
        text(
            "a title at the top",
            "Sales of the year\n" + rows(NUMBERS),
            words=r"begins with the line 'Sales of the year'.*skip_lines=1",
        ),
        text("Excel's own first line", "sep=;\n" + rows(NUMBERS, separator=";"), words=r"skip_lines=1"),
        text("a web page", "<!DOCTYPE html>\n<html><body>404</body></html>\n", words="is a web page"),
        text("JSON under another name", '[{"y": 1}]\n', words=r"is JSON, no CSV.*\*\.jsonl"),
        text(
            "a file in another encoding",
            rows(NUMBERS),
            "utf-16",
            options={"encoding": "utf-8"},
            words=r"is not utf-8.*encoding",
        ),
        Odd(
            "Excel under another name",
            "t.csv",
            workbook([["y"], [1]]),
            words=r"an Excel file or another archive; name it \*\.xlsx",
        ),
        Odd("no Excel file", "t.xlsx", b"date,y\n", words="cannot be read as an Excel file"),
        Odd(
            "a sheet that is not there",
            "t.xlsx",
            workbook([["y"], [1]]),
            options={"sheet": "Sales"},
            words="has the sheets 'Sheet1'",
        ),
        Odd(
            "a compressed file under another name",
            "t.csv",
            gzip.compress(b"y\n1\n"),
            words=r"no CSV file but compressed; name it \*\.csv\.gz",
        ),
        Odd("no JSON", "t.jsonl", b"y\n1\n", words="cannot be read as JSON lines"),
        Odd(
            "JSON lines of two kinds",
            "t.jsonl",
            b'{"y": 1}\n{"y": "two"}\n',
            words="values of one kind in each field",
        ),
        text(
            "an empty time",
            rows(NUMBERS, ("2024-01-01", "", "2024-01-03", "2024-01-04")),
            words="time column 'date' is empty in data row 2",
        ),
        text(
            "a wide table of words",
            "date,a\n2024-01-01,x\n",
            arguments={"targets": [], "wide": True},
            words="no column of numbers",
        ),
        text(
            "a hole in a wide table",
            "date,a,b\n2024-01-01,1,2\n2024-01-02,,3\n",
            arguments={"targets": [], "wide": True},
            words=r"data row 2, series 'a'.* has no value",
        ),
    ]


def timed() -> list[Odd]:
    """Files whose times are odd."""
    business = written(np.busday_offset("2024-01-01", range(10), roll="forward"))
    ten = tuple(map(str, range(10)))
    months = written(np.arange("2020-01", "2020-11", dtype="datetime64[M]"))
    firsts = tuple(f"{month}-01" for month in months)
    quarters = tuple(f"{year}Q{quarter}" for year in (2020, 2021) for quarter in (1, 2, 3, 4))
    starts = tuple(f"{year}-{month:02}-01" for year in (2020, 2021) for month in (1, 4, 7, 10))
    weeks = tuple(f"2024-W{week:02}" for week in range(1, 11))
    mondays = written(np.datetime64("2024-01-01") + 7 * np.arange(10))
    hours = np.datetime64("2024-01-01T00", "h") + np.arange(10)
    epoch = hours.astype("datetime64[s]").astype(int)
    change = (
        "2023-10-29 01:00+02:00",
        "2023-10-29 02:00+02:00",
        "2023-10-29 02:00+01:00",
        "2023-10-29 03:00+01:00",
    )
    changed = ("2023-10-28T23:00", "2023-10-29T00:00", "2023-10-29T01:00", "2023-10-29T02:00")
    twice = tuple(time[:16] for time in change)

    def of(about: str, times: tuple[str, ...], known: tuple[str, ...] | None = None, **facts: Any) -> Odd:
        numbers = tuple(map(str, range(len(times))))
        if "words" not in facts:
            facts = {"values": tuple(map(float, range(len(times)))), "times": known, **facts}
        return text(about, rows(numbers, times), **facts)

    return [
        of("business days", business, business),
        of("months", months, firsts),
        of("first days of months", firsts, firsts),
        of("quarters", quarters, starts),
        of("weeks", weeks, mondays),
        of("yyyymmdd", tuple(day.replace("-", "") for day in DAYS), DAYS),
        of("epoch seconds", tuple(map(str, epoch)), written(hours)),
        of("epoch milliseconds", tuple(map(str, 1000 * epoch)), written(hours)),
        of(
            "US dates", ("01/12/2024", "01/13/2024", "01/14/2024"), ("2024-01-12", "2024-01-13", "2024-01-14")
        ),
        of("dates with the day first", ("12/01/2024", "13/01/2024"), ("2024-01-12", "2024-01-13")),
        of(
            "US dates that are said to be",
            ("01/02/2024", "01/03/2024"),
            ("2024-01-02", "2024-01-03"),
            options={"date_order": "mdy"},
        ),
        of("dates of two readings", ("01/02/2024", "01/03/2024"), words=r"date_order"),
        of(
            "dates in two ways",
            ("2024-01-01", "02.01.2024", "2024-01-03"),
            words=r"'02\.01\.2024' in data row 2",
        ),
        of("clock change with zones", change, changed),
        of("clock change without zones", twice, words=r"twice"),
        of("descending rows", tuple(reversed(DAYS)), DAYS, values=(3, 2, 1, 0)),
        of("duplicates", ("2024-01-01", "2024-01-01", "2024-01-02"), words=r"twice"),
        text(
            "M5-like",
            m5(),
            values=(*range(4), *range(10, 14)) * 2,
            arguments={"targets": ["sold"], "series_column": ["store", "item"]},
            series=("CA_1 / food", "CA_1 / toys", "TX_1 / food", "TX_1 / toys"),
        ),
        text(
            "a month column",
            "month,y\n" + "\n".join(map(",".join, zip(months, ten, strict=True))),
            values=tuple(range(10)),
            times=firsts,
        ),
    ]


MAKERS: tuple[Callable[[], list[Odd]], ...] = (clean, refused, timed)


def odd_tables() -> list[Odd]:
    """All of them."""
    return [one for maker in MAKERS for one in maker()]
