"""Training steps under the backend's profiler, and the time of each part of the model."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras

from cellerate.bridges.profiled import WINDOW
from cellerate.kernels import native
from cellerate.layers.accelerate import implementation_of
from cellerate.observe.profiling.feeding import Feed, inputs_of
from cellerate.observe.profiling.marking import MarkedPart, marks, profiler
from cellerate.observe.profiling.memory import MemoryWatch
from cellerate.observe.profiling.record import Memory, Part
from cellerate.observe.profiling.stepping import timed_steps
from cellerate.observe.profiling.timeline import Shares, Spent, share_out
from cellerate.observe.profiling.unharmed import runs_eagerly
from cellerate.observe.profiling.work import multiplications

PASSES = 3
"""The passes that multiply in training: forward, the gradients of the inputs, and the gradients of the weights."""
_TRACED_S, _TRACED_STEPS = 0.5, 12
_WATCHED_S = 0.3
_MOST_OFF = 0.5
_SMALL = 0.02


@dataclasses.dataclass(frozen=True)
class Traced:
    """The recording of some steps.

    Attributes:
        shares: The division of their time.
        parts: The parts of the model, by the number of their marks.
        steps: The number of recorded steps.
        memory: The memory of the steps; None if they were too short to read it.
        phases: The times of the phases of Cellerate's own kernels, in other steps.
        phase_steps: The number of those other steps.
        eager: True if the model ran eagerly.
    """

    shares: Shares
    parts: Sequence[MarkedPart]
    steps: int
    memory: Memory | None
    phases: Sequence[native.Phases]
    phase_steps: int
    eager: bool


def trace_steps(
    model: keras.Model, feed: Feed, batch: Any, folder: Path, before_bytes: int, *, write: bool
) -> Traced:
    """Train a model for some steps with their memory and phases watched, then for some under the profiler.

    Args:
        model: A compiled model.
        feed: The data for `fit`.
        batch: One of its batches, as arrays.
        folder: The folder that the profiler may write to.
        before_bytes: The memory of this process before the first training step.
        write: Whether to keep the recording in the folder.
    """
    bridge = profiler()
    with marks(model) as parts:
        watch, phases = MemoryWatch(), list[native.Phases]()
        # In separate steps, because the profiler itself takes time and memory.
        watched = timed_steps(model, feed, _WATCHED_S, window=lambda: watched_by(watch, phases))
        recording = bridge.Recording(folder)

        @contextlib.contextmanager
        def window() -> Iterator[None]:
            with recording, bridge.scope(WINDOW):
                yield

        steps = timed_steps(model, feed, _TRACED_S, most=_TRACED_STEPS, window=window)
        for part in parts:
            part.calls.clear()
        # The shapes come from this call: a graph may be traced with unknown lengths, or last for another batch size.
        model(inputs_of(batch))
        # Read within the marks: the recording needs the compiled program, which is dropped with them.
        shares = share_out(recording.events())
    if write:
        recording.write()
    memory = watch.found(model, batch, before_bytes)
    return Traced(shares, parts, steps.steps, memory, phases, watched.steps, runs_eagerly(model))


@contextlib.contextmanager
def watched_by(watch: MemoryWatch, phases: list[native.Phases]) -> Iterator[None]:
    """Watch the memory, and the phases of Cellerate's own kernels, within a `with`."""
    if native.why_unavailable() is not None:
        with watch:
            yield
        return
    with native.watched_phases() as found, watch:
        yield
    phases += found


