import itertools

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from cellerate.data.arrays import gather
from cellerate.data.arrays.batches import BatchSource
from cellerate.data.windows.text_windows import StreamBatches, TextBatches
from cellerate.errors import ConfigError, DataError


def all_batches(source, epoch=0):
    return [source.batch(epoch, index) for index in range(len(source))]


@pytest.mark.parametrize(
    ("n", "length", "batch", "stride"), [(1000, 10, 8, None), (1000, 7, 4, 3), (101, 10, 1, 25)]
)
def test_text_training_windows_are_shifted_slices_each_once(n, length, batch, stride):
    ids = np.arange(n, dtype=np.uint16)
    for seed in (None, 7):
        source = TextBatches(ids, length=length, batch_size=batch, seed=seed, stride=stride)
        for epoch in (0, 1, 2):
            starts = []
            for x, y in all_batches(source, epoch):
                assert x.shape == y.shape == (batch, length)
                assert x.dtype == y.dtype == np.int32
                assert np.array_equal(x + 1, y)
                assert np.array_equal(x, x[:, :1] + np.arange(length))
                starts += x[:, 0].tolist()
            assert len(set(starts)) == len(starts)
            phases = {start % (stride or length) for start in starts}
            assert len(phases) == 1
            if seed is None:
                assert starts == [k * (stride or length) for k in range(len(starts))]


def test_text_training_epochs_cut_the_text_at_different_places():
    source = TextBatches(np.arange(5000), length=50, batch_size=4, seed=1)
    phases = [int(source.batch(epoch, 0)[0][0, 0]) % 50 for epoch in range(200)]
    assert len(set(phases)) > 40
    assert len(source) == (5000 - 51 - 49) // 50 // 4


@pytest.mark.parametrize(
    ("n", "length", "stride", "phases"), [(200, 10, 7, 7), (101, 10, 25, 25), (14, 10, 10, 4), (11, 10, 5, 1)]
)
def test_text_training_begins_at_each_place_of_a_stride_that_the_text_has_room_for(n, length, stride, phases):
    source = TextBatches(np.arange(n), length=length, batch_size=1, seed=1, stride=stride)
    starts = [int(source.batch(epoch, 0)[0][0, 0]) for epoch in range(600)]
    assert {start % stride for start in starts} == set(range(phases))


@settings(max_examples=80, deadline=None)
@given(
    n=st.integers(2, 200),
    length=st.integers(1, 40),
    batch=st.integers(1, 9),
    seed=st.none() | st.integers(0, 9),
)
def test_text_evaluation_predicts_every_id_but_the_first_once(n, length, batch, seed):
    ids = np.arange(n)
    source = TextBatches(ids, length=length, batch_size=batch, seed=seed, drop_last=False)
    seen: list[int] = []
    for x, y, weight in all_batches(source):
        assert x.shape == y.shape == weight.shape == (batch, length)
        counted = weight > 0
        assert set(np.unique(weight)) <= {0.0, 1.0}
        assert np.array_equal(x[counted] + 1, y[counted])
        seen += y[counted].tolist()
    assert sorted(seen) == list(range(1, n))


