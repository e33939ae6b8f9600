import math

import pytest

from cellerate import format as shown


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
    ("value", "text"),
    [
        (32875.3, "32,900"),
        (999.96, "1,000"),
        (12.345, "12.3"),
        (0.48449, "0.484"),
        (0, "0"),
        (math.inf, "infinite"),
    ],
)
def test_rounded_number_has_three_significant_digits_whole_ones_included(value, text):
    assert shown.rounded(value) == text


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
    "count, words, text",
    [(1, ("row",), "1 row"), (0, ("row",), "0 rows"), (2000, ("stretch", "stretches"), "2,000 stretches")],
)
def test_count_has_a_noun_in_its_number(count, words, text):
    assert shown.counted(count, *words) == text


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
    ("value", "text"),
    [
        (1.23456, "1.2346"),
        (0.0123, "0.0123"),
        (3.14159e-5, "3.14e-05"),
        (0.0, "0.0000"),
        (-4e-4, "-0.0004"),
        (math.nan, "nan"),
    ],
)
def test_loss_shows_digits_however_small_it_is(value, text):
    assert shown.loss(value) == text
