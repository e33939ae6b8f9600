import math

import pytest

from cellerate.report import format as shown
from cellerate.report.record import Change


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.01234, "0.0123"),
        (1.5, "1.50"),
        (9.996, "10.0"),
        (-9.996, "-10.0"),
        (12345.6, "12,346"),
        (1e-9, "1.00e-09"),
        (1e300, "1.00e+300"),
        (math.inf, "infinite"),
        (math.nan, "not a number"),
    ],
)
def test_number_has_three_significant_digits_and_whole_ones_stay(value, text):
    assert shown.number(value) == text


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (246_912.0, "characters/s", "247 k characters/s"),
        (999.9, "characters/s", "1.00 k characters/s"),
        (41.0, "lines/s", "41.0 lines/s"),
        (0.0198, "ms", "19.8 µs"),
        (0.99996, "ms", "1.00 ms"),
        (4.2e-6, "ms", "4.20 ns"),
        (0.0, "ms", "0 ms"),
        (12.5, "s", "12.5 s"),
        (1_702_880, "bytes", "1.7 MB"),
        (999_999, "bytes", "1 MB"),
        (879_700_000, "bytes", "880 MB"),
        (512, "bytes", "512 bytes"),
        (2.15e9, "bytes", "2.15 GB"),
        (1e30, "bytes", "1.00e+30 bytes"),
        (0.4, "%", "0.4 %"),
        (1.9473, "", "1.947"),
    ],
)
def test_quantity_has_the_unit_that_fits(value, unit, text):
    assert shown.quantity(value, unit) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.25, "250 ms"),
        (9.0, "9 s"),
        (59.6, "1 min 00 s"),
        (71, "1 min 11 s"),
        (3900, "1 h 05 min"),
        (math.inf, "infinite s"),
    ],
)
def test_duration_has_the_two_largest_units(seconds, text):
    assert shown.duration(seconds) == text


@pytest.mark.parametrize(
    ("label", "text"),
    [("1.50 ms", "1.5 ms"), ("10.0x", "10x"), ("100", "100"), ("0.0500", "0.05"), ("1,000", "1,000")],
)
def test_bare_label_has_no_zeros_at_its_end(label, text):
    assert shown.bare(label) == text


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
    assert shown.effect(Change(quantity, "", before, after, unit, higher)) == (text, tone)
