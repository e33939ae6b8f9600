"""Compares two runs: what got better and, listed first, what got worse.

It needs the two reports only, so runs can be compared long after both ended.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import Any, Literal

from cellerate import format as shown
from cellerate.report.effects import effect, margin
from cellerate.report.quality import Interval, Metric
from cellerate.report.record import Candidate, Change, Quantity, Run, training_item
from cellerate.report.tables import named
from cellerate.report.view import began, setting

NOISE = 0.05
"""The share by which two timings of the same thing may differ."""

Outcome = Literal["regression", "improvement", "same"]
# Words in environment labels: where these differ, timings of two runs do not compare their code.
_MACHINE = ("cpu", "processor", "gpu", "device", "accelerator", "machine", "core", "memory", "system")
_ORDER: tuple[Outcome, ...] = ("regression", "improvement", "same")


@dataclasses.dataclass(frozen=True)
class SharedFigure:
    """A figure that both runs have.

    Attributes:
        group: "result", "training" or "model".
        label: The name of the figure, in words.
        change: From the first run to the second.
        outcome: Whether the change exceeds noise, and in which direction.
        margin: How much counts as noise, in words.
    """

    group: Literal["result", "training", "model"]
    label: str
    change: Change
    outcome: Outcome
    margin: str


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The common part of two runs, and the differences of the second.

    Attributes:
        names: The names of both runs, in words.
        warnings: Why figures of the two may not be comparable, and what only one run has.
        rows: The compared figures, regressions first.
        lost: A sentence on each thing that only the first run had; each counts as a regression.
        differences: Differences in environment and settings: a label and both values.
    """

    names: tuple[str, str]
    warnings: tuple[str, ...]
    rows: tuple[SharedFigure, ...]
    lost: tuple[str, ...]
    differences: tuple[tuple[str, str, str], ...]

    @property
    def regressions(self) -> int:
        """The number of things that got worse."""
        return len(self.lost) + sum(row.outcome == "regression" for row in self.rows)

    @property
    def judged(self) -> bool:
        """True if there was anything to compare; if not, "nothing regressed" would be meaningless."""
        return bool(self.rows or self.lost)

    @property
    def sentence(self) -> str:
        """The result in one sentence."""
        if not self.judged:
            return "Nothing could be compared."
        better = sum(row.outcome == "improvement" for row in self.rows)
        same = sum(row.outcome == "same" for row in self.rows)
        worse = shown.counted(self.regressions, "regression") if self.regressions else "Nothing regressed"
        improved, equal = shown.counted(better, "improvement"), shown.counted(same, "figure")
        return f"{worse}; {improved}, {equal} the same within the noise."

    def to_json(self) -> dict[str, Any]:
        """The comparison as JSON values; an infinite factor is null."""
        rows = [
            {
                **{key: value for key, value in dataclasses.asdict(row).items() if key != "change"},
                **dataclasses.asdict(row.change),
                "label": row.label,
                "factor": row.change.factor if math.isfinite(row.change.factor) else None,
            }
            for row in self.rows
        ]
        return {
            "sentence": self.sentence,
            "regressions": self.regressions,
            **{
                key: getattr(self, key) for key in ("names", "warnings", "lost", "differences")
            },
            "rows": rows,
        }  # fmt: skip


def compare(a: Run, b: Run) -> Comparison:
    """Compares the results, training steps and models of two runs.

    Timings and memory count as different if they differ by more than 5 %, sizes by more than 0.5 %, qualities
    if their 95 % intervals do not overlap. What a report calls unchanged never counts as different. If the
    two runs have different tasks, nothing is compared.

    A figure that only one run has is not judged. A model that only one run made gets a warning and is not
    judged either, because a stage stops at the first model that is good enough. These count as lost, each a
    regression: a verdict that only the first run reached; a model of both runs that could be measured, or
    packed, only in the first; a model that was within the allowed loss only in the first, if both runs allow
    the same; and a stage that was done in the first and failed in the second.

    Args:
        a: The earlier run.
        b: The later run.
    """
    alike = a.task == b.task
    rows = [*_results(a, b), *_training(a, b), *_models(a, b)] if alike else []
    rows.sort(key=lambda row: _ORDER.index(row.outcome))
    return Comparison(
        names=(_name(a), _name(b)),
        warnings=tuple(_warnings(a, b)),
        rows=tuple(rows),
        lost=tuple(_lost(a, b)) if alike else (),
        differences=tuple(_differences(a, b)),
    )


