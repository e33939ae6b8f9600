"""Draws a profile as a page: the verdict, what to change, where time and memory go."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cellerate.format import milliseconds, percent, size
from cellerate.report.html import render, write_page
from cellerate.report.svg import WAITING, Line, LineChart, PartBar, PartsChart
from cellerate.report.tables import Figure, FigureTable, cells, thinned

_KINDS = (
    ("s0", "forward pass"),
    ("s1", "backward pass"),
    ("s2", "computed"),
    (WAITING, "nothing is computed"),
)


Profiled = Any
"""The form of `observe.profiling.record.Profile`, which this room does not know."""


def write_profile(profile: Profiled, path: str | Path) -> Path:
    """Writes a profile as one self-contained HTML file, whole or not at all.

    Raises:
        OutputError: The file could not be written.
    """
    return write_page(Path(path), profile_html(profile))


def profile_html(profile: Profiled) -> str:
    """A profile as HTML."""
    worst = profile.changes[0] if profile.changes else None
    return render(
        "profile.html",
        title=f"{profile.model}: where the time goes",
        profile=profile,
        facts=[profile.backend, profile.subject, f"{profile.rows} rows"],
        tone="bad" if worst is not None and not worst.optional else "good",
        tiles=_tiles(profile),
        changes=[
            {
                "title": change.title,
                "gain": f"saves {percent(change.gain)}" + (", a choice" if change.optional else ""),
                "do": change.do,
                "why": change.why,
                "taken": f"{milliseconds(change.before_ms)}, then {milliseconds(change.after_ms)}",
            }
            for change in profile.changes
        ],
        time=_time(profile),
        generation=_generation(profile),
        memory=_memory(profile),
        environment=FigureTable(
            "Machine and versions", ("of", "is"), tuple(cells(*one) for one in profile.environment.items())
        ),
    )


def _tiles(profile: Profiled) -> list[tuple[str, str, str]]:
    found = [
        (
            milliseconds(profile.step_ms),
            f"a {profile.subject}",
            f"{1e3 * profile.rows / profile.step_ms:,.0f} rows/s",
        ),
        (percent(profile.idle), "nothing computed", "of a step, batches in memory"),
    ]
    if profile.share_of_peak is not None:
        rate = profile.share_of_peak * profile.peak_flops / 1e9
        found.append((percent(profile.share_of_peak), "of the machine's peak", f"{rate:,.0f} GFLOP/s"))
    if profile.memory is not None:
        found.append((size(profile.memory.peak_bytes), "memory at its peak", profile.memory.where))
    if profile.validation_ms is not None and profile.steps_per_epoch:
        share = profile.validation_ms / (profile.validation_ms + profile.steps_per_epoch * profile.step_ms)
        found.append((percent(share), "validation, of an epoch", milliseconds(profile.validation_ms)))
    return found


def _time(profile: Profiled) -> Figure:
    parts = sorted(profile.parts, key=lambda part: -part.ms)
    bars = []
    for part in parts:
        busy = max(0.0, part.ms - part.idle_ms)
        if part.forward_ms is None:
            segments = (0.0, 0.0, busy, part.idle_ms)
        else:
            ahead = busy * part.forward_ms / max(1e-12, part.forward_ms + part.backward_ms)
            segments = (ahead, busy - ahead, 0.0, part.idle_ms)
        bars.append(PartBar(part.name, segments, f"{milliseconds(part.ms)}, {percent(part.share)}"))
    rows = []
    for part in parts:
        rows.append(cells(part.name, *part.figures))
        rows += [
            cells(f"{part.name}, {name}", milliseconds(ms), percent(ms / profile.step_ms), "", "", "", "")
            for name, ms in part.phases.items()
        ]
    described = "; ".join(f"{bar.name}: {bar.words}" for bar in bars)
    chart = PartsChart("Where the time of a step goes", described, tuple(bars), _KINDS)
    columns = ("part", ">time", ">share", ">forward", ">backward", ">idle", ">of the peak")
    return Figure(
        chart, FigureTable("The parts of a step, which add up to it", columns, tuple(rows)), wide=True
    )


def _generation(profile: Profiled) -> FigureTable | None:
    rows = tuple(cells(part.name, *part.figures[:2]) for part in profile.generation)
    return FigureTable("Where the time of a token goes", ("part", ">time", ">share"), rows) if rows else None


def _memory(profile: Profiled) -> list[Figure]:
    memory = profile.memory
    if memory is None:
        return []
    owners = sorted(
        ((name, count) for name, count in memory.owners.items() if count > 0), key=lambda one: -one[1]
    )
    bars = tuple(PartBar(name, (0.0, 0.0, float(count), 0.0), size(count)) for name, count in owners)
    described = "; ".join(f"{bar.name}: {bar.words}" for bar in bars)
    found = [
        Figure(
            PartsChart(f"The peak of {size(memory.peak_bytes)}, by what it is for", described, bars, _KINDS),
            FigureTable(
                "Memory at its peak",
                ("for", ">size"),
                tuple(cells(name, size(count)) for name, count in owners),
            ),
        )
    ]
    if len(memory.over_time) > 1:
        points = tuple((1e3 * at, count / 2**20) for at, count in memory.over_time)
        rows, remark = thinned(points)
        low, high = min(point[1] for point in points), max(point[1] for point in points)
        chart = LineChart(
            f"Memory of {memory.where} while steps run",
            f"Between {low:,.0f} and {high:,.0f} MiB.",
            (Line("memory", points),),
            "ms",
            "MiB",
        )
        table = FigureTable(
            "Memory over time",
            (">ms", ">MiB"),
            tuple(cells(f"{at:,.1f}", f"{count:,.1f}") for at, count in rows),
            remark,
        )
        found.append(Figure(chart, table))
    return found
