"""Odd files that are refused, each with the words of its refusal."""

import gzip

from support.data.odd_tables.odd import (
    GERMAN_DAYS,
    NUMBERS,
    THOUSANDTHS_COMMA,
    Odd,
    quoted,
    rows,
    text,
    workbook,
)


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
        text("JSON under another name", '[{"y": 1}]\n', words=r"is JSON, not CSV.*\*\.jsonl"),
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
            words=r"not a CSV file but compressed; name it \*\.csv\.gz",
        ),
        Odd("no JSON", "t.jsonl", b"y\n1\n", words="cannot be read as JSON lines"),
        Odd(
            "JSON lines of two kinds",
            "t.jsonl",
            b'{"y": 1}\n{"y": "two"}\n',
            words="values of one kind in each field",
        ),
        text(
            "a column whose name and values begin with a blank",
            "date; y\n2024-01-01; 1.234\n2024-01-02; 2.345\n",
            words=r"column 'y' holds '1\.234', which is 1\.234 or 1234",
        ),
        text("a padded header alone", "date, y", words="has a header but no rows"),
        text(
            "digits of another script",
            rows(("\u0661", "\u0662", "\u0663", "\u0664")),
            words=r"holds '\u0661' in data row 1, which is not a number\. Correct it; if it marks",
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
