import pytest

from cellerate.report.effects import effect, loss_reach
from cellerate.report.quality import Interval
from cellerate.report.record import Change


@pytest.mark.parametrize(
    ("quantity", "before", "after", "unit", "higher", "text", "tone"),
    [
        ("training", 100, 3420, "characters/s", True, "34.2x faster", "good"),
        ("use", 2.0, 4.2, "ms", False, "2.10x slower", "bad"),
        ("size", 7400, 1000, "bytes", False, "7.40x smaller", "good"),
        ("training", 1e9, 1.5e9, "bytes", False, "1.50x larger", "bad"),
        ("use", 5, 10, "points", True, "2.00x better", "good"),
        ("use", 1.0, 1.004, "ms", False, "unchanged", ""),
        ("use", 0.0, 5.0, "ms", False, "slower", "bad"),
        ("size", 5.0, 0.0, "bytes", False, "smaller", "good"),
        ("training", -3.0, 5.0, "characters/s", True, "faster", "good"),
        ("use", 1e-9, 1e9, "ms", False, "over a million x slower", "bad"),
        (None, 1.95, 1.96, "", False, "0.51 % worse", "bad"),
        (None, 0.90, 0.95, "", True, "5.6 % better", "good"),
        (None, 0.0, 0.1, "", False, "worse", "bad"),
        (None, 2.0, 2.00001, "", False, "unchanged", ""),
    ],
)
def test_effect_says_in_words_whether_it_is_good(quantity, before, after, unit, higher, text, tone):
    assert effect(Change(quantity, "", before, after, unit, higher)) == (text, tone)


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (0.01, 0.025, "1 % to 2.5 % worse"),
        (-0.025, -0.01, "1 % to 2.5 % better"),
        (-0.01, 0.025, "1 % better to 2.5 % worse"),
        (0.0, 0.0, "0 % to 0 % worse"),
    ],
)
def test_reach_of_a_loss_is_told_in_the_words_of_its_value(low, high, text):
    assert loss_reach(Interval((low + high) / 2, low, high)) == text