@settings(max_examples=80, deadline=None)
@given(n=st.integers(2, 300), length=st.integers(1, 40), stride=st.integers(1, 50), epoch=st.integers(0, 5))
def test_text_training_of_any_size_stays_inside_the_text(n, length, stride, epoch):
    ids = np.arange(n)
    if n < length + 1:
        with pytest.raises(DataError, match="at least"):
            TextBatches(ids, length=length, batch_size=1, seed=1, stride=stride)
        return
    source = TextBatches(ids, length=length, batch_size=1, seed=1, stride=stride)
    starts = sorted(int(x[0, 0]) for x, _ in all_batches(source, epoch))
    assert len(starts) >= max(1, (n - length - 1) // stride)
    assert np.array_equal(np.diff(starts), np.full(len(starts) - 1, stride))
    assert starts[-1] + length < n


def test_text_in_a_large_file_is_read_in_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr(gather, "EXACT_BYTES", 1000)
    np.save(tmp_path / "ids.npy", (np.arange(20_000) % 65_000).astype(np.uint16))
    ids = np.load(tmp_path / "ids.npy", mmap_mode="r")
    source = TextBatches(ids, length=16, batch_size=8, seed=3)
    assert type(source._plan).__name__ == "BlockPlan"
    starts = [int(s) for x, y in all_batches(source, 1) for s in x[:, 0]]
    assert len(set(starts)) == len(starts) == len(source) * 8
    assert all(np.array_equal(x + 1, y) for x, y in all_batches(source, 1))


def test_text_too_short_raises_data_error_with_lengths():
    with pytest.raises(DataError, match=r"10 ids.*window of 10.*at least 11"):
        TextBatches(np.arange(10), length=10, batch_size=1)
    with pytest.raises(DataError, match=r"100 characters.*9 windows.*batch of 32"):
        TextBatches(np.arange(100), length=10, batch_size=32)
    with pytest.raises(DataError, match="1 ids"):
        TextBatches(np.arange(1), length=10, batch_size=1, drop_last=False)
    with pytest.raises(ConfigError, match="leave stride out"):
        TextBatches(np.arange(100), length=10, batch_size=1, stride=5, drop_last=False)
    with pytest.raises(DataError, match="integers"):
        TextBatches(np.arange(100.0), length=10, batch_size=1)


def test_stream_rows_go_on_from_batch_to_batch():
    ids = np.arange(1000, dtype=np.uint16)
    source = StreamBatches(ids, length=10, batch_size=8)
    batches = all_batches(source)
    for before, after in itertools.pairwise(batches):
        assert np.array_equal(before[0][:, -1] + 1, after[0][:, 0])
    for row in range(8):
        stream = np.concatenate([x[row] for x, _ in batches])
        assert np.array_equal(stream, np.arange(row * 124, row * 124 + len(batches) * 10))
    assert all(np.array_equal(x + 1, y) for x, y in batches)
    assert len(source) == 12
    assert source.dropped == 999 - 960
    for where, expected in (((3, 5), batches[5:]), ((3,), batches)):
        for one, other in zip(source.batches(*where), expected, strict=True):
            np.testing.assert_array_equal(one, other)


def test_stream_too_short_raises_data_error_with_lengths():
    StreamBatches(np.arange(81), length=10, batch_size=8)
    with pytest.raises(DataError, match=r"80 characters.*8 streams of 10.*at least 81"):
        StreamBatches(np.arange(80), length=10, batch_size=8)


def test_text_sources_say_what_an_item_is():
    ids = np.arange(1000)
    text = TextBatches(ids, length=10, batch_size=8, item="tokens")
    stream = StreamBatches(ids, length=10, batch_size=8)
    found = [(s.item, s.items_per_batch, s.batch_size) for s in (text, stream)]
    assert found == [("tokens", 80, 8), ("characters", 80, 8)]
    assert all(isinstance(source, BatchSource) for source in (text, stream))


def test_text_fingerprints_depend_on_text_and_settings():
    ids = np.arange(1000)
    made = [
        TextBatches(ids, length=10, batch_size=8),
        TextBatches(ids, length=10, batch_size=8, seed=1),
        TextBatches(ids, length=10, batch_size=8, drop_last=False),
        TextBatches(ids, length=11, batch_size=8),
        TextBatches(ids[::-1], length=10, batch_size=8),
        StreamBatches(ids, length=10, batch_size=8),
        StreamBatches(ids, length=10, batch_size=9),
    ]
    assert len({source.fingerprint() for source in made}) == len(made)
    assert TextBatches(ids.copy(), length=10, batch_size=8).fingerprint() == made[0].fingerprint()
