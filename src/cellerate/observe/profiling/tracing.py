"""Steps of training under the backend's profiler, and what they say of each part of the model."""

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
"""Products of training for each of the forward pass: itself, the gradients of the inputs, and those of the weights."""
_TRACED_S, _TRACED_STEPS = 0.5, 12
_WATCHED_S = 0.3
_MOST_OFF = 0.5
_SMALL = 0.02


@dataclasses.dataclass(frozen=True)
class Traced:
    """The recording of some steps.

    Attributes:
        shares: The time of these steps.
        parts: The parts of the model, by the number of their marks.
        steps: How many steps these were.
        memory: What memory they took; None if they were too short to look.
        phases: What the phases of Cellerate's own kernels took, in other steps.
        phase_steps: How many steps those were.
        eager: Whether the model ran eagerly.
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
    """Trains a model for some steps that are watched, and some that are recorded.

    Args:
        model: A compiled model.
        feed: What `fit` takes.
        batch: One of its batches, as arrays.
        folder: Where the profiler may write.
        before_bytes: The memory of this process before anything was trained.
        write: Whether the recording is to stay in the folder.
    """
    bridge = profiler()
    with marks(model) as parts:
        watch, phases = MemoryWatch(), list[native.Phases]()
        # By themselves, because the profiler takes time and memory of its own.
        watched = timed_steps(model, feed, _WATCHED_S, window=lambda: watched_by(watch, phases))
        recording = bridge.Recording(folder)

        @contextlib.contextmanager
        def window() -> Iterator[None]:
            with recording, bridge.scope(WINDOW):
                yield

        steps = timed_steps(model, feed, _TRACED_S, most=_TRACED_STEPS, window=window)
        for part in parts:
            part.calls.clear()
        # A graph may be built without knowing how long its inputs are, and last for a batch of other sizes.
        model(inputs_of(batch))
        # The program that ran is needed to read the recording, and goes with the marks.
        shares = share_out(recording.events())
    if write:
        recording.write()
    memory = watch.found(model, batch, before_bytes)
    return Traced(shares, parts, steps.steps, memory, phases, watched.steps, runs_eagerly(model))


@contextlib.contextmanager
def watched_by(watch: MemoryWatch, phases: list[native.Phases]) -> Iterator[None]:
    """Watches the memory, and the phases of Cellerate's own kernels, within a `with`."""
    if native.why_unavailable() is not None:
        with watch:
            yield
        return
    with native.watched_phases() as found, watch:
        yield
    phases += found


def parts_of(traced: Traced, plain_s: float, step_s: float, peak: float | None) -> list[Part]:
    """The parts of a step as the user has it, which add up to it.

    The profiler makes steps longer, by about the same for each event. That is taken off again, though not more than
    half of a part, and what is left is scaled to the step.

    Args:
        traced: What was recorded.
        plain_s: The seconds of a step of the same kind without a profiler.
        step_s: Those of a step as the user has it, which may wait for batches besides.
        peak: What the machine can compute, in operations per second; None if unknown.
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
        """All of it, and what of it is idle."""
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
        # What runs for a moment only may have been computed with its neighbours.
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
    # Run eagerly, gradients carry no names on some backends.
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
    """The multiplications of a part's forward pass, for a batch; None if they are not known."""
    if part.layer is None or not part.calls:
        return None
    found = [multiplications(part.layer, *shapes) for shapes in part.calls]
    return None if None in found else sum(each or 0 for each in found)


def _phases(part: MarkedPart, traced: Traced, at_most: Mapping[str, float]) -> dict[str, float]:
    """The milliseconds of a step that the phases of a layer take, where Cellerate's native core computes it.

    Layers of the same sizes share what is known of them. The steps in which phases were timed may have been slower:
    they are at most what the pass takes that they are part of.
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
    """The milliseconds of the phases of layers of a size, (D, 4H); `scale` gives a factor for a way's seconds."""
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
