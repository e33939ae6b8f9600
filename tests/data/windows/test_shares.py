import itertools

import numpy as np
import pytest

from cellerate.data.arrays.batches import iterate
from cellerate.data.text.lines import LineBatches, LineVocabulary
from cellerate.data.windows.changed import MeanOverItems
from cellerate.data.windows.shares import share_of
from cellerate.data.windows.text_windows import TextBatches
from cellerate.data.windows.windows import WindowSettings, WindowSource

VALUES = np.arange(400, dtype=np.float32)[:, None] * [1, -1]
IDS = np.arange(1000, dtype=np.uint16) % 60
LINES = ["a" * (1 + 7 * n % 40) for n in range(50)]


def windows(**settings):
    return WindowSource(VALUES, WindowSettings(window=5, horizon=2, batch_size=12, seed=3, **settings))


def lines():
    return LineBatches(LINES, LineVocabulary.from_lines(LINES), batch_size=12, max_length=40, seed=1)


SOURCES = {
    "windows": windows,
    "windows with a filled batch": lambda: windows(drop_last=False),
    "one batch of which most is filler": lambda: WindowSource(
        VALUES[:9], WindowSettings(window=5, horizon=2, batch_size=12, drop_last=False)
    ),
    "text": lambda: TextBatches(IDS, length=20, batch_size=12, seed=2),
    "all of a text": lambda: TextBatches(IDS, length=20, batch_size=12, drop_last=False),
    "mean over items": lambda: MeanOverItems(
        TextBatches(IDS, length=20, batch_size=12, drop_last=False), 999
    ),
    "lines": lines,
}


def flat(batch):
    return [array for part in batch for array in (part.values() if isinstance(part, dict) else [part])]


@pytest.mark.parametrize("count", [2, 3, 4, 12])
@pytest.mark.parametrize("name", SOURCES)
def test_shares_side_by_side_are_the_batch(name, count):
    whole = SOURCES[name]()
    shares = [share_of(SOURCES[name](), number, count) for number in range(count)]
    assert {len(share) for share in shares} == {len(whole)}
    assert {share.batch_size for share in shares} == {whole.batch_size // count}
    assert {share.fingerprint() for share in shares} == {whole.fingerprint()}
    for epoch, index in itertools.product((0, 1), range(len(whole))):
        parts = [flat(share.batch(epoch, index)) for share in shares]
        joined = [np.concatenate(arrays) for arrays in zip(*parts, strict=True)]
        for found, expected in zip(joined, flat(whole.batch(epoch, index)), strict=True):
            np.testing.assert_array_equal(found, expected)
            assert found.dtype == expected.dtype


@pytest.mark.parametrize("count", [5, 7, 24])
@pytest.mark.parametrize("name", SOURCES)
def test_shares_that_do_not_divide_keep_the_mean(name, count):
    whole = SOURCES[name]()
    shares = [share_of(SOURCES[name](), number, count) for number in range(count)]
    for index in range(len(whole)):
        means, rows = [], []
        for share in shares:
            *_, y, weight = share.batch(0, index)
            value = y.reshape(len(y), -1).astype(np.float64)
            counted = np.broadcast_to(weight.reshape(len(y), -1), value.shape)
            means.append((value * counted).mean())
            rows.append(y[counted.any(axis=1)])
            assert len(y) == share.batch_size
        _, y, *weight = whole.batch(0, index)
        value = y.reshape(len(y), -1).astype(np.float64)
        expected = (
            np.broadcast_to(weight[0].reshape(len(y), -1), value.shape) if weight else np.ones_like(value)
        )
        np.testing.assert_allclose(np.mean(means), (value * expected).mean(), rtol=1e-6)
        np.testing.assert_array_equal(np.concatenate(rows), y[expected.any(axis=1)])


def test_one_process_has_the_source_itself():
    source = windows()
    assert share_of(source, 0, 1) is source


def test_share_reads_ahead_as_it_reads_one_by_one():
    share = share_of(windows(), 1, 3)
    for start in (0, 7):
        ahead = list(iterate(share, 1, start, len(share)))
        for index, batch in enumerate(ahead, start):
            for found, expected in zip(batch, share.batch(1, index), strict=True):
                np.testing.assert_array_equal(found, expected)


def test_share_reads_only_its_own_rows(monkeypatch):
    read = []
    plain = WindowSource._read
    monkeypatch.setattr(
        WindowSource, "_read", lambda self, epoch, *run: read.append(run) or plain(self, epoch, *run)
    )
    share_of(windows(), 1, 3).batch(0, 2)
    assert read
    assert {last - first for first, last in read} == {4}


@pytest.mark.parametrize("counts", [(2, 1, 2, 3), (1, 4, 6), (3, 2, 12, 1), (12, 12)])
def test_every_window_comes_once_an_epoch_however_many_processes_there_are(counts):
    source = windows()
    borders = np.linspace(0, len(source), len(counts) + 1).astype(int)
    seen = []
    for count, (start, stop) in zip(counts, itertools.pairwise(borders), strict=True):
        for number in range(count):
            for x, _ in iterate(share_of(windows(), number, count), 4, start, stop):
                seen += x[:, 0, 0].astype(int).tolist()
    assert len(seen) == len(source) * source.batch_size
    assert len(set(seen)) == len(seen)
    assert len(source) * source.batch_size > len(VALUES) - 7 - source.batch_size