def _name(run: Run) -> str:
    return ", ".join(filter(None, [named(run.model), began(run)]))


def _results(a: Run, b: Run) -> Iterable[SharedFigure]:
    if a.verdict is None or b.verdict is None:
        return
    after = {(one.quantity, one.label, one.unit): one for one in b.verdict.rows}
    for one in a.verdict.rows:
        other = after.get((one.quantity, one.label, one.unit))
        if other is not None:
            change = dataclasses.replace(one, before=one.after, after=other.after)
            if one.quantity is None:
                both = (_quality_of(a, one.after), _quality_of(b, other.after))
                yield _row("result", one.label, change, both)
            else:
                yield _row("result", one.label, change)


def _quality_of(run: Run, value: float) -> Interval | None:
    """The interval of the chosen model's quality, if the value is that quality: on the test part, if it has one."""
    chosen = run.verdict.chosen if run.verdict else None
    tested = run.verdict.tested if run.verdict else ()
    judged: list[tuple[str, Interval | None]] = [(one.candidate, one.quality) for one in tested]
    judged = judged or [(one.id, one.quality) for one in run.candidates]
    found = next((quality for name, quality in judged if name == chosen), None)
    return found if found is not None and math.isclose(found.value, value, rel_tol=1e-6) else None


def _training(a: Run, b: Run) -> Iterable[SharedFigure]:
    # The same way may have been timed several times, each beside another: the newest counts.
    before, after = ({(s.way, s.batch_size, s.length): s for s in run.training_steps} for run in (a, b))
    for key, one in before.items():
        other = after.get(key)
        if other is None:
            continue
        length = "" if one.length is None else f" x {one.length:,}"
        label = f"{one.way}, {one.batch_size:,}{length}"
        unit = f"{training_item(a.item) or 'items'}/s"
        yield _row(
            "training", f"{label}: speed", _change("training", one.items_per_s, other.items_per_s, unit, True)
        )
        if one.peak_memory_bytes is not None and other.peak_memory_bytes is not None:
            memory = _change("training", one.peak_memory_bytes, other.peak_memory_bytes, "bytes", False)
            yield _row("training", f"{label}: peak memory", memory)


def _models(a: Run, b: Run) -> Iterable[SharedFigure]:
    after = {one.id: one for one in b.candidates}
    for one in a.candidates:
        other = after.get(one.id)
        if other is not None and one.measured and other.measured:
            yield from _model(one, other, a, b.metric)


def _model(one: Candidate, other: Candidate, run: Run, metric: Metric) -> Iterable[SharedFigure]:
    name = one.title
    known = run.metric
    alike = dataclasses.replace(metric, source=known.source, test_source=known.test_source) == known
    if alike and one.quality is not None and other.quality is not None:
        change = Change(
            None, name, one.quality.value, other.quality.value, run.metric.unit, run.metric.higher_is_better
        )
        label = run.metric.name or "quality"
        yield _row("model", f"{name}: {label}", change, (one.quality, other.quality))
    yield _row("model", f"{name}: file", _change("size", one.file_bytes, other.file_bytes, "bytes", False))
    ways = {speed.way: speed for speed in other.speeds}
    for speed in one.speeds:
        now = ways.get(speed.way)
        if now is None:
            continue
        latency = _change("use", speed.latency_p50_ms, now.latency_p50_ms, "ms", False)
        yield _row("model", f"{name}: latency by {speed.way}", latency)
        both = (speed.throughput_per_s, now.throughput_per_s)
        if both[0] is not None and both[1] is not None and speed.batch == now.batch:
            many = _change("use", both[0], both[1], f"{run.item or 'items'}/s", True)
            yield _row("model", f"{name}: {speed.batch:,} at once by {speed.way}", many)


