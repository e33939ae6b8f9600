"""A sweep for people: lines of a terminal, the page and its charts, from the record alone."""

from __future__ import annotations

import dataclasses
import math
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from cellerate import format as shown
from cellerate.listener import Listener
from cellerate.machine.environment import package_version
from cellerate.optimization.sweep.axes import AXES, written
from cellerate.optimization.sweep.record import PointRecord, SweepRecord
from cellerate.optimization.sweep.verdict import (
    Estimate,
    Standing,
    equal_training,
    equal_words,
    judged_along,
    standings,
)

PAGE = "sweep.html"
CHART = "sweep"
_WIDTH = 79  # of a terminal of 80 columns
_MOST_LINES = 6
NONE = "—"
MINUS = "\N{MINUS SIGN}"
_NUMERIC = {axis.name: axis.kind for axis in AXES if axis.kind in ("count", "rate", "share")}
_HEADS = ("point", "ms a step", "per second", "memory")
_HOW = (
    "Each point trained in a process of its own, and judged on the validation part alone. The points took turns in "
    "changing order; opening the data and compiling are not part of the times.",
    "The time of a step is the median of all its steps; the interval of the time of an item holds the medians of the "
    "turns. Two points are called not distinguishable in speed where these intervals overlap.",
    "Losses are compared after equally long training, in seconds and in steps: between two judgements on a straight "
    "line. The interval of a loss, and of a difference, is a bootstrap over the batches of the validation part, each "
    "of neighbouring rows: it says how far the figure would move on other data of that kind. Another seed moves it, "
    "too.",
)
_HOW_SEARCHED = (
    "Each point trained in a process of its own, one after the other, and was judged on the validation part alone; "
    "after a round in which it was behind the median of the others, it was stopped. Opening the data and compiling are "
    "not part of the times. The best was trained anew beside the control, in turns, and both were judged on the test "
    "part once."
)


@dataclasses.dataclass(frozen=True)
class Series:
    """A line of the charts: points that differ only in x.

    Attributes:
        name: The values that they share.
        points: The points, by ascending x.
    """

    name: str
    points: tuple[tuple[float, PointRecord], ...]


def draw(record: SweepRecord, folder: Path, listener: Listener) -> list[Path]:
    """Write the page, and the charts if matplotlib is installed; return their paths.

    Raises:
        OutputError: A file could not be written.
    """
    from cellerate.report.bench_page import bench_html
    from cellerate.report.html import write_page

    written_ = [write_page(folder / PAGE, bench_html(page_of(record)))]
    axis = axis_of(record)
    if axis is None:
        return written_
    if package_version("matplotlib") is None:
        listener.message("no chart was drawn: pip install 'cellerate[plots]'")
        return written_
    from cellerate.report.charts import draw_curves

    panels = _panels(record, axis)
    for kind in ("png", "svg"):
        path = folder / f"{CHART}.{kind}"
        draw_curves(path, panels, f"{record.task}: {_x_label(axis)}", _machine(record))
        written_.append(path)
    return written_


def lines_of(record: SweepRecord) -> Iterator[str]:
    """The table of a sweep and its verdict, as lines of a terminal."""
    by_time = {id(one.point): one for one in standings(record, "seconds")}
    seconds, steps = (equal_training(record, along) for along in ("seconds", "steps"))
    by_steps = {id(one.point): one for one in standings(record, "steps")}
    on_gpu = any(point.peak_gpu_memory_bytes is not None for point in record.points)
    heads = (*_HEADS, "on GPU") if on_gpu else _HEADS
    rows = [(*heads, f"{_unit(record)} {seconds:.2g} s", f"{steps:.0f} steps")]
    measured = [point for point in record.points if point.measured]
    chosen = _chosen(record, by_time.values())
    marks = [" *" * point.control + " (chosen)" * (point is chosen) for point in measured]
    names = [point.label + mark for point, mark in zip(measured, marks, strict=True)]
    for name, point in zip(names, measured, strict=True):
        rows.append(
            (
                name,
                shown.bare(shown.number(1e3 * point.step.median_s)),
                shown.short(point.items_per_s),
                _size_words(point.peak_memory_bytes),
                *([_size_words(point.peak_gpu_memory_bytes)] if on_gpu else []),
                _loss_words(by_time[id(point)].loss),
                _loss_words(by_steps[id(point)].loss),
            )
        )
    if measured:
        others = sum(max(len(row[n]) for row in rows) + 2 for n in range(1, len(rows[0])))
        too_long = max(map(len, names)) > _WIDTH - others
        if too_long:
            # The table has numbers, and the lines below it explain them.
            rows[1:] = [
                (f"{n}{mark}", *row[1:]) for n, (row, mark) in enumerate(zip(rows[1:], marks, strict=True), 1)
            ]
        yield from shown.aligned(rows, range(1, len(rows[0])))
        for n, name in enumerate((point.label for point in measured) if too_long else (), 1):
            yield from textwrap.wrap(f"{n}: {name}", _WIDTH, subsequent_indent="   ")
        yield "* the control"
    for point in record.points:
        if point.status == "failed":
            yield f"failed: {point.label}: {shown.one_line(point.reason)}"


