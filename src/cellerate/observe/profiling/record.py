"""A profile as plain values, and in words for a terminal; `report.profile_page` draws it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from cellerate.format import aligned, milliseconds, percent, size

SCHEMA = 1
# The most changes to print.
_SHOWN = 3
_TOLD_SLOWDOWN = 0.1
Kind = Literal["loader", "layer", "loss", "optimizer", "other", "host"]
Subject = Literal["training step", "packed call"]


@dataclasses.dataclass(frozen=True)
class Part:
    """A part of a step's time; all parts add up to the step.

    Attributes:
        name: A layer's path, or the purpose of the part.
        kind: The kind of part. "loader" is the wait for batches; "other" is computation without a named part, such as
            metrics; "host" is Python and the framework while nothing is computed.
        ms: Its milliseconds of a step.
        forward_ms: The forward pass's part of `ms`; None for a part without directions.
        backward_ms: The backward pass's part of `ms`.
        idle_ms: The part of `ms` in which nothing was computed, because Python asked for nothing.
        share: Its share of the step.
        share_of_peak: The rate of its multiplications as a share of the machine's peak; None if unknown.
        phases: The milliseconds of its phases, if Cellerate's own kernels report them.
    """

    name: str
    kind: Kind
    ms: float
    forward_ms: float | None = None
    backward_ms: float | None = None
    idle_ms: float = 0.0
    share: float = 0.0
    share_of_peak: float | None = None
    phases: dict[str, float] = dataclasses.field(default_factory=dict)

    @property
    def figures(self) -> tuple[str, ...]:
        """Its time, share, forward and backward pass, idle time and share of the peak, in words; "" if missing."""
        return (
            milliseconds(self.ms),
            percent(self.share),
            "" if self.forward_ms is None else milliseconds(self.forward_ms),
            "" if self.backward_ms is None else milliseconds(self.backward_ms),
            milliseconds(self.idle_ms) if self.idle_ms else "",
            "" if self.share_of_peak is None else percent(self.share_of_peak),
        )


@dataclasses.dataclass(frozen=True)
class Suggestion:
    """A change, and its gain.

    Attributes:
        title: The slow thing, in words.
        why: The reason that was found.
        gain: The share of the whole time that it saves, after the changes before it.
        before_ms: The milliseconds without the change: of a step, or of an epoch divided by its steps.
        after_ms: The same with the change.
        do: The remedy: a command, an argument, or a line of Python.
        optional: True for a choice rather than a fault.
    """

    title: str
    why: str
    gain: float
    before_ms: float
    after_ms: float
    do: str
    optional: bool = False


@dataclasses.dataclass(frozen=True)
class Memory:
    """Memory while steps ran.

    Attributes:
        peak_bytes: The largest use.
        owners: The bytes of each use; they add up to the peak.
        over_time: Pairs of seconds and bytes.
        where: "this process" or the device.
    """

    peak_bytes: int
    owners: dict[str, int]
    over_time: tuple[tuple[float, int], ...]
    where: str


@dataclasses.dataclass(frozen=True)
class Profile:
    """The parts of a model's time, and the changes that would shorten it most; print it.

    Attributes:
        model: The model's name.
        subject: The kind of run that was profiled.
        backend: The Keras backend, or "packed".
        rows: Rows of a batch.
        step_ms: The milliseconds of a step without a profiler, batches included.
        parts: The parts of a step; they add up to it.
        slowdown: The extra time of steps under the profiler, as a share; the parts do not contain it.
        idle: The share of the step in which nothing is computed, waiting for batches included.
        share_of_peak: The rate of all multiplications as a share of the machine's measured peak; None if unknown.
        peak_flops: That peak, in operations per second.
        memory: See `Memory`; None if it was not measured.
        changes: The changes to make, the most promising first.
        bottleneck: One sentence.
        steps_per_epoch: None if the data do not say.
        validation_ms: The milliseconds of an epoch's validation; None without validation data.
        notes: Further sentences.
        environment: The machine and the versions.
        trace: The folder of the trace; "" if none was kept.
        generation: The parts of the time of a token, for a packed text model.
        schema: The version of this format.
    """

    model: str
    subject: Subject
    backend: str
    rows: int
    step_ms: float
    parts: tuple[Part, ...]
    slowdown: float
    idle: float
    share_of_peak: float | None
    peak_flops: float | None
    memory: Memory | None
    changes: tuple[Suggestion, ...]
    bottleneck: str
    steps_per_epoch: int | None
    validation_ms: float | None
    notes: tuple[str, ...]
    environment: dict[str, str]
    trace: str = ""
    generation: tuple[Part, ...] = ()
    schema: int = SCHEMA

    def to_dict(self) -> dict[str, Any]:
        """The profile as plain values for JSON."""
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        return "\n".join(_lines(self))


def bottleneck(changes: Sequence[Suggestion], parts: Sequence[Part], *, tried: bool = True) -> str:
    """The slowest part, in one sentence.

    Args:
        changes: The changes to make, the most promising first.
        parts: The parts of the time.
        tried: Whether changes were tried.
    """
    if changes and not changes[0].optional:
        first = changes[0]
        return f"{first.title}: {percent(first.gain)} of the time would be saved."
    largest = max(parts, key=lambda part: part.ms)
    sentence = f"the largest part of the time, {percent(largest.share)}, goes into {largest.name}"
    if not tried:
        return f"No change was tried; {sentence}."
    sentence = f"No fault was found; {sentence}."
    if changes:
        sentence += f" What would still help: {changes[0].title} ({percent(changes[0].gain)})."
    return sentence


def _lines(profile: Profile) -> Iterator[str]:
    """The lines to print."""
    peak = f", {percent(profile.share_of_peak)} of the machine's peak" if profile.share_of_peak else ""
    yield f"{profile.model}, {profile.backend}: a {profile.subject} of {profile.rows} rows takes " + (
        f"{milliseconds(profile.step_ms)}{peak}"
    )
    yield profile.bottleneck
    yield ""
    rows: list[tuple[str, ...]] = [
        ("where the time goes", "", "share", "forward", "backward", "idle", "of the peak")
    ]
    for part in sorted(profile.parts, key=lambda part: -part.ms):
        rows.append((part.name, *part.figures))
        rows += [
            (f"  {name}", milliseconds(ms), percent(ms / profile.step_ms), *[""] * 4)
            for name, ms in part.phases.items()
        ]
    yield from aligned(rows, range(1, 7))
    yield f"Nothing is computed in {percent(profile.idle)} of a step."
    if profile.slowdown > _TOLD_SLOWDOWN:
        yield f"Steps took {percent(profile.slowdown)} longer under the profiler; that is taken off the parts again."
    if profile.generation:
        yield ""
        tokens = [(part.name, *part.figures[:2]) for part in profile.generation]
        yield from aligned([("where the time of a token goes", "", "share"), *tokens], (1, 2))
    if profile.memory is not None:
        owners = ", ".join(f"{name} {size(count)}" for name, count in profile.memory.owners.items() if count)
        yield f"memory: {size(profile.memory.peak_bytes)} at its peak: {owners}"
    for number, change in enumerate(profile.changes[:_SHOWN], 1):
        yield ""
        taken = f"{milliseconds(change.before_ms)} -> {milliseconds(change.after_ms)}"
        yield f"{number}. {change.title}: saves {percent(change.gain)} ({taken})"
        yield f"   why: {change.why}"
        yield f"   do:  {change.do}"
    if profile.notes:
        yield ""
        yield from (f"note: {note}" for note in profile.notes)
