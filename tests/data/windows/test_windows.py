import os
import pickle
import threading

import numpy as np
import psutil
import pytest
from hypothesis import given, settings, strategies as st

from cellerate.data.arrays import gather
from cellerate.data.arrays.batches import BatchSource
from cellerate.data.arrays.gather import ArrayRows, FileRows, open_rows
from cellerate.data.windows.windows import WindowSettings, WindowSource
from cellerate.errors import ConfigError, DataError


def numbered(rows: int, features: int = 3, dtype: str = "float32") -> np.ndarray:
    """Row r holds r, r + 0.25, r + 0.5, ...: a window tells where it comes from."""
    return (np.arange(rows)[:, None] + np.arange(features) / 4).astype(dtype)


def made(values, segments=None, **settings_):
    return WindowSource(values, WindowSettings(**settings_), segments=segments)


def mapped(folder, values: np.ndarray) -> np.ndarray:
    np.save(folder / "values.npy", values)
    return np.load(folder / "values.npy", mmap_mode="r")


def all_batches(source, epoch=0):
    return [source.batch(epoch, index) for index in range(len(source))]


def naive_starts(rows, span, stride, segments):
    found = []
    for first, stop in segments or [(0, rows)]:
        found += range(first, stop - span + 1, stride)
    return found


def assert_batches_are_naive_slices(source, values, window, horizon, starts):
    """Every batch holds right slices, and all windows of an epoch are `starts`, each at most once."""
    seen = []
    for batch in all_batches(source):
        rows = batch[2] if len(batch) == 3 else np.ones(len(batch[0]))
        for number in range(len(batch[0])):
            start = int(batch[0][number].ravel()[0])
            assert np.array_equal(batch[0][number], values[start : start + window])
            if horizon:
                assert np.array_equal(batch[1][number], values[start + window : start + window + horizon])
            if rows[number]:
                seen.append(start)
    assert len(seen) == len(set(seen))
    assert set(seen) <= set(starts)
    return seen


@pytest.mark.parametrize("shuffle", ["exact", "blocks"])
@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize("segments", [None, [(0, 31), (31, 40), (45, 200), (200, 207), (260, 300)]])
@pytest.mark.parametrize(("window", "horizon", "stride", "batch"), [(5, 2, 1, 8), (1, 0, 1, 7), (6, 1, 4, 3)])
def test_windows_equal_naive_slices(tmp_path, shuffle, seed, segments, window, horizon, stride, batch):
    values = mapped(tmp_path, numbered(300))
    source = WindowSource(
        values,
        WindowSettings(
            window=window, horizon=horizon, stride=stride, batch_size=batch, seed=seed, shuffle=shuffle
        ),
        segments=segments,
    )
    starts = naive_starts(300, window + horizon, stride, segments)
    seen = assert_batches_are_naive_slices(source, values, window, horizon, starts)
    assert len(source) == len(starts) // batch
    assert len(seen) == len(source) * batch
    if seed is None:
        assert seen == starts[: len(seen)]
    else:
        assert seen != sorted(seen)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_windows_of_any_segments_equal_naive_slices(data):
    window = data.draw(st.integers(1, 9))
    horizon = data.draw(st.integers(0, 4))
    stride = data.draw(st.integers(1, 12))
    edges = sorted(data.draw(st.sets(st.integers(0, 150), min_size=2, max_size=8)))
    segments = [(a, b) for a, b in zip(edges[::2], edges[1::2], strict=False)]
    starts = naive_starts(150, window + horizon, stride, segments)
    values = numbered(150, 2)
    settings_ = {"window": window, "horizon": horizon, "stride": stride}
    if not starts:
        with pytest.raises(DataError, match="no window fits"):
            WindowSource(values, WindowSettings(batch_size=1, **settings_), segments=segments)
        return
    for shuffle in ("exact", "blocks"):
        source = WindowSource(
            values,
            WindowSettings(batch_size=1, seed=data.draw(st.integers(0, 99)), shuffle=shuffle, **settings_),
            segments=segments,
        )
        seen = assert_batches_are_naive_slices(source, values, window, horizon, starts)
        assert sorted(seen) == starts