def page_of(record: SweepRecord) -> Any:
    """The contents of the page."""
    from cellerate.report.bench_page import BenchPage, Section

    axis = axis_of(record)
    sections = []
    if axis is not None:
        sections.append(Section("Charts", figures=tuple(_figures(record, axis))))
    if (test := record.verdict.get("test")) is not None:
        sections.append(Section("On the test part", tables=(_tested(record, test),)))
    sections.append(Section("All points", tables=(_table(record),)))
    if (left := _not_measured(record)) is not None:
        sections.append(Section("Not measured", tables=(left,)))
    how = (_HOW_SEARCHED, *_HOW[1:]) if record.settings.get("search") else _HOW
    sections.append(Section("How it was measured", sentences=how, tables=tuple(_conditions(record))))
    measured = sum(point.measured for point in record.points)
    axes = ", ".join(_x_label(name) for name in record.axes)
    return BenchPage(
        title=f"{'A search of' if record.settings.get('search') else 'What if'}: {axes}",
        facts=(
            _machine(record),
            f"{record.backend}, {', '.join(Path(path).name for path in record.data)}",
            f"{measured} of {len(record.points)} points in {shown.duration(record.seconds)}",
        ),
        sentence=record.verdict.get("sentence", ""),
        tone="good" if measured else "bad",
        tiles=(),
        warnings=(*record.notes, *(["The sweep is not complete."] if record.status != "finished" else [])),
        sections=tuple(sections),
        command=record.verdict.get("command", ""),
        for_command=f"To train the chosen point ({record.verdict.get('chosen')})",
        kicker="cellerate sweep",
    )


def axis_of(record: SweepRecord) -> str | None:
    """The x axis of the charts: the first numeric setting with several values; None without one."""
    for name in record.axes:
        seen = {point.values.get(name) for point in record.points if point.measured}
        if name in _NUMERIC and len(seen) > 1 and not record.settings.get("search"):
            return name
    return None


def series_of(record: SweepRecord, axis: str) -> list[Series]:
    """The lines of the charts."""
    found: dict[str, list[tuple[float, PointRecord]]] = {}
    for point in record.points:
        if point.measured:
            others = {name: value for name, value in point.values.items() if name != axis}
            found.setdefault(_line_name(others), []).append((float(point.values[axis]), point))
    lines = [Series(name, tuple(sorted(points, key=lambda one: one[0]))) for name, points in found.items()]
    # A line with a single point would not be visible; the table has the point.
    several = [line for line in lines if len(line.points) > 1] or lines
    return several[:_MOST_LINES]


def _line_name(others: Mapping[str, Any]) -> str:
    words = []
    for name, value in others.items():
        if name == "implementation":
            words.append("stock Keras" if value == "keras" else "Cellerate" if value == "auto" else value)
        elif name == "device":
            words.append({"cpu": "CPU", "gpu": "GPU"}.get(value, ""))
        else:
            words.append(f"{name.replace('_', ' ')} {written(value)}")
    return ", ".join(filter(None, words)) or "Cellerate"


