import dataclasses

import numpy as np
import pytest

from cellerate.data.series.future_rows import open_known
from cellerate.data.series.packing import pack_series
from cellerate.data.settings import Reading
from cellerate.errors import DataError

START = np.datetime64("2024-03-01T00", "us")
HOUR = np.timedelta64(1, "h")
READING = Reading(targets=["y"], features=["y", "price"], series_column="shop")


def times(*numbers):
    return START + np.array(numbers) * HOUR


def write(path, known, rows, *, holes=(), shops="ab", header="date,shop,y,price"):
    """`rows` hours a shop, of which `known` have a target; price is the hour, of b from 100 on."""
    lines = [header]
    for shop in shops:
        for hour in range(rows):
            price = "" if (shop, hour) in holes else hour + 100 * (shop == "b")
            target = hour / 2 if hour < known else ""
            cells = {
                "date": f"{(START + hour * HOUR).item():%Y-%m-%d %H:%M}",
                "shop": shop,
                "y": target,
                "price": price,
            }
            lines.append(",".join(str(cells[name]) for name in header.split(",")))
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize("missing", ["error", "drop", "ffill", "interpolate"])
def test_rows_without_targets_at_the_end_are_the_future(tmp_path, missing):
    path = write(tmp_path / "s.csv", known=10, rows=14)
    data = open_known([path], dataclasses.replace(READING, missing=missing), ["price"])
    assert data.segments == ((0, 10, "a"), (14, 24, "b"))
    assert data.ahead.rows("b", times(10, 11, 12)).tolist() == [[110], [111], [112]]


def packed(path, output):
    how = Reading(series_column="shop", missing="drop")
    return pack_series([path], output, how)


def test_packed_series_has_its_future(tmp_path):
    path = write(tmp_path / "s.csv", known=10, rows=14, holes=[("a", 12), ("a", 5)])
    packed(path, tmp_path / "s.series")
    data = open_known([tmp_path / "s.series"], READING, ["price"])
    assert data.segments == ((0, 5, "a"), (6, 10, "a"), (14, 24, "b"))
    for series, numbers in {"a": [8, 9, 10, 11, 13], "b": [0, 9, 10, 13]}.items():
        wanted = [[n + 100 * (series == "b")] for n in numbers]
        assert data.ahead.rows(series, times(*numbers)).tolist() == wanted
    for series, number in {"a": 12, "b": 14}.items():
        with pytest.raises(DataError, match=r"has no 'price' of series '.' at 2024-03-01 1[24]:00"):
            data.ahead.rows(series, times(number))


def test_rows_between_two_packed_series_are_of_the_one_whose_time_they_continue(tmp_path):
    path = tmp_path / "s.csv"
    lines = [("a", 0, 1), ("a", 1, 2), ("a", 2, ""), ("b", 1, ""), ("b", 2, 3), ("b", 3, 4)]
    lines += [("b", 4, ""), ("c", 5, ""), ("c", 6, 5), ("c", 7, 5)]
    rows = [f"{(START + n * HOUR).item():%Y-%m-%d %H:%M},{shop},{y},{n}" for shop, n, y in lines]
    path.write_text("\n".join(["date,shop,y,price", *rows]))
    packed(path, tmp_path / "s.series")
    ahead = open_known([tmp_path / "s.series"], READING, ["price"]).ahead
    assert ahead.rows("a", times(2)).tolist() == [[2]]
    # Nothing tells whether the row of 05:00 continues b or begins c, or that of 04:00.
    for series, number in {"a": 3, "b": 4, "c": 5}.items():
        with pytest.raises(DataError, match="has no 'price'"):
            ahead.rows(series, times(number))


def test_rows_of_the_past_may_be_asked_for_too(tmp_path):
    data = open_known([write(tmp_path / "s.csv", 10, 14)], READING, ["price"])
    assert data.ahead.rows("a", times(8, 9, 10)).tolist() == [[8], [9], [10]]


def test_table_of_the_future_is_looked_up(tmp_path):
    path = write(tmp_path / "s.csv", 10, 10)
    future = write(tmp_path / "f.csv", 0, 14, header="date,shop,price")
    data = open_known([path], READING, ["price"], [future])
    assert data.segments == ((0, 10, "a"), (10, 20, "b"))
    assert data.ahead.rows("a", times(12, 13)).tolist() == [[12], [13]]


