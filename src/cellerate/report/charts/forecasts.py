"""The chart of forecasts: the history, the forecast, its intervals, and the values that came, as small multiples."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cellerate.data.times import to_local
from cellerate.report.charts import canvas
from cellerate.runtime.forecast import Example

# How much of the past to show, in forecast lengths, so that the forecast is not a sliver; and in rows, if that is more.
_PAST_HORIZONS = 4
_PAST_ROWS = 24
# Lines of so few points have markers, because they are short.
_MARKED_ROWS = 6


@dataclasses.dataclass(frozen=True)
class Band:
    """An interval of a forecast.

    Attributes:
        label: Such as "80 % interval".
        low: (horizon,)
        high: (horizon,)
    """

    label: str
    low: np.ndarray
    high: np.ndarray


def bands(example: Example, n: int) -> list[Band]:
    """At most two intervals of target `n`, the widest first: of the example's intervals, else of its quantiles."""
    if example.intervals:
        levels = sorted(example.intervals, reverse=True)
        found = [Band(interval_label(level), *example.intervals[level][:, n].T) for level in levels]
    else:
        count = len(example.quantiles)
        found = [
            Band(
                _between(example.quantiles[low], example.quantiles[-1 - low]),
                example.forecast[:, n, low],
                example.forecast[:, n, -1 - low],
            )
            for low in range(count // 2)
        ]
    return found if len(found) <= 2 else [found[0], found[-1]]


def by_the_clock(example: Example) -> Example:
    """The example with the times that its zone's clock shows, as the data write them."""
    if example.times.dtype.kind != "M":
        return example
    times, past = (to_local(one, example.form.zone) for one in (example.times, example.past_times))
    return dataclasses.replace(example, times=times, past_times=past)


def interval_label(level: float) -> str:
    """Says "80 % interval" for 0.8."""
    return f"{100 * level:.4g} % interval"


def _between(low: float, high: float) -> str:
    if abs(low + high - 1) < 1e-6:
        return interval_label(high - low)
    return f"{100 * low:.4g} % to {100 * high:.4g} % quantile"


def middle(example: Example, n: int) -> tuple[str, np.ndarray]:
    """The forecast of target `n` as one line, (horizon,), and its label."""
    forecast = example.forecast[:, n]
    if not example.quantiles:
        return "forecast", forecast
    place = int(np.argmin(np.abs(np.array(example.quantiles) - 0.5)))
    level = example.quantiles[place]
    return "forecast" if level == 0.5 else f"{100 * level:.4g} % quantile", forecast[:, place]


def draw_forecasts(path: str | Path, examples: Sequence[Example], title: str) -> None:
    """Draws forecasts, with their intervals, after the history and against the values that came.

    There is one panel for each example and target. Of more than 12, as many as fit are drawn, spread over the
    examples, and a line under the title says so.

    Args:
        path: Ends in ".png" or ".svg".
        examples: At least one.
        title: The title above all panels.

    Raises:
        CellerateError: See `check_chart`.
    """
    targets = max(len(example.targets) for example in examples)
    shown_targets = min(targets, canvas.MOST_PANELS)
    places = canvas.spread(len(examples), canvas.MOST_PANELS // shown_targets)
    panels = [
        (by_the_clock(examples[place]), n)
        for place in places
        for n in range(len(examples[place].targets[:shown_targets]))
    ]
    named = len({example.series for example in examples}) == len(examples)
    remark = canvas.remark_of(
        [
            canvas.some_of(len(places), len(examples), "series" if named else "forecasts"),
            canvas.some_of(shown_targets, targets, "targets"),
        ]
    )
    grid = _grid(len(panels), shown_targets)
    titles = _titles(panels, grid.title_characters)
    with canvas.drawing(path, title, grid, remark) as axes:
        for axis, (example, n), name in zip(axes, panels, titles, strict=True):
            canvas.heading(axis, name)
            canvas.plain_numbers(axis)
            if targets == 1 and example.series:
                canvas.label_values(axis, example.targets[n], grid)
            _draw(axis, example, n)


def _grid(panels: int, targets: int) -> canvas.Grid:
    if panels == 1:
        return canvas.Grid(1, 1, 9.5, 4.2)
    # The targets of a series side by side, where there are several series.
    columns = targets if targets in (2, 3) else 2 if panels in (2, 4) else 3
    return canvas.Grid(panels, columns, *((6.2, 3.0) if columns == 2 else (4.9, 2.7)))


def _titles(panels: Sequence[tuple[Example, int]], characters: int) -> list[str]:
    """The properties that tell each panel from the others: its series, its target, and where the forecast begins."""
    keys = [(example.series, example.targets[n]) for example, n in panels]
    several_targets = max(len(example.targets) for example, _ in panels) > 1
    repeated = Counter(keys)
    found = []
    for (example, _), key in zip(panels, keys, strict=True):
        series, target = key
        last = [target] if several_targets or not series else []
        if repeated[key] > 1:
            last.append(f"from {canvas.time_text(example.times[0])}")
        rest = canvas.remark_of([canvas.shorten(part, 2 * characters // 5) for part in last])
        room = max(6, characters - len(rest) - 3) if rest else characters
        found.append(canvas.remark_of([canvas.shorten(series, room), rest]))
    return found


def _draw(axis: Any, example: Example, n: int) -> None:
    shown = min(len(example.past), max(_PAST_HORIZONS * len(example.times), _PAST_ROWS))
    times, past = example.past_times[-shown:], example.past[-shown:, n]
    # Starts at the last known point, so that the lines join and a single step is visible.
    later = np.concatenate([times[-1:], example.times])

    def joined(values: np.ndarray) -> np.ndarray:
        return np.concatenate([past[-1:], values])

    drawn = bands(example, n)
    for place, (band, colour) in enumerate(zip(drawn, canvas.BANDS[len(drawn)], strict=True)):
        axis.fill_between(
            later,
            joined(band.low),
            joined(band.high),
            color=colour,
            linewidth=0,
            label=band.label,
            # Over the lines of the grid.
            zorder=1.5 + 0.1 * place,
        )
    marker = (
        {"marker": "o", "markersize": 3.5, "markevery": slice(1, None)} if len(later) <= _MARKED_ROWS else {}
    )
    axis.axvline(times[-1], color=canvas.GUIDE, linewidth=0.9, linestyle=(0, (2, 2)), zorder=1.9)
    axis.plot(times, past, color=canvas.HISTORY, label="history")
    label, line = middle(example, n)
    axis.plot(later, joined(line), color=canvas.FORECAST, linewidth=2.2, label=label, zorder=3, **marker)
    if example.truth is not None:
        axis.plot(
            later,
            joined(example.truth[:, n]),
            color=canvas.TRUTH,
            linewidth=1.3,
            linestyle=(0, (3, 1.2)),
            label="truth",
            zorder=2.5,
            **marker,
        )
    canvas.show_times(axis, np.concatenate([times, example.times]))
