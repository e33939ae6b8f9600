import copy

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cellerate.data.series.series import open_series
from cellerate.data.settings import Reading
from cellerate.data.settings.tables import TableOptions
from cellerate.data.tables.frames import FrameTable, as_sources
from cellerate.errors import ConfigError, DataError

DAYS = np.datetime64("2024-01-01", "us") + np.arange(40) * np.timedelta64(1, "D")
COLUMNS = {"date": DAYS, "y": np.arange(40.0), "z": np.arange(40) % 7}


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("CELLERATE_CACHE", str(tmp_path / "cache"))


FRAMES = {
    "pandas": lambda: pd.DataFrame(COLUMNS),
    "pandas with an index": lambda: pd.DataFrame(COLUMNS).set_index("date"),
    "pandas with an index without a name": lambda: pd.DataFrame(COLUMNS).set_index("date").rename_axis(None),
    "pandas with periods": lambda: pd.DataFrame(COLUMNS).set_index("date").to_period("D"),
    "pandas of some rows": lambda: pd.concat([pd.DataFrame(COLUMNS)] * 2).iloc[:40],
    "pandas with arrow types": lambda: pd.DataFrame(COLUMNS).convert_dtypes(dtype_backend="pyarrow"),
    "polars": lambda: pl.DataFrame(COLUMNS),
    "arrow": lambda: pa.table(COLUMNS),
    "arrow batch": lambda: pa.table(COLUMNS).to_batches()[0],
    "arrow reader": lambda: pa.table(COLUMNS).to_reader(max_chunksize=7),
    "dict": lambda: COLUMNS,
    "dict of lists": lambda: {name: values.tolist() for name, values in COLUMNS.items()},
    "dict of series": lambda: {name: pl.Series(values) for name, values in COLUMNS.items()},
    "structured array": lambda: pd.DataFrame(COLUMNS).to_records(index=False),
}


@pytest.mark.parametrize("name", FRAMES)
def test_frame_is_read_as_its_file_is(name, tmp_path):
    pq.write_table(pa.table(COLUMNS), tmp_path / "t.parquet")
    expected = open_series(tmp_path / "t.parquet", Reading(targets=["y"]))
    data = open_series(FRAMES[name](), Reading(targets=["y"]))
    assert np.array_equal(data.values, expected.values)
    assert np.array_equal(data.times, expected.times)
    assert (data.columns, data.segments, data.step) == (expected.columns, expected.segments, expected.step)


@pytest.mark.parametrize("taken", [["time"], ["time", "timestamp"]])
def test_index_of_times_without_a_name_is_kept_beside_a_column_called_time(taken):
    took = np.random.default_rng(0).permutation(40)
    frame = pd.DataFrame({"y": np.arange(40.0), **dict.fromkeys(taken, took)}, index=DAYS)
    data = open_series(frame, Reading(targets=["y"]))
    assert data.times.tolist() == DAYS.tolist()
    assert data.values[:, data.columns.index("y")].tolist() == list(range(40))
    assert set(taken) <= set(data.columns)


def test_frame_is_known_again_by_its_content():
    frame = pd.DataFrame(COLUMNS)
    assert not open_series(frame, Reading(targets=["y"])).cached
    assert open_series(frame.copy(), Reading(targets=["y"])).cached
    assert open_series(pa.table(COLUMNS).to_reader(max_chunksize=3), Reading(targets=["y"])).cached
    frame.loc[3, "y"] = 7
    assert not open_series(frame, Reading(targets=["y"])).cached


def test_several_frames_are_read_one_after_another():
    frame = pl.DataFrame(COLUMNS)
    data = open_series([frame[:20], frame[20:]], Reading(targets=["y"]))
    assert data.segments == ((0, 40, "frame 1"),) or data.segments == ((0, 40, ""),)
    assert [name for _, _, name in open_series([frame, frame], Reading(targets=["y"])).segments] == [
        "frame 1",
        "frame 2",
    ]


def test_array_has_columns_by_number_and_is_hashed():
    values = np.arange(60.0).reshape(-1, 2)
    data = open_series(values, Reading(targets=["1"]))
    assert data.columns == ("0", "1") and np.array_equal(data.values, values)
    assert open_series(values.copy(), Reading(targets=["1"])).cached
    assert not open_series(values + 1, Reading(targets=["1"])).cached


def test_missing_values_of_frames_are_missing():
    frame = pl.DataFrame({"y": [1, None, 3], "z": [1.0, float("nan"), 2.0]})
    with pytest.raises(DataError, match="the frame, data row 2: column 'y' has no value"):
        open_series(frame, Reading(targets=["y"]))
    data = open_series(frame, Reading(targets=["y"], missing="interpolate"))
    assert data.values.tolist() == [[1, 1], [2, 1.5], [3, 2]]


