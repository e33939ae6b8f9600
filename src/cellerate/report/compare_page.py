"""Writes a comparison of two runs as a page, as Markdown, as JSON, and as plain lines for a terminal."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from cellerate import format as shown
from cellerate.report import markdown
from cellerate.report.compare import Comparison, Outcome, SharedFigure
from cellerate.report.effects import Tone, effect
from cellerate.report.html import render, write_page
from cellerate.report.tables import FigureTable, TableCell, cells, table

_HEADINGS: dict[Outcome, str] = {
    "regression": "Regressions",
    "improvement": "Improvements",
    "same": "The same within the noise",
}
_SIGNS: dict[Outcome, tuple[str, Tone]] = {
    "regression": ("▼\N{NO-BREAK SPACE}", "bad"),
    "improvement": ("▲\N{NO-BREAK SPACE}", "good"),
    "same": ("", ""),
}


def write_comparison(found: Comparison, folder: str | Path) -> tuple[Path, Path, Path]:
    """Writes compare.html, compare.md and compare.json into a folder, each file whole or not at all.

    Raises:
        OutputError: A file could not be written.
    """
    content = json.dumps(found.to_json(), indent=1, ensure_ascii=False) + "\n"
    return (
        write_page(Path(folder) / "compare.html", comparison_html(found)),
        write_page(Path(folder) / "compare.md", comparison_markdown(found)),
        write_page(Path(folder) / "compare.json", content),
    )


def comparison_html(found: Comparison) -> str:
    """The comparison as HTML."""
    return render(
        "compare.html",
        title="Two runs of optimize compared",
        names=found.names,
        warnings=found.warnings,
        sentence=found.sentence,
        tone="bad" if found.regressions or not found.judged else "good",
        lost=found.lost,
        tables=_tables(found),
    )


def comparison_markdown(found: Comparison) -> str:
    """The comparison as GitHub-flavoured Markdown."""
    parts = ["# Two runs compared"]
    before, after = map(markdown.plain, found.names)
    parts += [f"Before: {before}. After: {after}.", markdown.bullets(found.warnings)]
    parts += [f"**{markdown.plain(found.sentence)}**", markdown.bullets(found.lost)]
    for heading, one in _tables(found):
        parts += [f"## {heading}", markdown.table(one, caption=False)]
    return markdown.join(parts)


def comparison_lines(found: Comparison) -> Iterable[str]:
    """The comparison as lines of plain text, regressions first."""
    yield from map(shown.one_line, [f"before: {found.names[0]}", f"after:  {found.names[1]}"])
    yield from (shown.one_line(f"warning: {warning}") for warning in found.warnings)
    yield from (shown.one_line(f"regression: {one}") for one in found.lost)
    rows = [(row.outcome, row.label, *_values(row), _change(row)) for row in found.rows]
    if rows:
        yield ""
        table_rows = [("outcome", "what", "before", "after", "change"), *rows]
        yield from shown.aligned([tuple(map(shown.one_line, row)) for row in table_rows], (2, 3))
        yield ""
    yield found.sentence


def _tables(found: Comparison) -> list[tuple[str, FigureTable]]:
    tables = []
    for outcome, heading in _HEADINGS.items():
        rows = [_row(row) for row in found.rows if row.outcome == outcome]
        heads = ("What", ">Before", ">After", "Change")
        if one := table(heading, heads, rows, stacked=True):
            tables.append((heading, one))
    different = (cells(TableCell(label), before, after) for label, before, after in found.differences)
    if one := table("Environment and settings that differ", ("What", "Before", "After"), different):
        tables.append(("What else differs", one))
    return tables


def _row(row: SharedFigure) -> tuple[TableCell, ...]:
    sign, tone = _SIGNS[row.outcome]
    note = f"within {row.margin}" if row.outcome == "same" else f"{row.outcome}, beyond {row.margin}"
    return cells(row.label, *_values(row), TableCell(sign + _change(row), note=note, tone=tone))


def _values(row: SharedFigure) -> tuple[str, str]:
    return shown.quantity(row.change.before, row.change.unit), shown.quantity(
        row.change.after, row.change.unit
    )


def _change(row: SharedFigure) -> str:
    return effect(row.change)[0]
