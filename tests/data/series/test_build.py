"""Packing in blocks: whatever the blocks, and wherever a process was killed, the series are those of one pass."""

import gzip
import itertools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cellerate.data.series import layout as series_layout, read as series_read
from cellerate.data.series.build import build_series
from cellerate.data.series.pack import open_packed
from cellerate.data.series.packing import pack_series
from cellerate.data.series.rows_read import Columns
from cellerate.data.series.series import SeriesData, open_series
from cellerate.data.settings import Reading
from cellerate.data.tables import arrow_table
from cellerate.data.tables.tables import find_tables, open_table
from cellerate.errors import DataError, OutputError
from cellerate.files import exclusive

HOUR = np.timedelta64(3600, "s")


def frame(rows: int = 700, series: int = 5, *, holes: float = 0.0, seed: int = 0) -> dict[str, Any]:
    """Series of unequal length with jumps in time and missing values, one after the other."""
    rng = np.random.default_rng(seed)
    lengths = rng.multinomial(rows, rng.dirichlet(np.ones(series)))
    found: dict[str, list[Any]] = {"time": [], "id": [], "a": [], "b": []}
    for number, length in enumerate(lengths):
        steps = np.where(rng.random(length) < 0.03, 50, 1).cumsum()
        found["time"].append(np.datetime64("2020-01-01", "us") + steps * HOUR)
        found["id"].append(np.full(length, f"s{number}"))
        for name in ("a", "b"):
            values = rng.normal(size=length).cumsum()
            values[rng.random(length) < holes] = np.nan
            found[name].append(values)
    return {name: np.concatenate(parts) for name, parts in found.items()}


def write(folder: Path, columns: dict[str, Any], files: int = 1, row_group: int = 97) -> Path:
    folder.mkdir(exist_ok=True)
    edges = np.linspace(0, len(columns["a"]), files + 1).astype(int)
    for number, (first, stop) in enumerate(itertools.pairwise(edges)):
        table = pa.table({name: pa.array(values[first:stop]) for name, values in columns.items()})
        pq.write_table(table, folder / f"{number}.parquet", row_group_size=row_group)
    return folder


def opened(folder: Path, **settings: Any) -> SeriesData:
    return open_series(folder, Reading(targets=["a"], features=["a", "b"], series_column="id", **settings))


