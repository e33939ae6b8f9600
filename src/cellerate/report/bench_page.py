"""The page of `cellerate bench`: a run, or two runs compared, as one self-contained HTML file.

It knows words, tables and charts, and no record: whoever measures says what they show. The two charts are drawn here,
because no other page has bars of speeds or intervals around 1.
"""

import dataclasses

from markupsafe import Markup

from cellerate.format import bare, number
from cellerate.report.effects import Tone
from cellerate.report.html import render
from cellerate.report.svg import canvas
from cellerate.report.svg.canvas import Box, Chart, Scale
from cellerate.report.tables import Figure, Table
from cellerate.report.view import Tile

_ROW, _BAR = 40.0, 14.0
_MOST_ROWS = 60  # more could not be read, and come from no run of ours


@dataclasses.dataclass(frozen=True)
class Bar:
    """A contestant.

    Attributes:
        name: Shown above the bar.
        value: What the bar shows.
        low: The lower end of what was seen.
        high: The upper end.
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
        x = Scale(0.0, max(canvas.tame(bar.high) for bar in bars) or 1.0, box.left, box.right - 8)
        parts = _grid(box, x, canvas.linear_ticks(x, int(width / 90) + 1), self.x_label)
        for n, bar in enumerate(bars):
            top, end = box.top + n * _ROW, x(canvas.tame(bar.value))
            parts.append(_named(top, bar.name, bar.words, width, "strong" if bar.ours else "mark"))
            long = max(end - box.left, 1.5)
            class_ = "bar total" if bar.ours else "dot original"
            parts.append(
                canvas.element("rect", x=box.left, y=top + 21, width=long, height=_BAR, rx=2.0, class_=class_)
            )
            parts += _whisker(x(canvas.tame(bar.low)), x(canvas.tame(bar.high)), top + 21 + _BAR / 2)
        return Markup("").join(parts), box.bottom + 36


@dataclasses.dataclass(frozen=True)
class RatioChart(Chart):
    """Ratios with their intervals, beside 1.

    Attributes:
        bars: What was compared, at least one; "ours" are those that got worse.
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
        parts.append(canvas.line(x(1.0), box.top, x(1.0), box.bottom, "axis"))
        parts.append(canvas.line(x(self.limit), box.top, x(self.limit), box.bottom, "gate"))
        for n, bar in enumerate(bars):
            top, middle = box.top + n * _ROW, box.top + n * _ROW + 21 + _BAR / 2
            parts.append(_named(top, bar.name, bar.words, width, "fall" if bar.ours else "mark"))
            parts += _whisker(x(bar.low), x(bar.high), middle)
            parts.append(canvas.marker(3 if bar.ours else 0, x(bar.value), middle, "dot s0", 5))
        return Markup("").join(parts), box.bottom + 36


@dataclasses.dataclass(frozen=True)
class Section:
    """A part of the page.

    Attributes:
        heading: Its heading.
        sentences: What is said first.
        figures: Charts with their data.
        tables: Tables without a chart.
        notes: Smaller sentences at the end.
    """

    heading: str
    sentences: tuple[str, ...] = ()
    figures: tuple[Figure, ...] = ()
    tables: tuple[Table, ...] = ()
    notes: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class BenchPage:
    """What the page says.

    Attributes:
        title: The title.
        facts: What it is of, in a few words each.
        sentence: The result in one sentence.
        tone: Whether that is good or bad news.
        tiles: The large figures at the top.
        warnings: What to know before relying on it.
        sections: The rest.
        command: What repeats it; "" for none.
    """

    title: str
    facts: tuple[str, ...]
    sentence: str
    tone: Tone
    tiles: tuple[Tile, ...]
    warnings: tuple[str, ...]
    sections: tuple[Section, ...]
    command: str = ""


def bench_html(page: BenchPage) -> str:
    """The page as HTML; all texts are shown literally."""
    return render("bench.html", title=page.title, page=page)


def _grid(box: Box, x: Scale, ticks: list[tuple[float, str]], label: str) -> list[Markup]:
    parts = []
    reached = float("-inf")
    for value, words in ticks:
        place, half = x(value), canvas.text_width(words) / 2
        parts.append(canvas.line(place, box.top + 18, place, box.bottom, "grid"))
        if place - half > reached and place + half < box.right + 2:
            parts.append(canvas.text(max(place, half), box.bottom + 16, words, anchor="middle"))
            reached = place + half + 6
    shown = canvas.shorten(label, box.right - 4)
    parts.append(canvas.text(box.right, box.bottom + 32, shown, anchor="end", class_="label"))
    return parts


def _named(top: float, name: str, words: str, width: float, class_: str) -> Markup:
    # Text has the page's colour behind it, so that grid lines do not cross it.
    under = canvas.element("rect", x=0.0, y=top + 2, width=width, height=17.0, class_="under")
    words = canvas.shorten(words, width / 2)
    name = canvas.shorten(name, width - 16 - canvas.text_width(words))
    told = canvas.text(width - 2, top + 15, words, anchor="end", class_=class_)
    return under + canvas.text(2, top + 15, name, class_=class_) + told


def _whisker(low: float, high: float, y: float) -> list[Markup]:
    ends = [canvas.line(end, y - 4, end, y + 4, "interval") for end in (low, high)]
    return [canvas.line(low, y, high, y, "interval"), *ends]


def _ratio_ticks(x: Scale, count: int) -> list[tuple[float, str]]:
    if x.high / x.low > 4:
        return canvas.log_ticks(x, count, number)
    # Close to 1, a log scale is almost linear.
    ticks = canvas.linear_ticks(Scale(x.low, x.high, x.start, x.end), count)
    return [(value, bare(number(value, 4))) for value, _ in ticks if value > 0]
