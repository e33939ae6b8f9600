"""The chart of errors: how the error of a forecaster and of its baselines grows with the steps ahead."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from cellerate.report.charts import canvas

_MARKED_STEPS = 36
_DASHES: tuple[tuple[float, tuple[float, ...]], ...] = (
    (0, (5, 1.5)),
    (0, (1.2, 1.2)),
    (0, (5, 1.5, 1.2, 1.5)),
)
_MARKERS = ("s", "^", "D", "v")


def draw_errors(
    path: str | Path,
    errors: Mapping[str, np.ndarray],
    title: str,
    *,
    unit: str = "",
    measure: str = "mean absolute error",
) -> None:
    """Draws an error of several forecasters by the step ahead, lower is better.

    Args:
        path: Ends in ".png" or ".svg".
        errors: For each forecaster its errors, (horizon,), that of the first step first; the model, which is drawn
            thick, before its baselines. At least one.
        title: The title above the chart.
        unit: The unit of the errors, or the name of the target; "" if there is none.
        measure: The kind of error.

    Raises:
        CellerateError: See `check_chart`.
    """
    grid = canvas.Grid(1, 1, 9.5, 4.2)
    with canvas.drawing(path, title, grid) as (axis,):
        for place, (name, values) in enumerate(errors.items()):
            # Lines differ in more than their colour.
            how = (
                {"linewidth": 2.6, "marker": "o", "zorder": 3}
                if place == 0
                else {
                    "linewidth": 1.6,
                    "linestyle": _DASHES[(place - 1) % len(_DASHES)],
                    "marker": _MARKERS[(place - 1) % len(_MARKERS)],
                }
            )
            steps = np.arange(1, len(values) + 1)
            axis.plot(
                steps,
                values,
                color=canvas.COLOURS[place % len(canvas.COLOURS)],
                label=canvas.shorten(name.replace("_", " "), 30),
                markersize=4 if len(values) <= _MARKED_STEPS else 0,
                **how,
            )
        canvas.label_values(axis, canvas.remark_of([measure, unit]), grid)
        canvas.plain_numbers(axis)
        canvas.show_times(axis, steps)
        axis.set_xlabel("steps ahead", fontsize=10)
        highest = max(float(np.max(values)) for values in errors.values())
        if np.isfinite(highest) and highest > 0:
            axis.set_ylim(0, 1.08 * highest)
        if len(steps) == 1:
            axis.set_xlim(0.5, 1.5)
