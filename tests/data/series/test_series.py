"""Series opened from CSV, Parquet and NumPy files: their columns, times, gaps and cache."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cellerate.data.series.series import open_series
from cellerate.data.settings import Reading
from cellerate.data.windows.windows import SeriesBatches, WindowSettings
from cellerate.errors import ConfigError, DataError, OutputError
from support.data.hourly_tables import hours, table


def spans(data):
    return [(first, stop) for first, stop, _ in data.segments]


def test_csv_with_defaults_takes_every_number_and_the_date(write):
    data = open_series(write(table(50)), Reading(targets=["b"]))
    assert data.columns == data.feature_names == ("a", "b")
    assert data.target_names == ("b",)
    assert data.target_columns == (1,)
    assert np.array_equal(data.values, np.stack([np.arange(50), np.arange(50) * 10], axis=1))
    assert data.values.dtype == np.float32
    assert data.segments == ((0, 50, ""),)
    assert data.step == np.timedelta64(1, "h")
    assert data.times[3] == np.datetime64("2016-07-01T03:00")


def test_real_table_opens_and_comes_from_the_cache_the_second_time(shared_data):
    first = open_series(shared_data / "ETTh1.csv", Reading(targets=["OT"]))
    second = open_series([shared_data / "ETTh1.csv"], Reading(targets=["OT"]))
    assert (first.cached, second.cached) == (False, True)
    assert first.values.shape == (17_420, 7)
    assert first.fingerprint == second.fingerprint
    assert np.array_equal(first.values, second.values)
    assert np.array_equal(first.times, second.times)
    assert (first.segments, first.step) == (second.segments, second.step)
    assert first.values[0].tolist() == pytest.approx(
        [5.827, 2.009, 1.599, 0.462, 4.203, 1.340, 30.531], abs=1e-4
    )
    assert first.times[-1] == np.datetime64("2018-06-26T19:00")


def test_changed_file_or_setting_is_not_taken_from_the_cache(write):
    path = write(table(50))
    first = open_series(path, Reading(targets=["b"]))
    other = open_series(path, Reading(targets=["a"]))
    # The same matrix serves another target, and is another series to train on.
    assert other.cached and other.fingerprint != first.fingerprint
    assert not open_series(path, Reading(targets=["b"], storage="float16")).cached
    write(table(51))
    second = open_series(path, Reading(targets=["b"]))
    assert not second.cached
    assert second.fingerprint != first.fingerprint


@pytest.mark.parametrize("name", ["values.npy", "times.npy", "segments.npy", "series.json"])
def test_damaged_cache_is_made_anew(write, monkeypatch, tmp_path, name):
    monkeypatch.setenv("CELLERATE_CACHE", str(tmp_path / "kept"))
    path = write(table(50))
    wanted = np.array(open_series(path, Reading(targets=["b"])).values)
    (file,) = (tmp_path / "kept").rglob(name)
    file.write_bytes(file.read_bytes()[:100])
    data = open_series(path, Reading(targets=["b"]))
    assert not data.cached
    assert np.array_equal(data.values, wanted)


def test_cache_that_cannot_be_written_raises_output_error(write, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("CELLERATE_CACHE", str(tmp_path / "file"))
    with pytest.raises(OutputError):
        open_series(write(table(5)), Reading(targets=["b"]))


def test_parquet_equals_csv(write, tmp_path):
    rows = 200
    pq.write_table(
        pa.table(
            {
                "date": pa.array(np.arange(rows).astype("datetime64[h]").astype("datetime64[ms]")),
                "a": pa.array(np.arange(rows), pa.int16()),
                "b": pa.array([None if r == 7 else r * 10.0 for r in range(rows)]),
                "label": pa.array(["x"] * rows),
            }
        ),
        tmp_path / "t.parquet",
        row_group_size=50,
    )
    data = open_series(tmp_path / "t.parquet", Reading(targets=["b"], missing="interpolate"))
    times = [
        str(t).replace("T", " ") for t in np.arange(rows).astype("datetime64[h]").astype("datetime64[s]")
    ]
    same = open_series(write(table(rows, times)), Reading(targets=["b"]))
    assert data.columns == ("a", "b")
    assert np.array_equal(data.values, same.values)
    assert np.array_equal(data.times, same.times)
    assert data.step == same.step


def test_npy_is_used_where_it_lies(tmp_path):
    values = np.random.default_rng(0).normal(size=(500, 4)).astype(np.float32)
    np.save(tmp_path / "v.npy", values)
    data = open_series(tmp_path / "v.npy", Reading(targets=["2"]))
    assert data.columns == ("0", "1", "2", "3")
    assert np.array_equal(data.values, values)
    assert str(data.values.filename) == str(tmp_path / "v.npy")
    assert open_series(tmp_path / "v.npy", Reading(targets=["2"])).cached
    assert data.times is None
    assert data.step is None


def test_npy_with_holes_or_other_type_is_copied(tmp_path):
    values = np.arange(40, dtype=np.float64).reshape(20, 2)
    values[5, 1] = np.nan
    np.save(tmp_path / "v.npy", values)
    data = open_series(tmp_path / "v.npy", Reading(targets=["1"], missing="interpolate"))
    assert data.values[5].tolist() == [10, 11]
    assert data.columns == ("0", "1")
    other = open_series(tmp_path / "v.npy", Reading(targets=["0"], missing="ffill"))
    assert other.values[3].tolist() == [6, 7]
    assert other.target_columns == (0,)
    np.save(tmp_path / "one.npy", np.arange(9))
    assert open_series(tmp_path / "one.npy", Reading(targets=["0"])).values[:, 0].tolist() == list(range(9))


def test_npy_in_place_with_holes_is_cut_not_changed(tmp_path):
    values = np.arange(40, dtype=np.float32).reshape(20, 2)
    values[5, 1] = np.nan
    np.save(tmp_path / "v.npy", values)
    assert spans(open_series(tmp_path / "v.npy", Reading(targets=["0"], missing="drop"))) == [(0, 5), (6, 20)]
    filled = open_series(tmp_path / "v.npy", Reading(targets=["0"], missing="ffill"))
    assert filled.values[5].tolist() == [10, 9]
    assert np.isnan(np.load(tmp_path / "v.npy")[5, 1])


@pytest.mark.parametrize("policy", ["error", "drop", "ffill", "interpolate"])
def test_missing_values_follow_the_policy(write, policy):
    holes = {(0, "a"): "", (1, "a"): "NaN", (5, "b"): "inf", (6, "b"): "-inf", (9, "a"): "NA"}
    path = write(table(10, hole=holes))
    if policy == "error":
        with pytest.raises(DataError, match=r"data row 1: column 'a' has no value \(5 values.*interpolate"):
            open_series(path, Reading(targets=["b"], missing=policy))
        return
    data = open_series(path, Reading(targets=["b"], missing=policy))
    if policy == "drop":
        assert spans(data) == [(2, 5), (7, 9)]
    elif policy == "ffill":
        assert spans(data) == [(2, 10)]  # nothing to carry into the first two rows
        assert data.values[5:7, 1].tolist() == [40, 40]
        assert data.values[9, 0] == 8
    else:
        assert spans(data) == [(0, 10)]
        assert data.values[:, 0].tolist() == [2, 2, 2, 3, 4, 5, 6, 7, 8, 8]
        assert data.values[:, 1].tolist() == [0, 10, 20, 30, 40, 50, 60, 70, 80, 90]


def test_holes_are_not_filled_across_a_gap_in_time(write):
    times = hours(5) + hours(5, "2016-08-01T00")
    data = open_series(
        write(table(10, times, {(5, "a"): "", (4, "a"): ""})), Reading(targets=["a"], missing="interpolate")
    )
    assert spans(data) == [(0, 5), (5, 10)]
    assert data.values[4:6, 0].tolist() == [3, 6]


def test_gap_in_time_splits_raises_or_is_ignored(write):
    path = write(table(10, hours(4) + hours(6, "2016-07-01T06")))
    assert spans(open_series(path, Reading(targets=["a"]))) == [(0, 4), (4, 10)]
    assert spans(open_series(path, Reading(targets=["a"], gaps="ignore"))) == [(0, 10)]
    with pytest.raises(
        DataError, match=r"data row 5: the time goes from 2016-07-01 03:00:00 to 2016-07-01 06"
    ):
        open_series(path, Reading(targets=["a"], gaps="error"))


def test_months_and_jitter_are_no_gaps(write):
    months = [f"{m}-01" for m in np.arange("2015-01", "2020-01", dtype="datetime64[M]")]
    data = open_series(write(table(60, months)), Reading(targets=["a"]))
    assert spans(data) == [(0, 60)]


@pytest.mark.parametrize(
    "times",
    [
        ["2020/01/01", "2020/01/02", "2020/01/03"],
        ["01.01.2020", "02.01.2020", "03.01.2020"],
        ["2020-01-01T00:00:00Z", "2020-01-02T00:00:00Z", "2020-01-03T00:00:00Z"],
        ["2020-01-01T01:00:00+01:00", "2020-01-02T00:00:00Z", "2020-01-03T00:00:00Z"],
        [" 2020-01-01", "2020-01-02 ", "2020-01-03"],
    ],
)
def test_times_in_common_ways_of_writing_are_read(write, times):
    data = open_series(write(table(3, times)), Reading(targets=["a"]))
    assert data.times.astype("datetime64[D]").astype(str).tolist() == [
        "2020-01-01",
        "2020-01-02",
        "2020-01-03",
    ]
    assert data.step == np.timedelta64(1, "D")


def test_empty_time_column_means_none(write):
    data = open_series(write(table(3, ["morning", "noon", "night"])), Reading(targets=["a"], time_column=""))
    assert (data.times, data.columns, spans(data)) == (None, ("a", "b"), [(0, 3)])


def test_time_column_of_numbers_is_read(write):
    path = write("t,a\n0,1\n0.5,2\n1.0,3\n3.0,4\n")
    data = open_series(path, Reading(targets=["a"], time_column="t"))
    assert data.step == 0.5
    assert spans(data) == [(0, 3), (3, 4)]
    assert data.columns == ("a",)


@pytest.mark.parametrize(
    ("times", "message"),
    [
        (["2020-01-01", "2020-01-02", "2020-01-02"], r"data row 3: the time 2020-01-02 occurs twice"),
        (["2020-01-01", "yesterday", "2020-01-02"], r"'date' holds 'yesterday' in data row 2"),
        (
            ["2020-01-01", "", "2020-01-02"],
            r"time column 'date' is empty in data row 2. Write the time.*or delete",
        ),
        (
            ["01/02/2020", "02/02/2020", "03/02/2020"],
            r"2020-02-01 \(day first, days\) or 2020-01-02 \(month first",
        ),
    ],
)
def test_times_that_occur_twice_or_are_unreadable_raise_data_error_naming_the_row(write, times, message):
    with pytest.raises(DataError, match=message):
        open_series(write(table(3, times)), Reading(targets=["a"]))


def test_interleaved_series_are_sorted_apart(write):
    times = hours(6)
    lines = ["shop,date,a"]
    for row, time in enumerate(times):
        lines += [f"south,{time},{row}", f"north,{time},{100 + row}"]
    path = write("\n".join(lines))
    data = open_series(path, Reading(targets=["a"], series_column="shop"))
    assert data.segments == ((0, 6, "south"), (6, 12, "north"))
    assert data.values[:, 0].tolist() == [*range(6), *range(100, 106)]
    assert np.array_equal(data.times[:6], data.times[6:])
    with pytest.raises(DataError, match=r"data row 2: .*occurs twice.*series_column"):
        open_series(path, Reading(targets=["a"]))
    split = data.split(train=0.5, validation=0.25)
    assert split.train.bounds == ((0, 0, 3), (6, 6, 9))
    assert split.validation.bounds == ((0, 3, 4), (6, 9, 10))
    assert split.test.bounds == ((0, 4, 6), (6, 10, 12))


def test_time_that_occurs_twice_after_sorting_names_the_rows_of_the_file(write):
    path = write(
        "id,date,a\nx,2020-01-02,1\ny,2020-01-01,2\nx,2020-01-01,3\ny,2020-01-02,4\nx,2020-01-02,5\n"
    )
    with pytest.raises(
        DataError, match=r"data row 5: the time 2020-01-02 .*data row 1 \(a 1 there, a 5 here; 1"
    ):
        open_series(path, Reading(targets=["a"], series_column="id"))


def test_several_files_go_on_or_are_series_of_their_own(write, tmp_path):
    write(table(5), "1.csv")
    write(table(5, hours(5, "2016-07-01T05")), "2.csv")
    write(table(5), "3.csv")
    data = open_series(sorted(tmp_path.glob("?.csv")), Reading(targets=["a"]))
    assert data.segments == ((0, 10, "1"), (10, 15, "3"))
    assert open_series(tmp_path / "*.csv", Reading(targets=["a"])).segments == data.segments
    write("date,a,c\n2020-01-01,1,2\n", "4.csv")
    with pytest.raises(DataError, match=r"4\.csv has the columns date, a, c"):
        open_series(tmp_path, Reading(targets=["a"]))


def test_files_without_times_are_series_of_their_own(write, tmp_path):
    for name in ("x.csv", "y.csv"):
        write("a\n1\n2\n3\n", name)
    data = open_series([tmp_path / "x.csv", tmp_path / "y.csv"], Reading(targets=["a"]))
    assert data.segments == ((0, 3, "x"), (3, 6, "y"))


@pytest.mark.parametrize("mark", [",", ";", "\t"])
def test_separator_and_byte_order_mark_are_found(write, mark):
    data = open_series(write("\ufeff" + table(5).replace(",", mark)), Reading(targets=["a"]))
    assert data.columns == ("a", "b")


def test_index_column_without_a_name_is_no_feature(write):
    assert open_series(write(",a\n0,5\n1,6\n"), Reading(targets=["a"])).columns == ("a",)


def test_target_that_is_no_feature_is_kept_apart(write):
    data = open_series(write(table(30)), Reading(targets=["a"], features=["b"]))
    assert data.columns == ("b", "a")
    assert (data.feature_columns, data.target_columns) == ((0,), (1,))
    x, y = SeriesBatches(data.whole(), WindowSettings(window=3, horizon=2, batch_size=4)).batch(0, 0)
    assert x[1].ravel().tolist() == [10, 20, 30]
    assert y[1].ravel().tolist() == [4, 5]


@pytest.mark.parametrize(
    ("content", "arguments", "message"),
    [
        ("", {}, "is empty"),
        ("date,a\n", {}, "no rows"),
        ("date,a,a\n2020-01-01,1,2\n", {}, "more than one column named 'a'"),
        ("date,b\n2020-01-01,1\n", {}, "has no column 'a' \\(targets\\)\\. It has: date, b"),
        ("a,b\n1,2\n", {"features": ["c"]}, "has no column 'c' \\(features\\)"),
        ("a,b\n1,2\n", {"time_column": "c"}, "has no column 'c' \\(time_column\\)"),
        ("a,b\n1,2\n", {"series_column": "c"}, "has no column 'c' \\(series_column\\)"),
        ("a,b\n1,2\n1,x\n", {"targets": ["b"]}, "column 'b' holds 'x' in data row 2"),
        ("a,b\nred,2\n", {}, "column 'a' holds 'red' in data row 1"),
        ('a,b\n"1,5,2",2\n', {}, "column 'a' holds '1,5,2' in data row 1"),
        ("a,b\n1,\n2,NaN\n", {"missing": "drop", "features": ["b"]}, "'b' has no value in any of the 2 rows"),
        ("a,b\n1,\n,2\n", {"missing": "drop"}, "every row misses a value"),
        ("a,b\n1,2\n3\n", {}, "cannot be read as CSV.*Expected 2 columns, got 1"),
        (
            "a,b\n1,70000\n",
            {"storage": "float16"},
            "data row 1: column 'b' holds 70000, too large for float16. Use storage='float32', or rescale the column",
        ),
        ("a,b\n1e300,1\n", {}, r"column 'a' holds 1e\+300, too large for float32. Rescale the column"),
        (
            "a,b\n1,2\n,3\n",
            {"series_column": "a", "targets": ["b"]},
            "series column 'a' is empty in data row 2",
        ),
    ],
)
def test_unusable_tables_raise_data_error_saying_where(write, content, arguments, message):
    with pytest.raises(DataError, match=message):
        open_series(write(content), Reading(**({"targets": ["a"]} | arguments)))


def test_bad_number_far_down_a_long_file_is_named_with_its_row(write):
    path = write(table(100_000, ["0"] * 100_000, {(99_998, "b"): "oops"}).replace("date", "note"))
    with pytest.raises(DataError, match="column 'b' holds 'oops' in data row 99999"):
        open_series(path, Reading(targets=["b"]))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"missing": "guess"}, "missing must be one of"),
        ({"gaps": "fill"}, "gaps must be one of"),
        ({"storage": "int8"}, "storage must be one of"),
        ({"targets": []}, "targets is"),
        ({"targets": "a"}, "expected a list"),
        ({"targets": ["a", "a"]}, "twice"),
        ({"features": "a"}, "expected a list"),
        ({"features": []}, "features is empty"),
        ({"time_column": "a"}, "time column 'a' cannot be a target"),
    ],
)
def test_arguments_out_of_range_raise_config_error(write, arguments, message):
    with pytest.raises(ConfigError, match=message):
        open_series(write(table(5)), Reading(**({"targets": ["a"]} | arguments)))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.parquet", b"PAR1 no", "cannot be read as Parquet"),
        ("t.npy", b"no numbers", "not a usable .npy"),
        ("t.npy", b"", "not a usable .npy"),
        ("t.csv", b"\n\n", "empty|cannot be read"),
    ],
)
def test_damaged_files_raise_data_error(write, name, content, message):
    with pytest.raises(DataError, match=message):
        open_series(write(content, name), Reading(targets=["0"]))


def test_npy_of_objects_words_or_cubes_raises_data_error(tmp_path):
    for values in (np.zeros((2, 2, 2)), np.array(["a"]), np.zeros((0, 2))):
        np.save(tmp_path / "v.npy", values)
        with pytest.raises(DataError, match="expected numbers"):
            open_series(tmp_path / "v.npy", Reading(targets=["0"]))
    np.save(tmp_path / "v.npy", np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match="not a usable"):
        open_series(tmp_path / "v.npy", Reading(targets=["0"]))


def test_missing_files_and_empty_folders_raise_data_error(tmp_path):
    for path in (tmp_path / "no.csv", tmp_path, tmp_path / "*.csv", []):
        with pytest.raises(DataError, match="no"):
            open_series(path, Reading(targets=["a"]))
