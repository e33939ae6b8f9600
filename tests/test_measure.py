"""What is faster, told from timings in turns on a machine that other programs use, too."""

import pytest

from cellerate.measure import Order, as_timing, order_of


@pytest.mark.parametrize(
    ("ratios", "factor", "agreeing", "certain"),
    [
        ((2.0, 2.1, 1.9), 2.0, 3, True),
        # One of three may be chance, one of six was spoiled.
        ((2.0, 2.1, 0.9), 2.0, 2, False),
        ((2.0, 2.1, 2.0, 2.0, 2.0, 0.2), 2.0, 5, True),
        ((2.0, 2.1, 2.0, 2.0, 0.2, 0.2), 2.0, 4, False),
        ((0.5, 0.4, 0.5, 0.5, 0.5), 0.5, 5, True),
        ((3.0,), 3.0, 1, False),
    ],
)
def test_order_is_certain_only_where_turns_agree(ratios, factor, agreeing, certain):
    order = Order(ratios)
    assert (order.factor, order.agreeing, order.certain) == (factor, agreeing, certain)
    assert order.in_words == f"in {agreeing} of {len(ratios)} turns"


def test_order_is_of_the_fast_steps_of_each_turn_as_other_work_only_delays():
    quiet, busy = as_timing([1.0] * 10), as_timing([1.0] * 4 + [9.0] * 6)
    twice = as_timing([0.5] * 10)
    # By its median the first took nine times as long in its busy turn.
    assert order_of([quiet, busy, quiet], [twice] * 3).ratios == (2.0, 2.0, 2.0)


def test_order_of_turns_that_are_not_as_many_raises():
    with pytest.raises(ValueError, match="shorter"):
        order_of([as_timing([1.0])], [])
