"""Profiles a packed model: a call, operation by operation, and for a text model the time of a token."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from cellerate.errors import BackendError, ModelError
from cellerate.format import milliseconds
from cellerate.kernels import native
from cellerate.kernels.decoder.sampling import SamplingRules
from cellerate.machine.doctor import Others
from cellerate.measure import time_repeated
from cellerate.observe.profiling.record import Part, Profile, Suggestion, bottleneck
from cellerate.observe.profiling.surroundings import surroundings
from cellerate.runtime.explanation import ProgramExplanation, explain
from cellerate.runtime.packed import PackedModel
from cellerate.runtime.program import Engine

_WIDER = 16
_SMALLEST = 0.05
_DRAWN, _MEASURED_S = 128, 0.3


def profile_packed(
    model: PackedModel,
    *,
    batch_size: int = 1,
    steps: int | None = None,
    changes: bool = True,
    notify: Callable[[str], None] = lambda text: None,
) -> Profile:
    """Measure where a packed model spends its time, and which change would shorten it most.

    Args:
        model: The model.
        batch_size: Rows of a call.
        steps: Its time steps; None for 100, if the model takes any number.
        changes: Whether to try changes that might shorten it.
        notify: Called with the next measurement.

    Raises:
        ConfigError: A size does not fit the model.
        DataError: The model does not accept batches of this size.
    """
    others = Others()
    notify("a call, operation by operation")
    explanation = model.explain(batch_size, steps)
    parts = _parts(explanation)
    tried = _changes(model, explanation, batch_size, steps, notify) if changes else []
    # None of these is a fault: the largest first.
    tried.sort(key=lambda change: -change.gain)
    generation: tuple[Part, ...] = ()
    notes = [f"The core does not run it as one call: {explanation.reason}"] if explanation.reason else []
    if model.task == "text":
        notify("drawing tokens")
        generation, said = _generation(model)
        notes += said
    environment, load = surroundings(others)
    peak = native.measure_peak(explanation.precision) if native.why_unavailable() is None else None
    return Profile(
        model=str(model.cell.header.get("name") or "packed model"),
        subject="packed call",
        backend=f"packed in {explanation.precision}"
        + (f", {explanation.target}" if explanation.target else ""),
        rows=batch_size,
        step_ms=1e3 * explanation.seconds,
        parts=parts,
        slowdown=0.0,
        idle=sum(part.share for part in parts if part.kind == "host"),
        share_of_peak=explanation.share_of_peak,
        peak_flops=peak,
        memory=None,
        changes=tuple(tried),
        bottleneck=bottleneck(tried, parts, tried=changes),
        steps_per_epoch=None,
        validation_ms=None,
        notes=(*load, *notes),
        environment=environment,
        generation=generation,
    )


def _parts(explanation: ProgramExplanation) -> tuple[Part, ...]:
    """The time of each operation of a call, and the rest, which is Python's."""
    total_ms = 1e3 * explanation.seconds
    measured = [(one, 1e3 * one.seconds) for one in explanation.operations if one.seconds]
    if not measured:
        return (Part("the interpreter, an operation at a time", "other", total_ms, share=1.0),)
    # Operations are timed in separate calls, which may have been slower than the median of whole calls.
    scale = min(1.0, total_ms / max(1e-9, sum(ms for _, ms in measured)))
    found = [
        Part(
            name=f"{one.name} ({one.operation}; {one.kernel})",
            kind="layer",
            ms=ms * scale,
            share=ms * scale / total_ms,
            share_of_peak=one.share_of_peak,
        )
        for one, ms in measured
    ]
    rest = max(0.0, total_ms - sum(part.ms for part in found))
    return (*found, Part("checks and Python", "host", rest, idle_ms=rest, share=rest / total_ms))


def _changes(
    model: PackedModel,
    explanation: ProgramExplanation,
    batch: int,
    steps: int | None,
    notify: Callable[[str], None],
) -> list[Suggestion]:
    found: list[Suggestion] = []

    def add(title: str, why: str, after_s: float, do: str) -> None:
        gain = 1 - after_s / explanation.seconds
        if gain >= _SMALLEST:
            found.append(
                Suggestion(title, why, gain, 1e3 * explanation.seconds, 1e3 * after_s, do, optional=True)
            )

    notify(f"calls of {batch * _WIDER} rows")
    wide = model.explain(batch * _WIDER, steps).seconds / _WIDER
    add(
        f"A call has {batch} row{'s' if batch > 1 else ''}",
        f"{batch * _WIDER} rows take {milliseconds(1e3 * wide * _WIDER)}: the weights are read once for all of them",
        wide,
        "Give predict many rows at once; cellerate serve puts requests together that come at the same time.",
    )
    if model.precision == "float32" and native.why_unavailable() is None:
        notify("int8")
        narrow = explain(Engine(model.cell.program, "int8"), "int8", batch, steps, None).seconds
        add(
            "Its matrices have 32 bits",
            f"with 8 bits the same call takes {milliseconds(1e3 * narrow)}",
            narrow,
            "`cellerate pack --dtype int8`; `cellerate evaluate` tells what it costs in quality, "
            "`cellerate optimize` keeps to a limit.",
        )
    if native.why_unavailable() is None and (threads := native.num_threads()) > 1:
        notify("one thread")
        native.set_num_threads(1)
        try:
            alone = model.explain(batch, steps).seconds
        finally:
            native.set_num_threads(threads)
        add(
            f"{threads} threads share a call that is too small for them",
            f"one thread takes {milliseconds(1e3 * alone)}",
            alone,
            "CELLERATE_THREADS=1, or cellerate.set_num_threads(1).",
        )
    return found


def _generation(model: PackedModel) -> tuple[tuple[Part, ...], list[str]]:
    """The parts of the time to generate a token of one text."""
    try:
        stepper = model.stepper()
    except (BackendError, ModelError) as error:
        return (), [f"Tokens are not drawn: {error}"]
    stepper.read(np.zeros((1, 1), np.int32))
    greedy, drawn = SamplingRules(temperature=0.0), SamplingRules(temperature=0.8, seed=1)
    network = _median_s(lambda: stepper.draw(_DRAWN, greedy)) / _DRAWN
    both = _median_s(lambda: stepper.draw(_DRAWN, drawn)) / _DRAWN
    call = _median_s(lambda: stepper.step([0]))
    sampling = max(0.0, both - network)
    total = network + sampling
    parts = (
        Part("the network", "layer", 1e3 * network, share=network / total),
        Part("sampling (temperature 0.8)", "other", 1e3 * sampling, share=sampling / total),
    )
    figures = (
        f"A token takes {milliseconds(1e3 * total)} within generate; a call of Stepper.step from Python takes "
        f"{milliseconds(1e3 * call)}."
    )
    return parts, [figures]


def _median_s(call: Callable[[], object]) -> float:
    call()
    return time_repeated(call, _MEASURED_S, least=5).median_s
