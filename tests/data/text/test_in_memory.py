"""Lines as a program has them."""

import numpy as np
import pyarrow as pa
import pytest

from cellerate.data.text.in_memory import given_lines
from cellerate.errors import ConfigError, DataError

LINES = ["red hat", "", "blue"]
TABLE = {"title": LINES, "price": [1.5, 2.0, 3.0], "place": ["a", "b", "c"]}


@pytest.mark.parametrize(
    "lines",
    [
        LINES,
        tuple(LINES),
        iter(LINES),
        np.array(LINES),
        np.array(LINES, object),
        pa.array(LINES),
        pa.chunked_array([LINES[:1], LINES[1:]]),
    ],
    ids=["list", "tuple", "iterator", "numpy", "objects", "arrow", "chunks"],
)
def test_lines_are_the_texts_of_whatever_holds_them(lines):
    found = given_lines(lines)
    assert found == LINES
    assert all(isinstance(line, str) for line in found)


@pytest.mark.parametrize("package", ["pandas", "polars"])
def test_lines_are_the_texts_of_a_column(package):
    series = pytest.importorskip(package).Series
    assert given_lines(series(LINES)) == LINES
    with pytest.raises(ConfigError, match="line 1 is"):
        given_lines(series(["a", None]))


@pytest.mark.parametrize("package", ["pyarrow", "pandas", "polars"])
def test_lines_of_a_table_are_of_its_column(package):
    module = pytest.importorskip(package)
    kind = pa.table if package == "pyarrow" else module.DataFrame
    assert given_lines(kind(TABLE), "place") == ["a", "b", "c"]
    assert given_lines(kind({name: TABLE[name] for name in ("price", "title")})) == LINES
    with pytest.raises(
        DataError, match=r"several columns of texts \(title, place\): say which one \(column\)"
    ):
        given_lines(kind(TABLE))
    with pytest.raises(DataError, match="no column of texts, only price"):
        given_lines(kind({"price": [1.0]}))
    with pytest.raises(DataError, match=r"no column 'name'\. It has: title, price, place"):
        given_lines(kind(TABLE), "name")


@pytest.mark.parametrize(
    ("lines", "column", "message"),
    [
        ("red hat", None, "not 'red hat': put a single line into a list"),
        (7, None, "not 7: give a list, an array or a column"),
        (None, None, "not None"),
        (["a", None], None, "line 1 is None: leave it out"),
        (np.array(["a", np.nan], object), None, "line 1 is nan"),
        ([3], None, "line 0 is 3"),
        (LINES, "title", "column is for a table or a Parquet file, and lines is a list"),
    ],
)
def test_what_holds_no_texts_is_refused_with_what_it_is(lines, column, message):
    with pytest.raises(ConfigError, match=message):
        given_lines(lines, column)
