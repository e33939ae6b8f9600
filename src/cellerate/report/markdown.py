"""The report as Markdown, for a pull request or a terminal: the content of the page, with charts as tables."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import cellerate
from cellerate import format as shown
from cellerate.report import figures, view
from cellerate.report.gains import gains
from cellerate.report.html import write_page
from cellerate.report.record import Run
from cellerate.report.samples import samples
from cellerate.report.tables import Figure, FigureTable, TableCell
from cellerate.report.view import StageView

FILE_NAME = "report.md"
# Characters with a meaning in GitHub's Markdown: anywhere in a line, and at its start.
_SPECIAL = re.compile(r"[\\`*_\[\]<|~$&]|^[-+=#>]|(?<=^\d)[.)](?=\s)|(?<=^\d\d)[.)](?=\s)")


def write_markdown(run: Run, folder: str | Path) -> Path:
    """Writes the report of a run into a folder, whole or not at all, and gives the file's path.

    Raises:
        OutputError: The file could not be written.
    """
    return write_page(Path(folder) / FILE_NAME, markdown(run))


def markdown(run: Run) -> str:
    """The report of a run as GitHub-flavoured Markdown."""
    return join(_parts(view.titled(run)))


def _parts(run: Run) -> Iterable[str]:
    sentence, _ = view.outcome(run)
    yield f"# {plain(run.model)}: what optimize found"
    yield plain(", ".join(filter(None, [run.task, run.data, view.began(run), shown.duration(run.seconds)])))
    yield f"**{plain(sentence)}**"
    beside = gains(run)
    if beside is not None:
        yield plain(beside.sentence)
        yield table(beside.table)
    if run.verdict is not None:
        yield bullets(run.verdict.warnings)
        yield table(view.verdict_table(run))
        yield table(view.tested_table(run))
    training = view.training_command(run)
    if view.used(run) or training or run.command:
        yield "## What to use now"
        yield table(view.used(run))
        if training:
            yield f"To train from now on:\n\n{block(training)}"
        if run.command:
            yield f"To reproduce this run:\n\n{block(view.wrapped(run.command))}"
    waterfalls = figures.waterfalls(run)
    if waterfalls:
        yield "## Where the gains come from"
        yield from (_figure(one) for one in waterfalls)
    front = figures.front(run)
    if front:
        yield f"## Quality against latency\n\n{plain(front.chart.description)}"
        yield table(front.table)
    if run.passes:
        yield "## Stages"
        yield table(view.stages_table(run))
        for one in run.passes:
            yield from _stage(view.stage_view(one, figures.curves(one)))
    if run.training_steps:
        yield "## Training"
        yield table(view.training_table(run))
    if run.candidates:
        yield "## Models"
        yield table(view.candidates_table(run))
        yield table(view.speeds_table(run))
    yield from _samples(run)
    for heading, found in (
        ("Kernels", view.explanation_table(run)),
        ("Environment", view.environment_table(run)),
        ("Settings", view.settings_table(run)),
    ):
        if found:
            yield f"## {heading}"
            yield table(found)
    yield f"Drawn by cellerate {cellerate.__version__} from report.json (schema {run.schema})."


def _stage(one: StageView) -> Iterable[str]:
    if not (one.gains or one.facts or one.notes or one.figures or one.reason):
        return
    yield f"### {plain(one.title)} ({plain(one.state)})"
    yield plain(one.decision)
    yield f"**{one.head}:** {plain(one.reason)}" if one.reason else ""
    yield table(one.gains)
    yield bullets(one.notes)
    yield from (_figure(figure) for figure in one.figures)
    yield table(one.facts)


def _figure(one: Figure) -> str:
    return join(
        [f"**{plain(one.chart.title)}.** {plain(one.chart.description)}", table(one.table, caption=False)]
    )


def _samples(run: Run) -> Iterable[str]:
    found = samples(run)
    if not found:
        return
    yield "## Samples"
    yield plain(found.left_out)
    yield table(found.lines)
    if found.prompt:
        yield f"Given to all of them:\n\n{block(found.prompt)}"
    for text in found.texts:
        role = f" ({plain(text.role)})" if text.role else ""
        yield f"### {plain(text.model)}{role}"
        if text.prompt:
            yield f"Given:\n\n{block(text.prompt)}\n\nWritten:"
        yield block(text.text or "(nothing)")
    for group in found.forecasts:
        yield f"### {plain(group.title)}"
        yield table(group.table)


def join(parts: Iterable[str]) -> str:
    """Joins paragraphs; empty ones are left out."""
    return "\n\n".join(part for part in (p.rstrip() for p in parts) if part) + "\n"


def plain(text: str) -> str:
    """Return text that Markdown shows literally, on one line."""
    return _SPECIAL.sub(r"\\\g<0>", shown.one_line(text))


def code(text: str) -> str:
    """Return code within a line, in a fence longer than any fence inside; it does not break tables."""
    text = shown.one_line(text) or " "
    fence = "`" * (max((len(run) for run in re.findall("`+", text)), default=0) + 1)
    space = " " if text[0] == "`" or text[-1] == "`" else ""
    # A table splits its cells before it looks for code, and then undoes this escape.
    return f"{fence}{space}{text}{space}{fence}".replace("|", "\\|")


def block(text: str) -> str:
    """Return a code block, without characters that would move a terminal's cursor."""
    text = shown.visible(text)
    fence = "`" * max(3, max((len(run) for run in re.findall("`+", text)), default=0) + 1)
    return f"{fence}text\n{text}\n{fence}"


def bullets(notes: Iterable[str]) -> str:
    """Return a bulleted list."""
    return "\n".join(f"- {plain(note)}" for note in notes)


def table(of: FigureTable | None, *, caption: bool = True) -> str:
    """Return a table with its caption; "" for None."""
    if of is None:
        return ""
    heads = [plain(head) for head, _ in of.heads]
    rules = ["---:" if figures_ else "---" for _, figures_ in of.heads]
    lines = [row(heads), row(rules), *(row(_cell(cell) for cell in cells) for cells in of.rows)]
    return join([f"{plain(of.caption)}:" if caption else "", "\n".join(lines), plain(of.remark)])


def row(cells: Iterable[str]) -> str:
    """Return a line of a table."""
    return "| " + " | ".join(cells) + " |"


def _cell(cell: TableCell) -> str:
    text = code(cell.text) if cell.code else plain(cell.text)
    return f"{text} ({plain(cell.note)})" if cell.note else text
