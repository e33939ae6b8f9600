"""The content of the report as words, tables and charts; HTML and Markdown only arrange it, so both say the same."""

from __future__ import annotations

import dataclasses
import datetime
import shlex
from collections.abc import Sequence
from typing import Any

from cellerate import format as shown
from cellerate.report.effects import Tone, effect, loss_in_words, loss_reach, reach
from cellerate.report.gains import gains
from cellerate.report.quality import Interval
from cellerate.report.record import Candidate, Change, Run, StageRecord, TrainingStep, training_item
from cellerate.report.tables import (
    NONE,
    Figure,
    FigureTable,
    TableCell,
    cells,
    cut,
    metric_label,
    named,
    table,
)

_WIDE = 92  # characters per line of a command

STATUS = {
    "done": "✓\N{NO-BREAK SPACE}done",
    "failed": "✗\N{NO-BREAK SPACE}failed",
    "skipped": "○\N{NO-BREAK SPACE}skipped",
}
_ROLES = {
    "before": "Before",
    "control": "Control",
    "after": "After",
    "rejected": "Chosen, and not kept",
}
_STREAM = "A packed model draws many characters of a text in a call; every other way takes a call for each."
BEST_TRADE_OFF = "Best trade-off: no other model is both better and faster."
_MADE = {"characters": "character", "forecasts": "forecast", "lines": "line"}


@dataclasses.dataclass(frozen=True)
class HeadlineFigure:
    """One of the large figures at the top: "34.2x faster", of what, and from what to what."""

    big: str
    word: str
    label: str
    detail: str
    tone: Tone


@dataclasses.dataclass(frozen=True)
class StageView:
    """A stage as the report shows it."""

    name: str
    title: str
    state: str
    look: str
    head: str
    decision: str
    reason: str
    gains: FigureTable | None
    facts: FigureTable | None
    notes: tuple[str, ...]
    figures: tuple[Figure, ...]


def outcome(run: Run) -> tuple[str, Tone]:
    """Return the sentence that sums up the run."""
    if run.verdict is not None:
        if run.status == "finished":
            return run.verdict.sentence, "bad" if run.verdict.rejected else "good"
        how = "was interrupted" if run.status == "interrupted" else "failed"
        return f"This run {how}; so far: {run.verdict.sentence}", "bad"
    done = sum(one.status == "done" for one in run.passes)
    stages = f"{done} of its stages {'was' if done == 1 else 'were'} done" if done else "no stage was done"
    if run.status == "interrupted":
        again = "Start the same command again: it goes on where it stopped."
        return f"This run was interrupted before it came to a verdict; {stages}. {again}", "bad"
    if run.status == "failed":
        why = next((f": {one.title}: {one.reason}" for one in run.passes if one.status == "failed"), "")
        return f"This run failed before it came to a verdict; {stages}{why or '.'}", "bad"
    return f"This run came to its end without a verdict; {stages}.", "bad"


def verdict_table(run: Run) -> FigureTable | None:
    """Return the table of the verdict's figures before and after, without those beside Keras that `gains` has."""
    beside = gains(run)
    changes = run.verdict.rows if run.verdict else ()
    new = [one for one in changes if beside is None or not beside.contains(one)]
    return changes_table("Before and after, measured in this run", new, _stream(run))


def changes_table(caption: str, changes: Sequence[Change], remark: str = "") -> FigureTable | None:
    """Return the table of figures before and after."""
    rows = []
    for change in changes:
        words, tone = effect(change)
        sign = {"good": "▲\N{NO-BREAK SPACE}", "bad": "▼\N{NO-BREAK SPACE}", "": ""}[tone]
        before, after = (shown.quantity(value, change.unit) for value in (change.before, change.after))
        rows.append(cells(change.label, before, after, TableCell(sign + words, tone=tone)))
    return table(caption, ("What", ">Before", ">After", "Change"), rows, remark, stacked=True)


