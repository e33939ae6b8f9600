"""The parts of every chart: escaped elements, scales, round ticks, a frame, and placement of labels."""

from __future__ import annotations

import abc
import dataclasses
import math
import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

from markupsafe import Markup, escape

from cellerate.format import bare, number

FONT = 12.0
"""The size of all text, in units of the drawing, which is shown at about its drawn size."""
LINE = 14.0
"""From one line of text to the next."""
SERIES = 6
"""The number of lines that have a colour, dash and marker of their own."""

# Characters that no XML document may contain: https://www.w3.org/TR/xml/#charsets
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_MOST_TICKS = 12
_DASHES = ("", "7 4", "2 3", "9 3 2 3", "12 5", "4 2")
_LEAST_SPAN = 1e-12
_LARGEST = 1e100
_MOST_POINTS = 120  # per line: more cannot be told apart at the width of a page


def element(name: str, *children: str, **attributes: object) -> Markup:
    """Return an element; attributes, and children that are not markup, are escaped.

    An underscore in the name of an attribute becomes a dash: `stroke_width` becomes `stroke-width`.
    """
    shown = Markup("").join(
        Markup(' {}="{}"').format(key.rstrip("_").replace("_", "-"), clean(_attribute(value)))
        for key, value in attributes.items()
        if value is not None
    )
    inner = Markup("").join(
        child if isinstance(child, Markup) else escape(clean(child)) for child in children
    )
    return Markup(f"<{name}{shown}>{inner}</{name}>" if inner else f"<{name}{shown}/>")  # noqa: S704 (escaped above)


def clean(text: str) -> str:
    """Text without the characters that XML cannot hold."""
    return _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", text)


def _attribute(value: object) -> str:
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else str(value)


def tame(value: float, *, log: bool = False) -> float:
    """Limits a value so that it can be drawn: the difference and quotient of any two such values are finite."""
    return min(_LARGEST, max(1 / _LARGEST if log else -_LARGEST, value))


def text_width(text: str, size: float = FONT) -> float:
    """The approximate width of text: the reader's fonts are unknown."""
    return size * sum(1.0 if unicodedata.east_asian_width(c) in "WF" else 0.56 for c in text)


def shorten(text: str, width: float, size: float = FONT) -> str:
    """Shortens text to fit into a width, with an ellipsis if any is missing."""
    text = " ".join(text[:400].split())
    if text_width(text, size) <= width:
        return text
    while text and text_width(text + "…", size) > width:
        text = text[:-1]
    return text.rstrip() + "…"


def head_height(label: str, right: float) -> float:
    """The height of a label above an axis that ends at `right`, with the space around it."""
    return 26.0 + LINE * (len(wrapped(label, right - 2)) - 1)


def wrapped(text: str, width: float, most: int = 3) -> list[str]:
    """Break text between words into at most `most` lines that fit into a width; the rest is cut."""
    lines: list[str] = []
    words = text[:400].split()
    while words and len(lines) < most - 1:
        count = 1
        while count < len(words) and text_width(" ".join(words[: count + 1])) <= width:
            count += 1
        lines.append(shorten(" ".join(words[:count]), width))
        del words[:count]
    return [*lines, shorten(" ".join(words), width)] if words else lines or [""]


class Scale(NamedTuple):
    """Maps values to positions on an axis.

    Attributes:
        low: The value at `start`.
        high: The value at `end`.
        start: The position of one end.
        end: The position of the other end, which may be less than `start`.
        log: Whether equal factors are equally far apart.
    """

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """The position of a value; a value outside the axis gets the position of the nearer end."""
        if self.log:
            low, high = math.log(self.low), math.log(self.high)
            value = math.log(value) if value > 0 else low
        else:
            low, high = self.low, self.high
        # If the values are so large that their difference rounds to 0, they share one position.
        share = min(1.0, max(0.0, (value - low) / (high - low))) if high > low else 0.5
        return self.start + share * (self.end - self.start)

    @staticmethod
    def around(
        values: Iterable[float], start: float, end: float, *, log: bool = False, zero_below: float = 0.7
    ) -> Scale:
        """Return a scale that holds all values, with a little space around them.

        A linear scale starts at 0 if the lowest value is less than `zero_below` of the highest, so that a
        small difference looks small.
        """
        known = [tame(v, log=log) for v in values if v > 0 or not log]
        low, high = (min(known), max(known)) if known else (1.0, 2.0)
        if log:
            factor = (high / low) ** 0.06 if high / low > 1.05 else 1.2
            return Scale(low / factor, high * factor, start, end, log)
        if 0 <= low < zero_below * high:
            return Scale(0.0, high * 1.06, start, end)
        space = 0.08 * (high - low) or abs(high) * 0.05 or 1.0
        return Scale(low - space, high + space, start, end)


