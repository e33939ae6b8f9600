"""The page of `cellerate bench` and of `cellerate sweep`: what was measured, as one self-contained HTML file.

It knows words, tables and charts, and no record: the caller says what they show.
"""

import dataclasses

from cellerate.report.effects import Tone
from cellerate.report.html import render
from cellerate.report.tables import Figure, FigureTable
from cellerate.report.view import HeadlineFigure


@dataclasses.dataclass(frozen=True)
class Section:
    """A part of the page.

    Attributes:
        heading: Its heading.
        sentences: What is said first.
        figures: Charts with their data.
        tables: Tables without a chart.
        notes: Smaller sentences at the end.
    """

    heading: str
    sentences: tuple[str, ...] = ()
    figures: tuple[Figure, ...] = ()
    tables: tuple[FigureTable, ...] = ()
    notes: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class BenchPage:
    """The contents of the page.

    Attributes:
        title: The title.
        facts: What it is of, in a few words each.
        sentence: The result in one sentence.
        tone: Whether that is good or bad news.
        tiles: The large figures at the top.
        warnings: What to know before relying on it.
        sections: The rest.
        command: A command to go on with; "" for none.
        for_command: What the command is for.
        kicker: The verb that made it.
    """

    title: str
    facts: tuple[str, ...]
    sentence: str
    tone: Tone
    tiles: tuple[HeadlineFigure, ...]
    warnings: tuple[str, ...]
    sections: tuple[Section, ...]
    command: str = ""
    for_command: str = "To measure again"
    kicker: str = "cellerate bench"


def bench_html(page: BenchPage) -> str:
    """The page as HTML; all texts are shown literally."""
    return render("bench.html", title=page.title, page=page)