def titled(run: Run) -> Run:
    """Return the same run with placeholders for empty headings."""
    stages = tuple(
        dataclasses.replace(
            one,
            title=named(one.title, one.name, "Stage"),
            curves=tuple(
                dataclasses.replace(curve, chart=named(curve.chart, "Curve"), name=named(curve.name, "value"))
                for curve in one.curves
            ),
        )
        for one in run.passes
    )
    candidates = tuple(
        dataclasses.replace(one, title=named(one.title, one.id, "Model")) for one in run.candidates
    )
    model = named(run.model, "Unnamed model")
    return dataclasses.replace(run, model=model, passes=stages, candidates=candidates)


def began(run: Run) -> str:
    """When the run began, to the minute."""
    try:
        when = datetime.datetime.fromisoformat(run.started)
    except ValueError:
        return run.started
    return f"{when:%Y-%m-%d %H:%M} {when.tzname() or ''}".rstrip()


def tiles(run: Run) -> list[HeadlineFigure]:
    """Return a tile for the first figure of each quantity."""
    found: list[HeadlineFigure] = []
    for quantity in ("training", "use", "size", None):
        changes = run.verdict.rows if run.verdict else ()
        change = next((one for one in changes if one.quantity == quantity), None)
        if change is None:
            continue
        words, tone = effect(change)
        big, _, word = words.rpartition(" ")
        detail = f"{shown.quantity(change.before, change.unit)} → {shown.quantity(change.after, change.unit)}"
        found.append(HeadlineFigure(big or word, word if big else "", change.label, detail, tone))
    return found


def used(run: Run) -> FigureTable | None:
    """Return the table of the verdict's files."""
    files = run.verdict.files if run.verdict else ()
    return table(
        "Files, within the folder of this report",
        ("What", "File"),
        (cells(label, TableCell(path, code=True)) for label, path in files),
    )


def training_command(run: Run) -> str:
    """Return the command to train with from now on; "" if none is proposed."""
    return "" if run.verdict is None else wrapped(run.verdict.training.strip())


def wrapped(command: str) -> str:
    """Breaks a command into lines that fit, each but the last ending in a backslash, so that it can be copied."""
    try:
        words = shlex.split(command)
    except ValueError:
        return command
    if shlex.join(words) != command or len(command) <= _WIDE:
        return command
    lines: list[str] = []
    for word in map(shlex.quote, words):
        # A value stays on the same line as its option.
        if not lines or (word.startswith("-") and len(lines[-1]) + len(word) > _WIDE - 24):
            lines.append(word if not lines else f"  {word}")
        else:
            lines[-1] += f" {word}"
    return " \\\n".join(lines)


def stages_table(run: Run) -> FigureTable | None:
    """Return a table with a row for each stage."""
    rows = []
    for one in run.passes:
        tone: Tone = "bad" if one.status == "failed" else "good" if one.kept else ""
        said = one.decision if one.status == "done" else " ".join(filter(None, [one.reason, one.decision]))
        rows.append(
            cells(
                TableCell(one.title, note=one.name),
                TableCell(STATUS[one.status], note="kept" if one.kept else "", tone=tone),
                TableCell(shown.duration(one.seconds), note=_expected(one)) if one.seconds else NONE,
                said or NONE,
            )
        )
    return table("Every stage of the run", ("Stage", "Status", ">Took", "What was found"), rows)


def _expected(one: StageRecord) -> str:
    return "" if one.expected_s is None else f"{shown.duration(one.expected_s)} expected"


def stage_view(one: StageRecord, figures: tuple[Figure, ...]) -> StageView:
    """Return all that a report shows of a stage."""
    took = f", {shown.duration(one.seconds)}" if one.seconds else ""
    return StageView(
        name=one.name,
        title=one.title,
        look="failed" if one.status == "failed" else "kept" if one.kept else "",
        state=STATUS[one.status] + took,
        head={"failed": "Why it failed", "skipped": "Why it was left out", "done": "Remark"}[one.status],
        decision=one.decision,
        reason=one.reason,
        gains=changes_table(f"{one.title}: before and after", one.gains),
        facts=table(f"{one.title}: facts", ("What", "Found"), (cells(a, cut(b)) for a, b in one.facts)),
        notes=one.notes,
        figures=figures,
    )


