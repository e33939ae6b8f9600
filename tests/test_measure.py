"""What is faster, told from timings in turns on a machine that other programs use, too."""

import numpy as np
import pytest

from cellerate.measure import Order, as_timing, order_of, time_repeated


@pytest.mark.parametrize(
    ("ratios", "factor", "agreeing", "certain"),
    [
        # Three or five turns alike may be chance in one of four, or of sixteen, cases.
        ((2.0, 2.1, 1.9), 2.0, 3, True),
        ((2.0, 2.1, 0.9), 2.0, 2, False),
        # Of six none may contradict the others, of nine one, of twelve two.
        ((2.0, 2.1, 2.0, 2.0, 2.0, 1.1), 2.0, 6, True),
        ((2.0, 2.1, 2.0, 2.0, 2.0, 0.2), 2.0, 5, False),
        ((2.0,) * 8 + (0.2,), 2.0, 8, True),
        ((2.0,) * 7 + (0.2,) * 2, 2.0, 7, False),
        ((2.0,) * 10 + (0.2,) * 2, 2.0, 10, True),
        ((0.5, 0.4, 0.5, 0.5, 0.5), 0.5, 5, True),
        ((3.0,), 3.0, 1, False),
    ],
)
def test_order_is_certain_only_where_turns_agree(ratios, factor, agreeing, certain):
    order = Order(ratios)
    assert (order.factor, order.agreeing, order.certain) == (factor, agreeing, certain)
    assert order.in_words == f"in {agreeing} of {len(ratios)} turns"


@pytest.mark.parametrize("turns", [6, 9, 12, 15])
def test_interval_holds_the_median_of_noise_in_95_of_100_races(turns):
    random = np.random.default_rng(turns)
    orders = [Order(tuple(random.lognormal(0.7, 0.4, turns))) for _ in range(4000)]
    held = np.mean([low <= np.exp(0.7) <= high for low, high in (one.interval for one in orders)])
    # Three standard errors below 95 %; more than that is what so few turns can be sure of.
    assert held > 0.95 - 3 * np.sqrt(0.05 * 0.95 / 4000)
    # And with nothing between two contestants, one of twenty races calls one of them faster, at most.
    alike = [Order(tuple(random.lognormal(0.0, 0.4, turns))) for _ in range(4000)]
    assert np.mean([one.certain for one in alike]) < 0.05 + 3 * np.sqrt(0.05 * 0.95 / 4000)


def test_interval_of_few_turns_is_all_that_was_seen():
    assert Order((1.0, 3.0, 2.0)).interval == (1.0, 3.0)
    assert Order((3.0, 2.0, 1.9)).reach == "2 (95 % interval 1.9 to 3)"


def test_order_is_of_the_fast_steps_of_each_turn_as_other_work_only_delays():
    quiet, busy = as_timing([1.0] * 10), as_timing([1.0] * 4 + [9.0] * 6)
    twice = as_timing([0.5] * 10)
    # By its median the first took nine times as long in its busy turn.
    assert order_of([quiet, busy, quiet], [twice] * 3).ratios == (2.0, 2.0, 2.0)


def test_order_of_turns_that_are_not_as_many_raises():
    with pytest.raises(ValueError, match="shorter"):
        order_of([as_timing([1.0])], [])


@pytest.mark.parametrize(
    ("seconds", "least", "most", "repeats"), [(0.0, 3, 10, 3), (1e9, 3, 10, 10), (1e9, 1, 7, 7)]
)
def test_repetitions_are_at_least_and_at_most_as_many_as_asked_for(seconds, least, most, repeats):
    calls = []
    timing = time_repeated(lambda: calls.append(1), seconds, least=least, most=most)
    assert len(timing.seconds) == len(calls) == repeats
    assert min(timing.seconds) >= 0
