import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from cellerate.data.arrays import shuffle
from cellerate.data.arrays.shuffle import Permutation, ShuffledRuns, derive_seed
from cellerate.errors import ConfigError

FIRST_TEN = [1, 4, 7, 8, 5, 9, 0, 2, 3, 6]
FIRST_FIVE = [5230, 2208, 35999, 93515, 95188]
SIZES = [1, 2, 3, 4, 5, 7, 8, 13, 64, 97, 1000, 4095, 4096, 4097, 5003, 8192, 10_007, 16_384, 65_536, 65_537]


@pytest.fixture(params=["table", "network"])
def method(request, monkeypatch):
    """Both ways to compute an order, at every size each of them can do."""
    if request.param == "network":
        monkeypatch.setattr(shuffle, "_TABLE_LIMIT", 1)
    return request.param


@pytest.mark.parametrize("n", SIZES)
def test_permutation_of_any_size_is_a_bijection(method, n):
    order = Permutation(n, seed=5)(np.arange(n))
    assert order.dtype == np.int64
    assert np.array_equal(np.sort(order), np.arange(n))


@settings(max_examples=150, deadline=None)
@given(n=st.integers(1, 20_000), seed=st.integers(-(2**70), 2**70))
def test_permutation_of_random_size_and_seed_is_a_bijection(n, seed):
    order = Permutation(n, seed)(np.arange(n))
    assert np.array_equal(np.sort(order), np.arange(n))


@pytest.mark.parametrize("n", [100, 5003, 65_536, 1_000_003])
def test_permutation_moves_nearly_everything_and_depends_on_the_seed(n):
    places = np.arange(n)
    one, other = Permutation(n, 1)(places), Permutation(n, 2)(places)
    # A random order has one fixed point, and agrees with another in one place, on average.
    assert (one == places).sum() < 8
    assert (one == other).sum() < 8


def test_permutation_any_subset_any_shape_equals_the_whole():
    order = Permutation(123_457, 9)
    whole = order(np.arange(123_457))
    asked = np.array([[5, 123_456, 0], [77_777, 5, 3]], dtype=np.uint32)
    assert np.array_equal(order(asked), whole[asked])
    assert order(np.array([], dtype=np.int64)).shape == (0,)


@pytest.mark.parametrize("n", [7, 64, 5003])
def test_first_element_over_many_seeds_is_uniform(method, n):
    seeds = 4000
    firsts = np.array([Permutation(n, seed)(np.array([0]))[0] for seed in range(seeds)])
    bins = min(n, 16)
    counts = np.bincount(firsts * bins // n, minlength=bins)
    expected = np.bincount(np.arange(n) * bins // n, minlength=bins) / n * seeds
    chi_square = ((counts - expected) ** 2 / expected).sum()
    # Mean bins-1, deviation sqrt(2(bins-1)): six deviations up is one in some hundred thousand.
    assert chi_square < (bins - 1) + 6 * np.sqrt(2 * (bins - 1))


@pytest.mark.parametrize("n", [4097, 65_536, 1_000_003])
def test_neighbours_in_the_order_are_far_apart_and_uncorrelated(n):
    order = Permutation(n, 3)(np.arange(n)).astype(np.float64)
    correlation = np.corrcoef(order[:-1], order[1:])[0, 1]
    assert abs(correlation) < 5 / np.sqrt(n)
    # The distance of two random numbers below n is n/3 on average, with a deviation of n/sqrt(18): that is of the
    # average 1/sqrt(2), and less by sqrt(n) for the mean of n distances. Four of these.
    assert np.abs(np.diff(order)).mean() == pytest.approx(n / 3, rel=4 / np.sqrt(2 * n))


def test_pairs_of_neighbours_fill_a_grid_evenly():
    n = 200_003
    order = Permutation(n, 11)(np.arange(n))
    grid = np.bincount((order[:-1] * 16 // n) * 16 + order[1:] * 16 // n, minlength=256)
    chi_square = ((grid - n / 256) ** 2 / (n / 256)).sum()
    assert abs(chi_square - 255) < 6 * np.sqrt(2 * 255)


def test_permutation_of_a_huge_range_needs_no_table():
    order = Permutation(2**50 + 3, 4)
    found = order(np.arange(10_000))
    assert len(np.unique(found)) == 10_000
    assert found.min() >= 0
    assert found.max() < 2**50 + 3
    assert found.max() > 2**49


def test_permutation_order_is_the_same_on_every_machine_and_version():
    assert Permutation(10, 1)(np.arange(10)).tolist() == FIRST_TEN
    assert Permutation(100_000, 1)(np.arange(5)).tolist() == FIRST_FIVE


@pytest.mark.parametrize("n", [0, -1, 2**62 + 1])
def test_permutation_of_impossible_size_raises_config_error(n):
    with pytest.raises(ConfigError, match=str(n)):
        Permutation(n, 0)


@pytest.mark.parametrize("n", [10, 10_000])
@pytest.mark.parametrize("place", [-1, "n"])
def test_permutation_place_outside_raises_index_error(n, place):
    with pytest.raises(IndexError, match="outside"):
        Permutation(n, 0)(np.array([0, n if place == "n" else place]))


def test_derive_seed_tells_order_and_number_of_keys_apart():
    seeds = [derive_seed(1), derive_seed(2), derive_seed(1, 0), derive_seed(1, 1), derive_seed(1, 0, 1)]
    seeds += [derive_seed(1, 1, 0), derive_seed(1, 0, 0)]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**64 for seed in seeds)


def test_shuffled_runs_equal_the_permutation_across_slices():
    order = Permutation(50_000, 8)
    whole = order(np.arange(50_000))
    runs = ShuffledRuns(order)
    for first, last in ((0, 10), (16_380, 16_390), (100, 49_000), (49_990, 50_000), (0, 50_000)):
        assert np.array_equal(runs.run(first, last), whole[first:last])
