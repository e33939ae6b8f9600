"""A chart of the parts of a whole: a bar for each, in segments of several kinds, with its size in words."""

from __future__ import annotations

import dataclasses

from markupsafe import Markup

from cellerate.report.svg import canvas, labels
from cellerate.report.svg.canvas import Chart, Scale

_ROW, _BAR = 42.0, 16.0
WAITING = "waiting"
"""The kind of segment for time in which nothing happens; it looks empty."""


@dataclasses.dataclass(frozen=True)
class PartBar:
    """A part.

    Attributes:
        name: The name of the part.
        segments: The size of each kind, in the order of the chart's kinds.
        words: Its size, in words.
    """

    name: str
    segments: tuple[float, ...]
    words: str


@dataclasses.dataclass(frozen=True)
class PartsChart(Chart):
    """A chart of parts.

    Attributes:
        bars: The parts, at least one.
        kinds: The kinds of segments, each with its meaning in words; `WAITING` and others.
    """

    bars: tuple[PartBar, ...]
    kinds: tuple[tuple[str, str], ...]

    def body(self, width: float) -> tuple[Markup, float]:
        """See `Chart.body`."""
        shown = [n for n in range(len(self.kinds)) if any(bar.segments[n] for bar in self.bars)]
        signs = [(_segment(-12, 24, -8, self.kinds[n][0], height=12.0), self.kinds[n][1]) for n in shown]
        head, top = labels.legend(signs, width, 0) if len(shown) > 1 else (Markup(""), 0.0)
        longest = max(sum(bar.segments) for bar in self.bars) or 1.0
        x = Scale(0.0, longest, 2.0, width - 2.0)
        parts = [head]
        for row, bar in enumerate(self.bars):
            y = top + 4 + row * _ROW
            named = canvas.shorten(bar.name, width - 16 - canvas.text_width(bar.words))
            parts.append(canvas.text(2, y + 14, named, class_="strong"))
            parts.append(canvas.text(width - 2, y + 14, bar.words, anchor="end"))
            reached = 0.0
            for n, size in enumerate(bar.segments):
                if size > 0:
                    left, right = x(reached), x(reached + size)
                    parts.append(_segment(left, max(1.0, right - left), y + 20, self.kinds[n][0]))
                    reached += size
        return Markup("").join(parts), top + 8 + _ROW * len(self.bars)


def _segment(left: float, width: float, top: float, kind: str, height: float = _BAR) -> Markup:
    return canvas.element("rect", x=left, y=top, width=width, height=height, rx=1.0, class_=f"bar {kind}")
