"""A chart of lines, each with its own dash and marker and with its name beside it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from markupsafe import Markup

from cellerate.format import number
from cellerate.report.svg import canvas, labels
from cellerate.report.svg.canvas import Box, Chart, Scale

_MOST_MARKERS = 24
_MOST_MARKS = 8
_ROW = 15.0


@dataclasses.dataclass(frozen=True)
class Line:
    """A line: its name, its points, and labels for some of them.

    Attributes:
        name: The name shown beside the line.
        points: Points with ascending x.
        marks: Labels of points: an index into `points` and a text each.
    """

    name: str
    points: tuple[tuple[float, float], ...]
    marks: tuple[tuple[int, str], ...] = ()


@dataclasses.dataclass(frozen=True)
class LineChart(Chart):
    """A chart of lines.

    Attributes:
        lines: The lines, at least one of which has points.
        x_label: The label of x, with its unit.
        y_label: The label of y, with its unit.
        log_x: Whether equal factors of x are equally far apart.
        log_y: The same for y.
        tens: Whether the ticks of a logarithmic x are at powers of ten instead of two.
    """

    lines: tuple[Line, ...]
    x_label: str
    y_label: str
    log_x: bool = False
    log_y: bool = False
    tens: bool = False

    def _point(self, point: tuple[float, float]) -> tuple[float, float]:
        return canvas.tame(point[0], log=self.log_x), canvas.tame(point[1], log=self.log_y)

    def body(self, width: float) -> tuple[Markup, float]:
        """See `Chart.body`."""
        lines = [dataclasses.replace(one, points=tuple(map(self._point, one.points))) for one in self.lines]
        points = [point for one in lines for point in one.points]
        several = len(lines) > 1
        longest = max((canvas.text_width(one.name) for one in lines), default=0.0) + 14
        beside = several and len(lines) <= 6 and longest <= 0.3 * width
        top, head = 0.0, Markup("")
        if several and not beside:
            head, top = labels.legend([(_sign(n), one.name) for n, one in enumerate(lines)], width, 0)
        right = width - (longest if beside else 8.0)
        top += canvas.head_height(self.y_label, right)
        bottom = top + max(170.0, min(240.0, 0.44 * width))
        # Over sizes, a half must look like a half; over time, the shape of the curve matters.
        zero_below = 0.7 if self.log_x else 0.3
        values = [value for _, value in points]
        y = Scale.around(values, bottom, top, log=self.log_y, zero_below=zero_below)
        y_ticks = canvas.log_ticks(y, 6, number) if self.log_y else canvas.linear_ticks(y, 5)
        box = Box(canvas.beside_ticks(y_ticks), top, right, bottom)
        x = Scale.around([value for value, _ in points], box.left + 6, box.right - 4, log=self.log_x)
        if not self.log_x and points:
            # The measured range fills the width; only y needs space above it.
            low, high = min(p[0] for p in points), max(p[0] for p in points)
            x = Scale(low, high if high > low else low + 1.0, box.left + 6, box.right - 4)
        count = int((box.right - box.left) / 60) + 1
        if not self.log_x:
            x_ticks = canvas.linear_ticks(x, count)
        else:
            x_ticks = canvas.log_ticks(x, count, number) if self.tens else canvas.log2_ticks(x, count)
        parts = [head, canvas.frame(box, x_ticks, y_ticks, x, y, self.x_label, self.y_label)]
        taken: list[Box] = []
        marked: list[tuple[str, tuple[float, float]]] = []
        ends: list[tuple[float, int]] = []
        for n, one in enumerate(lines):
            places = [(x(a), y(b)) for a, b in one.points]
            if not places:
                continue
            drawn = canvas.thin(places)
            taken += labels.along(drawn)
            parts.append(canvas.path(drawn, f"line {_series(n)}", canvas.dash(n)))
            if len(places) <= _MOST_MARKERS:
                parts += [canvas.marker(n, *place, class_=f"dot {_series(n)}") for place in places]
                taken += [Box(a - 4, b - 4, a + 4, b + 4) for a, b in places]
            ends.append((places[-1][1], n))
            for index, words in one.marks[:_MOST_MARKS]:
                if 0 <= index < len(places):
                    marked.append((words, places[index]))
        if beside:
            for place, n in _spread(ends, box):
                shown = canvas.shorten(lines[n].name, longest)
                parts.append(canvas.text(box.right + 4, place + 4, shown, class_=f"name {_series(n)}"))
        parts += [_mark(words, place, taken, box) for words, place in marked]
        return Markup("").join(parts), bottom + 42


def _sign(n: int) -> Markup:
    line = canvas.path([(-12, 0), (12, 0)], f"line {_series(n)}", canvas.dash(n))
    return line + canvas.marker(n, 0, 0, f"dot {_series(n)}")


def _series(n: int) -> str:
    return f"s{n % canvas.SERIES}"


def _mark(words: str, place: tuple[float, float], taken: list[Box], box: Box) -> Markup:
    ring = canvas.element("circle", cx=place[0], cy=place[1], r=7.0, class_="ring")
    return ring + labels.place_label(
        words, *place, taken=taken, within=box, class_="mark", gap=10, width=0.6 * (box.right - box.left)
    )


def _spread(ends: Sequence[tuple[float, int]], box: Box) -> list[tuple[float, int]]:
    """Return heights for the names of lines: near the lines' ends, without overlap."""
    order = sorted(ends)
    places = [place for place, _ in order]
    for n in range(1, len(places)):
        places[n] = max(places[n], places[n - 1] + _ROW)
    over = max(0.0, (places[-1] if places else 0.0) - box.bottom)
    for n in range(len(places) - 1, -1, -1):
        limit = places[n + 1] - _ROW if n + 1 < len(places) else places[n] - over
        places[n] = min(places[n], limit)
    return [(place, n) for place, (_, n) in zip(places, order, strict=True)]
