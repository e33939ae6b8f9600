"""The common part of all charts: the path, the colours, panels under one title, the time axis, the file.

A chart does not depend on the settings of its user's matplotlib, and the same forecasts give the same bytes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import unicodedata
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cellerate.errors import ConfigError
from cellerate.files import atomic_write, check_writable
from cellerate.machine.environment import require

HISTORY = "#5a5a5a"
TRUTH = "#111111"
FORECAST = "#0072B2"
BANDS: dict[int, tuple[str, ...]] = {0: (), 1: ("#bddaed",), 2: ("#d6e8f4", "#a3cbe5")}
"""The colours of bands by the number of bands, the outer band first."""
ANOMALY = "#D55E00"
GUIDE = "#9a9a9a"
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""Okabe and Ito's colours, which people of any colour vision can distinguish, without black and the pale yellow.

Source: Okabe & Ito, "Color Universal Design", 2008.
"""
MOST_PANELS = 12
"""The most panels: more would be too small to read."""

_STYLE = {
    "figure.facecolor": "white",
    "svg.fonttype": "none",
    "svg.hashsalt": "cellerate",
    # Lines are drawn in pieces of so many points: matplotlib may refuse a longer piece as too complex.
    "agg.path.chunksize": 20_000,
    "axes.edgecolor": "#8a8a8a",
    "axes.labelcolor": "#333333",
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": "#e9e9e9",
    "grid.linewidth": 0.8,
    "xtick.color": "#555555",
    "ytick.color": "#555555",
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "lines.linewidth": 1.6,
    "lines.solid_capstyle": "round",
    "legend.frameon": False,
    "legend.fontsize": 10,
    # Names are shown literally: "$" does not start a formula.
    "text.parse_math": False,
}
# Fonts for names in scripts that matplotlib's own font lacks, if they are installed.
_MORE_FONTS = (
    "Noto Sans CJK SC",
    "Noto Sans CJK JP",
    "Noto Sans CJK KR",
    "WenQuanYi Zen Hei",
    "Microsoft YaHei",
    "Hiragino Sans",
    "Arial Unicode MS",
)
# If the times span fewer days than this, the axis shows times of the day. For longer spans the ticks are one of
# `_DAYS` apart, with at most `_DAY_TICKS` steps; for still longer ones the axis shows months.
_HOURS_UNTIL_DAYS = 2.5
_DAYS = (1, 2, 3, 4, 7, 14)
_DAY_TICKS = 7
_EDGE = 0.16
_TITLE_INCHES = 0.42
_LINE_INCHES = 0.26
# The average width of a character in bold 14 points and in 10 points, rather too large than too small.
_TITLE_CHARACTER_INCHES = 0.125
CHARACTER_INCHES = 0.085
_KEY_INCHES = 0.65


@dataclasses.dataclass(frozen=True)
class Grid:
    """The panels of a chart, in rows.

    Attributes:
        panels: The number of panels.
        columns: The number of panels side by side.
        width: The width of a panel, in inches.
        height: The height of a panel, in inches.
    """

    panels: int
    columns: int
    width: float
    height: float

    @property
    def title_characters(self) -> int:
        """The number of characters that fit above a panel."""
        return int((self.width - 0.9) / CHARACTER_INCHES)


def check_chart(path: str | Path) -> None:
    """Raise the errors of drawing into `path` now, before hours of training.

    Raises:
        BackendError: The package `matplotlib` is not installed.
        ConfigError: The path ends neither in ".png" nor in ".svg".
        OutputError: The file cannot be written.
    """
    require("matplotlib", "plots", "Drawing a chart")
    if Path(path).suffix.lower() not in (".png", ".svg"):
        raise ConfigError(
            f"a chart is written as .png or .svg, not {Path(path).name!r}: give the file one of these suffixes."
        )
    check_writable(path)