def training_table(run: Run) -> FigureTable | None:
    """Return the table of training measurements."""
    rows = [
        cells(
            TableCell(one.way, note="baseline" if n == 0 else f"in turns: {one.race}" if one.race else ""),
            f"{one.batch_size:,}",
            NONE if one.length is None else f"{one.length:,}",
            TableCell(shown.milliseconds(one.step_ms), note=_percentiles(one)),
            f"{shown.short(one.items_per_s)}",
            NONE if one.peak_memory_bytes is None else shown.size(one.peak_memory_bytes),
            NONE if one.loss is None else shown.number(one.loss, 4),
        )
        for n, one in enumerate(run.training_steps)
    ]
    heads = (
        "Way",
        ">Batch",
        ">Length",
        ">Step, median",
        f">{_items(training_item(run.item))} a second",
        ">Memory, peak",
        ">Loss",
    )
    remark = "Below the median step: its 20th and 80th percentile."
    if any(one.race for one in run.training_steps):
        remark += " Ways with the same second line were timed in turns, so that they can be compared."
    return table("Training as it was measured", heads, rows, remark)


def _percentiles(one: TrainingStep) -> str:
    return f"{shown.milliseconds(one.step_p20_ms)} to {shown.milliseconds(one.step_p80_ms)}"


def _items(item: str) -> str:
    return (item[:1].upper() + item[1:]) or "Items"


def _stream(run: Run) -> str:
    """Notes on the speeds of a text, or nothing."""
    return _STREAM if run.item == "characters" else ""


def metric_name(run: Run) -> str:
    """Return the name of the quality, with its unit, as a heading."""
    name = metric_label(run.metric)
    return name[:1].upper() + name[1:]


def tested_table(run: Run) -> FigureTable | None:
    """Return the table of the verdict's qualities, with a row for each model that was judged on the test part."""
    tested = run.verdict.tested if run.verdict else ()
    titles = {one.id: one.title for one in run.candidates}
    rows = [
        cells(
            TableCell(_ROLES[one.role], note=named(titles.get(one.candidate, ""), one.candidate)),
            TableCell(shown.number(one.quality.value, 4), note=reach(one.quality)),
            _loss(one.loss),
            *([_loss(one.control_loss)] if any(other.control_loss for other in tested) else []),
        )
        for one in tested
    ]
    heads = ["When", f">{metric_name(run)}", ">Against the original"]
    heads += [">Against the control"] if any(one.control_loss for one in tested) else []
    remark = (
        f"Measured once, on {named(run.metric.test_source, 'the test part')}. No choice of this run has seen it: "
        f"candidates were chosen on {named(run.metric.source, 'the validation part')}. Second lines: 95 % intervals; "
        "those of differences are of differences stretch by stretch."
    )
    return table("Quality on the test part", heads, rows, remark)


def candidates_table(run: Run) -> FigureTable | None:
    """Return a table with a row for each model."""
    made, beside = _MADE.get(run.item, "item"), any(one.control_loss for one in run.candidates)
    heads = (
        "Model", "Made by", ">Weights", ">File", f">{metric_name(run)}", ">Against the original",
        *([">Against its control"] if beside else []), "Within the allowed loss", f">A call for one {made}, median",
        f">{_items(run.item)} a second, one after another", "Kept as",
    )  # fmt: skip
    chosen = run.verdict.chosen if run.verdict else None
    rows = [_candidate_row(run, one, chosen, beside=beside) for one in run.candidates]
    remark = (
        f"Allowed: at most {shown.percent(run.max_quality_loss)} worse than the original, on the validation part. "
        f"{BEST_TRADE_OFF} Second lines: 95 % intervals, the 99th percentile of the latency, and many at a time."
    )
    if beside:
        remark += (
            " A control is the original trained for as many further steps on the same batches: a model trained further "
            "may not be worse than either by more than is allowed."
        )
    return table("Every model that was made", heads, rows, f"{remark} {_stream(run)}".rstrip())


