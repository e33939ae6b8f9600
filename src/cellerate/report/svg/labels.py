"""Text in charts that must find its place: labels beside points, and legends."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from markupsafe import Markup

from cellerate.report.svg.canvas import FONT, LINE, Anchor, Box, element, line, text, text_width, wrapped


def place_label(
    words: str,
    x: float,
    y: float,
    taken: list[Box],
    within: Box,
    class_: str,
    gap: float = 8.0,
    width: float = math.inf,
) -> Markup:
    """Places text near a point, where it covers least, and adds its box to `taken`.

    If the text is further away from the point, a line connects the two. Text wider than `width` is broken into lines.
    """
    lines = wrapped(words, width)
    wide, more = max(map(text_width, lines)), LINE * (len(lines) - 1)
    near: list[tuple[float, float, Anchor]] = [
        (gap, 4 - more / 2, "start"),
        (-gap, 4 - more / 2, "end"),
        (0, -gap - 1 - more, "middle"),
        (0, gap + 9, "middle"),
    ]
    for far in range(14, 140, 14):
        for up in (-far - more, far + 8):
            near += [(gap * 0.7, up, "start"), (-gap * 0.7, up, "end"), (0, up, "middle")]

    def box(spot: tuple[float, float, Anchor]) -> Box:
        left = x + spot[0] - {"start": 0.0, "middle": wide / 2, "end": wide}[spot[2]]
        return Box(left, y + spot[1] - FONT, left + wide, y + spot[1] + more + 3)

    def cost(spot: tuple[float, float, Anchor]) -> float:
        own = box(spot)
        outside = wide * (FONT + 3 + more) - own.overlap(within)
        return sum(own.overlap(other) for other in taken) + 4 * outside + abs(spot[1]) / 2

    best = min(near, key=cost)
    taken.append(box(best))
    right, down, anchor = best
    shown = Markup("").join(
        text(x + right, y + down + LINE * n, row, anchor=anchor, class_=class_) for n, row in enumerate(lines)
    )
    # Its nearest edge counts.
    apart = -down - more if down < 0 else down
    if abs(apart) < 2.2 * gap:
        return shown
    end = y + down + (more + 4 if down < 0 else -FONT)
    return line(x, y + math.copysign(gap * 0.6, down), x + right, end, "lead") + shown


def along(places: Sequence[tuple[float, float]]) -> list[Box]:
    """Return small boxes along a line, for labels to avoid."""
    found = []
    for (x1, y1), (x2, y2) in pairwise(places):
        count = int(max(abs(x2 - x1), abs(y2 - y1)) / 6) + 1
        steps = [(x1 + (x2 - x1) * n / count, y1 + (y2 - y1) * n / count) for n in range(count)]
        found += [Box(a - 3, b - 3, a + 3, b + 3) for a, b in steps]
    return found


def legend(entries: Sequence[tuple[Markup, str]], width: float, top: float) -> tuple[Markup, float]:
    """Draws signs with their meanings, in as many rows as needed; each sign is drawn around (0, 0).

    Returns:
        The legend, and the position of its lower edge.
    """
    parts, left, y = [], 2.0, top + 10
    for sign, words in entries:
        lines = wrapped(words, width - 34)
        needed = 30 + max(map(text_width, lines))
        if left > 2 and left + needed > width:
            left, y = 2.0, y + 18
        parts.append(element("g", sign, transform=f"translate({left + 12:.1f} {y - 4:.1f})"))
        parts += [text(left + 28, y + LINE * n, row) for n, row in enumerate(lines)]
        y += LINE * (len(lines) - 1)
        left += needed + 12
    return Markup("").join(parts), y + 8 if entries else top


def key(entries: Sequence[tuple[str, str, str]], width: float, top: float) -> tuple[Markup, float]:
    """Says what the numbers in a chart stand for, a row each: the number, its meaning and the class of both.

    Returns:
        The key, and the position of its lower edge.
    """
    parts, y = [], top + 14
    for number, words, class_ in entries:
        parts.append(text(22, y, number, anchor="end", class_=class_))
        for row in wrapped(words, width - 32):
            parts.append(text(30, y, row, class_=class_))
            y += LINE
        y += 2
    return Markup("").join(parts), y
