"""Numbers as a reader wants them: few digits, and a unit that fits.

Reports, charts and the command line all use it, so that a figure reads the same everywhere.
"""

import math
import re
from collections.abc import Iterable, Iterator, Sequence

_PREFIXES = ((1e9, " G"), (1e6, " M"), (1e3, " k"))
_SIZES = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
_TIMES_MS = ((1e3, "s", 1e-3), (1.0, "ms", 1.0), (1e-3, "µs", 1e3), (0.0, "ns", 1e6))
TIME_UNITS_MS = {"ns": 1e-6, "us": 1e-3, "µs": 1e-3, "ms": 1.0, "s": 1e3}
"""Milliseconds in each unit of time."""
# Characters that move the cursor or reverse the writing direction, except tab and newline.
_INVISIBLE = "\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069"
_MOST_FACTOR = 1e6  # a larger factor cannot be a measurement


def number(value: float, digits: int = 3) -> str:
    """A number with `digits` significant digits and thousands separators: 0.0123, 1.50, 12,345.

    Whole digits are never rounded away: 12,345 stays 12,345.
    """
    if not math.isfinite(value):
        return "infinite" if value > 0 else "minus infinite" if value < 0 else "not a number"
    if value == 0:
        return "0"
    if not 1e-6 <= abs(value) < 1e15:
        return f"{value:.{digits - 1}e}"
    decimals = max(0, digits - 1 - math.floor(math.log10(float(f"{abs(value):.{digits - 1}e}"))))
    return f"{value:,.{decimals}f}"


def rounded(value: float) -> str:
    """A number with three significant digits, whole ones included: 0.0123, 1.50, 12,300."""
    return number(float(f"{value:.2e}"))


def loss(value: float) -> str:
    """A loss or an error: four decimals, and three digits of a small one: 1.2345, 0.0123, 3.1e-05."""
    return f"{value:.4f}" if value == 0 or abs(value) >= 1e-3 else f"{value:.3g}"


def bare(label: str) -> str:
    """A number, with or without its unit, stripped of trailing zeros: 1.50 ms becomes 1.5 ms."""
    return re.sub(r"\.(\d*?)0+(?!\d)", lambda found: f".{found[1]}" if found[1] else "", label)


def visible(text: str) -> str:
    """Text of several lines, without characters that move the cursor or reverse the writing direction."""
    return re.sub(f"[{_INVISIBLE}]", " ", text)


def one_line(text: str) -> str:
    """Like `visible`, but on one line, for a message or a table: tabs and newlines become spaces too."""
    return re.sub(f"[\t\n{_INVISIBLE}]+", " ", text).strip()


def listed(items: Sequence[str], most: int) -> str:
    """The first of many items in words: a, b and 3 more."""
    more = f" and {len(items) - most:,} more" if len(items) > most else ""
    return f"{', '.join(items[:most])}{more}"


def whole(value: float) -> str:
    """A count: 12,345."""
    return f"{value:,.0f}" if math.isfinite(value) else number(value)


def short(value: float) -> str:
    """Three significant digits with a prefix from a thousand on: 247 k."""
    for limit, suffix in _PREFIXES:
        if limit * 0.9995 <= abs(value) < 1e15:
            return number(value / limit) + suffix
    return number(value)


def size(value: float) -> str:
    """Bytes, in powers of a thousand: 1.7 MB."""
    for limit, unit in _SIZES:
        if limit * 0.9995 <= abs(value) < 1e15:
            return f"{bare(number(value / limit))} {unit}"
    return f"{number(value) if abs(value) >= 1e15 else whole(value)} bytes"


def milliseconds(value: float) -> str:
    """A time in ms, in the unit that fits: 19.8 µs."""
    for limit, unit, factor in _TIMES_MS:
        if abs(value) >= limit * 0.9995 and value:
            return f"{number(value * factor)} {unit}"
    return f"{number(value)} ms"


def counted(count: int, noun: str, plural: str = "") -> str:
    """A count and what it counts: 1 row, 2,000 rows. `plural` is for nouns that take more than an s."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def duration(seconds: float) -> str:
    """Hours, minutes and seconds, the two largest that matter: 1 h 05 min."""
    if not math.isfinite(seconds) or seconds < 0 or seconds >= 1e9:
        return f"{number(seconds)} s"
    if seconds < 10:
        return bare(milliseconds(1e3 * seconds))
    rounded = round(seconds)
    if rounded >= 3600:
        return f"{rounded // 3600} h {rounded % 3600 // 60:02d} min"
    return f"{rounded // 60} min {rounded % 60:02d} s" if rounded >= 60 else f"{rounded} s"


def quantity(value: float, unit: str) -> str:
    """A value with any unit: bytes and times in the unit that fits, rates with a prefix."""
    if unit == "bytes":
        return size(value)
    if unit in TIME_UNITS_MS:
        return milliseconds(value * TIME_UNITS_MS[unit])
    if unit.endswith("/s"):
        return f"{short(value)} {unit}"
    return f"{bare(number(value, 4))} {unit}".rstrip()


def percent(share: float) -> str:
    """A share, with two digits: 0.012 is 1.2 %."""
    value = 100 * share
    if not math.isfinite(value) or abs(value) >= 1e6:
        return "more than a million %" if value > 0 else f"{number(value, 2)} %"
    return "0 %" if abs(value) < 0.005 else f"{bare(number(value, 2))} %"


def times(factor: float) -> str:
    """A factor: 34.2x."""
    if not factor < _MOST_FACTOR:
        return "over a million x"
    return f"{number(factor)}x"


def aligned(rows: Sequence[Sequence[str]], flush_right: Iterable[int]) -> Iterator[str]:
    """Rows of a table for a terminal, in aligned columns; the columns numbered in `flush_right` align to the right."""
    right = set(flush_right)
    widths = [max(len(row[n]) for row in rows) for n in range(len(rows[0]))]
    for row in rows:
        padded = [
            word.rjust(width) if n in right else word.ljust(width)
            for n, (word, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(padded).rstrip()