def _change(quantity: Quantity, before: float, after: float, unit: str, higher_is_better: bool) -> Change:
    return Change(quantity, "", before, after, unit, higher_is_better)


def _row(
    group: Literal["result", "training", "model"],
    label: str,
    change: Change,
    intervals: tuple[Interval | None, Interval | None] = (None, None),
) -> SharedFigure:
    # A change that a report calls unchanged counts as none, even if the two certainly differ.
    tone = effect(change)[1]
    differs, within = True, shown.percent(margin(change))
    one, two = intervals
    if one is not None and two is not None:
        differs, within = one.high < two.low or two.high < one.low, "95 % intervals"
    elif change.quantity in ("training", "use"):
        differs = abs(change.after - change.before) > NOISE * abs(change.before)
        within = shown.percent(NOISE)
    outcome: Outcome = "same" if not (tone and differs) else "improvement" if tone == "good" else "regression"
    return SharedFigure(group, label, change, outcome, within)


def _lost(a: Run, b: Run) -> Iterable[str]:
    if a.verdict is not None and b.verdict is None:
        yield "The first run came to a verdict, the second did not."
    after = {one.id: one for one in b.candidates}
    for one in a.candidates:
        other = after.get(one.id)
        if other is None or not one.measured:
            continue
        if not other.measured:
            yield f"{one.title}: it could be measured before, and now not: {other.error}"
            continue
        if other.error and not one.error:
            yield f"{one.title}: it could be packed before; now {other.error}"
        fails = one.passes_gate and not other.passes_gate and not one.is_control
        if fails and a.max_quality_loss == b.max_quality_loss:
            yield f"{one.title}: it was within the allowed loss before, and now is not."
    statuses = {one.name: one for one in b.passes}
    for before in a.passes:
        now = statuses.get(before.name)
        if before.status == "done" and now is not None and now.status == "failed":
            yield f"{before.title}: the stage was done before, and now failed: {now.reason}"


def _warnings(a: Run, b: Run) -> Iterable[str]:
    for label, one, other in (
        ("tasks", a.task, b.task),
        ("models", a.model, b.model),
        ("data", a.data, b.data),
        ("kinds of quality", a.metric.name, b.metric.name),
        ("data to judge on", a.metric.source, b.metric.source),
        ("test parts", a.metric.test_source, b.metric.test_source),
        (
            "limits of the loss of quality",
            shown.percent(a.max_quality_loss),
            shown.percent(b.max_quality_loss),
        ),
    ):
        if one != other:
            yield f"The runs have different {label}: {one or 'none'} and {other or 'none'}."
    after = dict(b.environment)
    for label, value in a.environment:
        now = after.get(label)
        if now is not None and now != value and any(word in label.lower() for word in _MACHINE):
            yield f"The machines differ, and so do timings: {label}: {value} and {now}."
    for which, run in (("first", a), ("second", b)):
        if run.status != "finished":
            yield f"The {which} run did not come to its end ({run.status})."
    here, there = {one.id: one.title for one in a.candidates}, {one.id: one.title for one in b.candidates}
    for which, known, others in (("first", here, there), ("second", there, here)):
        only = [title for id_, title in known.items() if id_ not in others]
        if only:
            yield f"Only the {which} run made: {', '.join(only)}."


def _differences(a: Run, b: Run) -> Iterable[tuple[str, str, str]]:
    for one, other in (
        (dict(a.environment), dict(b.environment)),
        ({k: setting(v) for k, v in a.settings.items()}, {k: setting(v) for k, v in b.settings.items()}),
    ):
        for label in {**one, **other}:
            if one.get(label) != other.get(label):
                yield label, one.get(label, ""), other.get(label, "")
