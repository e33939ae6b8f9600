import copy

import numpy as np
import pytest

from cellerate.data.windows.changed import MeanOverItems
from cellerate.data.windows.sampled import SampledBatches, spread, spread_order
from cellerate.data.windows.shares import share_of
from cellerate.data.windows.text_windows import StreamBatches, TextBatches
from cellerate.data.windows.windows import WindowSettings, WindowSource

IDS = np.arange(1000) % 17


def test_spread_has_the_first_and_the_last():
    assert spread(100, 4) == [0, 33, 66, 99]
    assert spread(3, 9) == [0, 1, 2]


@pytest.mark.parametrize("count", [1, 2, 7, 64, 1000])
def test_spread_order_has_every_number_once_and_each_beginning_is_spread_over_all(count):
    order = spread_order(count)
    assert sorted(order) == list(range(count))
    for some in (4, 16, 100):
        if some < count:
            gaps = np.diff([0, *sorted(order[:some]), count])
            assert gaps.max() <= 2.1 * count / some + 1


@pytest.mark.parametrize("processes", [1, 2])
def test_sampled_batches_have_a_weighted_mean_that_is_that_of_their_items(processes):
    plain = WindowSource(
        IDS.astype(np.float32), WindowSettings(window=4, horizon=2, batch_size=6, drop_last=False)
    )
    source = SampledBatches(MeanOverItems(plain, 995), 5)
    assert len(source) == 5
    assert len(plain) == 166  # the last batch is filled up, and never in a sample
    expected = [plain.batch(0, index) for index in (0, 41, 82, 123, 164)]
    shares = [share_of(source, number, processes) for number in range(processes)]
    for index, (x, y, _) in enumerate(expected):
        found = [one.batch(0, index) for one in shares]
        np.testing.assert_array_equal(np.concatenate([batch[0] for batch in found]), x)
        np.testing.assert_array_equal(np.concatenate([batch[1] for batch in found]), y)
        np.testing.assert_allclose(np.concatenate([batch[2] for batch in found]), 1, rtol=1e-6)
    assert source.fingerprint() not in (plain.fingerprint(), SampledBatches(plain, 6).fingerprint())


def test_sampled_streams_go_on_from_batch_to_batch():
    plain = StreamBatches(IDS, length=10, batch_size=5)
    source = SampledBatches(plain, 3, in_order=True)
    for index in range(3):
        for one, other in zip(source.batch(0, index), plain.batch(0, index), strict=True):
            np.testing.assert_array_equal(one, other)


def test_sample_of_lines_shows_keras_its_shortest_and_its_longest_batch():
    plain = TextBatches(IDS, length=10, batch_size=5, drop_last=False)
    plain.extremes = lambda epoch: (0, len(plain) - 1)
    source = copy.copy(SampledBatches(plain, 3))
    assert source.extremes(0) == (0, 2)
    assert not hasattr(SampledBatches(TextBatches(IDS, length=10, batch_size=5), 3), "extremes")
