"""Bars of contestants' speeds that begin at 0, and intervals of ratios around 1."""

from __future__ import annotations

import dataclasses

from markupsafe import Markup

from cellerate.format import bare, number
from cellerate.report.svg.canvas import (
    Box,
    Chart,
    Scale,
    element,
    line,
    linear_ticks,
    log_ticks,
    marker,
    shorten,
    tame,
    text,
    text_width,
)

_ROW, _BAR = 40.0, 14.0
_MOST_ROWS = 60  # more would not be readable, and no run of ours has more


@dataclasses.dataclass(frozen=True)
class Bar:
    """A contestant.

    Attributes:
        name: Shown above the bar.
        value: The length of the bar.
        low: The lower end of the range.
        high: The upper end of the range.
        words: The value in words, shown beside the name.
        ours: Whether it stands out.
    """

    name: str
    value: float
    low: float
    high: float
    words: str
    ours: bool


@dataclasses.dataclass(frozen=True)
class BarChart(Chart):
    """Bars that begin at 0, so that twice as long is twice as much.

    Attributes:
        bars: The contestants, at least one.
        x_label: The label of the axis, with its unit.
    """

    bars: tuple[Bar, ...]
    x_label: str

    def body(self, width: float) -> tuple[Markup, float]:
        """See `Chart.body`."""
        bars = self.bars[:_MOST_ROWS]
        box = Box(2, 4, width - 2, 4 + _ROW * len(bars))
        x = Scale(0.0, max(tame(bar.high) for bar in bars) or 1.0, box.left, box.right - 8)
        parts = _grid(box, x, linear_ticks(x, int(width / 90) + 1), self.x_label)
        for n, bar in enumerate(bars):
            top, end = box.top + n * _ROW, x(tame(bar.value))
            parts.append(_named(top, bar.name, bar.words, width, "strong" if bar.ours else "mark"))
            long = max(end - box.left, 1.5)
            class_ = "bar total" if bar.ours else "dot original"
            parts.append(
                element("rect", x=box.left, y=top + 21, width=long, height=_BAR, rx=2.0, class_=class_)
            )
            parts += _whisker(x(tame(bar.low)), x(tame(bar.high)), top + 21 + _BAR / 2)
        return Markup("").join(parts), box.bottom + 36


@dataclasses.dataclass(frozen=True)
class RatioChart(Chart):
    """Ratios with their intervals, compared with 1.

    Attributes:
        bars: The compared jobs, at least one; "ours" marks those that became worse.
        limit: The ratio from which on a change counts; drawn as a line.
        x_label: The label of the axis.
    """

    bars: tuple[Bar, ...]
    limit: float
    x_label: str

    def body(self, width: float) -> tuple[Markup, float]:
        """See `Chart.body`."""
        bars = self.bars[:_MOST_ROWS]
        box = Box(2, 4, width - 2, 4 + _ROW * len(bars))
        values = [1.0, self.limit, *(each for bar in bars for each in (bar.low, bar.value, bar.high))]
        x = Scale.around(values, box.left + 12, box.right - 16, log=True)
        ticks = _ratio_ticks(x, int(width / 80) + 1)
        parts = _grid(box, x, ticks, self.x_label)
        parts.append(line(x(1.0), box.top, x(1.0), box.bottom, "axis"))
        parts.append(line(x(self.limit), box.top, x(self.limit), box.bottom, "gate"))
        for n, bar in enumerate(bars):
            top, middle = box.top + n * _ROW, box.top + n * _ROW + 21 + _BAR / 2
            parts.append(_named(top, bar.name, bar.words, width, "fall" if bar.ours else "mark"))
            parts += _whisker(x(bar.low), x(bar.high), middle)
            parts.append(marker(3 if bar.ours else 0, x(bar.value), middle, "dot s0", 5))
        return Markup("").join(parts), box.bottom + 36


def _grid(box: Box, x: Scale, ticks: list[tuple[float, str]], label: str) -> list[Markup]:
    parts = []
    reached = float("-inf")
    for value, words in ticks:
        place, half = x(value), text_width(words) / 2
        parts.append(line(place, box.top + 18, place, box.bottom, "grid"))
        if place - half > reached and place + half < box.right + 2:
            parts.append(text(max(place, half), box.bottom + 16, words, anchor="middle"))
            reached = place + half + 6
    shown = shorten(label, box.right - 4)
    parts.append(text(box.right, box.bottom + 32, shown, anchor="end", class_="label"))
    return parts


def _named(top: float, name: str, words: str, width: float, class_: str) -> Markup:
    # Text has the page's colour behind it, so that grid lines do not cross it.
    under = element("rect", x=0.0, y=top + 2, width=width, height=17.0, class_="under")
    words = shorten(words, width / 2)
    name = shorten(name, width - 16 - text_width(words))
    label = text(width - 2, top + 15, words, anchor="end", class_=class_)
    return under + text(2, top + 15, name, class_=class_) + label


def _whisker(low: float, high: float, y: float) -> list[Markup]:
    ends = [line(end, y - 4, end, y + 4, "interval") for end in (low, high)]
    return [line(low, y, high, y, "interval"), *ends]


def _ratio_ticks(x: Scale, count: int) -> list[tuple[float, str]]:
    if x.high / x.low > 4:
        return log_ticks(x, count, number)
    # Close to 1, a log scale is almost linear.
    ticks = linear_ticks(Scale(x.low, x.high, x.start, x.end), count)
    return [(value, bare(number(value, 4))) for value, _ in ticks if value > 0]
