"""Keras beside Cellerate: one table with the gains of the same model in the same precision, and those of int8.

A row is there only if this run measured it on both sides with the same data; other runs do not count.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence

from cellerate import format as shown
from cellerate.report.effects import effect
from cellerate.report.record import Candidate, Change, Quantity, Run, Speed, TrainingStep, training_item
from cellerate.report.tables import NONE, FigureTable, TableCell, cells, metric_label

_ORIGINAL, _SAME, _NARROW = "original", "float32", "int8"
"""The ids of the compared models: in Keras, packed in the same precision, packed in int8."""
_RACE = "kernels"
"""The race in which both ways of training took turns."""
_CAPTION = "Keras beside Cellerate, measured in this run"


@dataclasses.dataclass(frozen=True)
class _Task:
    """The words for a task: the use of its model, the use in the summarizing sentence, and the input."""

    doing: str
    does: str
    taken: str


_TASKS = {
    "characters": _Task("generating", "generates", "text"),
    "forecasts": _Task("forecasting", "forecasts one window", "window"),
    "lines": _Task("embedding", "embeds one line", "line"),
}
_ANY = _Task("using the model", "answers a call", "item")


@dataclasses.dataclass(frozen=True)
class GainRow:
    """A figure of the model in Keras, on Cellerate in the same precision, and with int8.

    Attributes:
        gain: From Keras to Cellerate.
        int8: From the same precision to int8; None if int8 does not change the figure, or was not measured.
        way: The way of calling Keras if the figure depends on it, or "".
        doubtful: True if turns contradicted each other, so that the gain is noise.
        step_ms: The training steps in Keras and on Cellerate from which the figure comes.
    """

    gain: Change
    int8: Change | None = None
    way: str = ""
    doubtful: bool = False
    step_ms: tuple[float, float] | None = None


@dataclasses.dataclass(frozen=True)
class Gains:
    """The figures that a run measured of Keras and Cellerate with the same model.

    Attributes:
        rows: At least one.
        table: All of them.
        sentence: The gains of training and of use, and what int8 adds.
    """

    rows: tuple[GainRow, ...]
    table: FigureTable
    sentence: str

    def contains(self, change: Change) -> bool:
        """Return True if the table has a change from Keras to one of the other two."""
        return any(
            (change.before, change.after) in ((row.gain.before, row.gain.after), row.step_ms)
            or (row.int8 is not None and (change.before, change.after) == (row.gain.before, row.int8.after))
            for row in self.rows
        )

    @property
    def words(self) -> tuple[tuple[TableCell, ...], ...]:
        """The rows of the table for a terminal: with remarks in brackets."""
        return tuple(
            tuple(
                dataclasses.replace(
                    cell,
                    text=shown.one_line(cell.text + (f" ({cell.note})" if cell.note else "")),
                )
                for cell in row
            )
            for row in self.table.rows
        )

    @property
    def remarks(self) -> tuple[str, ...]:
        """The lines below the table: the origin of its figures, and the sentence after an empty line."""
        remarks = tuple(map(shown.one_line, filter(None, [self.table.remark])))
        return (*remarks, "", shown.one_line(self.sentence)) if self.sentence else remarks

    def lines(self) -> Iterator[str]:
        """The table as plain lines."""
        heads = [head for head, _ in self.table.heads]
        right = [n for n, (_, figures) in enumerate(self.table.heads) if figures]
        rows = [["", *heads[1:]], *([cell.text for cell in row] for row in self.words)]
        yield from shown.aligned(rows, right)


def gains(run: Run) -> Gains | None:
    """Return the figures that the run measured on both sides; None without such figures or without a verdict.

    Only the verdict times the models in turns; earlier figures come from different times.
    """
    if run.verdict is None:
        return None
    models = {one.id: one for one in run.candidates}
    rows = tuple(_rows(run, models))
    if not rows:
        return None
    return Gains(rows, _table(run, models, rows), _sentence(run, models, rows))


def _rows(run: Run, models: dict[str, Candidate]) -> Iterator[GainRow]:
    yield from _training(run)
    before, same, narrow = (models.get(name) for name in (_ORIGINAL, _SAME, _NARROW))
    if before is None or same is None or not same.speeds:
        return
    task = _TASKS.get(run.item, _ANY)
    many = next((one.batch for one in before.speeds if one.throughput_per_s), 0)
    rate = f"{run.item}/s"
    figures = [
        ("latency_p50_ms", "latency of a call", "ms"),
        ("throughput_per_s", f"{task.doing} {many} {task.taken}s", rate),
    ]
    if run.item == "characters":
        # Elsewhere each item takes a call, and this would be the latency in other words.
        figures = [("per_s", f"{task.doing} one {task.taken}", rate), *reversed(figures)]
    for name, label, unit in figures:
        found = [_fastest(one, name) if one else None for one in (before, same, narrow)]
        values = [None if one is None else getattr(one, name) for one in found]
        yield from _row("use", label, values, unit, found[0].way if found[0] else "")
    yield from _row(
        "size", "file", [one.file_bytes or None if one else None for one in (before, same, narrow)], "bytes"
    )
    _, qualities = _qualities(run, models)
    yield from _row(None, metric_label(run.metric), qualities, "", better=run.metric.higher_is_better)


def _row(
    quantity: Quantity | None,
    label: str,
    values: Sequence[float | None],
    unit: str,
    way: str = "",
    *,
    better: bool | None = None,
) -> Iterator[GainRow]:
    """Return a row of the values in Keras, in the same precision and in int8, if both of the first are known."""
    more = unit.endswith("/s") if better is None else better

    def change(before: float | None, after: float | None) -> Change | None:
        if before is None or after is None:
            return None
        return Change(quantity, label, before, after, unit, more)

    keras, same, narrow = values
    if gain := change(keras, same):
        yield GainRow(gain, change(same, narrow), way)


def _fastest(of: Candidate, figure: str) -> Speed | None:
    """The way to call a model that is best by a figure: "per_s", "throughput_per_s" or "latency_p50_ms"."""
    known = [one for one in of.speeds if getattr(one, figure)]
    sign = -1 if figure.endswith("_ms") else 1
    return max(known, key=lambda one: sign * float(getattr(one, figure)), default=None)


def _training(run: Run) -> Iterator[GainRow]:
    """The row of training, if both ways took turns."""
    pair = _pair(run.training_steps)
    if pair is None:
        return
    stock, ours = pair
    policy = _policy(ours)
    unit = f"{training_item(run.item)}/s"
    label = "training" if policy == _SAME else f"training in {policy}"
    gain = Change("training", label, stock.items_per_s, ours.items_per_s, unit, higher_is_better=True)
    # The stage credits itself with a gain only if the turns agree.
    agreed = any(
        change.quantity == "training" for one in run.passes if one.name == _RACE for change in one.gains
    )
    apart = ours.step_p20_ms > stock.step_p80_ms or ours.step_p80_ms < stock.step_p20_ms
    yield GainRow(gain, doubtful=not (agreed or apart), step_ms=(stock.step_ms, ours.step_ms))


def _pair(steps: Iterable[TrainingStep]) -> tuple[TrainingStep, TrainingStep] | None:
    """The newest steps of Keras and of the fused kernels on the same batches."""
    raced = [one for one in steps if one.race == _RACE]
    stock = next((one for one in reversed(raced) if one.way.startswith("Keras, ")), None)
    if stock is None:
        return None
    like = (stock.batch_size, stock.length, _policy(stock))
    ours = next(
        (
            one
            for one in reversed(raced)
            if not one.way.startswith("Keras, ") and (one.batch_size, one.length, _policy(one)) == like
        ),
        None,
    )
    return None if ours is None else (stock, ours)


def _policy(step: TrainingStep) -> str:
    return step.way.rpartition(", ")[2]


def _qualities(run: Run, models: dict[str, Candidate]) -> tuple[str, list[float | None]]:
    """Return the data that all models were judged on, and their qualities."""
    names = [name for name in (_ORIGINAL, _SAME, _NARROW) if name in models]
    tested = {one.candidate: one.quality.value for one in run.verdict.tested} if run.verdict else {}
    if tested.keys() >= set(names):
        return run.metric.test_source, [tested.get(name) for name in (_ORIGINAL, _SAME, _NARROW)]
    judged = {one.id: one.quality.value for one in models.values() if one.quality}
    return run.metric.source, [judged.get(name) for name in (_ORIGINAL, _SAME, _NARROW)]


def _backend(run: Run) -> str:
    """Keras with its backend: "Keras on jax"."""
    found = next((value for label, value in run.environment if label.lower() == "backend"), "")
    return f"Keras on {found}" if found else "Keras"


def _table(run: Run, models: dict[str, Candidate], rows: Sequence[GainRow]) -> FigureTable:
    with_int8 = any(row.int8 for row in rows)
    heads = [
        "What",
        f">{_backend(run)}",
        ">Cellerate",
        "Gain",
        *([">With int8", "int8 adds"] if with_int8 else []),
    ]
    lines = []
    for row in rows:
        gain = _factor_cell(row.gain, note="noise" if row.doubtful else "")
        narrow = (
            (_value(row.int8.after, row.int8), _factor_cell(row.int8))
            if row.int8
            else (TableCell(NONE), TableCell(NONE))
        )
        lines.append(
            cells(
                row.gain.label,
                _value(row.gain.before, row.gain),
                _value(row.gain.after, row.gain),
                gain,
                *(narrow if with_int8 else ()),
            )
        )
    return FigureTable(_CAPTION, tuple(heads), tuple(lines), _remark(run, models, rows), stacked=True)


def _value(value: float, of: Change) -> TableCell:
    """A figure with its unit; the lines below the table name the items of a speed, to keep the table narrow."""
    return TableCell(f"{shown.short(value)}/s" if of.unit.endswith("/s") else shown.quantity(value, of.unit))


def _factor_cell(change: Change, note: str = "") -> TableCell:
    """A factor, or how much better or worse the quality is."""
    words, tone = effect(change)
    text = (
        ("equal" if words == "unchanged" else words)
        if change.quantity is None
        else shown.times(change.factor)
    )
    return TableCell(text, note=note, tone=tone)


def _remark(run: Run, models: dict[str, Candidate], rows: Sequence[GainRow]) -> str:
    """Return the origin of the figures: the ways of use, the precision and the data."""
    remarks = _units(run, rows)
    ways: dict[str, list[str]] = {}
    for row in rows:
        if row.way:
            ways.setdefault(row.way, []).append(row.gain.label)
    if ways:
        remarks.append(_called(models[_ORIGINAL], ways))
        same = models[_SAME]
        training = "its kernels for training, and " if any(row.step_ms for row in rows) else ""
        remarks.append(
            "Cellerate: its kernels in Keras, as the model could not be packed."
            if same.error
            else f"Cellerate: {training}the model packed in {same.precision}."
        )
    source, known = _qualities(run, models)
    if any(known) and source:
        remarks.append(f"Quality: on {source}.")
    narrow = models.get(_NARROW)
    if narrow and narrow.quality and not narrow.passes_gate:
        allowed = shown.percent(run.max_quality_loss)
        remarks.append(
            f"In int8 it loses more than the {allowed} allowed, so it was not timed in turns with the others."
        )
    return " ".join(remarks)


def _units(run: Run, rows: Sequence[GainRow]) -> list[str]:
    """Name the items that the speeds count."""
    counted = {row.gain.quantity for row in rows if row.gain.unit.endswith("/s")}
    trained, made = training_item(run.item), run.item
    if counted == {"training"}:
        return [f"Speeds are {trained} a second."]
    if counted == {"training", "use"} and trained != made:
        return [f"Speeds are {trained} a second in training, {made} a second in use."]
    return [f"Speeds are {made} a second."] if counted else []


def _called(before: Candidate, ways: dict[str, list[str]]) -> str:
    """Says how Keras was called, given the names of the figures of each way."""
    if len(before.speeds) == 1:
        return f"Keras: called by {before.speeds[0].way}."
    several = " and ".join(one.way for one in before.speeds)
    if len(ways) == 1:
        return f"Keras: called by {next(iter(ways))}, the faster of {several}."
    each = "; ".join(f"{way} for {', '.join(labels)}" for way, labels in ways.items())
    return f"Keras: the faster of {several}, which is {each}."


def _sentence(run: Run, models: dict[str, Candidate], rows: Sequence[GainRow]) -> str:
    """The gains in a sentence, with the figures of the table."""
    task = _TASKS.get(run.item, _ANY)
    trained = next((row for row in rows if row.gain.quantity == "training"), None)
    used = next((row for row in rows if row.gain.quantity == "use"), None)
    sentences = []
    if trained:
        sentences.append(
            f"trains {_factor(trained.gain)}"
            + (" (noise: the turns contradict each other)" if trained.doubtful else "")
        )
    if used:
        sentences.append(f"{task.does} {_factor(used.gain)}")
    if not sentences:
        return ""
    sentence = f"Beside {_backend(run)}, in the same precision, Cellerate {' and '.join(sentences)}"
    if used and used.int8:
        words = _factor(used.int8)
        still = " still" if words.endswith(" faster") else ""
        sentence += f"; with int8 it {task.does} {words}{still}"
        if not models[_NARROW].passes_gate:
            sentence += ", but loses more quality than allowed"
    return f"{sentence}."


def _factor(change: Change) -> str:
    words, _ = effect(change)
    return "as fast" if words == "unchanged" else words