@pytest.mark.parametrize("data", [3, None, [3], {1, 2}, object(), [["a.csv"]]])
def test_what_is_no_table_raises_config_error(data):
    with pytest.raises(ConfigError, match="the data must be paths of tables, or frames"):
        open_series(data, Reading(targets=["y"]))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"y": [1, 2], "z": [1]}, "the frame cannot be read as a table"),
        (pd.DataFrame({"y": [1, "a"]}), "the frame cannot be read as a table"),
        (pl.DataFrame({"y": ["a", "b"]}), "column 'y' holds 'a' in data row 1"),
        (pl.DataFrame({"x": [1.0]}), "the frame has no column 'y' \\(targets\\)\\. It has: x"),
        (pa.table([[1.0], [2.0]], names=["y", "y"]), "more than one column named 'y'"),
        (np.array(["a"]), "the array holds an array of shape"),
    ],
)
def test_frames_that_cannot_be_used_raise_data_error(data, message):
    with pytest.raises(DataError, match=message):
        open_series(data, Reading(targets=["y"]))


def test_open_frames_are_not_copied_with_the_settings_that_hold_them():
    (table,) = as_sources(pa.table(COLUMNS))
    assert isinstance(table, FrameTable) and copy.deepcopy(table) is table
    assert as_sources(table) == [table]


def test_order_of_dates_is_said_of_a_frame_and_is_part_of_what_is_cached():
    columns = {"date": ["01/02/2024", "02/02/2024", "03/02/2024"], "y": [1.0, 2.0, 3.0]}
    found = {
        order: open_series(columns, Reading(targets=["y"]), table=TableOptions(date_order=order))
        for order in ("dmy", "mdy")
    }
    assert str(found["dmy"].times[1])[:10] == "2024-02-02"
    assert str(found["mdy"].times[0])[:10] == "2024-01-02"


@pytest.mark.parametrize("kind", [pl.Categorical, pl.Enum(["b", "a", "c"])], ids=str)
def test_categories_of_polars_are_read_as_texts(tmp_path, kind):
    frame = pl.DataFrame(
        {"shop": ["a"] * 20 + ["b"] * 20, "date": [*map(str, DAYS[:20])] * 2, "y": range(40)}
    )
    made = frame.with_columns(pl.col("shop").cast(kind), pl.col("date").cast(pl.Categorical))
    made.write_ipc(tmp_path / "t.arrow")
    for data in (made, tmp_path / "t.arrow"):
        found = open_series(as_sources(data), Reading(targets=["y"], series_column="shop"))
        assert found.segments == ((0, 20, "a"), (20, 40, "b"))
        assert np.array_equal(found.times[:20], DAYS[:20])
    texts = frame.with_columns(pl.col("y").cast(pl.String).cast(pl.Categorical))
    assert open_series(as_sources(texts), Reading(targets=["y"], series_column="shop")).values[39] == 39


@pytest.mark.parametrize("as_given", [lambda y: {"y": y}, lambda y: y], ids=["a column", "an array"])
@pytest.mark.parametrize("dtype", [np.int64, np.float32])
def test_masked_values_are_missing(as_given, dtype):
    masked = np.ma.masked_equal(np.arange(1, 9, dtype=dtype), 4)
    name = "0" if as_given(masked) is masked else "y"
    data = open_series(as_sources(as_given(masked)), Reading(targets=[name], missing="ffill"))
    assert data.values[:, 0].tolist() == [1, 2, 3, 3, 5, 6, 7, 8]


def test_whole_numbers_beyond_64_bits_are_refused():
    with pytest.raises(DataError, match=r"the frame cannot be read as a table: .*too large"):
        as_sources({"y": [2**70, 1]})


def test_periods_in_a_column_are_times():
    frame = pd.DataFrame({"month": pd.period_range("2020-01", periods=5, freq="M"), "y": np.arange(5.0)})
    data = open_series(frame, Reading(targets=["y"]))
    assert (
        data.times.astype("datetime64[M]").tolist() == np.arange("2020-01", "2020-06", dtype="M8[M]").tolist()
    )


def test_numbers_of_series_are_written_as_in_csv_files():
    ids = np.repeat([4006381333931.0, 7.0, 2.5], 2)
    frame = pa.table({"ean": ids, "y": np.arange(6.0)})
    data = open_series(frame, Reading(targets=["y"], series_column="ean"))
    assert [name for _, _, name in data.segments] == ["4006381333931", "7", "2.5"]


def test_series_of_records_are_refused():
    frame = pa.table({"shop": [{"a": 1}, {"a": 2}], "y": [1.0, 2.0]})
    with pytest.raises(DataError, match=r"the series column 'shop' holds values of type struct<a: int64>"):
        open_series(frame, Reading(targets=["y"], series_column="shop"))