@contextlib.contextmanager
def drawing(path: str | Path, title: str, grid: Grid, remark: str = "") -> Iterator[list[Any]]:
    """Yield the empty panels of a chart, and write the file when they are drawn.

    One legend shows the labels of all panels.

    Args:
        path: Ends in ".png" or ".svg".
        title: Above all panels.
        grid: How many there are.
        remark: A line under the title.

    Raises:
        CellerateError: See `check_chart`.
    """
    check_chart(path)
    from matplotlib import font_manager, style
    from matplotlib.figure import Figure

    installed = set(font_manager.get_font_names())
    fonts = {"font.sans-serif": ["DejaVu Sans", *(name for name in _MORE_FONTS if name in installed)]}
    with style.context(["default", _STYLE | fonts]):
        rows = -(-grid.panels // grid.columns)
        figure = Figure(figsize=(grid.columns * grid.width, rows * grid.height), layout="constrained")
        axes = list(figure.subplots(rows, grid.columns, squeeze=False).flat)
        for axis in axes[grid.panels :]:
            axis.remove()
        yield axes[: grid.panels]
        _add_header(figure, title, remark)
        _save(figure, path, clean(title))


def _add_header(figure: Any, title: str, remark: str) -> None:
    """Add title, remark and legend above the panels, which keep their height."""
    width, height = figure.get_size_inches()
    keys = _legend(figure.axes)
    needed = sum(_KEY_INCHES + CHARACTER_INCHES * _width(label) for label in keys)
    lines = -(-needed // (width - 2 * _EDGE)) if keys else 0
    remark_inches = _LINE_INCHES if remark else 0.0
    header = _EDGE + _TITLE_INCHES + remark_inches + lines * _LINE_INCHES
    whole = height + header
    figure.set_size_inches(width, whole)
    figure.get_layout_engine().set(
        rect=(0, 0, 1, height / whole), w_pad=0.14, h_pad=0.09, wspace=0.02, hspace=0.03
    )
    place = {"x": _EDGE / width, "ha": "left", "va": "top"}
    room = int((width - 2 * _EDGE) / _TITLE_CHARACTER_INCHES)
    figure.text(
        y=1 - _EDGE / whole, s=shorten(title, room), fontsize=14, fontweight="bold", color="#222222", **place
    )
    if remark:
        figure.text(
            y=1 - (_EDGE + _TITLE_INCHES - 0.1) / whole, s=remark, fontsize=10, color="#666666", **place
        )
    if keys:
        figure.legend(
            keys.values(),
            keys.keys(),
            loc="upper left",
            bbox_to_anchor=(place["x"], 1 - (_EDGE + _TITLE_INCHES - 0.04 + remark_inches) / whole),
            ncols=-(-len(keys) // int(lines)),
            borderaxespad=0,
            borderpad=0,
            handlelength=1.8,
            columnspacing=1.6,
        )


def _legend(axes: Sequence[Any]) -> dict[str, Any]:
    """The labelled items of the panels, each label once: lines, then bands from the inside."""
    from matplotlib.collections import PolyCollection

    lines: dict[str, Any] = {}
    areas: dict[str, Any] = {}
    for axis in axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            (areas if isinstance(handle, PolyCollection) else lines).setdefault(label, handle)
    return lines | dict(reversed(areas.items()))


def _save(figure: Any, path: str | Path, title: str) -> None:
    kind = Path(path).suffix.lower().removeprefix(".")
    # No date and no version of matplotlib, so that equal charts have equal bytes.
    metadata = (
        {"Date": None, "Creator": "Cellerate", "Title": title} if kind == "svg" else {"Software": "Cellerate"}
    )
    with atomic_write(path) as beside, warnings.catch_warnings():
        # Characters that no installed font has are drawn as boxes, which must not stop the chart.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        warnings.filterwarnings("ignore", message="Matplotlib currently does not support")
        figure.savefig(beside, format=kind, dpi=130, metadata=metadata)


def clean(text: str) -> str:
    """Return `text` in one line, without characters that text files must not hold."""
    words = " ".join(text.split())
    return "".join("\ufffd" if unicodedata.category(sign) in ("Cc", "Cs", "Cn") else sign for sign in words)


def shorten(text: str, characters: int) -> str:
    """Return `text` in one line of at most `characters`, wide ones counted twice; "…" replaces its middle."""
    text = clean(text)
    if _width(text) <= characters:
        return text
    head, tail = len(text) // 2, len(text) // 2
    while head > 1 and _width(text[:head]) + 1 + _width(text[tail:]) > characters:
        head, tail = (head - 1, tail) if len(text) - tail < head else (head, tail + 1)
    return f"{text[:head].rstrip()}…{text[tail:].lstrip()}"


def _width(text: str) -> int:
    return sum(2 if unicodedata.east_asian_width(sign) in "WF" else 1 for sign in text)


def heading(axis: Any, text: str) -> None:
    """Writes the title of a panel."""
    axis.set_title(text, fontsize=11, loc="left", color="#333333")


def label_values(axis: Any, name: str, grid: Grid) -> None:
    """Names the axis of values."""
    axis.set_ylabel(shorten(name, max(8, int(grid.height / CHARACTER_INCHES) - 8)), fontsize=10)


def plain_numbers(axis: Any) -> None:
    """Write the numbers on the axis of values in full, such as "1,250,000"."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    def written(value: float, place: int | None) -> str:
        low, high = axis.get_ylim()
        # Sums of steps miss 0 by a rounding error.
        nearly_zero = abs(value) < 1e-9 * abs(high - low)
        return f"{0.0 if nearly_zero else value:,.10g}".replace("-", "\N{MINUS SIGN}")

    axis.yaxis.set_major_formatter(FuncFormatter(written))
    axis.yaxis.set_major_locator(MaxNLocator(nbins=6))


def show_times(axis: Any, times: np.ndarray) -> None:
    """Sets the axis of times, row numbers or other numbers.

    Args:
        axis: A panel.
        times: All times shown there, in any order.
    """
    axis.margins(x=0.01)
    if times.dtype.kind == "M":
        _show_dates(axis, times.min(), times.max())
        return
    from matplotlib.ticker import MaxNLocator, StrMethodFormatter

    whole = times.dtype.kind in "iu"
    axis.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=whole, min_n_ticks=1))
    if whole:
        axis.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        axis.set_xlabel("row", fontsize=9, color="#555555")
    else:
        axis.ticklabel_format(axis="x", useOffset=False)


def _show_dates(axis: Any, first: Any, last: Any) -> None:
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter, DateFormatter
    from matplotlib.ticker import MultipleLocator

    span = (last - first) / np.timedelta64(1, "D")
    # matplotlib knows the years 1 to 9999: no margin at their ends.
    low, high = axis.get_xlim()
    axis.set_xlim(max(low, -719162.0), min(high, 2932896.99))
    inside = low > -719000 and high < 2932800
    if inside and _HOURS_UNTIL_DAYS < span <= _DAY_TICKS * _DAYS[-1]:
        # Evenly spaced across the ends of months, weeks on Mondays (1970 began with a Thursday).
        days = next(days for days in _DAYS if span <= _DAY_TICKS * days)
        axis.xaxis.set_major_locator(MultipleLocator(days, offset=4 if days % 7 == 0 else 0))
        axis.xaxis.set_major_formatter(DateFormatter("%d %b"))
        years = sorted({str(time.astype("datetime64[Y]")) for time in (first, last)})
        axis.set_xlabel(" \N{EN DASH} ".join(years), loc="right", fontsize=9, color="#777777")
        return
    locator = AutoDateLocator(minticks=3, maxticks=7)
    axis.xaxis.set_major_locator(locator)
    axis.xaxis.set_major_formatter(
        ConciseDateFormatter(
            locator,
            formats=["%Y", "%b", "%d %b", "%H:%M", "%H:%M", "%S.%f"],
            zero_formats=["", "%Y", "%d %b", "%d %b", "%H:%M", "%H:%M"],
            offset_formats=["", "%Y", "%Y", "%d %b %Y", "%d %b %Y", "%d %b %Y %H:%M"],
        )
    )
    axis.xaxis.get_offset_text().set(fontsize=9, color="#777777")


def time_text(time: Any) -> str:
    """Return the shortest exact text of a time, or the number of a row."""
    if isinstance(time, np.datetime64):
        return str(time.astype("datetime64[s]")).replace("T", " ").removesuffix(":00").removesuffix(" 00:00")
    return f"row {time:,}" if isinstance(time, int | np.integer) else f"{time:g}"


def spread(count: int, most: int) -> list[int]:
    """Return at most `most` indices of 0…`count`-1, spread evenly, with the first and the last."""
    return [int(place) for place in np.linspace(0, count - 1, min(count, most)).round()]


def some_of(shown: int, count: int, noun: str) -> str:
    """Says "12 of 700 series", or "" if all are shown."""
    return f"{shown:,} of {count:,} {noun}" if shown < count else ""


def remark_of(parts: Sequence[str]) -> str:
    """The parts that are not empty, as one line."""
    return " · ".join(filter(None, parts))