def _candidate_row(run: Run, one: Candidate, chosen: str | None, *, beside: bool) -> tuple[TableCell, ...]:
    speed = one.speeds[0] if one.speeds else None
    roles = [one.id] + ["chosen"] * (one.id == chosen) + ["best trade-off"] * one.on_front
    if one.is_control:
        allowed = TableCell("control", note=one.error)
    elif not one.measured:
        allowed = TableCell("✗ not measured", note=one.error, tone="bad")
    elif one.passes_gate:
        allowed = TableCell("✓\N{NO-BREAK SPACE}yes", note=one.error, tone="good")
    else:
        allowed = TableCell("✗\N{NO-BREAK SPACE}no", note=one.error, tone="bad")
    many = speed.throughput_per_s if speed else None
    return cells(
        TableCell(one.title, note=", ".join(roles), tone="good" if one.id == chosen else ""),
        one.made_by,
        TableCell(shown.short(one.parameters), note=one.precision),
        shown.size(one.file_bytes) if one.file_bytes else NONE,
        TableCell(shown.number(one.quality.value, 4), note=reach(one.quality)) if one.quality else NONE,
        _loss(one.loss),
        *([_loss(one.control_loss)] if beside else []),
        allowed,
        TableCell(
            shown.milliseconds(speed.latency_p50_ms), note=f"p99 {shown.milliseconds(speed.latency_p99_ms)}"
        )
        if speed
        else NONE,
        TableCell(
            shown.short(speed.per_s), note=f"{shown.short(many)}, {speed.batch:,} at once" if many else ""
        )
        if speed
        else NONE,
        TableCell(one.file, code=True) if one.file else "not kept",
    )


def _loss(loss: Interval | None) -> TableCell:
    if loss is None:
        return TableCell(NONE)
    return TableCell(loss_in_words(loss.value, "equal"), note=loss_reach(loss))


def speeds_table(run: Run) -> FigureTable | None:
    """Return a table of all ways to call each model; None if each has only one, as the table of models shows that."""
    if all(len(one.speeds) < 2 for one in run.candidates):
        return None
    rows = [
        cells(
            one.title,
            speed.way,
            shown.milliseconds(speed.latency_p50_ms),
            shown.milliseconds(speed.latency_p99_ms),
            shown.short(speed.per_s),
            NONE if speed.throughput_per_s is None else shown.short(speed.throughput_per_s),
            NONE if speed.throughput_per_s is None else f"{speed.batch:,}",
        )
        for one in run.candidates
        for speed in one.speeds
    ]
    heads = (
        "Model", "Called by", f">A call for one {_MADE.get(run.item, 'item')}, median", ">99th percentile",
        f">{_items(run.item)} a second, one after another", ">Many at a time", ">How many",
    )  # fmt: skip
    return table("Every way to call every model", heads, rows, _stream(run))


def explanation_table(run: Run) -> FigureTable | None:
    """Return the table of the kernel that ran each layer."""
    rows = (cells(layer, kernel, why) for layer, kernel, why in run.explanation)
    return table("Which kernel ran each layer before", ("Layer", "Kernel", "Why"), rows)


def environment_table(run: Run) -> FigureTable | None:
    """Return the table of the environment that everything was measured in."""
    return table(
        "Where all of this was measured", ("What", "Which"), (cells(*row) for row in run.environment)
    )


def settings_table(run: Run) -> FigureTable | None:
    """Return the table of the run's settings."""
    rows = (cells(TableCell(str(name), code=True), setting(value)) for name, value in run.settings.items())
    return table("Settings of the run", ("Setting", "Value"), rows)


def setting(value: Any) -> str:
    """Return the value of a setting as a reader would write it."""
    if value is None or value in ("", [], ()):
        return NONE
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return cut(", ".join(setting(one) for one in value))
    return cut(str(value))
