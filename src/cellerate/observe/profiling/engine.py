"""Profiles training steps that are one native call: the core itself times their parts."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import keras

from cellerate.kernels import native
from cellerate.layers.engine import seam
from cellerate.layers.engine.step import Watch
from cellerate.observe.profiling.feeding import Feed, rows_of
from cellerate.observe.profiling.memory import MemoryWatch
from cellerate.observe.profiling.record import Kind, Memory, Part
from cellerate.observe.profiling.stepping import timed_steps
from cellerate.observe.profiling.tracing import PASSES, phases_of, watched_by
from cellerate.program import OPERATIONS, Node

_WATCHED_S = 0.5


@dataclasses.dataclass(frozen=True)
class WatchedSteps:
    """Training steps whose parts were timed.

    Attributes:
        watch: The times of the parts, of all steps.
        steps: The number of steps.
        step_s: The seconds of a step with the timing on.
        rows: The rows of a batch.
        phases: The times of the phases of recurrent layers.
        memory: The memory of the steps; None if they were too short to read it.
    """

    watch: Watch
    steps: int
    step_s: float
    rows: int
    phases: tuple[native.Phases, ...]
    memory: Memory | None


def trains(model: keras.Model) -> bool:
    """True if the engine runs whole training steps of a model that has trained."""
    return seam.step_of(model) is not None


def watch_steps(model: keras.Model, feed: Feed, batch: Any, before_bytes: int) -> WatchedSteps | None:
    """Train a model for some steps that are timed part by part; None if the engine does not run them.

    Args:
        model: A compiled model that has trained before.
        feed: The data for `fit`.
        batch: One of its batches, as arrays.
        before_bytes: The memory of this process before the first training step.
    """
    step = seam.step_of(model)
    if step is None:
        return None
    memory, phases = MemoryWatch(), list[native.Phases]()
    watch = step.begin_watch()
    try:

        def begin() -> Any:
            watch.seconds[:] = 0
            return watched_by(memory, phases)

        timed = timed_steps(model, feed, _WATCHED_S, window=begin)
    finally:
        step.watch = None
    return WatchedSteps(
        watch,
        timed.steps,
        timed.step_s,
        rows_of(batch),
        tuple(phases),
        memory.found(model, batch, before_bytes),
    )


def parts_of(
    found: WatchedSteps, plain_s: float, step_s: float, peak: float | None, optimizer: str
) -> list[Part]:
    """The parts of a step, which add up to it.

    Args:
        found: The steps.
        plain_s: The seconds of the same step without the timing.
        step_s: The seconds of a step on the user's data, which may also wait for batches.
        peak: The machine's peak, in operations per second; None if unknown.
        optimizer: The name of the optimizer.
    """
    nodes, seconds = found.watch.nodes, found.watch.seconds / found.steps
    # Reading the clocks takes time, too.
    seconds *= min(1.0, plain_s / found.step_s)
    forward, backward = seconds[: len(nodes)], seconds[len(nodes) : 2 * len(nodes)]
    losses, packing, update = (float(each) for each in seconds[2 * len(nodes) :])
    parts = []
    if (wait := step_s - plain_s) > 0:
        parts.append(
            Part("waiting for batches", "loader", 1e3 * wait, idle_ms=1e3 * wait, share=wait / step_s)
        )
    for name in dict.fromkeys(node.name for node in nodes if node.op != "input"):
        here = [number for number, node in enumerate(nodes) if node.name == name and node.op != "input"]
        ahead, back = float(forward[here].sum()), float(backward[here].sum())
        products = sum(products_of(nodes, found.watch.shapes, number) for number in here) * found.rows
        rate = PASSES * 2 * products / max(1e-12, ahead + back)
        parts.append(
            Part(
                name,
                "layer",
                1e3 * (ahead + back),
                1e3 * ahead,
                1e3 * back,
                share=(ahead + back) / step_s,
                share_of_peak=rate / peak if peak and products else None,
                phases=_phases(
                    [nodes[number] for number in here], found, {"forward": ahead, "backward": back}
                ),
            )
        )
    rest = plain_s - float(seconds.sum())
    others: tuple[tuple[str, Kind, float], ...] = (
        ("loss and metrics", "loss", losses),
        (f"optimizer ({optimizer})", "optimizer", update),
        ("packing weights", "other", packing),
    )
    parts += [Part(label, kind, 1e3 * taken, share=taken / step_s) for label, kind, taken in others]
    parts.append(
        Part(
            "Python and the framework", "host", 1e3 * rest, idle_ms=1e3 * max(0.0, rest), share=rest / step_s
        )
    )
    return [part for part in parts if part.ms]


def products_of(nodes: Any, shapes: Mapping[int, Any], number: int) -> int:
    """The unavoidable multiplications of a node's forward pass for a row.

    Rows of an embedding, and their products with a kernel, can be looked up, and are not counted.
    """
    node = nodes[number]
    # Operations that only training has multiply no matrices.
    if node.op not in OPERATIONS:
        return 0
    read = {name: shapes[source] for name, source in node.inputs.items()}
    found = OPERATIONS[node.op].products(node, read, shapes[number])
    if node.op == "lstm" and nodes[node.inputs["x"]].op == "embedding":
        found -= read["x"][0] * node.arrays["kernel"].size
    return int(found)


def products(found: WatchedSteps) -> int:
    """The unavoidable multiplications of all nodes, for a batch."""
    nodes = found.watch.nodes
    return found.rows * sum(products_of(nodes, found.watch.shapes, number) for number in range(len(nodes)))


def _phases(here: list[Node], found: WatchedSteps, at_most: Mapping[str, float]) -> dict[str, float]:
    """The milliseconds of the phases of a recurrent layer; layers of equal sizes share the measured times."""
    layers = [node for node in here if node.op == "lstm"]
    if not layers:
        return {}
    size = layers[0].arrays["kernel"].shape
    return phases_of(size, found.phases, lambda way, total_s: at_most[way] / max(1e-12, total_s))
