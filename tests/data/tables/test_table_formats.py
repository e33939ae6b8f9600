"""Parquet, Arrow, JSON lines and Excel, several key columns, and wide tables."""

import gzip
import importlib.util
import json
import re
import zipfile
from pathlib import Path

import numpy as np
import openpyxl
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

from cellerate.data.series.packing import pack_series
from cellerate.data.series.series import open_series
from cellerate.data.settings import Reading
from cellerate.data.settings.tables import TableOptions
from cellerate.data.tables import arrow_table, json_table
from cellerate.data.tables.tables import NpyTable, find_tables, open_table
from cellerate.errors import BackendError, ConfigError, DataError
from cellerate.listener import Callbacks

KEYS = {
    "store": ["b", "a", "b", "a", "b"],
    "item": [1, 1, 2, 1, 1],
    "y": [1.0, 2.0, 3.0, 4.0, 5.0],
}
IDS = ["b / 1", "a / 1", "b / 2", "a / 1", "b / 1"]


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("CELLERATE_CACHE", str(tmp_path / "cache"))


def ids_of(table, series, number="y"):
    found = []
    for block in table.blocks([number], None, series, 0):
        assert len(set(block.ids)) == len(block.ids)
        found += [block.ids[code] for code in block.series]
    return found


def written(folder: Path, kind: str, columns: dict) -> Path:
    """The columns in a file of a format."""
    path, table = folder / f"t.{kind}", pa.table(columns)
    rows = table.to_pylist()
    if kind == "parquet":
        pq.write_table(table, path)
    elif kind == "arrow":
        pyarrow.feather.write_feather(table, path)
    elif kind == "csv":
        names = list(columns)
        path.write_text("\n".join([",".join(names), *(",".join(str(row[n]) for n in names) for row in rows)]))
    elif kind in ("jsonl", "jsonl.gz"):
        text = "".join(json.dumps(row, default=str) + "\n" for row in rows).encode()
        path.write_bytes(gzip.compress(text) if kind.endswith(".gz") else text)
    else:
        book = openpyxl.Workbook()
        book.active.append(list(columns))
        for row in rows:
            book.active.append(list(row.values()))
        book.save(path)
    return path


@pytest.mark.parametrize("kind", ["parquet", "arrow", "csv", "jsonl", "jsonl.gz"])
def test_several_key_columns_are_joined_to_ids(tmp_path, kind):
    assert ids_of(open_table(written(tmp_path, kind, KEYS)), ["store", "item"]) == IDS


def test_several_key_columns_of_numbers_are_joined_to_ids(tmp_path):
    values = np.array([[1.0, 2.0, 0.5], [1.0, 3.0, 0.5], [1.0, 2.0, 0.5]])
    np.save(tmp_path / "v.npy", values)
    table = NpyTable(tmp_path / "v.npy")
    assert ids_of(table, ["0", "1"], "2") == ["1 / 2", "1 / 3", "1 / 2"]
    assert ids_of(table, ["1"], "2") == ["2", "3", "2"]


def test_empty_key_is_named_with_its_column_and_row(tmp_path):
    path = written(tmp_path, "parquet", KEYS | {"item": [1, None, 2, 1, 1]})
    with pytest.raises(
        DataError, match=r"series column 'item' is empty in data row 2. Write the id.*or delete"
    ):
        ids_of(open_table(path), ["store", "item"])


@pytest.mark.parametrize("kind", ["arrow", "jsonl", "jsonl.gz", "xlsx"])
def test_other_formats_are_read_as_csv_is(tmp_path, monkeypatch, kind):
    days = [f"2024-01-{day:02}" for day in range(1, 29)]
    columns = {"date": days, "y": np.arange(28) / 4, "note": ["x"] * 28}
    expected = open_series(written(tmp_path, "csv", columns), Reading(targets=["y"]))
    path = written(tmp_path, kind, columns)
    data = open_series(path, Reading(targets=["y"]))
    monkeypatch.setattr(json_table, "_BLOCK_BYTES", 100)
    monkeypatch.setattr(arrow_table, "_BLOCK_ROWS", 5)
    monkeypatch.setenv("CELLERATE_CACHE", str(tmp_path / "other"))
    for found in (data, open_series(path, Reading(targets=["y"]))):
        assert np.array_equal(found.values, expected.values) and np.array_equal(found.times, expected.times)
        assert found.columns == ("y",)


