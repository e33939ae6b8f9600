"""The parts of a report: tables whose cells are marked as good or bad news, and charts that carry their data.

`view`, `figures` and `samples` fill them; `html` and `markdown` write them down.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import TypeVar

from cellerate.report.effects import Tone
from cellerate.report.quality import Metric
from cellerate.report.svg import Chart

NONE = "—"
"""The text of an empty cell."""

_Row = TypeVar("_Row")
_MOST_ROWS = 40  # in a table beside a chart; report.json has all
_LONG = 4000  # the characters of a text that are shown


@dataclasses.dataclass(frozen=True)
class TableCell:
    """A cell of a table.

    Attributes:
        text: The text of the cell.
        note: A second, smaller line.
        tone: Whether it is good or bad news; the text says so too.
        code: Whether to set it as code.
    """

    text: str
    note: str = ""
    tone: Tone = ""
    code: bool = False


@dataclasses.dataclass(frozen=True)
class FigureTable:
    """A table whose first column names its rows.

    Attributes:
        caption: What the table contains.
        columns: The column heads; those of figures start with ">" and are set flush right.
        rows: The rows, with one cell for each column.
        remark: A sentence below the table.
        stacked: Whether a narrow page puts the name of a row above its cells: for few columns of long words.
    """

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[TableCell, ...], ...]
    remark: str = ""
    stacked: bool = False

    @property
    def heads(self) -> list[tuple[str, bool]]:
        """Each head, and whether its column holds figures."""
        return [(named(column.removeprefix(">")), column.startswith(">")) for column in self.columns]


@dataclasses.dataclass(frozen=True)
class Figure:
    """A chart, and its data as a table.

    Attributes:
        chart: The chart.
        table: The data of the chart.
        wide: Whether it takes the full width of the page.
    """

    chart: Chart
    table: FigureTable
    wide: bool = False


def cells(*values: str | TableCell) -> tuple[TableCell, ...]:
    """Return a row; empty texts become `NONE`."""
    found = (value if isinstance(value, TableCell) else TableCell(value) for value in values)
    return tuple(dataclasses.replace(cell, text=named(cell.text)) for cell in found)


def metric_label(metric: Metric) -> str:
    """The name of a quality, with its unit if the name does not contain it."""
    name, unit = named(metric.name, "quality"), metric.unit
    return f"{name} ({unit})" if unit and unit.lower() not in name.lower() else name


def table(
    caption: str,
    columns: Sequence[str],
    rows: Iterable[tuple[TableCell, ...]],
    remark: str = "",
    *,
    stacked: bool = False,
) -> FigureTable | None:
    """Return a table, or None if it would have no rows."""
    found = tuple(rows)
    return FigureTable(caption, tuple(columns), found, remark, stacked) if found else None


def thinned(rows: Sequence[_Row]) -> tuple[tuple[_Row, ...], str]:
    """Return at most `_MOST_ROWS` evenly spaced rows, and a sentence that says so if rows are left out."""
    if len(rows) <= _MOST_ROWS:
        return tuple(rows), ""
    places = [round(n * (len(rows) - 1) / (_MOST_ROWS - 1)) for n in range(_MOST_ROWS)]
    return tuple(rows[n] for n in places), f"{_MOST_ROWS} of {len(rows):,} rows; report.json has all."


def cut(text: str) -> str:
    """Cuts a text that would fill pages to its beginning."""
    if len(text) <= _LONG:
        return text
    return f"{text[:_LONG]}… [{len(text) - _LONG:,} more characters are in report.json]"


def named(*titles: str) -> str:
    """Return the first title that is not empty."""
    return next((title for title in titles if title.strip()), NONE)