def _measures(record: SweepRecord) -> list[tuple[str, str, Any, bool]]:
    """The charts: a title, the label of y, a function for the value of a standing, and True for a logarithmic axis."""
    item = record.item.removesuffix("s")
    at = equal_words(record, 2)
    return [
        (f"Time for a {item}", f"µs for a {item}", lambda one: 1e6 / one.point.items_per_s, True),
        ("Time of a step", "ms a step", lambda one: 1e3 * one.point.step.median_s, True),
        (
            f"Validation loss {at}",
            f"{_unit(record)} {at}",
            lambda one: None if one.loss is None else one.loss.value,
            False,
        ),
    ]


def _curves(record: SweepRecord, axis: str, value: Any) -> list[tuple[str, tuple[tuple[float, float], ...]]]:
    by_point = {id(one.point): one for one in standings(record, judged_along(record))}
    found = []
    for line in series_of(record, axis):
        points = [(x, value(by_point[id(point)])) for x, point in line.points]
        known = tuple((x, float(y)) for x, y in points if y is not None and math.isfinite(y))
        if known:
            found.append((line.name, known))
    return found


def _panels(record: SweepRecord, axis: str) -> list[Any]:
    from cellerate.report.charts import Curves

    base = {"count": 2, "rate": 10}.get(_NUMERIC[axis])
    return [
        Curves(lines, _x_label(axis), y_label, base, log)
        for _, y_label, value, log in _measures(record)
        if (lines := _curves(record, axis, value))
    ]


def _figures(record: SweepRecord, axis: str) -> Iterator[Any]:
    from cellerate.report.svg import Line, LineChart
    from cellerate.report.tables import Figure, FigureTable, cells

    kind = _NUMERIC[axis]
    for title, y_label, value, log in _measures(record):
        lines = _curves(record, axis, value)
        if not lines:
            continue
        described = "; ".join(
            f"{name}: {', '.join(f'{shown.number(y)} at {written_number(x)}' for x, y in points)}"
            for name, points in lines
        )
        places = sorted({x for _, points in lines for x, _ in points})
        rows = [
            cells(
                written_number(x),
                *(next((shown.number(y, 4) for at, y in points if at == x), "") for _, points in lines),
            )
            for x in places
        ]
        yield Figure(
            LineChart(
                title,
                described,
                tuple(Line(name, points) for name, points in lines),
                _x_label(axis),
                y_label,
                log_x=kind != "share",
                log_y=log,
                tens=kind == "rate",
            ),
            FigureTable(y_label, (_x_label(axis), *(f">{name}" for name, _ in lines)), tuple(rows)),
            wide=True,
        )


def written_number(value: float) -> str:
    """A value of an axis: 128, 0.003."""
    return f"{value:g}"


def _table(record: SweepRecord) -> Any:
    from cellerate.report.tables import FigureTable, TableCell, cells

    seconds, steps = (equal_training(record, along) for along in ("seconds", "steps"))
    by_steps = {id(one.point): one for one in standings(record, "steps")}
    rows = []
    by_time = standings(record, "seconds")
    chosen = _chosen(record, by_time)
    for one in by_time:
        point = one.point
        notes = [*(["control"] if point.control else []), *(["chosen"] if point is chosen else [])]
        p20, p80 = (1e3 * point.step.percentile_s(share) for share in (0.2, 0.8))
        rows.append(
            cells(
                TableCell(point.label, note=", ".join(notes), tone="good" if point is chosen else ""),
                TableCell(
                    shown.number(1e3 * point.step.median_s),
                    note=f"{shown.number(p20)} to {shown.number(p80)}",
                ),
                shown.short(point.items_per_s),
                TableCell(_size_words(point.peak_memory_bytes), note=_on_gpu_words(point)),
                "" if one.train_loss is None else shown.loss(one.train_loss),
                _loss_cell(one),
                _loss_cell(by_steps[id(point)]),
                f"{point.steps:,}",
                shown.duration(point.ready_s),
            )
        )
    columns = (
        "point",
        ">ms a step (p20 to p80)",
        f">{record.item}/s",
        ">memory",
        ">training loss",
        f">validation loss, {seconds:.2g} s",
        f">validation loss, {steps:.0f} steps",
        ">steps",
        ">to start",
    )
    unit = "" if record.unit == "loss" else f" Losses are in {record.unit}."
    return FigureTable(
        "What each point measured",
        columns,
        tuple(rows),
        f"Below a loss: its difference from the control's, with the 95 % interval.{unit}",
    )


