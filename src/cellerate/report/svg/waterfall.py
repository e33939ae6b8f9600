"""A chart of the factors by which steps changed a quantity, and their product: bars on an axis of factors."""

from __future__ import annotations

import dataclasses

from markupsafe import Markup

from cellerate.format import times
from cellerate.report.svg import canvas
from cellerate.report.svg.canvas import Box, Chart, Scale

_ROW, _BAR, _TOP = 46.0, 18.0, 6.0
_LARGEST = 1e9


@dataclasses.dataclass(frozen=True)
class WaterfallStep:
    """A step.

    Attributes:
        name: Such as "Packed as int8".
        factor: How many times better it made the quantity; below 1 is worse.
        words: The factor in words: "2.1x faster".
    """

    name: str
    factor: float
    words: str


@dataclasses.dataclass(frozen=True)
class WaterfallChart(Chart):
    """A chart of steps.

    Attributes:
        steps: The steps, at least one.
        total: The combined change of all steps, in words: "12x faster".
        factor: That change as a factor.
    """

    steps: tuple[WaterfallStep, ...]
    total: str
    factor: float

    def body(self, width: float) -> tuple[Markup, float]:
        """See `Chart.body`."""
        reached, spans = 1.0, []
        for step in self.steps:
            after = min(_LARGEST, max(1 / _LARGEST, reached * step.factor))
            spans.append((reached, after))
            reached = after
        whole = min(_LARGEST, max(1 / _LARGEST, self.factor))
        low, high = min(1.0, whole, *(b for _, b in spans)), max(1.0, whole, *(b for _, b in spans))
        low, high = (low, high) if high / low > 1.3 else (low / 1.15, high * 1.15)
        box = Box(2, _TOP, width - 2, _TOP + _ROW * (len(spans) + 1))
        # The labels at the ends of the axis need space, too.
        x = Scale(low, high, box.left + 14, box.right - 18, log=True)
        parts = []
        for value, label in canvas.log_ticks(x, int(width / 70), times):
            parts.append(canvas.line(x(value), box.top + 18, x(value), box.bottom, "grid"))
            parts.append(canvas.text(x(value), box.bottom + 16, label, anchor="middle"))
        parts.append(canvas.line(x(1), box.top + 18, x(1), box.bottom + 4, "axis"))
        for n, (step, (before, after)) in enumerate(zip(self.steps, spans, strict=True)):
            kind = "gain" if after >= before else "fall"
            parts.append(_bar(n, x, (before, after), step.name, step.words, width, kind))
            foot = _TOP + n * _ROW + 22 + _BAR
            parts.append(canvas.line(x(after), foot, x(after), foot + _ROW - _BAR, "link"))
        parts.append(_bar(len(spans), x, (1.0, whole), "In all", self.total, width, "total"))
        return Markup("").join(parts), box.bottom + 22


def _bar(
    n: int, x: Scale, span: tuple[float, float], name: str, words: str, width: float, kind: str
) -> Markup:
    top = _TOP + n * _ROW
    left, right = sorted((x(span[0]), x(span[1])))
    # Text has the page's colour behind it, so that grid lines do not cross it.
    under = canvas.element("rect", x=0.0, y=top + 2, width=width, height=18.0, class_="under")
    named = canvas.shorten(name, width - 16 - canvas.text_width(words))
    class_ = "strong" if kind == "total" else kind
    long = max(right - left, 2.0)
    bar = canvas.element("rect", x=left, y=top + 22, width=long, height=_BAR, rx=2.0, class_=f"bar {kind}")
    return (
        under
        + canvas.text(2, top + 16, named, class_="strong")
        + canvas.text(width - 2, top + 16, words, anchor="end", class_=class_)
        + bar
    )
