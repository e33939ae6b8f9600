"""The quality of a model and its interval, checked on populations of known mean."""

import numpy as np
import pytest

from cellerate.errors import DataError, ModelError
from cellerate.optimization.judging import Judged, interval, judged, paired_loss


def test_judged_of_few_items_keeps_their_order():
    found = judged([3.0, 1.0, 2.0])
    assert found == Judged((3.0, 1.0, 2.0), (1.0, 1.0, 1.0))
    assert found.mean == 2.0


def test_judged_of_many_items_makes_blocks_of_neighbours_and_keeps_the_mean():
    random = np.random.default_rng(1)
    values, weights = random.normal(size=1000), random.integers(0, 5, 1000).astype(float)
    found = judged(values, weights)
    assert len(found.values) == len(found.weights) == 64
    assert found.mean == pytest.approx(np.average(values, weights=weights), rel=1e-12)
    kept = weights > 0
    size = int(kept.sum()) // 64
    assert found.values[0] == pytest.approx(
        np.average(values[kept][:size], weights=weights[kept][:size]), rel=1e-12
    )
    assert sum(found.weights) == weights.sum()


def test_judged_omits_items_without_weight():
    assert judged([1.0, 9.0, 3.0], [2.0, 0.0, 1.0]) == Judged((1.0, 3.0), (2.0, 1.0))


@pytest.mark.parametrize(("values", "weights"), [([], None), ([1.0, 2.0], [0.0, 0.0])], ids=["none", "zero"])
def test_judged_of_nothing_raises_data_error(values, weights):
    with pytest.raises(DataError, match="nothing to judge"):
        judged(values, weights)


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_judged_of_a_model_that_diverged_raises_model_error(wrong):
    with pytest.raises(ModelError, match="not finite"):
        judged([1.0, wrong])
    assert judged([1.0, wrong], [1.0, 0.0]).mean == 1.0


def test_judged_survives_json():
    assert Judged([1.0], [2.0]) == Judged((1.0,), (2.0,))


def test_interval_by_hand():
    # Standard error of (1, 2, 3): 1 / sqrt(3); t of 2 degrees of freedom: 4.30.
    found = interval(Judged((1.0, 2.0, 3.0), (1.0, 1.0, 1.0)))
    assert found.value == 2.0
    assert (found.high - 2.0, 2.0 - found.low) == (pytest.approx(4.30 / 3**0.5), pytest.approx(4.30 / 3**0.5))


def test_interval_of_one_block_has_no_width():
    found = interval(Judged((5.0,), (3.0,)))
    assert (found.low, found.value, found.high) == (5.0, 5.0, 5.0)


@pytest.mark.parametrize("items", [4, 12, 40, 3000])
@pytest.mark.parametrize("weighted", [False, True])
def test_interval_covers_the_true_mean_in_95_of_100_draws(items, weighted):
    random = np.random.default_rng(items)
    draws, inside = 2000, 0
    for _ in range(draws):
        weights = random.integers(20, 30, items).astype(float) if weighted else None
        found = interval(judged(random.normal(2.0, 0.7, items), weights))
        inside += found.low <= 2.0 <= found.high
    # Three standard errors of a share of 95 % in 2,000 draws are 1.5 %; 64 blocks take 1.96 for a t of 2.00.
    assert 0.935 <= inside / draws <= 0.965


def test_paired_loss_covers_the_true_difference_and_is_narrower_than_unpaired():
    random = np.random.default_rng(3)
    draws, inside = 1000, 0
    for _ in range(draws):
        before = random.normal(2.0, 0.5, 256)
        after = before + 0.02 + random.normal(0.0, 0.02, 256)
        found = paired_loss(judged(before), judged(after), higher_is_better=False)
        inside += found.low <= 0.01 <= found.high
    assert 0.93 <= inside / draws <= 0.97
    alone = interval(judged(before))
    assert found.high - found.low < (alone.high - alone.low) / 2.0 / 5


@pytest.mark.parametrize(("higher", "sign"), [(False, 1), (True, -1)])
def test_paired_loss_of_a_worse_model_is_above_zero(higher, sign):
    before, after = Judged((1.0, 3.0), (1.0, 1.0)), Judged((1.1, 3.3), (1.0, 1.0))
    found = paired_loss(before, after, higher_is_better=higher)
    assert found.value == pytest.approx(sign * 0.1)
    assert found.low < found.value < found.high


def test_paired_loss_weights_blocks_by_their_size():
    before, after = Judged((1.0, 1.0), (3.0, 1.0)), Judged((1.0, 2.0), (3.0, 1.0))
    assert paired_loss(before, after, higher_is_better=False).value == pytest.approx(0.25)


def test_paired_loss_to_itself_is_exactly_zero():
    one = judged(np.random.default_rng(0).normal(size=300))
    found = paired_loss(one, one, higher_is_better=False)
    assert (found.low, found.value, found.high) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize(("after", "sign"), [(0.0, 0), (0.1, 1), (-0.1, -1)])
def test_paired_loss_to_a_perfect_model_is_zero_or_infinite(after, sign):
    found = paired_loss(Judged((0.0,), (1.0,)), Judged((after,), (1.0,)), higher_is_better=False)
    assert (found.low, found.value, found.high) == (sign * 1e9,) * 3
