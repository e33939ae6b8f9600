"""Numbers that float32 cannot hold keep their digits, from the table to the forecast."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cellerate.data.series.digits import lost_in_float32, lost_in_float64
from cellerate.data.series.packing import pack_series
from cellerate.data.series.series import open_series
from cellerate.data.settings import Reading
from cellerate.data.tables import csv_table
from cellerate.data.windows.scaler import Scaler, scaled

ONE = np.zeros(400, np.int64)
COUNTER = 250_000_000 + 3 * np.arange(400)


def write(path: Path, **columns: Any) -> Path:
    rows = zip(*columns.values(), strict=True)
    text = [",".join(columns), *(",".join(map(str, row)) for row in rows)]
    path.write_text("\n".join(text) + "\n")
    return path


def test_counter_above_two_to_the_24th_is_stored_as_it_is(tmp_path: Path) -> None:
    data = open_series([write(tmp_path / "meter.csv", reading=COUNTER)], Reading(targets=["reading"]))
    assert data.values.dtype == np.float64
    np.testing.assert_array_equal(data.values[:, 0], COUNTER)
    assert any("float32 loses digits of 'reading' (250000003 in" in note for note in data.notes)


def test_packed_counter_is_stored_as_it_is(tmp_path: Path) -> None:
    packed = pack_series(write(tmp_path / "meter.csv", reading=COUNTER), tmp_path / "meter.series", Reading())
    np.testing.assert_array_equal(np.load(tmp_path / "meter.series" / "values.npy")[:, 0], COUNTER)
    assert packed.settings["dtype"] == "float32"


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_numbers_that_the_type_holds_stay_in_it(tmp_path: Path, dtype: Any) -> None:
    path = write(tmp_path / "power.csv", load=np.round(np.random.default_rng(0).normal(50, 9, 400), 2))
    data = open_series([path], Reading(targets=["load"], storage=dtype))
    assert data.values.dtype == dtype
    assert not any("float64" in note for note in data.notes)


@pytest.mark.parametrize(
    ("values", "lost"),
    [
        (COUNTER, True),
        (2**24 + np.arange(400), True),
        (np.arange(400) + 2**24 - 400, False),
        (123_456_789.0 + 1e6 * np.random.default_rng(0).normal(size=400).round(2), True),
        (1e9 * np.random.default_rng(0).normal(size=400) + 0.5**20, False),
        (20_000 + 0.01 * np.arange(400), True),
        (20_000 + 5 * np.random.default_rng(0).normal(size=400), False),
        (np.full(400, 0.1), False),
        (0.1 + 1e-17 * np.arange(400), False),
        (np.where(np.arange(400) < 200, 0.1, 0.2), False),
        (1e300 * np.random.default_rng(0).normal(size=400), False),
        (np.where(np.arange(400) % 7 == 3, np.nan, COUNTER), True),
        (np.full(400, np.nan), False),
        (np.sin(np.arange(400) / 50), False),
    ],
)
def test_loss_of_float32_is_that_of_whole_numbers_and_of_small_changes(
    values: np.ndarray, lost: bool
) -> None:
    found = lost_in_float32(values.astype(np.float64)[:, None], ONE)
    assert (found is not None) == lost
    if found is not None:
        row, column = found
        assert column == 0
        assert np.float32(values[row]) != values[row]


def test_small_changes_are_found_in_one_of_many_series_and_columns() -> None:
    rng = np.random.default_rng(0)
    values = np.stack([rng.normal(size=1200), 1e5 * rng.normal(size=1200)], axis=1)
    series = np.tile(np.arange(3), 400)
    values[series == 1, 1] = 1_000_000 + 0.01 * np.arange(400)
    row, column = lost_in_float32(values, series) or (0, 0)
    assert (series[row], column) == (1, 1)
    assert np.float32(values[row, 1]) != values[row, 1]


def test_loss_found_in_a_later_block_is_mended_in_the_earlier_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = np.concatenate([np.arange(300) * 0.1, COUNTER[:100]])
    path = write(tmp_path / "late.csv", value=values, id=["a"] * 300 + ["b"] * 100)
    monkeypatch.setattr(csv_table, "_BLOCK_BYTES", 1 << 10)
    data = open_series([path], Reading(targets=["value"], series_column="id"))
    np.testing.assert_array_equal(data.values[:, 0], values)
    assert [name for _, _, name in data.segments] == ["a", "b"]


def test_whole_numbers_that_not_even_float64_holds_are_told(tmp_path: Path) -> None:
    ids = [10**18 + 7 * number for number in range(400)]
    data = open_series([write(tmp_path / "ids.csv", id=ids)], Reading(targets=["id"]))
    assert any("'id' holds whole numbers of which float64 keeps 15 digits" in note for note in data.notes)
    # 2**53 + 1 is rounded to 2**53.
    assert lost_in_float64((2**53 + 1 + np.arange(30)).astype(np.float64)[:, None]) == 0
    assert lost_in_float64(1e18 * np.random.default_rng(0).normal(size=(400, 1))) is None


def test_scaled_numbers_keep_the_digits_of_their_deviation() -> None:
    values = COUNTER[:, None]
    scaler = Scaler(["reading"], [COUNTER.mean()], [COUNTER.std()])
    right = (values - COUNTER.mean()) / COUNTER.std()
    for given in (values, values.astype(np.float64)):
        found = scaler.transform(given)
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, right, rtol=1e-6, atol=1e-7)
    narrow = np.arange(6, dtype=np.float32)[:, None]
    np.testing.assert_array_equal(scaled(narrow, np.array([2.0]), np.array([4.0])), (narrow - 2) / 4)
