import gzip
import re

import numpy as np
import pytest

from cellerate.data.series.series import open_series
from cellerate.data.settings import Reading
from cellerate.data.settings.tables import TableOptions
from cellerate.data.tables import csv_table
from cellerate.data.tables.number_marks import Marks, is_number
from cellerate.data.tables.tables import open_table, open_tables
from cellerate.errors import ConfigError, DataError
from cellerate.listener import Callbacks


@pytest.fixture
def write(tmp_path):
    def writer(text: str, name: str = "t.csv"):
        path = tmp_path / name
        path.write_bytes(text.encode())
        return path

    return writer


def column(path, name="y", **options):
    table = open_table(path, options=TableOptions(**options))
    return np.concatenate([block.numbers[:, 0] for block in table.blocks([name], None, [], 0)]).tolist()


@pytest.mark.parametrize(
    ("text", "options", "values"),
    [
        ("y;z\n1,234;1\n", {"decimal": ","}, [1.234]),
        ("y;z\n1,234;1\n", {"decimal": "comma"}, [1.234]),
        ("y;z\n1,234;1\n", {"decimal": "."}, [1234]),
        ("y;z\n1.234;1\n", {"thousands": "point"}, [1234]),
        ("y;z\n1.234;1\n", {"thousands": "none"}, [1.234]),
        ("y;z\n1,234.5;1\n", {"decimal": ".", "thousands": ","}, [1234.5]),
        ("y z\n1 2\n", {"separator": "space"}, [1]),
        ("x:y\n1:2\n", {"separator": ":"}, [2]),
        ("1,2\n3,4\n", {"header": False}, None),
        ("title\n\ny;z\n1,5;2\n", {"skip_lines": 2}, [1.5]),
    ],
)
def test_options_win_over_what_is_found(write, text, options, values):
    if values is None:
        assert open_table(write(text), options=TableOptions(**options)).columns == ("0", "1")
    else:
        assert column(write(text), **options) == values


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"separator": ";;"}, "separator must be one ASCII character"),
        ({"separator": '"'}, "separator must be one"),
        ({"separator": 3}, "separator must be a character"),
        ({"decimal": "'"}, "decimal must be"),
        ({"thousands": "_"}, "thousands must be"),
        ({"decimal": ",", "thousands": ","}, "cannot be the same"),
        ({"date_order": "ydm"}, "date_order must be one of"),
        ({"header": "maybe"}, "header must be one of"),
        ({"skip_lines": -1}, "skip_lines must be"),
        ({"encoding": "utf-9"}, "encoding must be one"),
    ],
)
def test_options_out_of_range_raise_config_error(options, message):
    with pytest.raises(ConfigError, match=message):
        TableOptions(**options)


def test_grouped_digits_are_read_the_same_in_any_blocks(write, monkeypatch):
    values = np.random.default_rng(0).integers(0, 10**7, 3000) / 100
    text = "y;z\n" + "".join(f"{value:,.2f};1\n" for value in values)
    whole = column(write(text))
    monkeypatch.setattr(csv_table, "_BLOCK_BYTES", 1000)
    assert column(write(text)) == whole == values.tolist()


@pytest.mark.parametrize("value", ["1,23,456", "12,34", "1,2345", "1.5.5", "1,234,", "0x1", "1_000"])
def test_digits_that_are_grouped_wrongly_are_refused(write, value):
    path = write(f"y;z\n1,234.5;1\n{value};1\n")
    with pytest.raises(DataError, match=rf"column 'y' holds '{re.escape(value)}' in data row 2"):
        column(path, decimal=".", thousands=",")


def test_point_in_a_number_with_a_decimal_comma_is_refused(write):
    rows = "y;z\n" + "1,5;2\n" * 20_000
    with pytest.raises(DataError, match=r"'1\.234' in data row 20001.*thousands='point'"):
        column(write(rows + "1.234;2\n"))
    with pytest.raises(DataError, match=r"'1\.5' in data row 20001"):
        column(write(rows + "1.5;2\n"))


def test_marks_of_a_column_of_text_say_nothing_of_numbers():
    marks = Marks()
    marks.add("note", ["a,b", "1,5", "c", "d"])
    marks.add("version", ["1.2.3", "1.2.4"])
    marks.add("date", ["01.02.2024", "02.02.2024"])
    assert not marks.seen and not marks.either


