"""What the report is made of: tables whose cells know good news from bad, and charts that carry their data.

A module of its own because whoever finds something to show (`view`, `figures`, `samples`) puts it into these, and
whoever writes it down (`html`, `markdown`) takes it from them.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import TypeVar

from cellerate.report.effects import Tone
from cellerate.report.svg import Chart

NONE = "—"
"""Where there is nothing to show."""

_Row = TypeVar("_Row")
_MOST_ROWS = 40  # of a table beside a chart; report.json has all
_LONG = 4000  # characters of a text that are shown


@dataclasses.dataclass(frozen=True)
class Cell:
    """A cell of a table.

    Attributes:
        text: Of it.
        note: A second, smaller line.
        tone: Whether it is good or bad news, which the text says too.
        code: Whether it is to be read letter by letter.
    """

    text: str
    note: str = ""
    tone: Tone = ""
    code: bool = False


@dataclasses.dataclass(frozen=True)
class Table:
    """A table whose first column names its rows.

    Attributes:
        caption: What it has.
        columns: Their heads; those of figures begin with ">" and stand to the right.
        rows: As many cells each.
        remark: A sentence below it.
    """

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    remark: str = ""

    @property
    def heads(self) -> list[tuple[str, bool]]:
        """Each head and whether figures stand below it."""
        return [(named(column.removeprefix(">")), column.startswith(">")) for column in self.columns]


@dataclasses.dataclass(frozen=True)
class Figure:
    """A chart, and what is drawn in it as a table.

    Attributes:
        chart: It.
        table: Its data.
        wide: Whether it takes the width of the page.
    """

    chart: Chart
    table: Table
    wide: bool = False


def cells(*values: str | Cell) -> tuple[Cell, ...]:
    """A row; no cell of it is empty."""
    found = (value if isinstance(value, Cell) else Cell(value) for value in values)
    return tuple(dataclasses.replace(cell, text=named(cell.text)) for cell in found)


def table(
    caption: str, columns: Sequence[str], rows: Iterable[tuple[Cell, ...]], remark: str = ""
) -> Table | None:
    """A table, or None where it would have no rows."""
    found = tuple(rows)
    return Table(caption, tuple(columns), found, remark) if found else None


def thinned(rows: Sequence[_Row]) -> tuple[tuple[_Row, ...], str]:
    """At most some rows, evenly, and a sentence that says so where rows are left out."""
    if len(rows) <= _MOST_ROWS:
        return tuple(rows), ""
    places = [round(n * (len(rows) - 1) / (_MOST_ROWS - 1)) for n in range(_MOST_ROWS)]
    return tuple(rows[n] for n in places), f"{_MOST_ROWS} of {len(rows):,} rows; report.json has all."


def cut(text: str) -> str:
    """The beginning of a text that would fill pages."""
    if len(text) <= _LONG:
        return text
    return f"{text[:_LONG]}… [{len(text) - _LONG:,} more characters are in report.json]"


def named(*titles: str) -> str:
    """The first title that is not empty."""
    return next((title for title in titles if title.strip()), NONE)
