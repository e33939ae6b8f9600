"""The charts of a report, made from the records of a run, each with its data as a table.

This module chooses what to draw; `svg` draws it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from cellerate import format as shown
from cellerate.report.effects import UNCHANGED
from cellerate.report.record import Candidate, Curve, Quantity, Run, StageRecord
from cellerate.report.svg import Dot, Kind, Line, LineChart, ScatterChart, WaterfallChart, WaterfallStep
from cellerate.report.tables import NONE, Figure, FigureTable, TableCell, cells, thinned
from cellerate.report.view import BEST_TRADE_OFF, metric_name

_WATERFALLS: tuple[tuple[Quantity, str, str], ...] = (
    ("training", "Training, stage by stage", "faster"),
    ("use", "Use, stage by stage", "faster"),
    ("size", "Size, stage by stage", "smaller"),
)
_OPPOSITE = {"faster": "slower", "smaller": "larger"}


def waterfalls(run: Run) -> list[Figure]:
    """For each quantity, the factor that each kept stage brought, and the verdict's figure of it as the total.

    The factor of a stage is its first gain of the quantity. The total is not the product of the factors but the change
    from the first to the last model, as the verdict measured it.
    """
    headlines = {one.quantity: one for one in reversed(run.verdict.rows)} if run.verdict else {}
    found = []
    for quantity, title, word in _WATERFALLS:
        steps, rows, reached = [], [], 1.0
        for one in run.passes:
            gain = next((g for g in one.gains if g.quantity == quantity), None) if one.kept else None
            if gain is None or not (0 < gain.factor < math.inf) or min(gain.before, gain.after) < 0:
                continue
            if not 0 < reached * gain.factor < math.inf:
                break
            reached *= gain.factor
            steps.append(WaterfallStep(one.title, gain.factor, factor_in_words(gain.factor, word)))
            rows.append(
                cells(
                    TableCell(one.title, note=gain.label),
                    shown.quantity(gain.before, gain.unit),
                    shown.quantity(gain.after, gain.unit),
                    factor_in_words(gain.factor, word),
                    factor_in_words(reached, word),
                )
            )
        if not steps:
            continue
        whole = headlines.get(quantity)
        if whole is not None and 0 < whole.factor < math.inf:
            reached = whole.factor
            ends = shown.quantity(whole.before, whole.unit), shown.quantity(whole.after, whole.unit)
            rows.append(
                cells(TableCell("In all", note=whole.label), *ends, NONE, factor_in_words(reached, word))
            )
        total = factor_in_words(reached, word)
        said = "; ".join(f"{step.name}: {step.words}" for step in steps)
        chart = WaterfallChart(
            title,
            f"A bar for each stage that was kept. {said}. In all: {total}.",
            tuple(steps),
            total,
            reached,
        )
        heads = ("Stage", ">Before", ">After", ">By itself", ">So far")
        found.append(Figure(chart, FigureTable(title, heads, tuple(rows)), wide=True))
    return found


def factor_in_words(factor: float, word: str) -> str:
    """Return a factor in words: "2.10x faster", "1.20x slower" or "unchanged"."""
    if abs(factor - 1) < UNCHANGED:
        return "unchanged"
    return f"{shown.times(factor)} {word}" if factor > 1 else f"{shown.times(1 / factor)} {_OPPOSITE[word]}"


def front(run: Run) -> Figure | None:
    """The chart of quality on the validation part against latency; None if no model has both."""
    known = [one for one in run.candidates if one.quality and one.speeds and one.speeds[0].latency_p50_ms > 0]
    if not known:
        return None
    gate = gate_of(run)
    dots = tuple(_dot(run, one) for one in known)
    label = metric_name(run)
    fastest, best = min(dots, key=lambda d: d.latency_ms), _best(run, dots)
    described = (
        f"A dot for each of {len(dots)} models. Fastest: {fastest.name}, {shown.milliseconds(fastest.latency_ms)}. "
        f"Best quality: {best.name}, {shown.number(best.quality, 4)}."
    )
    if gate is not None:
        described += f" The worst that is allowed: {shown.number(gate, 4)}."
        if any(one.is_control for one in known):
            described += " A model that was trained further must also hold beside its control."
    rows = [
        cells(
            dot.name,
            shown.milliseconds(dot.latency_ms),
            shown.number(dot.quality, 4),
            {"passes": "within the allowed loss", "fails": "beyond the allowed loss"}.get(dot.kind, dot.kind),
            "yes" if dot.on_front else "no",
        )
        for dot in dots
    ]
    heads = ("Model", ">Latency, median", f">{label}", "Marked as", "Best trade-off")
    chart = ScatterChart("Quality against latency", described, dots, gate, label, run.metric.higher_is_better)
    return Figure(
        chart, FigureTable("Quality and latency of each model", heads, tuple(rows), BEST_TRADE_OFF), wide=True
    )


def _best(run: Run, dots: Sequence[Dot]) -> Dot:
    return (max if run.metric.higher_is_better else min)(dots, key=lambda dot: dot.quality)


def gate_of(run: Run) -> float | None:
    """The worst quality that is allowed; None if the original was not judged."""
    original = run.candidates[0].quality if run.candidates else None
    if original is None:
        return None
    room = abs(original.value) * run.max_quality_loss
    gate = original.value - room if run.metric.higher_is_better else original.value + room
    return gate if math.isfinite(gate) else None


def _dot(run: Run, one: Candidate) -> Dot:
    kind: Kind = "passes" if one.passes_gate else "fails"
    if run.verdict is not None and one.id == run.verdict.chosen:
        kind = "chosen"
    elif one is run.candidates[0]:
        kind = "original"
    elif one.is_control:
        kind = "control"
    quality = one.quality
    assert quality is not None  # noqa: S101 (`front` passes no others)
    return Dot(
        one.title, one.speeds[0].latency_p50_ms, quality.value, quality.low, quality.high, kind, one.on_front
    )


def curves(one: StageRecord) -> tuple[Figure, ...]:
    """The curves of a stage, grouped by chart."""
    groups: dict[tuple[str, str, str, bool], list[Curve]] = {}
    for curve in one.curves:
        if curve.x and curve.y:
            groups.setdefault((curve.chart, curve.x_label, curve.y_label, curve.log_x), []).append(curve)
    return tuple(_figure(*key, found) for key, found in groups.items())


def _figure(title: str, x_label: str, y_label: str, log_x: bool, found: Sequence[Curve]) -> Figure:
    lines = tuple(Line(c.name, tuple(zip(c.x, c.y, strict=False)), c.marks) for c in found)
    said = []
    for line in lines:
        low, high = min(line.points, key=lambda p: p[1]), max(line.points, key=lambda p: p[1])
        ends = [_point(line.points[0]), _point(line.points[-1]), _point(low), _point(high)]
        said.append("{}: from {} to {}; lowest {}, highest {}".format(line.name, *ends))
        places = [(line.points[n][0], words) for n, words in line.marks if 0 <= n < len(line.points)]
        said += [f"{words} at {shown.bare(shown.number(place, 4))}" for place, words in places]
    chart = LineChart(
        title, f"{y_label} over {x_label}. {'. '.join(said)}.", lines, x_label, y_label, log_x=log_x
    )
    tables = [dict(line.points) for line in lines]
    marks: dict[float, list[str]] = {}
    for line in lines:
        for n, words in line.marks:
            if 0 <= n < len(line.points):
                marks.setdefault(line.points[n][0], []).append(words)
    shown_x, remark = thinned(sorted({x for points in tables for x in points}))
    rows = []
    for x in shown_x:
        values = [shown.number(points[x], 4) if x in points else NONE for points in tables]
        values += [", ".join(marks.get(x, [NONE]))] if marks else []
        rows.append(cells(shown.bare(shown.number(x, 4)), *values))
    heads = (f">{x_label}", *(f">{line.name}" for line in lines), *(["Marks"] if marks else []))
    return Figure(chart, FigureTable(f"{title}: {y_label}", heads, tuple(rows), remark))


def _point(point: tuple[float, float]) -> str:
    return f"{shown.bare(shown.number(point[1], 4))} at {shown.bare(shown.number(point[0], 4))}"
