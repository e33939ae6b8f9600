"""The chart of curves: how figures change with a setting, a panel for each figure, a line for each contestant."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cellerate.report.charts import canvas

_DASHES = ("-", "--", "-.", ":")
_WIDE = 300.0  # the ratio of the highest to the lowest value from which powers of ten are enough ticks
_MARKERS = ("o", "s", "^", "D", "v", "P")


@dataclasses.dataclass(frozen=True)
class Curves:
    """A panel.

    Attributes:
        lines: The name of each line, and its points with ascending x.
        x_label: The label of x.
        y_label: The label of y, with its unit.
        base: The base of a logarithmic x axis, 2 or 10; None for a linear axis.
        log_y: Whether y is drawn by its logarithm.
    """

    lines: Sequence[tuple[str, Sequence[tuple[float, float]]]]
    x_label: str
    y_label: str
    base: int | None = None
    log_y: bool = False


def draw_curves(path: str | Path, panels: Sequence[Curves], title: str, remark: str = "") -> None:
    """Draw curves; lines of the same name look the same in all panels.

    Args:
        path: Ends in ".png" or ".svg".
        panels: The panels, at least one.
        title: The title above them.
        remark: A line under the title.

    Raises:
        CellerateError: See `check_chart`.
    """
    grid = canvas.Grid(len(panels), min(3, len(panels)), 5.4, 4.2)
    names = list(dict.fromkeys(name for panel in panels for name, _ in panel.lines))
    with canvas.drawing(path, title, grid, remark) as axes:
        for axis, panel in zip(axes, panels, strict=True):
            for name, points in panel.lines:
                place = names.index(name)
                axis.plot(
                    [x for x, _ in points],
                    [y for _, y in points],
                    color=canvas.COLOURS[place % len(canvas.COLOURS)],
                    linestyle=_DASHES[place % len(_DASHES)],
                    marker=_MARKERS[place % len(_MARKERS)],
                    markersize=5,
                    label=canvas.shorten(name, 30),
                )
            if panel.log_y:
                _scale_y(axis)
            if panel.base is not None:
                _scale_x(axis, panel)
            axis.set_xlabel(panel.x_label, fontsize=10)
            canvas.label_values(axis, panel.y_label, grid)


def _scale_y(axis: Any) -> None:
    """A logarithmic axis of values, with numbers written in full: as powers they would be formulas."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_yscale("log")
    low, high = axis.get_ylim()
    axis.yaxis.set_major_locator(LogLocator(subs=(1.0,) if high > _WIDE * low else (1.0, 2.0, 5.0)))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, place: f"{value:,.10g}"))
    axis.yaxis.set_minor_formatter(NullFormatter())


def _scale_x(axis: Any, panel: Curves) -> None:
    """A logarithmic axis with a tick at each value that was measured."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    values = sorted({x for _, points in panel.lines for x, _ in points})
    axis.set_xscale("log", base=panel.base)
    shown = axis.xaxis
    shown.set_major_locator(FixedLocator(values[:: -(-len(values) // 14)]))
    shown.set_minor_locator(NullLocator())
    shown.set_major_formatter(FuncFormatter(lambda value, place: f"{value:g}"))