def test_field_that_a_record_lacks_is_missing(tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_text('{"y": 1}\n{"y": null}\n{"z": 2}\n{"y": 4}\n')
    assert open_series(
        path, Reading(targets=["y"], features=["y"], missing="interpolate")
    ).values.ravel().tolist() == [1, 2, 3, 4]


def test_folder_holds_tables_of_every_format(tmp_path):
    names = ["a.csv", "b.jsonl", "c.xlsx", "d.arrow", "e.npy", "f.md", "g.csv.gz", "h.ndjson"]
    for name in names:
        (tmp_path / name).touch()
    assert [path.name for path in find_tables(tmp_path)] == [name for name in names if name != "f.md"]


def test_sheet_is_chosen_and_rows_above_it_are_left_out(tmp_path):
    book = openpyxl.Workbook()
    book.active.append(["nothing"])
    sheet = book.create_sheet("Sales")
    for row in (["Sales of 2024"], [], ["day", "y"], [1, 2.5], [None, None], [2, "NA"], [3, 4]):
        sheet.append(row)
    book.save(tmp_path / "t.xlsx")
    options = TableOptions(sheet="Sales", skip_lines=2)
    data = open_series(
        tmp_path / "t.xlsx", Reading(targets=["y"], features=["y"], missing="interpolate"), table=options
    )
    assert data.values.ravel().tolist() == [2.5, 3.25, 4]


@pytest.mark.parametrize(
    ("names", "note"),
    [
        (["y", None], "without a column that has no name"),
        (["y", None, None], "without 2 columns that have no name"),
    ],
)
def test_columns_of_a_sheet_without_a_name_are_left_out_with_a_note(tmp_path, names, note):
    book = openpyxl.Workbook()
    for row in (names, [1, 2, 3], [4, 5, 6]):
        book.active.append(row[: len(names)])
    book.save(tmp_path / "t.xlsx")
    heard = []
    data = open_series(tmp_path / "t.xlsx", Reading(targets=["y"]), listener=Callbacks(message=heard.append))
    assert data.values.ravel().tolist() == [1, 4]
    assert any(note in line for line in [*heard, *data.notes]), (heard, data.notes)


def computed(path, results):
    """A sheet of rows "n" and "y", the double of n, as a formula; `results` are the stored values of some cells."""
    book = openpyxl.Workbook()
    for row in (["n", None, "y"], *([n, None, f"=A{n + 1}*2"] for n in range(1, 5))):
        book.active.append(row)
    book.save(path.with_suffix(".parts"))
    with zipfile.ZipFile(path.with_suffix(".parts")) as given, zipfile.ZipFile(path, "w") as made:
        for name in given.namelist():
            text = given.read(name).decode()
            for cell, (kind, value) in results.items():
                text = re.sub(
                    rf'<c r="{cell}"><f>(.*?)</f><v />', rf'<c r="{cell}"{kind}><f>\1</f><v>{value}</v>', text
                )
            made.writestr(name, text)
    return path


@pytest.mark.parametrize(("rows", "cell"), [([], "C2"), ([2, 3, 5], "C4")])
@pytest.mark.parametrize("missing", ["error", "ffill"])
def test_formulas_without_results_are_named(tmp_path, rows, cell, missing):
    path = computed(tmp_path / "t.xlsx", {f"C{row}": ("", row) for row in rows})
    with pytest.raises(DataError, match=f"'y' holds formulas without results, the first in the cell {cell}"):
        open_series(path, Reading(targets=["y"], missing=missing))


def test_formulas_with_results_are_their_results_and_an_empty_text_is_a_missing_value(tmp_path):
    results = {f"C{row}": ("", row) for row in (2, 4, 5)}
    path = computed(tmp_path / "t.xlsx", {**results, "C3": (' t="str"', "")})
    found = open_series(path, Reading(targets=["y"], missing="ffill"))
    assert found.values.tolist() == [[1, 2], [2, 2], [3, 4], [4, 5]]


def test_formulas_of_columns_that_are_not_read_need_no_results(tmp_path):
    path = computed(tmp_path / "t.xlsx", {})
    assert open_series(path, Reading(targets=["n"], features=["n"])).values.ravel().tolist() == [1, 2, 3, 4]


def test_words_of_a_sheet_are_missing_values_among_numbers_only(tmp_path):
    days = [f"2024-01-{day:02}" for day in range(1, 5)]
    shops = ["NA", "NA", "n/a", "n/a"]
    path = written(tmp_path, "xlsx", {"date": days, "s": shops, "y": ["1.5", "closed", "2.5", "NA"]})
    reading = Reading(targets=["y"], features=["y"], series_column="s", missing="drop")
    data = open_series(path, reading, table=TableOptions(missing_values=["closed"]))
    assert [(name, data.values[first:stop, 0].tolist()) for first, stop, name in data.segments] == [
        ("NA", [1.5]),
        ("n/a", [2.5]),
    ]


def test_word_among_numbers_of_a_sheet_is_named(tmp_path):
    path = written(tmp_path, "xlsx", {"y": ["1.5", "closed"]})
    with pytest.raises(DataError, match="column 'y' holds 'closed' in data row 2"):
        open_series(path, Reading(targets=["y"]))


def test_excel_without_openpyxl_says_what_to_install(tmp_path, monkeypatch):
    (tmp_path / "t.xlsx").write_bytes(b"")
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "openpyxl" else find(name))
    with pytest.raises(BackendError, match=r"pip install 'cellerate\[excel\]'"):
        open_series(tmp_path / "t.xlsx", Reading(targets=["y"]))