def _chosen(record: SweepRecord, found: Iterable[Standing]) -> PointRecord | None:
    """The point that the verdict chose; a search may try it twice, and then the better trial."""
    named = [one for one in found if one.point.label == record.verdict.get("chosen")]
    best = min(named, key=lambda one: math.inf if one.loss is None else one.loss.value, default=None)
    return None if best is None else best.point


def _tested(record: SweepRecord, test: Mapping[str, Mapping[str, float]]) -> Any:
    """The two points that a search judged once, with their difference."""
    from cellerate.report.tables import FigureTable, cells

    best, control = record.verdict["best"], record.control.label
    names = {"best": best, "control": control, "difference": f"{best} less {control}"}
    rows = [
        cells(
            name,
            (_signed if kind == "difference" else shown.loss)(test[kind]["value"]),
            f"{_signed(test[kind]['low'])} to {_signed(test[kind]['high'])}"
            if kind == "difference"
            else f"{shown.loss(test[kind]['low'])} to {shown.loss(test[kind]['high'])}",
        )
        for kind, name in names.items()
    ]
    return FigureTable(
        "Both trained anew, in turns and equally long, and judged once",
        ("point", f">{_unit(record)}", ">95 % interval"),
        tuple(rows),
    )


def _loss_cell(one: Standing) -> Any:
    from cellerate.report.tables import TableCell

    beside = one.beside_control
    note = (
        "" if beside is None else f"{_signed(beside.value)} ({_signed(beside.low)} to {_signed(beside.high)})"
    )
    tone: Any = "" if beside is None or not beside.certain else "good" if beside.value < 0 else "bad"
    return TableCell(_loss_words(one.loss), note=note, tone=tone)


def _not_measured(record: SweepRecord) -> Any:
    from cellerate.report.tables import cells, table

    rows = [cells(point.label, point.status, point.reason) for point in record.points if not point.measured]
    return table("Points without figures", ("point", "status", "why"), rows)


def _conditions(record: SweepRecord) -> Iterator[Any]:
    from cellerate.report.tables import FigureTable, cells

    given = {name: value for fields in record.parts.values() for name, value in fields.items()}
    budget = f"{record.point_s:.3g} s" if record.point_s else f"{record.settings.get('steps')} steps"
    rows = [cells("Each point trains for", budget), cells("in turns", str(record.settings.get("rounds")))]
    rows += [
        cells(name.replace("_", " "), ", ".join(map(str, value)) if isinstance(value, list) else str(value))
        for name, value in given.items()
    ]
    rows += [cells("model", record.model)] if record.model else []
    yield FigureTable(
        "Settings of all points, where they are not the defaults", ("setting", "value"), tuple(rows)
    )
    machine = [cells(name.replace("_", " "), str(value)) for name, value in record.machine.items()]
    yield FigureTable(
        "Machine and versions",
        ("of", "is"),
        (*machine, *(cells(name, version) for name, version in record.versions.items())),
    )


def _machine(record: SweepRecord) -> str:
    return (
        f"{record.machine.get('processor', 'an unknown processor')}, {record.machine.get('cores', '?')} cores"
    )


def _x_label(name: str) -> str:
    return name.replace("_", " ")


def _unit(record: SweepRecord) -> str:
    return "loss" if record.unit == "loss" else record.unit.replace("character", "char")


def _size_words(size_bytes: int | None) -> str:
    return "" if size_bytes is None else shown.size(size_bytes)


def _on_gpu_words(point: PointRecord) -> str:
    size_bytes = point.peak_gpu_memory_bytes
    return "" if size_bytes is None else f"{shown.size(size_bytes)} on the GPU"


def _loss_words(value: Estimate | None) -> str:
    return NONE if value is None else shown.loss(value.value)


def _signed(value: float) -> str:
    return f"{'+' if value > 0 else MINUS if value < 0 else ''}{shown.loss(abs(value))}"
