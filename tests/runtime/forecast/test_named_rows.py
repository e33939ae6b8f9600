import subprocess
import sys

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from cellerate.errors import DataError
from cellerate.runtime.forecast.named_rows import by_name
from support.packed_forecaster import WINDOW, packed

LOAD, WIND = np.arange(10.0), 100 + np.arange(10.0)
COLUMNS = {"wind": WIND, "note": ["x"] * 10, "load": LOAD}
FRAMES = {
    "pandas": lambda: pd.DataFrame(COLUMNS),
    "polars": lambda: pl.DataFrame(COLUMNS),
    "arrow": lambda: pa.table(COLUMNS),
    "batch": lambda: pa.table(COLUMNS).to_batches()[0],
    "dict": lambda: COLUMNS,
    "records": lambda: pd.DataFrame(COLUMNS).to_records(),
}


@pytest.mark.parametrize("name", FRAMES)
def test_rows_of_a_frame_are_taken_by_name_in_any_order(name):
    model = packed()
    expected = model.forecast(np.stack([LOAD, WIND], axis=1))
    np.testing.assert_array_equal(model.forecast(FRAMES[name]()), expected)
    assert not np.array_equal(model.forecast(np.stack([WIND, LOAD], axis=1)), expected)


def test_list_of_frames_is_windows():
    model = packed()
    frame = pd.DataFrame(COLUMNS)
    made = model.forecast([frame, frame[["load", "wind"]]])
    np.testing.assert_array_equal(made, np.stack([model.forecast(frame)] * 2))
    with pytest.raises(DataError, match="windows of 9 to 10 rows"):
        model.forecast([frame, frame[:9]])


@pytest.mark.parametrize("rows", [np.zeros((3, 2)), [[1, 2], [3, 4]], [], 3, None])
def test_rows_without_names_are_left_as_they_are(rows):
    assert by_name(rows, ["load"]) is None


@pytest.mark.parametrize(
    "column",
    [
        pd.Series([1, None, 3], dtype="Int64"),
        pd.Series([1, None, 3], dtype=object),
        pl.Series([1, None, 3]),
        pa.array([1, None, 3]),
        [1, None, 3],
        np.array([1, np.nan, 3], np.float32),
        np.ma.masked_equal([1, 2, 3], 2),
    ],
    ids=lambda column: type(column).__module__,
)
def test_missing_values_become_nan(column):
    np.testing.assert_array_equal(by_name({"y": column}, ["y"]), [[1], [np.nan], [3]])


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({"load": LOAD}, "rows has no column 'wind', which the model forecasts from. It has: load"),
        (pd.DataFrame({"a": LOAD}), "no column 'load', 'wind'"),
        (COLUMNS | {"wind": ["x"] * 10}, "column 'wind' of rows holds"),
        (COLUMNS | {"wind": WIND[:9]}, "differ in length: load 10, wind 9"),
        (COLUMNS | {"wind": np.zeros((10, 2))}, r"'wind' of rows has shape \(10, 2\)"),
        (pl.DataFrame(COLUMNS | {"wind": [True] * 10}), "'wind' of rows holds bool"),
        (pd.DataFrame([[1, 2, 3]], columns=["load", "wind", "wind"]), "more than one column named 'wind'"),
        (COLUMNS | {"load": [1.0] * 9 + [None]}, "rows holds nan in row 9, column 'load'"),
        ({"load": LOAD[:3], "wind": WIND[:3]}, f"3 rows, but the model forecasts from {WINDOW}"),
    ],
)
def test_frames_that_cannot_be_used_raise_data_error(rows, message):
    with pytest.raises(DataError, match=message):
        packed().forecast(rows)


def test_mapping_is_taken_by_name_with_numpy_alone():
    program = (
        "import sys, numpy as np\n"
        "from cellerate.runtime.forecast.named_rows import by_name\n"
        "assert by_name({'b': [1, 2], 'a': np.ones(2)}, ['a', 'b']).tolist() == [[1, 1], [1, 2]]\n"
        "print([name for name in ('pandas', 'polars', 'pyarrow') if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