WIDE = {
    "date": [f"2024-01-{day:02}" for day in range(1, 11)],
    "n": np.arange(10.0),
    "s": 10 + np.arange(10.0),
}


@pytest.mark.parametrize("kind", ["csv", "parquet", "xlsx", "jsonl"])
def test_wide_table_has_a_series_a_column(tmp_path, kind):
    data = open_series(written(tmp_path, kind, WIDE), Reading(wide=True))
    assert data.columns == data.target_names == data.feature_names == ("value",)
    assert data.segments == ((0, 10, "n"), (10, 20, "s"))
    assert data.values.ravel().tolist() == list(range(20))
    assert np.array_equal(data.times[:10], data.times[10:])


def test_wide_table_without_times_is_read():
    assert open_series({"n": [1.0, 2.0], "s": [3.0, 4.0]}, Reading(wide=True)).values.ravel().tolist() == [
        1,
        2,
        3,
        4,
    ]


@pytest.mark.parametrize("names", [("2024-01-01", "2024-01-02"), ("1999", "2000"), ("Jan 2024", "Feb 2024")])
def test_wide_table_whose_columns_are_times_is_refused(names):
    first, second = names
    with pytest.raises(DataError, match=f"columns are named by times, '{first}' to '{second}'"):
        open_series({"shop": ["a", "b"], first: [1.0, 2.0], second: [3.0, 4.0]}, Reading(wide=True))


def test_wide_and_long_reading_of_one_file_are_kept_apart(tmp_path):
    path = written(tmp_path, "csv", WIDE)
    long = open_series(path, Reading(targets=["n"]))
    wide = open_series(path, Reading(wide=True))
    assert (long.values.shape, wide.values.shape) == ((10, 2), (20, 1))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"targets": ["n"]}, r"the target and feature is 'value': name no other to forecast \(target\)"),
        ({"features": ["n"]}, r"the target and feature is 'value': name no other to forecast \(target\)"),
        ({"series_column": "n"}, "series of a wide table are its columns"),
    ],
)
def test_columns_of_a_wide_table_cannot_be_named(tmp_path, arguments, message):
    with pytest.raises(ConfigError, match=message):
        open_series(written(tmp_path, "csv", WIDE), Reading(wide=True, **arguments))


def test_options_of_tables_are_refused_for_a_packed_series(tmp_path):
    path = tmp_path / "t.series"
    pack_series(written(tmp_path, "csv", WIDE), path, Reading())
    assert open_series(path, Reading(targets=["n"]), table=TableOptions()).columns == ("n", "s")
    with pytest.raises(
        ConfigError, match=r"is packed, and decimal=',', header='yes' describe the format of tables"
    ):
        open_series(path, Reading(targets=["n"]), table=TableOptions(decimal=",", header=True))