def parts_of(traced: Traced, plain_s: float, step_s: float, peak: float | None) -> list[Part]:
    """The parts of a step on the user's data, which add up to it.

    The profiler adds about the same time to each event. That is subtracted, but at most half of a part, and the rest is
    scaled to the step.

    Args:
        traced: The recording.
        plain_s: The seconds of the same step without a profiler.
        step_s: The seconds of a step on the user's data, which may also wait for batches.
        peak: The machine's peak, in operations per second; None if unknown.
    """
    shares = traced.shares
    cost_ns = max(0.0, shares.window_ns - 1e9 * plain_s * traced.steps)
    each_ns = cost_ns / max(1, sum(spent.events for spent in shares.spent.values()))
    kept = {
        owner: 1 - min(_MOST_OFF, each_ns * spent.events / max(1.0, spent.busy_ns + spent.idle_ns))
        for owner, spent in shares.spent.items()
    }
    left_ns = sum((spent.busy_ns + spent.idle_ns) * kept[owner] for owner, spent in shares.spent.items())

    def ms(number: int | None, *, backward: bool) -> tuple[float, float]:
        """The milliseconds of a step for an owner, and the idle part of them."""
        spent = shares.spent.get((number, backward), Spent())
        scale = 1e3 * plain_s / left_ns * kept.get((number, backward), 1.0)
        return (spent.busy_ns + spent.idle_ns) * scale, spent.idle_ns * scale

    step_ms = 1e3 * step_s
    found: list[Part] = []
    if (wait := step_ms - 1e3 * plain_s) > 0:
        found.append(Part("waiting for batches", "loader", wait, idle_ms=wait, share=wait / step_ms))
    for number, part in enumerate(traced.parts):
        (forward, idle), (backward, more) = (ms(number, backward=way) for way in (False, True))
        if forward + backward == 0:
            continue
        products = products_of(part)
        rate = None if not products else PASSES * 2 * products / ((forward + backward) / 1e3)
        # A very short part may have been fused with its neighbours, so its rate is not certain.
        sure = not traced.eager and forward + backward > _SMALL * step_ms
        directed = part.kind != "optimizer" and not traced.eager
        found.append(
            Part(
                name=part.name,
                kind=part.kind,
                ms=forward + backward,
                forward_ms=forward if directed else None,
                backward_ms=backward if directed else None,
                idle_ms=idle + more,
                share=(forward + backward) / step_ms,
                share_of_peak=rate / peak if sure and rate and peak else None,
                phases=_phases(part, traced, {"forward": forward, "backward": backward}),
            )
        )
    nobody = [ms(None, backward=way) for way in (False, True)]
    idle = sum(each for _, each in nobody)
    other = sum(each for each, _ in nobody) - idle
    # In eager steps of some backends, gradients have no names.
    name = (
        "other operations (gradients, metrics, copies)"
        if traced.eager
        else "other operations (metrics, copies)"
    )
    found.append(Part(name, "other", other, share=other / step_ms))
    found.append(
        Part("Python and the framework, nothing computed", "host", idle, idle_ms=idle, share=idle / step_ms)
    )
    return found


def products_of(part: MarkedPart) -> int | None:
    """The multiplications of a part's forward pass, for a batch; None if unknown."""
    if part.layer is None or not part.calls:
        return None
    found = [multiplications(part.layer, *shapes) for shapes in part.calls]
    return None if None in found else sum(each or 0 for each in found)


def _phases(part: MarkedPart, traced: Traced, at_most: Mapping[str, float]) -> dict[str, float]:
    """The milliseconds of a layer's phases in a step, if Cellerate's native core computes it.

    Layers of equal sizes share the measured times. The steps in which phases were timed may have been slower, so the
    phases of a pass are limited to the time of the pass.
    """
    if part.layer is None or implementation_of(part.layer) != "cellerate-cpu":
        return {}

    def sizes(layer: Any) -> tuple[int, ...]:
        return tuple(layer.cell.kernel.shape)

    alike = sum(
        one.layer is not None
        and implementation_of(one.layer) == "cellerate-cpu"
        and sizes(one.layer) == sizes(part.layer)
        for one in traced.parts
    )

    def scale(way: str, total_s: float) -> float:
        each = 1 / alike / traced.phase_steps
        return each * min(1.0, at_most[way] / max(1e-9, 1e3 * total_s * each))

    return phases_of(sizes(part.layer), traced.phases, scale)


def phases_of(
    size: tuple[int, ...], phases: Iterable[native.Phases], scale: Callable[[str, float], float]
) -> dict[str, float]:
    """The milliseconds of the phases of layers of a size (D, 4H); `scale` returns a factor for a pass's seconds."""
    found: dict[str, float] = {}
    for one in phases:
        if (one.inputs, 4 * one.units) != size:
            continue
        way = "backward" if one.backward else "forward"
        factor = 1e3 * scale(way, sum(one.seconds.values()))
        for name, seconds in one.seconds.items():
            if seconds:
                found[f"{way}: {name}"] = found.get(f"{way}: {name}", 0.0) + factor * seconds
    return found
