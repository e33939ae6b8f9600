"""The chart of anomalies: the values, their expected ranges, and the points outside them."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cellerate.report.charts import canvas
from cellerate.report.charts.forecasts import interval_label

# A panel with more points than pixels shows the lowest and the highest point of each piece.
_MOST_POINTS = 3000


@dataclasses.dataclass(frozen=True)
class AnomalyPanel:
    """A series with its expected values; N rows, in the order of time.

    Values that are not known (rows before the first window, gaps) are NaN.

    Attributes:
        name: The name of the series, the target, or both.
        times: (N,) local times, or row numbers.
        values: (N,)
        expected: (N,)
        low: (N,) the lower bound of normal values.
        high: (N,) the upper bound.
        anomalies: (N,) bool.
        level: The share of usual values that lie within the bounds, such as 0.99, or None if that is not known.
    """

    name: str
    times: np.ndarray
    values: np.ndarray
    expected: np.ndarray
    low: np.ndarray
    high: np.ndarray
    anomalies: np.ndarray
    level: float | None = None


def draw_anomalies(path: str | Path, panels: Sequence[AnomalyPanel], title: str) -> None:
    """Draws series with their bounds and marks their anomalies.

    Of more than 12 series, the 12 with the most anomalies are drawn, in their order, and a line under the title says
    so. It also says how many anomalies there are in all.

    Args:
        path: Ends in ".png" or ".svg".
        panels: At least one.
        title: The title above all panels.

    Raises:
        CellerateError: See `check_chart`.
    """
    counts = [int(np.count_nonzero(panel.anomalies)) for panel in panels]
    ranked = sorted(range(len(panels)), key=lambda place: -counts[place])[: canvas.MOST_PANELS]
    shown = [panels[place] for place in sorted(ranked)]
    rows, total = sum(len(panel.values) for panel in panels), sum(counts)
    part = canvas.some_of(len(shown), len(panels), "series")
    remark = canvas.remark_of(
        [
            f"{total:,} {'anomaly' if total == 1 else 'anomalies'} in {rows:,} rows",
            f"{part}, those with the most" if part else "",
        ]
    )
    columns = 1 if len(shown) <= 3 else 2
    height = 4.0 if len(shown) == 1 else 2.6
    grid = canvas.Grid(len(shown), columns, 11.5 if columns == 1 else 6.6, height)
    with canvas.drawing(path, title, grid, remark) as axes:
        for axis, panel in zip(axes, shown, strict=True):
            canvas.heading(axis, canvas.shorten(panel.name, grid.title_characters))
            canvas.plain_numbers(axis)
            _draw(axis, panel)


def _draw(axis: Any, panel: AnomalyPanel) -> None:
    thin = _thin(panel)
    width = 1.2 if len(thin.values) <= _MOST_POINTS // 2 else 0.6
    axis.fill_between(
        thin.times,
        thin.low,
        thin.high,
        color=canvas.BANDS[1][0],
        linewidth=0,
        label="expected range" if panel.level is None else interval_label(panel.level),
        zorder=1.5,
    )
    axis.plot(thin.times, thin.expected, color=canvas.FORECAST, linewidth=width, label="expected", zorder=2)
    axis.plot(thin.times, thin.values, color=canvas.HISTORY, linewidth=width, label="value", zorder=2.5)
    # Drawn even if empty, so that the legend explains the mark.
    axis.plot(
        thin.times[thin.anomalies],
        thin.values[thin.anomalies],
        "o",
        color=canvas.ANOMALY,
        markeredgecolor="white",
        markeredgewidth=0.8,
        markersize=7,
        label="anomaly",
        zorder=3,
    )
    canvas.show_times(axis, panel.times)


def _thin(panel: AnomalyPanel) -> AnomalyPanel:
    """Return the panel with at most `_MOST_POINTS` rows: the lowest and the highest value of each piece.

    In a piece with anomalies, only anomalies are chosen.
    """
    count = len(panel.values)
    if count <= _MOST_POINTS:
        return panel
    edges = np.linspace(0, count, _MOST_POINTS // 2 + 1).astype(int)
    keep = np.zeros(count, bool)
    for first, stop in itertools.pairwise(edges):
        marked = np.flatnonzero(panel.anomalies[first:stop])
        rows = first + (marked if len(marked) else np.arange(stop - first))
        values = panel.values[rows]
        known = rows[np.isfinite(values)]
        if not len(known):
            # A gap stays a gap.
            keep[first] = True
            continue
        keep[known[np.argmin(panel.values[known])]] = True
        keep[known[np.argmax(panel.values[known])]] = True
    columns = ("times", "values", "expected", "low", "high", "anomalies")
    return dataclasses.replace(panel, **{name: getattr(panel, name)[keep] for name in columns})