def same(one: SeriesData, other: SeriesData) -> None:
    np.testing.assert_array_equal(one.values, other.values)
    np.testing.assert_array_equal(one.times, other.times)
    assert (one.segments, one.step) == (other.segments, other.step)


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Makes everything read, sort and fill a few rows at a time, with a cache of its own."""

    def use(cache: str) -> None:
        monkeypatch.setattr(series_layout, "_BLOCK_BYTES", 16 * 40)
        monkeypatch.setattr(arrow_table, "_BLOCK_ROWS", 31)
        monkeypatch.setattr(arrow_table, "_PART_ROWS", 100)
        monkeypatch.setenv("CELLERATE_CACHE", str(tmp_path / cache))

    return use


@pytest.mark.parametrize("missing", ["drop", "ffill", "interpolate"])
@pytest.mark.parametrize("holes", [0.0, 0.05, 0.6, 0.95])
@pytest.mark.parametrize("shuffled", [False, True])
def test_blocks_make_no_difference(tmp_path, small_blocks, missing, holes, shuffled):
    columns = frame(holes=holes)
    if shuffled:
        # Sorted by time over all series, as tables often come.
        order = np.argsort(columns["time"], kind="stable")
        columns = {name: values[order] for name, values in columns.items()}
    folder = write(tmp_path / "t", columns, files=3)
    whole = opened(folder, missing=missing)
    small_blocks("small")
    parts = opened(folder, missing=missing)
    assert not parts.cached
    same(parts, whole)


@pytest.mark.parametrize("missing", ["ffill", "interpolate"])
def test_columns_that_are_never_there_together_are_filled_all_the_same(tmp_path, small_blocks, missing):
    columns = frame(rows=900, series=2)
    turn = np.arange(900) % 2 == 0
    columns["a"][turn], columns["b"][~turn] = np.nan, np.nan
    # One series has no value of a column at all.
    columns["b"][columns["id"] == "s1"] = np.nan
    folder = write(tmp_path / "t", columns)
    whole = opened(folder, missing=missing)
    assert {segment[2] for segment in whole.segments} == {"s0"}
    small_blocks("small")
    same(opened(folder, missing=missing), whole)


def test_infinite_values_of_a_matrix_in_place_are_dropped(tmp_path):
    values = np.ones((60, 2), np.float32)
    values[20, 1], values[40, 0] = np.inf, np.nan
    np.save(tmp_path / "v.npy", values)
    data = open_series(tmp_path / "v.npy", Reading(targets=["0"], missing="drop"))
    assert str(data.values.filename) == str(tmp_path / "v.npy")
    assert [segment[:2] for segment in data.segments] == [(0, 20), (21, 40), (41, 60)]


def test_long_numbers_tell_series_apart(tmp_path):
    ids = np.repeat([1234567.0, 1234568.0, 0.5], 10)
    np.save(tmp_path / "v.npy", np.stack([ids, np.arange(30.0)], axis=1))
    data = open_series(tmp_path / "v.npy", Reading(targets=["1"], series_column="0"))
    assert [segment[2] for segment in data.segments] == ["1234567", "1234568", "0.5"]


def test_files_of_one_name_are_several_series(tmp_path):
    for shop in ("a", "b"):
        (tmp_path / shop).mkdir()
        (tmp_path / shop / "sales.csv").write_text("x\n" + "\n".join(map(str, range(40))))
    data = open_series(tmp_path, Reading(targets=["x"]))
    assert [segment[2] for segment in data.segments] == ["sales", "sales (2)"]
    split = data.split(0.5, 0.25)
    assert [(begin, stop) for _, begin, stop in split.test.bounds] == [(30, 40), (70, 80)]


def test_compressed_table_that_is_cut_short_is_named(tmp_path):
    text = "x\n" + "\n".join(str(n * 1.37) for n in range(900_000))
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress(text.encode())[:-100_000])
    with pytest.raises(DataError, match=r"t\.csv\.gz cannot be read"):
        open_series(tmp_path / "t.csv.gz", Reading(targets=["x"]))


def test_filled_stretch_is_a_straight_line_between_neighbours(tmp_path, small_blocks):
    small_blocks("small")
    values = np.sin(np.arange(500.0)).astype(np.float32).astype(np.float64)
    known = np.zeros(500, bool)
    known[[0, 3, 250, 499]] = True
    columns = {
        "time": np.datetime64("2020-01-01", "us") + np.arange(500) * HOUR,
        "id": np.full(500, "x"),
        "a": np.where(known, values, np.nan),
        "b": np.zeros(500),
    }
    data = opened(write(tmp_path / "t", columns), missing="interpolate")
    expected = np.interp(np.arange(500), np.flatnonzero(known), values[known]).astype(np.float32)
    np.testing.assert_array_equal(np.asarray(data.values[:, 0]), expected)
    assert [segment[:2] for segment in data.segments] == [(0, 500)]


def test_median_of_many_steps_is_that_of_a_sample(tmp_path, monkeypatch):
    monkeypatch.setattr(series_layout, "_MEDIAN_ROWS", 200)
    monkeypatch.setattr(series_layout, "_MEDIAN_STRETCHES", 10)
    assert opened(write(tmp_path / "t", frame())).step == HOUR


def test_times_out_of_order_in_any_block_name_the_row_of_the_file(tmp_path, small_blocks):
    small_blocks("small")
    columns = frame(rows=300, series=2)
    order = np.argsort(columns["time"], kind="stable")
    columns = {name: values[order] for name, values in columns.items()}
    wrong = int(np.flatnonzero(columns["id"] == "s1")[100])
    columns["time"][wrong] = columns["time"][np.flatnonzero(columns["id"] == "s1")[99]]
    with pytest.raises(DataError, match=rf"1.parquet, data row {wrong - 150 + 1}: .* occurs twice"):
        opened(write(tmp_path / "t", columns, files=2))


def test_categories_that_no_row_has_are_no_series(tmp_path):
    ids = pa.DictionaryArray.from_arrays(pa.array([2] * 30 + [0] * 30), pa.array(["a", "never", "z"]))
    table = pa.table({"id": ids, "a": np.arange(60.0), "b": np.arange(60.0)})
    pq.write_table(table, tmp_path / "t.parquet")
    assert [s[2] for s in opened(tmp_path / "t.parquet").segments] == ["z", "a"]


BUILD = """
import os, signal, sys
from pathlib import Path
from cellerate.data.series import read as series_read
from cellerate.data.tables import arrow_table
from cellerate.data.series.build import build_series
from cellerate.data.series.rows_read import Columns
from cellerate.data.settings import Reading
from cellerate.data.tables.tables import find_tables, open_table
from cellerate.listener import Callbacks
arrow_table._BLOCK_ROWS, arrow_table._PART_ROWS, series_read._NOTE_EVERY_S = 31, 60, 0.0
left = int(sys.argv[3])
def progress(rows, total):
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
found = [open_table(path) for path in find_tables(sys.argv[1])]
build_series(Path(sys.argv[2]), "key", found, Columns(["a", "b"], "time", ["id"]),
             Reading(missing="ffill"), listener=Callbacks(progress=progress))
