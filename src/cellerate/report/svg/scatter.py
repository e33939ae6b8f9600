"""The chart of quality against latency: a dot with an interval for each model, the worst allowed, and the front."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from itertools import combinations
from typing import Literal

from markupsafe import Markup

from cellerate.format import milliseconds
from cellerate.report.svg import canvas, labels
from cellerate.report.svg.canvas import Box, Chart, Scale

Kind = Literal["original", "chosen", "passes", "fails", "control"]

_WORDS: dict[Kind, str] = {
    "original": "original",
    "chosen": "chosen",
    "passes": "within the allowed loss",
    "fails": "beyond the allowed loss",
    "control": "control",
}
_LIMIT = "the worst that is allowed"
_NARROW = 500.0  # as on a telephone
_MOST_LABELS = 40  # more would cover each other, and finding places for them would take seconds


@dataclasses.dataclass(frozen=True)
class Dot:
    """A model.

    Attributes:
        name: The name shown beside the dot, or only on hover if there are too many dots.
        latency_ms: The latency of one call; above 0.
        quality: The quality.
        low: The lower end of the quality's interval.
        high: The upper end of the quality's interval.
        kind: How the dot is marked.
        on_front: Whether the front passes through it.
    """

    name: str
    latency_ms: float
    quality: float
    low: float
    high: float
    kind: Kind
    on_front: bool


@dataclasses.dataclass(frozen=True)
class ScatterChart(Chart):
    """A chart of models.

    Attributes:
        dots: The models, at least one.
        gate: The worst quality that passes; None to leave out the line.
        y_label: The label of y, with its unit.
        higher_is_better: Whether more quality is better.
    """

    dots: tuple[Dot, ...]
    gate: float | None
    y_label: str
    higher_is_better: bool

    def body(self, width: float) -> tuple[Markup, float]:
        """See `Chart.body`."""
        kinds: list[Kind] = [kind for kind in _WORDS if any(dot.kind == kind for dot in self.dots)]
        entries = [(_marker(kind, 0, 0), _WORDS[kind]) for kind in kinds]
        front = sorted((dot.latency_ms, dot.quality) for dot in self.dots if dot.on_front)
        if len(front) > 1:
            entries.append((canvas.line(-12, 0, 12, 0, "front"), "best trade-offs"))
        head, top = labels.legend(entries, width, 0)
        better = "higher is better" if self.higher_is_better else "lower is better"
        y_label = f"{self.y_label}, {better}"
        top += canvas.head_height(y_label, width - 8) + 4
        bottom = top + max(230.0, min(340.0, 0.42 * width))
        values = [canvas.tame(value) for dot in self.dots for value in (dot.quality, dot.low, dot.high)]
        values += [canvas.tame(self.gate)] if self.gate is not None else []
        # The chart shows small differences, so its axis need not start at 0.
        space = 0.12 * (max(values) - min(values)) or 0.02 * abs(values[0]) or 1.0
        y = Scale(min(values) - space, max(values) + space, bottom, top)
        y_ticks = canvas.linear_ticks(y, 6)
        box = Box(canvas.beside_ticks(y_ticks), top, width - 8, bottom)
        x = Scale.around([dot.latency_ms for dot in self.dots], box.left + 12, box.right - 12, log=True)
        x_ticks = canvas.log_ticks(x, int((box.right - box.left) / 75) + 1, milliseconds)
        x_label = "latency of one call (faster to the left)"
        parts = [head, canvas.frame(box, x_ticks, y_ticks, x, y, x_label, y_label)]
        taken = [
            Box(x(d.latency_ms) - 6, y(d.quality) - 6, x(d.latency_ms) + 6, y(d.quality) + 6)
            for d in self.dots
        ]
        if self.gate is not None:
            parts.append(canvas.line(box.left, y(self.gate), box.right, y(self.gate), "gate"))
            above = y(self.gate) - 5
            parts.append(canvas.text(box.right, above, _LIMIT, anchor="end", class_="fall"))
            taken.append(Box(box.left, y(self.gate) - 2, box.right, y(self.gate) + 2))
            taken.append(Box(box.right - canvas.text_width(_LIMIT), above - 12, box.right, above))
        if len(front) > 1:
            places = [(x(a), y(b)) for a, b in front]
            parts.append(canvas.path(places, "front"))
            taken += labels.along(places)
        for dot in self.dots:
            across = x(dot.latency_ms)
            if dot.high > dot.low:
                taken.append(Box(across - 3, y(dot.high), across + 3, y(dot.low)))
                parts.append(canvas.line(across, y(dot.low), across, y(dot.high), "interval"))
                for end in (dot.low, dot.high):
                    parts.append(canvas.line(across - 4, y(end), across + 4, y(end), "interval"))
        order = sorted(self.dots, key=_rank)
        named, others = order[:_MOST_LABELS], order[_MOST_LABELS:]
        for dot in others:
            title = canvas.element("title", dot.name)
            parts.append(canvas.element("g", title, _marker(dot.kind, x(dot.latency_ms), y(dot.quality))))
        # The most important dots are drawn last, so that nothing covers them.
        parts += [_marker(dot.kind, x(dot.latency_ms), y(dot.quality)) for dot in reversed(named)]
        places = [(x(dot.latency_ms), y(dot.quality)) for dot in named]
        names, bottom = _names(named, places, taken, box, width, bottom + 42)
        return Markup("").join([*parts, names]), bottom


def _names(
    dots: Sequence[Dot],
    places: Sequence[tuple[float, float]],
    taken: Sequence[Box],
    box: Box,
    width: float,
    bottom: float,
) -> tuple[Markup, float]:
    """Names dots beside them; on a narrow page, where names would cover each other, by numbers with a key below.

    Returns:
        The names, and the position of the lower edge of the chart.
    """

    def placed(words: Sequence[str], wide: float) -> tuple[Markup, list[Box]]:
        occupied = list(taken)
        shown = [
            labels.place_label(name, *place, occupied, box, _class(dot), gap=11, width=wide)
            for name, dot, place in zip(words, dots, places, strict=True)
        ]
        return Markup("").join(shown), occupied[len(taken) :]

    names, boxes = placed([dot.name for dot in dots], 0.55 * (box.right - box.left))
    if width >= _NARROW or not any(one.overlap(other) for one, other in combinations(boxes, 2)):
        return names, bottom
    # From the top of the chart to its bottom.
    order = sorted(range(len(dots)), key=lambda n: places[n][1])
    numbers = {n: str(number) for number, n in enumerate(order, 1)}
    names, _ = placed([numbers[n] for n in range(len(dots))], width)
    key, bottom = labels.key([(numbers[n], dots[n].name, _class(dots[n])) for n in order], width, bottom)
    return names + key, bottom


def _class(dot: Dot) -> str:
    return "strong" if dot.kind in ("original", "chosen") else "mark"


def _rank(dot: Dot) -> tuple[bool, bool]:
    """A sort key that puts the most important dots first."""
    return dot.kind not in ("original", "chosen"), not dot.on_front


def _marker(kind: Kind, x: float, y: float) -> Markup:
    if kind == "original":
        return canvas.marker(1, x, y, "dot original", 5)
    if kind == "chosen":
        ring = canvas.element("circle", cx=x, cy=y, r=9.5, class_="ring")
        return ring + canvas.marker(0, x, y, "dot chosen", 5.5)
    if kind == "control":
        return canvas.marker(2, x, y, "dot control", 5)
    if kind == "passes":
        return canvas.marker(0, x, y, "dot passes", 5)
    return canvas.element("path", d=f"M{x - 5:.1f} {y - 5:.1f}l10 10m0 -10l-10 10", class_="cross")
