"""Odd files that are read, each with its values."""

import gzip
import json

import numpy as np

from support.data.odd_tables.odd import (
    BY_SEPARATOR,
    DAYS,
    GERMAN_DAYS,
    LARGE,
    NUMBERS,
    THOUSANDTHS,
    THOUSANDTHS_COMMA,
    VALUES,
    Odd,
    arrow_file,
    comma,
    quoted,
    rows,
    text,
    workbook,
)


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
            "no header, one column",
            "1.5\n2.5\n3.5\n",
            values=(1.5, 2.5, 3.5),
            arguments={"targets": ["0"]},
            told="no header, so the only column is 0",
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
        text("blanks around names", rows(NUMBERS, header=" date , y "), **plain),
        text(
            "two rows of names with line ends",
            rows(NUMBERS, header='date,"y\n\n(total)"\n,kg'),
            **plain | {"told": "2 rows of names", "arguments": {"targets": ["y\n\n(total)"]}},
        ),
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
