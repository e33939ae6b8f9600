"""Tables as people have them: times in several columns, names in several rows, empty rows, blanks between columns."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import openpyxl
import pytest

from cellerate.data.series.packing import pack_series
from cellerate.data.series.series import SeriesData, open_series
from cellerate.data.settings import Reading
from cellerate.data.settings.tables import TableOptions
from cellerate.data.tables import csv_blanks, csv_table
from cellerate.data.tables.csv_header import names_of
from cellerate.data.tables.joined_times import columns_of_time
from cellerate.data.times.month_names import month_number
from cellerate.errors import DataError
from cellerate.listener import Callbacks


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CELLERATE_CACHE", str(tmp_path / "cache"))


def opened(folder: Path, text: str, **settings: Any) -> SeriesData:
    (folder / "t.csv").write_text(text)
    table = settings.pop("table", None)
    return open_series([folder / "t.csv"], Reading(targets=["y"], **settings), table=table)


def times(data: SeriesData) -> list[str]:
    assert data.times is not None
    return [str(time).removesuffix(".000000") for time in data.times[:2]]


HOURS = ["2024-01-13T00:00:00", "2024-01-13T01:00:00"]


@pytest.mark.parametrize(
    ("header", "rows", "columns"),
    [
        ("Date;Time;y", ("13/01/2024;00:00:00;1", "13/01/2024;01:00:00;2"), "'Date' and 'Time'"),
        ("Time;Date;y", ("00:00;13.01.2024;1", "01:00;13.01.2024;2"), "'Date' and 'Time'"),
        ("Date;Time;y", ("13/01/2024;00.00.00;1,5", "13/01/2024;01.00.00;2,5"), "'Date' and 'Time'"),
        ("dteday,hr,y", ("2024-01-13,0,1", "2024-01-13,1,2"), "'dteday' and 'hr'"),
        ("date,hour,y", ("2024-01-12,24,1", "2024-01-13,1,2"), "'date' and 'hour'"),
        ("Datum;Uhrzeit;y", ("13.01.2024;0:00;1", "13.01.2024;1:00;2"), "'Datum' and 'Uhrzeit'"),
        ("date,time,y", ("2024-01-13,12:00 AM,1", "2024-01-13,1:00 AM,2"), "'date' and 'time'"),
        ("year,month,day,hour,y", ("2024,1,13,0,1", "2024,1,13,1,2"), "'year', 'month', 'day' and 'hour'"),
        ("No,YEAR,MO,DY,HR,y", ("1,2024,1,13,0,1", "2,2024,1,13,1,2"), "'YEAR', 'MO', 'DY' and 'HR'"),
    ],
)
def test_times_in_several_columns_are_joined_and_said(
    tmp_path: Path, header: str, rows: tuple[str, ...], columns: str
) -> None:
    data = opened(tmp_path, "\n".join([header, *rows]) + "\n", features=["y"])
    assert times(data) == HOURS
    assert f"times from the columns {columns}" in data.notes


def test_columns_of_times_are_no_features_and_can_be_named(tmp_path: Path) -> None:
    text = "a,b,y\n2024-01-13,0000,1\n2024-01-13,0100,2\n"
    data = opened(tmp_path, text, time_column="a b")
    assert (times(data), data.columns) == (HOURS, ("y",))
    with pytest.raises(DataError, match="no column 'a c'"):
        opened(tmp_path, text, time_column="a c")


def test_months_and_days_alone_are_joined(tmp_path: Path) -> None:
    data = opened(tmp_path, "year,month,y\n" + "".join(f"2024,{month},{month}\n" for month in range(1, 6)))
    assert times(data) == ["2024-01-01T00:00:00", "2024-02-01T00:00:00"]
    assert data.frequency is not None
    assert data.frequency.name == "months"


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        # The dates have a time of day, and the other column is a number of its own.
        ("date,hour,y\n2024-01-13 05:00,5,1\n2024-01-13 06:00,6,2\n", ("hour", "y")),
        ("date,hour,y\n2024-01-13,50,1\n2024-01-14,60,2\n", ("hour", "y")),
        ("year,month,y\n1,1,1\n2,2,2\n", ("year", "month", "y")),
    ],
)
def test_columns_that_are_no_parts_of_times_stay_features(
    tmp_path: Path, text: str, columns: tuple[str, ...]
) -> None:
    assert opened(tmp_path, text).columns == columns


def test_frames_have_times_in_several_columns_too() -> None:
    pandas = pytest.importorskip("pandas")
    days = pandas.to_datetime(["2024-01-13", "2024-01-13"])
    for clock in (["00:00", "01:00"], [0, 1], [0.0, 1.0]):
        frame = pandas.DataFrame({"date": days, "hour": clock, "y": [1.0, 2.0]})
        assert times(open_series(frame, Reading(targets=["y"]))) == HOURS


def test_name_of_joined_columns_is_taken_apart() -> None:
    names = ["Date", "Time", "Local Time", "Date Time x"]
    assert columns_of_time("Date Time", names) == ["Date", "Time"]
    assert columns_of_time("Date Local Time", names) == ["Date", "Local Time"]
    assert columns_of_time("Local Time", names) == ["Local Time"]
    assert columns_of_time("Date Date", names) == []
    assert columns_of_time("Date Zeit", names) == []


def test_columns_without_any_value_are_left_out_and_said(tmp_path: Path) -> None:
    rows = "".join(f"2024-01-{day},{day},,n/a,\n" for day in range(10, 20))
    path, said = tmp_path / "t.csv", "left out, because they have no value in any row: 'a', 'b'"
    for _ in range(2):  # the second time from the cache
        data = opened(tmp_path, f"date,y,a,b,\n{rows}")
        assert data.columns == ("y",)
        assert said in data.notes
        packed = pack_series(path, tmp_path / "t.series", Reading())
        assert packed.columns == ("y",)
        assert said in packed.notes
    (kept,) = (tmp_path / "cache").rglob("*.empty")
    kept.write_text('{"a": ')
    assert opened(tmp_path, f"date,y,a,b,\n{rows}").columns == ("y",)
    with pytest.raises(DataError, match="column 'a' has no value in any of the 10 rows"):
        opened(tmp_path, f"date,y,a,b,\n{rows}", features=["a"])
    with pytest.raises(DataError, match="column 'a' has no value in any of the 10 rows"):
        pack_series(path, tmp_path / "u.series", Reading(features=["y", "a"]))


def test_column_of_times_of_day_beside_dates_is_known_without_names(tmp_path: Path) -> None:
    text = "".join(f"13-Jan-2024 {hour:02}:00:00   {hour}   -999.25\n" for hour in range(20))
    (tmp_path / "t.las").write_text(text)
    data = open_series(
        [tmp_path / "t.las"], Reading(targets=["2"]), table=TableOptions(missing_values=["-999.25"])
    )
    assert times(data) == HOURS
    assert data.columns == ("2",)


@pytest.mark.parametrize("empty", [";;;;\n" * 3, ";;;;\n" * 400])
def test_rows_and_columns_of_separators_at_the_end_are_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, empty: str
) -> None:
    monkeypatch.setattr(csv_table, "_BLOCK_BYTES", 1 << 9)
    rows = "".join(f"{13 + hour // 24}.01.2024 {hour % 24:02}:00;{hour};{2 * hour};;\n" for hour in range(60))
    data = opened(tmp_path, f"date;y;x;;\n{rows}{empty}")
    assert (data.rows, data.columns) == (60, ("y", "x"))
    with pytest.raises(DataError, match="'date' is empty in data row 61"):
        opened(tmp_path, f"date;y;x;;\n{rows}{empty}15.01.2024 12:00;1;2;;\n")


@pytest.mark.parametrize(
    ("top", "columns"),
    [
        ("Price,Close,y\nTicker,AAPL,AAPL\nDate,,\n", ("Close", "y")),
        ("Price,y,y\nTicker,AAPL,MSFT\nDate,,\n", ("AAPL", "MSFT")),
        ("date,x,y\n,kW,°C\n", ("x", "y")),
        (",a,a\n,x,y\ndate,,\n", ("x", "y")),
        ("date,x,y\n", ("x", "y")),
    ],
)
def test_names_in_several_rows_are_one_name_a_column(
    tmp_path: Path, top: str, columns: tuple[str, ...]
) -> None:
    (tmp_path / "t.csv").write_text(f"{top}2024-01-13,1,2\n2024-01-14,3,4\n2024-01-15,5,6\n")
    said: list[str] = []
    reading = Reading(targets=[columns[1]], features=list(columns))
    data = open_series([tmp_path / "t.csv"], reading, listener=Callbacks(message=said.append))
    assert data.columns == columns
    assert times(data) == ["2024-01-13T00:00:00", "2024-01-14T00:00:00"]
    count = top.count("\n")
    assert said == ([f"{tmp_path / 't.csv'} read as: {count} rows of names"] if count > 1 else [])


def test_row_of_texts_below_the_names_is_a_row_where_numbers_are_missing(tmp_path: Path) -> None:
    data = opened(tmp_path, "id,y,x\na,,\na,1,2\na,3,4\n", series_column="id", missing="drop")
    assert data.values[1:].tolist() == [[1, 2], [3, 4]]
    assert opened(tmp_path, "y,x\n1%,2%\n0,1%\n2%,3%\n").values.tolist() == [[1, 2], [0, 1], [2, 3]]
    assert names_of([["", "a", "b"], ["", "kW", "kW"], ["t", "", ""]]) == ["t", "a", "b"]
    assert names_of([["a report", ""], ["date", "y"]]) == ["a report", "y"]
    assert opened(tmp_path, "date,\n,y\n2024-01-13,1\n2024-01-14,2\n").values.tolist() == [[1], [2]]


@pytest.mark.parametrize(
    "written",
    [
        "Jan {}",
        "{}Q1",
        "{}-W05",
        "20-Jun-{}",
        "20 June {}",
        "Thu 20 Jun {}",
        "06/20/{} 1:00 PM",
        "{}-06-20",
        "{}",
    ],
)
@pytest.mark.parametrize("series", ["", "a,"])
def test_first_rows_with_words_for_values_are_rows(tmp_path: Path, written: str, series: str) -> None:
    rows = [f"{series}{written.format(year)}" for year in range(2001, 2013)]
    values = ["closed", "closed", *range(10)]
    text = "".join(f"{row},{value}\n" for row, value in zip(rows, values, strict=True))
    text = f"{'shop,' * bool(series)}when,y\n{text}"
    for end, header in (("", "auto"), ("", "yes"), (",\n" * 3 if not series else "", "auto")):
        (tmp_path / "t.csv").write_text(text + end)
        reading = Reading(targets=["y"], missing="drop", gaps="ignore", time_column="when")
        with pytest.raises(DataError, match="'y' holds 'closed' in data row 1, which is not a number"):
            open_series([tmp_path / "t.csv"], reading, table=TableOptions(header=header))
        marked = TableOptions(header=header, missing_values=["closed"])
        data = open_series([tmp_path / "t.csv"], reading, table=marked)
        assert np.isnan(data.values[:2]).all()
        assert data.values[2:, 0].tolist() == list(range(10))


def test_text_that_a_later_row_repeats_is_no_name(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="'y' holds 'closed' in data row 1"):
        opened(tmp_path, "shop,y\na,closed\na,1\na,2\nb,3\n", series_column="shop")
    # Below two rows of names that are months, no row has a time.
    (tmp_path / "t.csv").write_text("who,y,y\n,Jan 2024,Feb 2024\na,1,2\nb,3,4\n")
    assert open_series([tmp_path / "t.csv"], Reading(targets=["Feb 2024"])).values.tolist() == [
        [1, 2],
        [3, 4],
    ]


def test_frame_and_sheet_with_two_rows_of_names(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    index = pandas.date_range("2024-01-13", periods=3, name="Date")
    columns = pandas.MultiIndex.from_product([["Close", "y"], ["AAPL"]])
    frame = pandas.DataFrame(np.arange(6.0).reshape(3, 2), index, columns)
    data = open_series(frame, Reading(targets=["y"]))
    assert data.columns == ("Close", "y")
    frame.columns = pandas.MultiIndex.from_product([["y"], ["AAPL", "MSFT"]])
    assert open_series(frame, Reading(targets=["MSFT"])).columns == ("AAPL", "MSFT")

    book = openpyxl.Workbook()
    for row in (
        ["date", "x", "y"],
        [None, "kW", "°C"],
        *([f"2024-01-{day}", 1.0, float(day)] for day in (13, 14, 15)),
    ):
        book.active.append(row)
    book.save(tmp_path / "t.xlsx")
    assert open_series([tmp_path / "t.xlsx"], Reading(targets=["y"])).values.tolist() == [
        [1, 13],
        [1, 14],
        [1, 15],
    ]


def test_sheet_of_whole_numbers_that_float64_rounds_is_read(tmp_path: Path) -> None:
    book = openpyxl.Workbook()
    for row in (["y"], [2**53 + 1], [2**60], [None], [1.5]):
        book.active.append(row)
    book.save(tmp_path / "t.xlsx")
    data = open_series([tmp_path / "t.xlsx"], Reading(targets=["y"]))
    assert data.values[:, 0].tolist() == [2.0**53, 2.0**60, 1.5]


def test_columns_between_blanks_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_blanks, "_CHUNK_BYTES", 100)
    rows = "".join(
        f"  2024-01-{13 + hour // 24} {hour % 24:02}:00   {hour} \t -{hour}.5  \n" for hour in range(60)
    )
    for end in ("", "2024-01-15 12:00 60 -60.5"):
        data = opened(tmp_path, f" date  time y     x\n{rows}{end}")
        assert (times(data), data.rows) == (HOURS, 60 + bool(end))
        np.testing.assert_array_equal(data.values[:, 0], np.arange(60 + bool(end)))
        np.testing.assert_array_equal(data.values[:, 1], -np.arange(60 + bool(end)) - 0.5)


def test_prose_is_no_table_of_blanks(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no column 'y'"):
        opened(tmp_path, "one two\nthree four\nfive six\n")


@pytest.mark.parametrize(
    ("written", "read"),
    [
        (("2024-01-12 24:00", "2024-01-13 01:00"), HOURS),
        (("Sat, 13 Jan 2024 00:00:00 GMT", "Sat, 13 Jan 2024 01:00:00 GMT"), HOURS),
        (("Sat, 13 Jan 2024 02:00:00 +0200", "Sat, 13 Jan 2024 01:00:00 +0000"), HOURS),
        (("1. März 2024", "2. März 2024"), ["2024-03-01T00:00:00", "2024-03-02T00:00:00"]),
        (("1 janv. 2024", "1 févr. 2024"), ["2024-01-01T00:00:00", "2024-02-01T00:00:00"]),
        (("01-ene-2024", "01-feb-2024"), ["2024-01-01T00:00:00", "2024-02-01T00:00:00"]),
        (("01 gen 2024", "01 mag 2024"), ["2024-01-01T00:00:00", "2024-05-01T00:00:00"]),
        (("1 fev 2024", "1 dez 2024"), ["2024-02-01T00:00:00", "2024-12-01T00:00:00"]),
    ],
)
def test_further_ways_of_writing_times(tmp_path: Path, written: tuple[str, ...], read: list[str]) -> None:
    rows = "".join(f'"{time}",{number}\n' for number, time in enumerate(written))
    assert times(opened(tmp_path, f"date,y\n{rows}")) == read


def test_keys_that_hold_what_stands_between_keys_stay_apart(tmp_path: Path) -> None:
    pairs = [("a / b", "c"), ("a", "b / c"), ("a // b", "c"), ("a", "c")]
    rows = "".join(f"{number},{one},{other}\n" for number, (one, other) in enumerate(pairs))
    data = opened(tmp_path, f"y,one,other\n{rows}", series_column=["one", "other"], time_column="")
    names = [name for _, _, name in data.segments]
    assert names == ["a // b / c", "a / b // c", "a /// b / c", "a / c"]


def test_end_of_a_day_is_no_other_time_after_24(tmp_path: Path) -> None:
    for wrong in ("2024-01-12 24:01", "2024-01-12 25:00"):
        with pytest.raises(DataError, match="not a time in the format"):
            opened(tmp_path, f"date,y\n{wrong},1\n")


@pytest.mark.parametrize(("zone", "offset"), [("EST", "-05:00"), ("CEST", "+02:00"), ("XYZT", "such as ")])
def test_abbreviation_of_a_zone_is_refused_with_the_offset(tmp_path: Path, zone: str, offset: str) -> None:
    with pytest.raises(DataError) as caught:
        opened(tmp_path, f"date,y\n2024-01-13 00:00 {zone},1\n")
    assert f"ends with '{zone}'" in str(caught.value)
    assert offset in str(caught.value)
    assert "(time_zone)" in str(caught.value)


def test_months_by_name_are_those_of_one_month() -> None:
    assert [
        month_number(name) for name in ("Sept.", "juil", "juin", "jui", "ma", "Mai", "mag", "out", "x")
    ] == [*(9, 7, 6, 0, 0, 5, 5, 10, 0)]


def test_table_without_numbers_says_what_its_columns_hold(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("name;city;when\na;b;2024-01-13\nc;d;2024-01-14\n")
    with pytest.raises(DataError, match=r"no column of numbers.*'name' \('a' in data row 1\), 'city'"):
        open_series([tmp_path / "t.csv"], Reading(wide=True))
    with pytest.raises(DataError, match=r"no column of numbers.*'name' \('a' in data row 1\), 'city'"):
        pack_series(tmp_path / "t.csv", tmp_path / "t.series", Reading())


def test_process_ends_well_after_it_opened_a_large_table_between_blanks(tmp_path: Path) -> None:
    rows = "".join(f"{number}    {number / 2}\n" for number in range(600_000))
    (tmp_path / "t.csv").write_text(f"y   x\n{rows}")
    code = (
        "import pathlib, sys\n"
        "from cellerate.data.settings import TableOptions\n"
        "from cellerate.data.tables.csv_table import CsvTable\n"
        "for _ in range(5): CsvTable(pathlib.Path(sys.argv[1]), TableOptions())\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "t.csv")], timeout=120)
    assert done.returncode == 0


def test_columns_between_blanks_are_read_in_any_encoding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(csv_blanks, "_CHUNK_BYTES", 100)
    text = "größe   y\n" + "".join(f"ä{number}    {number}.5\n" for number in range(60)) + "  "
    for encoding in ("utf-8", "utf-16", "cp1252"):
        (tmp_path / "t.csv").write_bytes(text.encode(encoding))
        data = open_series([tmp_path / "t.csv"], Reading(targets=["y"], features=["y"]))
        np.testing.assert_array_equal(data.values[:, 0], np.arange(60) + 0.5)


@pytest.mark.parametrize("given", ["folder", "pattern", "folders", "shell", "letters and digits"])
def test_months_in_numbered_files_are_one_series(tmp_path: Path, given: str) -> None:
    names = [f"a/sales-{month}.csv" for month in range(1, 13)]
    (tmp_path / "a").mkdir()
    for month, name in enumerate(names, start=1):
        (tmp_path / name).write_text(f"date,y\n2024-{month:02}-01,{month}\n2024-{month:02}-15,{month}\n")
    paths = [str(tmp_path / name) for name in names]
    found = {
        "folder": [tmp_path / "a"],
        "pattern": [tmp_path / "a/sales-*.csv"],
        "folders": [tmp_path / "?/sales-*"],
        "shell": sorted(paths),
        "letters and digits": sorted(paths, key=lambda path: re.sub(r"\W", "", path)),
    }[given]
    data = open_series(found, Reading(targets=["y"], gaps="ignore"))
    assert data.values[::2, 0].tolist() == list(range(1, 13))
    assert data.segments == ((0, 24, ""),)


def test_files_that_begin_series_are_named(tmp_path: Path) -> None:
    for name, day in (("new", 10), ("old", 1)):
        (tmp_path / f"{name}-2.csv").write_text(f"date,y\n2024-01-{day:02},1\n2024-01-{day + 1:02},2\n")
    data = open_series([tmp_path / "new-2.csv", tmp_path / "old-2.csv"], Reading(targets=["y"]))
    said = "2 series from 2 files, each of which begins before the end of the one before it: new-2, old-2"
    assert said in data.notes
    # The order in which files are named is kept, unless it is alphabetical.
    data = open_series(
        [tmp_path / "old-2.csv", tmp_path / "new-2.csv"], Reading(targets=["y"], gaps="ignore")
    )
    assert [name for *_, name in data.segments] == [""]
    assert not any("files" in note for note in data.notes)
