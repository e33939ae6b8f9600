"""The chart of a backtest: the values as one line, and the forecast of each fold over it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cellerate.format import counted
from cellerate.report.charts import canvas
from cellerate.report.charts.forecasts import bands, by_the_clock, middle
from cellerate.runtime.forecast import Example

_MOST_PANELS = 6
# How much to show before the first origin, in forecast lengths; and in rows, if that is more.
_PAST_HORIZONS = 2
_PAST_ROWS = 24


def draw_backtest(path: str | Path, folds: Sequence[Sequence[Example]], title: str) -> None:
    """Draws the forecasts of all folds over the values that came, one panel for each series and target.

    At most 6 panels are drawn, spread over the series, and a line under the title says if panels are left out. If there
    are several intervals, only the widest is drawn.

    Args:
        path: Ends in ".png" or ".svg".
        folds: For each fold its examples, of one series or many; at least one in all. A fold may lack series.
        title: The title above all panels.

    Raises:
        CellerateError: See `check_chart`.
    """
    found: dict[str, list[tuple[int, Example]]] = {}
    for number, fold in enumerate(folds):
        for example in fold:
            found.setdefault(example.series, []).append((number, by_the_clock(example)))
    series = list(found)
    targets = next(iter(found.values()))[0][1].targets
    shown_targets = min(len(targets), _MOST_PANELS)
    places = canvas.spread(len(series), _MOST_PANELS // shown_targets)
    panels = [(series[place], n) for place in places for n in range(shown_targets)]
    remark = canvas.remark_of(
        [
            counted(len(folds), "fold"),
            canvas.some_of(len(places), len(series), "series"),
            canvas.some_of(shown_targets, len(targets), "targets"),
        ]
    )
    columns = 1 if len(panels) <= 3 else 2
    grid = canvas.Grid(len(panels), columns, 11.5 if columns == 1 else 7.0, 3.6 if len(panels) == 1 else 2.6)
    with canvas.drawing(path, title, grid, remark) as axes:
        for axis, (name, n) in zip(axes, panels, strict=True):
            canvas.plain_numbers(axis)
            if shown_targets == 1 and name:
                canvas.label_values(axis, targets[n], grid)
                target = ""
            else:
                target = targets[n]
            canvas.heading(axis, canvas.shorten(canvas.remark_of([name, target]), grid.title_characters))
            _draw(axis, found[name], n)


def _draw(axis: Any, folds: Sequence[tuple[int, Example]], n: int) -> None:
    times, values = _truth(folds, n)
    for place, (number, example) in enumerate(folds):
        colour = canvas.COLOURS[number % len(canvas.COLOURS)]
        origin, last = example.past_times[-1], example.past[-1, n]
        later = np.concatenate([example.past_times[-1:], example.times])
        # Only the first fold has labels, for the legend.
        first = place == 0
        axis.axvline(origin, color=canvas.GUIDE, linewidth=0.7, linestyle=(0, (2, 2)), zorder=1.2)
        for band in bands(example, n)[:1]:
            axis.fill_between(
                later,
                np.append(last, band.low),
                np.append(last, band.high),
                color=colour,
                alpha=0.22,
                linewidth=0,
                label=band.label if first else None,
                zorder=1.5,
            )
        label, line = middle(example, n)
        axis.plot(
            later,
            np.append(last, line),
            color=colour,
            linewidth=2,
            label=f"{label}, each fold in a colour" if first else None,
            zorder=3,
        )
        axis.plot(
            [origin],
            [last],
            "o",
            color="white",
            markeredgecolor=colour,
            markeredgewidth=1.4,
            markersize=5,
            label="origin of a fold" if first else None,
            zorder=3.5,
        )
    axis.plot(times, values, color=canvas.TRUTH, linewidth=1.2, label="truth", zorder=2)
    canvas.show_times(axis, times)


def _truth(folds: Sequence[tuple[int, Example]], n: int) -> tuple[np.ndarray, np.ndarray]:
    """The known values of all folds by time, each once, from a little before the first origin to the last forecast."""
    times, values = [], []
    for _, example in folds:
        times.append(example.past_times)
        values.append(example.past[:, n])
        times.append(example.times)
        truth = example.truth
        values.append(np.full(len(example.times), np.nan) if truth is None else truth[:, n])
    all_times, all_values = np.concatenate(times), np.concatenate(values)
    # If several folds hold a time, a known value wins.
    order = np.lexsort((np.isnan(all_values), all_times))
    unique, place = np.unique(all_times[order], return_index=True)
    first = min((example for _, example in folds), key=lambda example: example.times[0])
    before = max(_PAST_HORIZONS * len(first.times), _PAST_ROWS)
    shown = unique >= first.past_times[-min(before, len(first.past_times))]
    return unique[shown], all_values[order][place][shown]
