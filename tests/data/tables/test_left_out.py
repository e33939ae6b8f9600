"""A column that is not read is said, with the reason and the row; one blank or odd cell does not make it vanish."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import typer

from cellerate.cli.main import app
from cellerate.cli.words import in_options, verb_of
from cellerate.data.series.packing import pack_series
from cellerate.data.series.series import SeriesData, open_series
from cellerate.data.settings import Reading
from cellerate.data.tables import csv_table
from cellerate.data.tables.number_forms import NumberForm, find_form
from cellerate.data.tables.number_marks import is_number
from cellerate.errors import ConfigError, DataError

DATA_PACK = verb_of(typer.main.get_command(app), ["data", "pack"])


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CELLERATE_CACHE", str(tmp_path / "cache"))


def write(path: Path, **columns: Any) -> Path:
    rows = zip(*columns.values(), strict=True)
    path.write_text("\n".join([",".join(columns), *(",".join(map(str, row)) for row in rows)]) + "\n")
    return path


def opened(source: Any, **settings: Any) -> SeriesData:
    table, reading = (
        settings.pop("table", None),
        Reading(targets=["y"], time_column="", missing="ffill", **settings),
    )
    return open_series(source, reading, table=table)


def said(data: SeriesData) -> list[str]:
    return [note for note in data.notes if note.startswith("left out")]


def test_column_of_numbers_with_a_word_is_left_out_with_its_row_and_what_helps(tmp_path: Path) -> None:
    x = [*range(17), "n/e", *range(3)]
    path = write(tmp_path / "t.csv", y=range(21), x=x)
    data = opened(path)
    assert data.columns == ("y",)
    assert said(data) == [
        "left out: column 'x' holds 'n/e' in data row 18, which is not a number (if it marks a missing value: "
        "missing_values='n/e')"
    ]
    assert said(opened(path)) == said(data)  # from the cache
    data = opened(path, missing_marks=["n/e"])
    assert data.columns == ("y", "x")
    assert said(data) == []
    assert data.values[17, 1] == 16


def test_columns_of_text_times_and_without_a_name_are_said(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(",y,city,day\n0,1,Berlin,2024-01-01\n1,2,Paris,2024-01-02\n")
    assert said(opened(path)) == [
        "left out: a column without a name",
        "left out: column 'day' holds dates",
        "left out, because they hold text: 'city' ('Berlin' in data row 1)",
    ]


def test_column_that_was_named_is_not_left_out_but_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", y=range(4), x=[1, "n/e", 3, 4])
    with pytest.raises(DataError, match=r"column 'x' holds 'n/e' in data row 2.*give missing_values='n/e'"):
        opened(path, features=["x"])
    assert said(opened(path, features=["y"])) == []


def test_many_columns_of_text_are_named_in_one_line(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", y=range(2), **{f"c{number}": ["a", "b"] for number in range(12)})
    (line,) = said(opened(path))
    assert line.endswith("'c4' ('a' in data row 1) and 7 more")


@pytest.mark.parametrize("blanks", [1, 8, 30])
@pytest.mark.parametrize("row", [3, 900])
def test_blank_cell_is_a_missing_value_wherever_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, blanks: int, row: int
) -> None:
    monkeypatch.setattr(csv_table, "_BLOCK_BYTES", 1 << 10)
    values: list[Any] = list(range(1000))
    values[row] = " " * blanks
    data = opened(write(tmp_path / "t.csv", y=values, x=range(1000)))
    expected = np.arange(1000)
    expected[row] = row - 1
    np.testing.assert_array_equal(data.values[:, 0], expected)
    np.testing.assert_array_equal(data.values[:, 1], np.arange(1000))


def test_word_far_below_names_its_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_table, "_BLOCK_BYTES", 1 << 10)
    values: list[Any] = [f"${number}" for number in range(1000)]
    values[900] = "ask us"
    with pytest.raises(DataError, match="column 'y' holds 'ask us' in data row 901"):
        opened(write(tmp_path / "t.csv", y=values))


@pytest.mark.parametrize("kind", ["arrow", "parquet", "pandas"])
def test_frames_and_files_of_arrow_have_marks_and_missing_values_too(tmp_path: Path, kind: str) -> None:
    table = pa.table(
        {
            "y": [1.0, -999.0, 3.0],
            "price": ["$1.5", "($2)", "n/a"],
            "open": [True, False, True],
            "kind": pa.array(["a", "b", "a"]).dictionary_encode(),
        }
    )
    source: Any = table
    if kind == "parquet":
        import pyarrow.parquet as pq

        source = tmp_path / "t.parquet"
        pq.write_table(table, source)
    elif kind == "pandas":
        source = pytest.importorskip("pandas").DataFrame(table.to_pandas())
    data = opened(source, missing_marks=[-999])
    assert data.columns == ("y", "price", "open")
    np.testing.assert_array_equal(data.values, [[1, 1.5, 1], [1, -2, 0], [3, -2, 1]])
    assert said(data) == ["left out, because they hold text: 'kind' ('a' in data row 1)"]


def test_matrix_with_missing_numbers_is_not_used_in_place(tmp_path: Path) -> None:
    np.save(tmp_path / "t.npy", np.array([[1], [-999], [3]], np.float32))
    data = open_series([tmp_path / "t.npy"], Reading(targets=["0"], missing="ffill", missing_marks="-999,-1"))
    assert data.values[:, 0].tolist() == [1, 1, 3]


def test_missing_values_that_are_no_words_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", y=range(2))
    for wrong in (None, [None], 5):
        with pytest.raises(ConfigError, match="missing_values must be words or numbers"):
            opened(path, missing_marks=wrong)


@pytest.mark.parametrize(
    ("values", "form"),
    [
        (["1", "2"], None),
        ([], None),
        (["$1", "$2.5", "0"], NumberForm("$")),
        (["USD 1", "-USD 2"], NumberForm("USD")),
        (["R$ 1", "R$ 2"], NumberForm("R$")),
        (["$1", "2"], None),
        (["$1", "closed"], None),
        (["5%", "(2.5%)"], NumberForm(percent=True, brackets=True)),
        (["1.2M", "3k", "17"], NumberForm(sizes=True)),
        (["1.2M", "3", "17"], None),
        (["true", "FALSE"], NumberForm(booleans=True)),
        (["true", "maybe"], None),
        (["A1", "B2"], None),
        (["2024-01-01", "2024-01-02"], None),
        (["(1)", "-1"], None),
    ],
)
def test_marks_are_those_of_a_whole_column(values: list[str], form: NumberForm | None) -> None:
    found = find_form(values, lambda text: is_number(text, ".", ""))
    assert found == form
    if form is not None:
        plain = [form.plain(value) for value in values]
        assert form.plain_all(pa.array(values)).to_pylist() == plain
        assert all(is_number(value, ".", "") for value in plain)


def test_number_far_from_all_others_is_told_and_not_taken_for_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(csv_table, "_BLOCK_BYTES", 1 << 10)
    y, x, z = (np.sin(np.arange(900.0) + place).round(3) for place in range(3))
    y[[5, 700]] = x[40] = -9999
    z[3] = 99999
    data = opened(write(tmp_path / "t.csv", y=y, x=x, z=z, steps=np.arange(-9999, -9099)))
    assert data.values[5, 0] == -9999
    assert [note for note in data.notes if "far from" in note] == [
        "-9999 is far from all other values of 'y' (2 times), 'x' (1 times): if it marks missing values, give "
        "missing_values='-9999'",
        "99999 is far from all other values of 'z' (1 times): if it marks missing values, give "
        "missing_values='99999'",
    ]
    data = opened(tmp_path / "t.csv", missing_marks="-9999,99999")
    assert not [note for note in data.notes if "far from" in note]


@pytest.mark.parametrize("mark", ["-99.9", "-999.9", "1e+20", "-999"])
def test_marks_of_missing_values_are_known_in_columns_of_float32(tmp_path: Path, mark: str) -> None:
    y = np.sin(np.arange(50)).astype(np.float32)
    y[[10, 20]] = float(mark)
    frame = {"date": np.datetime64("2024-01-01", "us") + np.arange(50) * np.timedelta64(1, "D"), "y": y}
    assert opened(frame, missing_marks=[mark]).values[10, 0] == y[9]
    assert any(
        f"{mark} is far from all other values of 'y' (2 times)" in note for note in opened(frame).notes
    )


def test_wide_table_with_a_column_for_each_date_is_told_to_transpose(tmp_path: Path) -> None:
    days = [f"2015-07-{day:02}" for day in range(1, 29)]
    rows = [",".join(["page", *days]), *(",".join([f"page {n}", *map(str, range(28))]) for n in range(9))]
    path = tmp_path / "t.csv"
    path.write_text("\n".join(rows))
    with pytest.raises(
        DataError, match=r"columns are named by times, '2015-07-01' to '2015-07-28'\. Transpose it"
    ):
        open_series(path, Reading(wide=True))


def test_only_the_first_of_many_columns_without_numbers_are_described(tmp_path: Path) -> None:
    columns = {f"c{n}": [*range(5), "n/e", *range(5)] for n in range(40)}
    with pytest.raises(DataError, match="no column of numbers") as caught:
        pack_series([write(tmp_path / "t.csv", **columns)], tmp_path / "t.series", Reading())
    assert str(caught.value).endswith("; and 35 more.")
    assert in_options(caught.value, DATA_PACK).count("--missing-values n/e") == 5