@pytest.mark.parametrize(
    ("value", "decimal", "thousands", "number"),
    [
        ("1", ".", "", True),
        ("-1.5e3", ".", "", True),
        ("", ".", "", True),
        ("NA", ".", "", True),
        ("1.5", ",", "", False),
        ("1,5", ",", "", True),
        ("1.234,5", ",", ".", True),
        ("1.23,5", ",", ".", False),
        ("one", ".", "", False),
        ("1_0", ".", "", False),
    ],
)
def test_is_number_follows_the_marks(value, decimal, thousands, number):
    assert is_number(value, decimal, thousands) is number


def test_files_that_are_read_alike_are_told_once(tmp_path, write):
    paths = [write("date;y\n2024-01-01;1,5\n", f"{name}.csv") for name in "abc"]
    said: list[str] = []
    open_tables(paths, listener=Callbacks(message=said.append))
    assert said == [f"{paths[0]} read as: ';' between columns, ',' decimal"]


def test_how_a_file_is_read_decides_what_the_cache_holds(write, tmp_path, monkeypatch):
    monkeypatch.setenv("CELLERATE_CACHE", str(tmp_path / "cache"))
    path = write("y;z\n1,234;1\n2,345;1\n")
    small = open_series(path, Reading(targets=["y"], features=["y"]), table=TableOptions(decimal=","))
    large = open_series(path, Reading(targets=["y"], features=["y"]), table=TableOptions(decimal="."))
    assert small.values[:, 0].tolist() == np.float32([1.234, 2.345]).tolist()
    assert large.values[:, 0].tolist() == [1234, 2345]
    assert open_series(path, Reading(targets=["y"], features=["y"]), table=TableOptions(decimal=",")).cached


@pytest.mark.parametrize("size", ["", "k", "M"])
@pytest.mark.parametrize("seed", range(20))
def test_decimal_commas_between_semicolons_are_never_read_as_groups(write, seed, size):
    random = np.random.default_rng(seed)
    decimals = int(random.integers(1, 5))
    values = np.round(random.uniform(1, 1000, 40) * random.choice([-1, 1], 40), decimals)
    written = [f"{value:.{decimals}f}".replace(".", ",") for value in values]
    assert column(write("y;z\n" + "".join(f"{value}{size};1\n" for value in written))) == pytest.approx(
        values * {"": 1, "k": 1e3, "M": 1e6}[size]
    )


@pytest.mark.parametrize("size", ["", "k", "M"])
@pytest.mark.parametrize("seed", range(20))
def test_grouped_digits_between_semicolons_are_never_read_as_decimals(write, seed, size):
    random = np.random.default_rng(seed)
    values = np.append(random.integers(1_000, 1_000_000, 40), random.choice([7, 870, 7_000_000]))
    path = write("y;z\n" + "".join(f"{value:,}{size};1\n" for value in random.permutation(values)))
    try:
        assert min(column(path)) >= 1000 * {"": 1, "k": 1e3, "M": 1e6}[size]
    except DataError as refused:
        assert values.min() < 1000 and "whole number" in str(refused)


def test_column_that_is_not_asked_for_may_be_unclear(write):
    path = write("y|z\n1,234|1\n2,345|2\n")
    assert column(path, "z") == [1, 2]
    with pytest.raises(DataError, match="'1,234', which is"):
        column(path, "y")


def test_compressed_file_of_another_dialect_is_read(tmp_path):
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress("y;z\n1,5;1\n".encode("utf-16")))
    assert column(tmp_path / "t.csv.gz") == [1.5]


def test_sheet_of_a_csv_file_is_refused(write):
    with pytest.raises(ConfigError, match="sheet is for Excel files"):
        open_table(write("y\n1\n"), options=TableOptions(sheet="a"))


def test_quote_that_is_never_closed_far_behind_the_sample_is_the_files_fault(write):
    # Nothing says what "1,234" is, so the rest of the file is looked at| a quoted value there is too long for `csv`.
    path = write("y|z\n" + "1,234|2,345\n" * 8000 + '"inches|1,234\n' + "1,234|2,345\n" * 40_000)
    with pytest.raises(DataError, match=r"t\.csv"):
        column(path)