def linear_ticks(scale: Scale, count: int) -> list[tuple[float, str]]:
    """Return about `count` ticks at round values, with steps of 1, 2 or 5 times a power of ten."""
    span = max(scale.high - scale.low, abs(scale.high) * _LEAST_SPAN, 1e-300)
    raw = span / max(count, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= raw * 0.999)
    first = math.ceil(scale.low / step - 1e-9)
    found = [step * n for n in range(first, first + _MOST_TICKS) if step * n <= scale.high + 1e-9 * span]
    largest = max((abs(v) for v in found), default=0.0)
    divisor, suffix = next(
        ((limit, end) for limit, end in ((1e9, " G"), (1e6, " M"), (1e4, " k")) if largest >= limit),
        (1.0, ""),
    )
    if suffix == " k":
        divisor = 1e3
    if not 1e-6 <= largest < 1e15:
        return [(v, number(v)) for v in found]
    decimals = max(0, -math.floor(math.log10(step / divisor) + 1e-9))
    return [(v, f"{v / divisor:,.{decimals}f}{suffix if round(v, 12) else ''}") for v in found]


def log_ticks(scale: Scale, count: int, label: Callable[[float], str]) -> list[tuple[float, str]]:
    """Return ticks at powers of ten, and at 2 and 5 times them if there is space."""
    first, last = math.floor(math.log10(scale.low)), math.ceil(math.log10(scale.high))
    for factors in ((1, 2, 5), (1, 3), (1,)):
        found = [f * 10.0**p for p in range(first, last + 1) for f in factors]
        found = [v for v in found if scale.low <= v <= scale.high]
        if len(found) <= count:
            break
    found = found[:: max(1, -(-len(found) // count))] or [math.sqrt(scale.low * scale.high)]
    return [(v, bare(label(v))) for v in found]


def log2_ticks(scale: Scale, count: int) -> list[tuple[float, str]]:
    """Return ticks at powers of two."""
    first, last = math.ceil(math.log2(scale.low) - 1e-9), math.floor(math.log2(scale.high) + 1e-9)
    powers = range(first, last + 1, max(1, -(-(last - first + 1) // count)))
    return [(2.0**p, bare(number(2.0**p))) for p in powers]


def beside_ticks(ticks: Sequence[tuple[float, str]]) -> float:
    """Return the place of a y axis: right of the labels of its ticks."""
    return max((text_width(label) for _, label in ticks), default=0.0) + 8


class Box(NamedTuple):
    """A rectangle on the drawing."""

    left: float
    top: float
    right: float
    bottom: float

    def overlap(self, other: Box) -> float:
        """The area that both rectangles cover."""
        left, top, right, bottom = self
        other_left, other_top, other_right, other_bottom = other
        # Most pairs end here, and each label is checked against hundreds of boxes.
        if other_top >= bottom or other_bottom <= top or other_left >= right or other_right <= left:
            return 0.0
        wide = min(right, other_right) - max(left, other_left)
        high = min(bottom, other_bottom) - max(top, other_top)
        return wide * high


Anchor = Literal["start", "middle", "end"]


def text(x: float, y: float, words: str, *, anchor: Anchor = "start", class_: str | None = None) -> Markup:
    """A line of text with its baseline at y."""
    return element("text", words, x=x, y=y, text_anchor=None if anchor == "start" else anchor, class_=class_)


def line(x1: float, y1: float, x2: float, y2: float, class_: str) -> Markup:
    """A straight line."""
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=class_)


def path(points: Sequence[tuple[float, float]], class_: str, dash: str = "") -> Markup:
    """A line through points."""
    steps = " ".join(f"{x:.1f} {y:.1f}" for x, y in points)
    return element("path", d=f"M{steps}", class_=class_, stroke_dasharray=dash or None)


def thin(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the points that shape a long line: the first, lowest, highest and last of each stretch."""
    if len(points) <= _MOST_POINTS:
        return list(points)
    stretches = _MOST_POINTS // 4
    edges = [round(n * len(points) / stretches) for n in range(stretches + 1)]
    kept: list[tuple[float, float]] = []
    for begin, end in pairwise(edges):
        part = range(begin, end)
        lowest, highest = min(part, key=lambda n: points[n][1]), max(part, key=lambda n: points[n][1])
        kept += [points[n] for n in sorted({begin, lowest, highest, end - 1})]
    return kept


def marker(kind: int, x: float, y: float, class_: str, r: float = 3.5) -> Markup:
    """Return one of the shapes, of radius r, that tell lines apart where colours do not."""
    if kind % SERIES == 0:
        return element("circle", cx=x, cy=y, r=r, class_=class_)
    corners = {
        1: [(-r, -r), (r, -r), (r, r), (-r, r)],
        2: [(0, -1.3 * r), (1.2 * r, r), (-1.2 * r, r)],
        3: [(0, -1.4 * r), (1.4 * r, 0), (0, 1.4 * r), (-1.4 * r, 0)],
        4: [(0, 1.3 * r), (1.2 * r, -r), (-1.2 * r, -r)],
        5: [(-1.4 * r, -0.7 * r), (1.4 * r, -0.7 * r), (1.4 * r, 0.7 * r), (-1.4 * r, 0.7 * r)],
    }[kind % SERIES]
    return element(
        "path", d="M" + " ".join(f"{x + a:.1f} {y + b:.1f}" for a, b in corners) + "Z", class_=class_
    )


def dash(kind: int) -> str:
    """The dash pattern of a series."""
    return _DASHES[kind % SERIES]


def frame(
    box: Box,
    x_ticks: Sequence[tuple[float, str]],
    y_ticks: Sequence[tuple[float, str]],
    x: Scale,
    y: Scale,
    x_label: str,
    y_label: str,
) -> Markup:
    """Grid lines, ticks with labels, and the titles of both axes; the y title is horizontal, above its ticks."""
    parts = []
    for value, label in y_ticks:
        place = y(value)
        parts.append(line(box.left, place, box.right, place, "grid"))
        parts.append(text(box.left - 6, place + 4, label, anchor="end"))
    reached = -math.inf
    for value, label in x_ticks:
        place, half = x(value), text_width(label) / 2
        parts.append(line(place, box.bottom, place, box.bottom + 4, "axis"))
        if place - half > reached:
            parts.append(text(place, box.bottom + 17, label, anchor="middle"))
            reached = place + half + 5
    parts.append(line(box.left, box.bottom, box.right, box.bottom, "axis"))
    head = wrapped(y_label, box.right - 2)
    for n, words in enumerate(head, 1 - len(head)):
        parts.append(text(2, box.top - 10 + LINE * n, words, class_="label"))
    wide = box.right - 2
    parts.append(text(box.right, box.bottom + 34, shorten(x_label, wide), anchor="end", class_="label"))
    return Markup("").join(parts)


@dataclasses.dataclass(frozen=True)
class Chart(abc.ABC):
    """A drawing, with a description in words for readers who cannot see it.

    Attributes:
        title: What the chart shows.
        description: What can be seen in it.
    """

    title: str
    description: str

    @abc.abstractmethod
    def body(self, width: float) -> tuple[Markup, float]:
        """The marks, and the height of the drawing."""

    def draw(self, width: float, name: str) -> Markup:
        """Draws the chart.

        Args:
            width: The width in pixels; the drawing shrinks if there is less space.
            name: A name unique in the page, which links the drawing to its title and description.
        """
        marks, height = self.body(width)
        return element(
            "svg",
            element("title", self.title, id=f"{name}-title"),
            element("desc", self.description, id=f"{name}-desc"),
            marks,
            xmlns="http://www.w3.org/2000/svg",
            viewBox=f"0 0 {width:.0f} {height:.0f}",
            width=f"{width:.0f}",
            height=f"{height:.0f}",
            role="img",
            aria_labelledby=f"{name}-title {name}-desc",
        )
