"""The comparison of two runs of `bench` in words: the contents of its page, and lines for the terminal."""

from __future__ import annotations

from collections.abc import Iterator

from cellerate import format as shown
from cellerate.observe.bench.compare import CONFIDENCE, Effect, RecordComparison
from cellerate.report.bench_page import BenchPage, Section
from cellerate.report.svg import Bar, RatioChart
from cellerate.report.tables import Figure, FigureTable, TableCell, cells, table

_HEADS = ("Job", ">before", ">after", ">after / before", f">{CONFIDENCE:.0%} interval", "Verdict")
_VERDICTS = {
    "slower": "slower",
    "faster": "faster",
    "same": "no certain difference",
    "unknown": "too few sessions to tell",
}
_HOW = (
    "Of each turn the fast tenth of the calls counts, as a ratio to the yardstick that runs beside it; of each "
    "session the fast turns; of all sessions the mean without the fastest and the slowest. The interval comes from "
    "drawing sessions, and turns within them, again and again. A regression is reported only if the whole interval "
    "lies above 1 and the ratio is beyond the threshold. Peers are compared as well, and never count as a regression."
)


def comparison_lines(found: RecordComparison) -> Iterator[str]:
    """The comparison as lines for a terminal, regressions first."""
    yield shown.one_line(f"before: {found.names[0]}")
    yield shown.one_line(f"after:  {found.names[1]}")
    yield from (f"warning: {shown.one_line(warning)}" for warning in found.warnings)
    yield from (f"regression: {shown.one_line(one)}" for one in found.lost)
    if found.effects:
        yield ""
        rows = [tuple(head.removeprefix(">") for head in _HEADS)]
        rows += [tuple(shown.one_line(cell.text) for cell in _row(one)) for one in found.effects]
        yield from shown.aligned(rows, range(1, 5))
        yield ""
    yield _drift(found)
    yield found.sentence


def comparison_page(found: RecordComparison) -> BenchPage:
    """The comparison as a page."""
    sections = []
    for heading, ours in (("Cellerate", True), ("Peers", False)):
        effects = [one for one in found.effects if one.entry.ours == ours]
        if made := table(f"{heading}: time after over time before", _HEADS, map(_row, effects)):
            sections.append(Section(heading, figures=(_figure(effects, found.threshold, made),)))
    if found.lost:
        lost = FigureTable(
            "What is gone", ("Job",), tuple(cells(TableCell(one, tone="bad")) for one in found.lost)
        )
        sections.insert(0, Section("Lost", tables=(lost,)))
    limit = f"The threshold is {shown.percent(found.threshold)}."
    sections.append(Section("How they were compared", sentences=(_HOW, limit, _drift(found))))
    return BenchPage(
        title="Two runs compared",
        facts=(f"before: {found.names[0]}", f"after: {found.names[1]}"),
        sentence=found.sentence,
        tone="bad" if found.regressions or not found.judged else "good",
        tiles=(),
        warnings=found.warnings,
        sections=tuple(sections),
    )


def _row(effect: Effect) -> tuple[TableCell, ...]:
    entry = effect.entry
    verdict = "REGRESSION" if effect.regression else _VERDICTS[effect.verdict]
    tone = "bad" if effect.regression else "good" if entry.ours and effect.verdict == "faster" else ""
    return cells(
        TableCell(_name(effect), note=effect.note),
        shown.milliseconds(1e3 * effect.before_s),
        shown.milliseconds(1e3 * entry.median_s),
        shown.number(effect.ratio, 4),
        f"{shown.number(effect.low, 4)} to {shown.number(effect.high, 4)}",
        TableCell(verdict, tone=tone),  # type: ignore[arg-type]
    )


def _figure(effects: list[Effect], threshold: float, made: FigureTable) -> Figure:
    bars = tuple(
        Bar(_name(one), one.ratio, one.low, one.high, shown.number(one.ratio, 4), one.regression)
        for one in effects
    )
    figures = "; ".join(f"{_name(one)} {shown.number(one.ratio, 4)}" for one in effects)
    chart = RatioChart(
        "Time after over time before",
        f"Ratios of times: {figures}.",
        bars,
        1 + threshold,
        "time after / time before, less is better",
    )
    return Figure(chart, made, wide=True)


def _name(effect: Effect) -> str:
    entry = effect.entry
    work = "" if entry.case == "train" else f", {entry.work}"
    return f"{entry.case}{work}: {entry.title}, {entry.precision}, {entry.call}"


def _drift(found: RecordComparison) -> str:
    ratio = shown.number(found.drift, 4)
    return f"The yardstick, which no version changes, took {ratio} times as long in the second run."
