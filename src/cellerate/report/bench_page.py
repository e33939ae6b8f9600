"""The page of `cellerate bench` and of `cellerate sweep`: the measurements in one self-contained HTML file.

It knows only words, tables and charts, not records: the caller decides what they show.
"""

from __future__ import annotations

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
        sentences: The sentences at the beginning.
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
        facts: The facts about the run, in a few words each.
        sentence: The result in one sentence.
        tone: Good or bad news.
        tiles: The large figures at the top.
        warnings: The doubts about the results.
        sections: The other parts of the page.
        command: The next command; "" for none.
        for_command: The purpose of the command.
        kicker: The verb that made the page.
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