def test_table_of_the_future_may_spell_the_series_in_another_way(tmp_path):
    path = write(tmp_path / "s.csv", 10, 10, shops=["1.0", "2.0"])
    future = write(tmp_path / "f.csv", 0, 14, shops="12", header="date,shop,price")
    ahead = open_known([path], READING, ["price"], [future]).ahead
    assert ahead.rows("1.0", times(12, 13)).tolist() == [[12], [13]]


def test_missing_rows_and_values_are_named(tmp_path):
    path = write(tmp_path / "s.csv", 10, 14, holes=[("b", 12)])
    ahead = open_known([path], READING, ["price"]).ahead
    with pytest.raises(
        DataError,
        match=r"no 'price' of series 'b' at 2024-03-01 12:00, .* from 2024-03-01 10:00 to .*empty targets",
    ):
        ahead.rows("b", times(10, 11, 12))
    with pytest.raises(DataError, match=r"series 'a' at 2024-03-01 14:00"):
        ahead.rows("a", times(13, 14))
    with pytest.raises(DataError, match="series 'c'"):
        ahead.rows("c", times(10))


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        (
            "date,shop,cost\n2024-03-01 10:00,a,1\n",
            r"has no column 'price', .* \(future\)\. It has: date, shop, cost",
        ),
        ("date,shop,price\n2024-03-01 10:00,a,\n", r"has no value of 'price' in any row, .* \(future\)"),
    ],
)
def test_table_of_the_future_without_a_known_column_is_refused(tmp_path, table, problem):
    future = tmp_path / "f.csv"
    future.write_text(table)
    ahead = open_known([write(tmp_path / "s.csv", 10, 10)], READING, ["price"], [future]).ahead
    with pytest.raises(DataError, match=rf"f\.csv {problem}"):
        ahead.rows("a", times(10))


def test_holes_in_the_past_are_still_refused(tmp_path):
    path = write(tmp_path / "s.csv", 10, 14, holes=[("a", 4)])
    with pytest.raises(DataError, match="data row 5: column 'price' has no value"):
        open_known([path], READING, ["price"])
    lines = path.read_text().splitlines()
    lines[4] = lines[4].replace(",1.5,", ",,")
    path.write_text("\n".join(lines))
    with pytest.raises(DataError, match="data row 4"):
        open_known([path], READING, ["price"])


def test_table_without_times_is_refused(tmp_path):
    path = write(tmp_path / "s.csv", 10, 14, header="shop,y,price")
    ahead = open_known([path], READING, ["price"]).ahead
    with pytest.raises(DataError, match="have no times"):
        ahead.rows("a", np.arange(10, 12))


def test_without_columns_nothing_is_looked_for(tmp_path):
    with pytest.raises(DataError, match="has no value"):
        open_known([write(tmp_path / "s.csv", 10, 14)], READING, [])
    assert open_known([write(tmp_path / "t.csv", 10, 10)], READING, []).ahead is None


@pytest.mark.parametrize("name", ["cost", "date", "shop"])
def test_column_that_is_none_of_numbers_is_refused_with_those_that_are(tmp_path, name):
    path = write(tmp_path / "s.csv", 10, 14)
    reading = Reading(targets=["y"], series_column="shop")
    with pytest.raises(DataError, match=rf"^future names '{name}', .*s\.csv\. These are: y, price\.$"):
        open_known([path], reading, [name])


@pytest.mark.parametrize(
    ("time", "found"),
    [("2024-03-01T10:00:00+02:00", "times with a zone"), ("10", "numbers as times")],
)
def test_times_that_cannot_be_compared_with_those_of_the_past_are_refused(tmp_path, time, found):
    future = tmp_path / "f.csv"
    future.write_text(f"date,shop,price\n{time},a,1\n")
    ahead = open_known([write(tmp_path / "s.csv", 10, 10)], READING, ["price"], [future]).ahead
    with pytest.raises(DataError, match=rf"f\.csv has {found}, .* has times without a zone: .*time_zone"):
        ahead.rows("a", times(10))


def test_times_of_the_future_in_another_offset_are_the_same_instants(tmp_path):
    path, future = tmp_path / "s.csv", tmp_path / "f.csv"
    path.write_text("date,shop,y,price\n2024-03-01T01:00+02:00,a,1,1\n2024-03-01T02:00+02:00,a,1,1\n")
    future.write_text("date,shop,price\n2024-03-01T01:00Z,a,7\n")
    ahead = open_known([path], READING, ["price"], [future]).ahead
    assert ahead.rows("a", times(1)).tolist() == [[7]]
    with pytest.raises(DataError, match=r"at 2024-03-01T04:00\+02:00, and the model needs it from"):
        ahead.rows("a", times(2))
