"""Charts as PNG files; the only module that needs matplotlib."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cellerate.errors import ConfigError
from cellerate.files import atomic_write, check_writable
from cellerate.machine.environment import require
from cellerate.runtime.forecasting import Example

_PAST_HORIZONS = 4  # how much of the past to show, in forecast lengths, so that the forecast is not a sliver


def check_chart(path: str | Path) -> None:
    """Raises at once what `draw_forecasts` would raise for `path`, so that it comes before hours of training.

    Raises:
        BackendError: The package `matplotlib` is not installed.
        ConfigError: The path does not end in ".png".
        OutputError: The file cannot be written.
    """
    require("matplotlib", "plots", "Drawing a chart")
    if Path(path).suffix.lower() != ".png":
        raise ConfigError(f"a chart is written as .png, not {Path(path).name!r}.")
    check_writable(path)


def draw_forecasts(path: str | Path, examples: Sequence[Example], title: str) -> None:
    """Draws forecasts against the values that came, one panel for each example and target.

    Args:
        path: The PNG file.
        examples: At least one.
        title: The title above all panels.

    Raises:
        CellerateError: See `check_chart`.
    """
    check_chart(path)
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
    from matplotlib.figure import Figure

    panels = [(example, n) for example in examples for n in range(len(example.targets))]
    columns = 1 if len(panels) == 1 else 2
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(6.5 * columns, 3.2 * rows + 0.6), layout="constrained")
    # Names are shown as they are: "$" starts no formula.
    figure.suptitle(title, parse_math=False)
    axes: Any = figure.subplots(rows, columns, squeeze=False)
    for axis, (example, n) in zip(axes.flat, panels, strict=False):
        _draw(axis, example, n)
        if np.issubdtype(example.times.dtype, np.datetime64):
            locator = AutoDateLocator()
            axis.xaxis.set_major_locator(locator)
            axis.xaxis.set_major_formatter(ConciseDateFormatter(locator))
    for axis in axes.flat[len(panels) :]:
        axis.remove()
    axes.flat[0].legend(frameon=False, fontsize="small")
    with atomic_write(path) as beside:
        figure.savefig(beside, format="png", dpi=130)


@dataclasses.dataclass(frozen=True, eq=False)
class AnomalyPanel:
    """What `draw_anomalies` draws of one target of one series.

    Attributes:
        name: Of the series and the target.
        times: (N,) times or row numbers.
        values: (N,).
        expected: (N,).
        low: (N,) lower bounds of usual values.
        high: (N,) upper bounds.
        anomalies: (N,) bool.
    """

    name: str
    times: np.ndarray
    values: np.ndarray
    expected: np.ndarray
    low: np.ndarray
    high: np.ndarray
    anomalies: np.ndarray


def draw_anomalies(path: str | Path, panels: Sequence[AnomalyPanel], title: str) -> None:
    """Draws series with their bounds and marks their anomalies; of more than 12 panels, those with the most.

    Args:
        path: The PNG file.
        panels: At least one.
        title: The title above all panels.

    Raises:
        CellerateError: See `check_chart`.
    """
    check_chart(path)
    from matplotlib.figure import Figure

    shown = sorted(panels, key=lambda panel: -int(panel.anomalies.sum()))[:12]
    figure = Figure(figsize=(11, 2.6 * len(shown) + 0.6), layout="constrained")
    figure.suptitle(title, parse_math=False)
    for axis, panel in zip(figure.subplots(len(shown), 1, squeeze=False).flat, shown, strict=True):
        axis.fill_between(panel.times, panel.low, panel.high, color="C0", alpha=0.25, label="usual")
        axis.plot(panel.times, panel.values, color="0.45", linewidth=0.8, label="value")
        marked = panel.anomalies
        axis.plot(panel.times[marked], panel.values[marked], "o", color="C3", markersize=3, label="anomaly")
        axis.set_title(panel.name, fontsize="small", loc="left", parse_math=False)
    with atomic_write(path) as beside:
        figure.savefig(beside, format="png", dpi=130)


def _draw(axis: Any, example: Example, n: int) -> None:
    shown = min(len(example.past), _PAST_HORIZONS * len(example.times))
    times, past = example.past_times[-shown:], example.past[-shown:, n]
    # Starts at the last known point, so that the lines join.
    later = np.concatenate([times[-1:], example.times])
    axis.plot(times, past, color="0.45", label="past")
    if example.truth is not None:
        axis.plot(
            later,
            np.concatenate([past[-1:], example.truth[:, n]]),
            color="0.45",
            linestyle=":",
            label="truth",
        )
    forecast = example.forecast[:, n]
    if example.quantiles:
        middle = int(np.argmin(np.abs(np.array(example.quantiles) - 0.5)))
        if len(example.quantiles) > 1:
            low, high = example.quantiles[0], example.quantiles[-1]
            label = f"{low:g} to {high:g} quantile"
            # Starts at the last known value, like the line; otherwise a single step would not be visible.
            edges = [np.concatenate([past[-1:], forecast[:, edge]]) for edge in (0, -1)]
            axis.fill_between(later, *edges, color="C0", alpha=0.25, label=label)
        forecast = forecast[:, middle]
    axis.plot(later, np.concatenate([past[-1:], forecast]), color="C0", label="forecast")
    axis.set_title(
        " · ".join(filter(None, [example.series, example.targets[n]])),
        fontsize="small",
        loc="left",
        parse_math=False,
    )
    axis.spines[["top", "right"]].set_visible(False)