@pytest.mark.parametrize("blocks", [1, 3, 50])
def test_block_shuffle_over_many_groups_serves_each_window_once(tmp_path, monkeypatch, blocks):
    monkeypatch.setattr(gather, "BLOCK_BYTES", 12 * 40)  # 40 windows a block
    values = mapped(tmp_path, numbered(3000))
    source = WindowSource(
        values,
        WindowSettings(window=4, batch_size=7, seed=1, shuffle="blocks", mixing_bytes=12 * 40 * blocks),
    )
    for epoch in (0, 1):
        seen = [int(x[0, 0]) for batch in all_batches(source, epoch) for x in batch[0]]
        assert len(set(seen)) == len(seen) == 2997 // 7 * 7
        # A batch comes from all over the file: with four blocks a group or more, its spread is large.
        spread = np.mean([np.ptp(seen[i : i + 7]) for i in range(0, len(seen), 7)])
        assert spread > 1000


def test_block_shuffle_mixing_grows_with_mixing_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(gather, "BLOCK_BYTES", 12 * 20)
    values = mapped(tmp_path, numbered(8000))

    def blocks_per_batch(mixing):
        source = WindowSource(
            values,
            WindowSettings(window=2, batch_size=64, seed=2, shuffle="blocks", mixing_bytes=mixing * 12 * 20),
        )
        return np.mean([len({int(x[0, 0]) // 20 for x in batch[0]}) for batch in all_batches(source)])

    assert blocks_per_batch(4) < 12 < 40 < blocks_per_batch(128)


@pytest.mark.parametrize("shuffle", ["exact", "blocks"])
def test_epochs_differ_and_batches_are_pure(tmp_path, shuffle):
    values = mapped(tmp_path, numbered(2000))

    def make(seed=4):
        return WindowSource(
            values, WindowSettings(window=10, horizon=1, batch_size=16, seed=seed, shuffle=shuffle)
        )

    source = make()
    first, second = all_batches(source, 0), all_batches(source, 1)
    assert not np.array_equal(first[0][0], second[0][0])
    assert not np.array_equal(first[0][0], make(seed=5).batch(0, 0)[0])
    other = make()
    for index in np.random.default_rng(0).permutation(len(source))[:40]:
        for epoch, wanted in ((1, second), (0, first)):
            x, y = other.batch(epoch, int(index))
            assert np.array_equal(x, wanted[index][0])
            assert np.array_equal(y, wanted[index][1])


def test_batch_written_to_does_not_change_the_next_call():
    source = WindowSource(numbered(500), WindowSettings(window=10, batch_size=16, seed=4))
    before = source.batch(0, 3)[0].copy()
    source.batch(0, 3)[0][:] = -1
    assert np.array_equal(source.batch(0, 3)[0], before)


@pytest.mark.parametrize("start", [0, 1, 17, 61])
@pytest.mark.parametrize("drop_last", [True, False])
def test_batches_from_any_start_equal_batch(start, drop_last):
    source = WindowSource(
        numbered(1000), WindowSettings(window=10, horizon=2, batch_size=16, seed=4, drop_last=drop_last)
    )
    source._chunk = 7  # a start inside a gather, and a short last gather
    found = list(source.batches(2, start))
    assert len(found) == len(source) - start
    for number, batch in enumerate(found):
        for mine, wanted in zip(batch, source.batch(2, start + number), strict=True):
            assert np.array_equal(mine, wanted)


def test_batch_from_many_threads_equals_batch_from_one(tmp_path):
    values = mapped(tmp_path, numbered(4000))
    source = WindowSource(
        values, WindowSettings(window=10, batch_size=16, seed=4, shuffle="blocks", mixing_bytes=4096)
    )
    source._chunk = 3
    wanted = [source.batch(0, index)[0] for index in range(len(source))]
    wrong: list[int] = []

    def work(seed: int) -> None:
        for index in np.random.default_rng(seed).permutation(len(source)):
            if not np.array_equal(source.batch(0, int(index))[0], wanted[index]):
                wrong.append(int(index))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_last_batch_kept_is_filled_up_with_weight_zero():
    values = numbered(40)
    source = WindowSource(values, WindowSettings(window=5, horizon=1, batch_size=8, seed=1, drop_last=False))
    batches = all_batches(source)
    assert len(source) == 5  # 35 windows
    assert {(x.shape, y.shape, w.shape) for x, y, w in batches} == {((8, 5, 3), (8, 1, 3), (8,))}
    assert [int(w.sum()) for _, _, w in batches] == [8, 8, 8, 8, 3]
    starts = [int(x[i, 0, 0]) for x, _, w in batches for i in range(8) if w[i]]
    assert sorted(starts) == list(range(35))


@pytest.mark.parametrize(
    ("dtype", "wanted"),
    [("float16", "float32"), ("float64", "float32"), ("int32", "int32"), (">f4", "float32")],
)
def test_windows_come_out_as_float32_or_as_they_are(dtype, wanted):
    values = numbered(100).astype(dtype)
    x, y = WindowSource(values, WindowSettings(window=4, horizon=2, batch_size=5)).batch(0, 1)
    assert x.dtype == y.dtype == np.dtype(wanted)
    assert np.array_equal(x[0], values[5:9].astype(wanted))


@pytest.mark.parametrize("make", [lambda v: v[:, ::2], lambda v: v[::-1], np.asfortranarray, lambda v: v[7:]])
def test_windows_of_views_that_are_not_plain_equal_naive_slices(tmp_path, make):
    for values in (make(numbered(200, 4)), make(mapped(tmp_path, numbered(200, 4)))):
        for shuffle in ("exact", "blocks"):
            source = WindowSource(values, WindowSettings(window=6, batch_size=4, shuffle=shuffle))
            assert np.array_equal(source.batch(0, 3)[0][1], values[13:19])


def test_one_dimensional_values_give_windows_without_a_feature_axis():
    x, y = WindowSource(np.arange(50.0), WindowSettings(window=4, horizon=2, batch_size=5)).batch(0, 0)
    assert x.shape == (5, 4)
    assert y.shape == (5, 2)
    assert x[2].tolist() == [2, 3, 4, 5]
    assert y[2].tolist() == [6, 7]


def test_large_mapped_file_is_read_in_blocks_and_memory_exactly(tmp_path, monkeypatch):
    monkeypatch.setattr(gather, "EXACT_BYTES", 1000)
    in_file = WindowSource(mapped(tmp_path, numbered(500)), WindowSettings(window=4, batch_size=4, seed=0))
    in_order = WindowSource(mapped(tmp_path, numbered(500)), WindowSettings(window=4, batch_size=4))
    in_memory = WindowSource(numbered(500), WindowSettings(window=4, batch_size=4, seed=0))
    found = [type(source._plan).__name__ for source in (in_file, in_order, in_memory)]
    assert found == ["BlockPlan", "FilePlan", "ArrayPlan"]
    assert in_file.fingerprint() != in_memory.fingerprint()  # another order


def test_walk_over_a_large_file_keeps_resident_memory_small(tmp_path):
    path = tmp_path / "large.npy"
    values = np.lib.format.open_memmap(path, mode="w+", dtype="float32", shape=(8_000_000, 5))  # 160 MB
    values[::1000] = 1
    del values
    source = WindowSource(np.load(path, mmap_mode="r"), WindowSettings(window=50, batch_size=512, seed=1))
    process = psutil.Process()
    batches = source.batches(0)
    for _ in range(50):
        next(batches)
    before = process.memory_info().rss
    for place in range(0, len(source), len(source) // 60):
        source.batch(0, place)
    assert process.memory_info().rss - before < 40e6


def test_file_that_became_shorter_raises_data_error(tmp_path):
    values = mapped(tmp_path, numbered(5000))
    source = WindowSource(values, WindowSettings(window=4, batch_size=4, seed=0, shuffle="blocks"))
    os.truncate(tmp_path / "values.npy", 1000)
    with pytest.raises(DataError, match="became shorter"):
        source.batch(0, 0)


def test_open_rows_of_a_replaced_file_reads_the_map_not_the_file(tmp_path):
    values = mapped(tmp_path, numbered(100))
    assert isinstance(open_rows(values), FileRows)
    np.save(tmp_path / "new.npy", numbered(100) + 1)
    (tmp_path / "new.npy").replace(tmp_path / "values.npy")
    rows = open_rows(values)
    assert isinstance(rows, ArrayRows)
    (tmp_path / "values.npy").unlink()
    assert isinstance(open_rows(values), ArrayRows)


def test_open_rows_of_a_copy_on_write_map_sees_changes(tmp_path):
    np.save(tmp_path / "values.npy", numbered(100))
    values = np.load(tmp_path / "values.npy", mmap_mode="c")
    values[50] = -1
    out = np.empty((1, 3), np.float32)
    open_rows(values).read(50, out)
    assert out.tolist() == [[-1, -1, -1]]


def test_file_rows_read_a_view_at_its_place(tmp_path):
    values = mapped(tmp_path, numbered(100))[20:60]
    rows = open_rows(values)
    assert isinstance(rows, FileRows)
    out = np.empty((3, 3), np.float32)
    rows.read(37, out)
    assert np.array_equal(out, numbered(100)[57:60])


def test_source_survives_pickling(tmp_path):
    source = WindowSource(
        mapped(tmp_path, numbered(500)), WindowSettings(window=4, batch_size=4, seed=0, shuffle="blocks")
    )
    wanted = source.batch(1, 2)[0]
    assert np.array_equal(pickle.loads(pickle.dumps(source)).batch(1, 2)[0], wanted)


@pytest.mark.parametrize(
    "change",
    [
        {"window": 5},
        {"horizon": 2},
        {"stride": 2},
        {"batch_size": 5},
        {"seed": 1},
        {"seed": None},
        {"drop_last": False},
        {"drop_last": False, "fill_last": False},
        {"sampling_rate": 2},
        {"segments": [(0, 99)]},
        {"values": numbered(100) + np.float32(1e-4)},
    ],
)
def test_fingerprint_depends_on_data_and_every_setting(change):
    base = {"values": numbered(100), "window": 4, "horizon": 1, "batch_size": 4, "seed": 0}
    assert made(**base).fingerprint() == made(**base).fingerprint()
    assert made(**(base | change)).fingerprint() != made(**base).fingerprint()


def test_series_shorter_than_a_window_raises_data_error_with_lengths():
    with pytest.raises(DataError, match=r"has 20 rows.*window of 18.*horizon of 3.*need 21"):
        WindowSource(numbered(20), WindowSettings(window=18, horizon=3, batch_size=1))
    with pytest.raises(DataError, match=r"longest of 2 segments has 15 rows"):
        WindowSource(numbered(20), WindowSettings(window=18, batch_size=1), segments=[(0, 5), (5, 20)])
    with pytest.raises(DataError, match=r"11 windows.*batch of 12"):
        WindowSource(numbered(20), WindowSettings(window=10, batch_size=12))
    with pytest.raises(DataError, match="segments is empty"):
        WindowSource(numbered(20), WindowSettings(window=10, batch_size=1), segments=[])


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"window": 0}, "window is 0"),
        ({"horizon": -1}, "horizon is -1"),
        ({"stride": 0}, "stride is 0"),
        ({"sampling_rate": 0}, "sampling_rate is 0"),
        ({"batch_size": 2.5}, "batch_size is 2.5"),
        ({"shuffle": "wild"}, "shuffle is 'wild'"),
        ({"drop_last": False}, "needs a horizon"),
        ({"segments": [(0, 30), (20, 50)]}, r"rise.*\[\[0, 30\], \[20, 50\]\]$"),
        ({"segments": [(0, 5), (5, 6), (8, 9), (7, 9)]}, r"\[8, 9\]\] \.\.\.$"),
        ({"segments": [(0, 101)]}, "within 0 to 100"),
        ({"values": np.zeros((2, 2, 2))}, "shape"),
    ],
)
def test_settings_out_of_range_raise_a_clear_error(setting, message):
    settings_ = {"values": numbered(100), "window": 4, "batch_size": 4} | setting
    with pytest.raises((ConfigError, DataError), match=message):
        made(**settings_)


@pytest.mark.parametrize("index", [-1, 24])
def test_batch_outside_the_epoch_raises_index_error(index):
    source = WindowSource(numbered(100), WindowSettings(window=4, batch_size=4))
    with pytest.raises(IndexError, match="0 to 23"):
        source.batch(0, index)


def test_windows_say_what_an_item_is():
    windows = WindowSource(numbered(100), WindowSettings(window=4, batch_size=4))
    assert (windows.item, windows.items_per_batch, windows.batch_size) == ("windows", 4, 4)
    assert isinstance(windows, BatchSource)