print(left)
"""


def test_killed_build_goes_on_where_it_was(tmp_path):
    folder = write(tmp_path / "t", frame(holes=0.1), files=3)
    code = [sys.executable, "-c", BUILD, str(folder)]
    done = subprocess.run(
        [*code, str(tmp_path / "whole"), "100000"], check=True, capture_output=True, text=True
    )
    blocks = 100_000 - int(done.stdout)
    kills = 0
    while True:
        run = subprocess.run([*code, str(tmp_path / "cut"), "9"], check=False, capture_output=True, text=True)
        if run.returncode == 0:
            break
        assert run.returncode == -signal.SIGKILL
        kills += 1
        assert kills < blocks
    assert kills >= 2
    assert 9 - int(run.stdout) < blocks / 2, "it began anew"
    whole, cut = open_packed(tmp_path / "whole"), open_packed(tmp_path / "cut")
    np.testing.assert_array_equal(whole.values, cut.values)
    np.testing.assert_array_equal(whole.times, cut.times)
    np.testing.assert_array_equal(whole.segments, cut.segments)
    assert whole.names == cut.names
    assert sorted(p.name for p in tmp_path.iterdir()) == ["cut", "t", "whole"]
    assert {p.name for p in (tmp_path / "cut").iterdir()} == {
        "values.npy", "times.npy", "segments.npy", "series.json",
    }  # fmt: skip


def test_what_another_key_left_is_not_continued(tmp_path, monkeypatch):
    folder = write(tmp_path / "t", frame(), files=2)
    found = [open_table(path) for path in find_tables(folder)]
    columns = Columns(["a", "b"], "time", ["id"])
    building = tmp_path / "p.building"
    with exclusive(building):
        reader = series_read.Reader(building, found, columns, np.dtype(np.float32), "other")
        reader.read()
    made = build_series(tmp_path / "p", "key", found, columns, Reading())
    np.testing.assert_array_equal(made.values, opened(folder).values)


def test_files_that_are_shorter_than_their_note_says_are_read_anew(tmp_path):
    folder = write(tmp_path / "t", frame(), files=2)
    found = [open_table(path) for path in find_tables(folder)]
    columns = Columns(["a", "b"], "time", ["id"])
    building = tmp_path / "p.building"
    with exclusive(building):
        series_read.Reader(building, found, columns, np.dtype(np.float32), "key").read()
    # The power went before the disk had all of it.
    values = building / series_read.VALUES
    os.truncate(values, values.stat().st_size // 2)
    made = build_series(tmp_path / "p", "key", found, columns, Reading())
    np.testing.assert_array_equal(made.values, opened(folder).values)


def test_times_that_an_earlier_packing_left_are_not_those_of_another(tmp_path):
    columns = frame()
    order = np.argsort(columns["time"], kind="stable")
    folder = write(tmp_path / "t", {name: values[order] for name, values in columns.items()}, files=2)
    killed = subprocess.run(
        [sys.executable, "-c", BUILD, str(folder), str(tmp_path / "p.series"), "9"], check=False
    )
    assert killed.returncode == -signal.SIGKILL
    packed = pack_series(folder, tmp_path / "p.series", Reading(time_column="", series_column="id"))
    assert packed.times is None
    assert sorted(p.name for p in (tmp_path / "p.series").iterdir()) == [
        "segments.npy", "series.json", "values.npy",
    ]  # fmt: skip


def test_packed_series_beside_its_tables_is_no_table(tmp_path):
    folder = write(tmp_path / "t", frame(), files=2)
    killed = subprocess.run(
        [sys.executable, "-c", BUILD, str(folder), str(folder / "all.series"), "9"], check=False
    )
    assert killed.returncode == -signal.SIGKILL and (folder / "all.series.building").is_dir()
    for _ in range(2):
        packed = pack_series(folder, folder / "all.series", Reading(series_column="id"))
        np.testing.assert_array_equal(packed.values, opened(folder).values)


def test_other_packing_of_the_same_name_is_not_taken_for_ones_own(tmp_path):
    folder = write(tmp_path / "t", frame())
    found = [open_table(path) for path in find_tables(folder)]
    columns = Columns(["a", "b"], "time", ["id"])
    build_series(tmp_path / "p", "one", found, columns, Reading(), cache=False)
    with pytest.raises(OutputError, match="packed other data"):
        build_series(tmp_path / "p", "other", found, columns, Reading(), cache=False)
    assert open_packed(tmp_path / "p").fingerprint == "one"


def test_process_that_waits_for_another_opens_what_that_made(tmp_path):
    folder = write(tmp_path / "t", frame())
    code = "import sys; from cellerate.data.series import pack_series; from cellerate.data.settings import Reading; "
    code += "print(pack_series(sys.argv[1], sys.argv[2], Reading(series_column='id')).fingerprint)"
    command = [sys.executable, "-c", code, str(folder), str(tmp_path / "p.series")]
    with exclusive(tmp_path / "p.series.building"):
        others = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
        time.sleep(1.5)
        assert all(other.poll() is None for other in others)
    said = {other.communicate(timeout=60)[0] for other in others}
    assert [other.returncode for other in others] == [0, 0, 0]
    assert said == {open_packed(tmp_path / "p.series").fingerprint + "\n"}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["p.series", "t"]


def test_data_that_cannot_be_packed_leave_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("CELLERATE_CACHE", str(tmp_path / "kept"))
    with pytest.raises(DataError, match="missing in all"):
        opened(write(tmp_path / "t", frame(holes=0.2)))
    assert [p for p in (tmp_path / "kept").rglob("*") if p.is_file()] == []


def test_disk_that_is_full_while_reading_says_so(tmp_path, monkeypatch):
    def full(self: Any, files: Any) -> None:
        raise OSError(28, "No space left on device")

    folder = write(tmp_path / "t", frame())
    monkeypatch.setattr(series_read.Reader, "_note", full)
    with pytest.raises(OutputError, match="disk is full"):
        opened(folder)


def test_cache_that_cannot_be_written_is_named_with_its_variable(tmp_path, monkeypatch):
    (tmp_path / "t.csv").write_text("y\n1\n2\n")
    monkeypatch.setenv("CELLERATE_CACHE", str(tmp_path / "t.csv"))
    with pytest.raises(OutputError, match="set CELLERATE_CACHE to a folder"):
        open_series(tmp_path / "t.csv", Reading(targets=["y"]))
