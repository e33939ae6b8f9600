"""Races: what is to be compared is timed in turns, each contestant in a process of its own.

The speed of a machine changes while other programs run on it, so two timings from different minutes may differ more
than what they time. A race takes them side by side, and tells an order that its turns contradict from a difference.
"""

import contextlib
import dataclasses
import statistics
from collections.abc import Sequence
from typing import Any

from cellerate.format import milliseconds, times
from cellerate.measure import Order, Timing, as_timing, order_of
from cellerate.optimization.clocks import TURNS
from cellerate.optimization.context import Context
from cellerate.optimization.probe_client import Probe, ProbeError
from cellerate.optimization.training import policy_of, way_of
from cellerate.report.record import Speed, TrainingStep

TRAINING_TURNS = 6
"""How many turns each training takes: one of them may be spoiled by other work."""
_NOISE = 1.5  # the times of one thing may differ by this factor
_TURN_S = 0.3
_LEAST_STEPS, _MOST_STEPS = 2, 50


@dataclasses.dataclass(frozen=True)
class Way:
    """A way to train.

    Attributes:
        implementation: The implementation of the LSTM layers.
        policy: Keras's dtype policy.
        batch_size: Rows per batch.
        length: Time steps per row; None if the task has no choice of length.
    """

    implementation: str
    policy: str
    batch_size: int
    length: int | None

    def __str__(self) -> str:
        return way_of(self.implementation, self.policy)


@dataclasses.dataclass(frozen=True)
class Timed:
    """A way to train, timed in turns.

    Attributes:
        step: Its figures over all turns.
        turns: The times of the steps of each turn.
    """

    step: TrainingStep
    turns: tuple[Timing, ...]

    def order(self, other: "Timed") -> Order:
        """How another way of the same race compares with this one, by what a row (or id) takes."""
        here, there = (each.step.items_per_s * each.step.step_ms for each in (self, other))
        ratios = order_of(self.turns, other.turns).ratios
        return Order(tuple(ratio * there / here for ratio in ratios))


def race_trainings(context: Context, name: str, ways: Sequence[Way]) -> list[Timed | ProbeError]:
    """Trains in several ways from the same weights, in turns.

    Args:
        context: The context.
        name: The name of the race, by which the record tells what was timed together.
        ways: The ways, each different from the others.

    Returns:
        What each took, or why it cannot be timed.
    """
    context.listener.note(f"timing {len(ways)} ways of training in turns")
    with contextlib.ExitStack() as stack:
        trainings = [_Training(stack.enter_context(context.probe()), way) for way in ways]
        for each in trainings:
            each.probe.tell("trainer", name=name, **dataclasses.asdict(each.way))
        for each in trainings:
            each.get_ready()
        slowest = max((each.about["step_s"] or 0.0 for each in trainings if not each.error), default=0.0)
        # The same for all, so that all read the same batches.
        steps = max(_LEAST_STEPS, min(_MOST_STEPS, int(_TURN_S / max(slowest, 1e-6))))
        for turn in range(TRAINING_TURNS):
            # There and back, so that whoever is last in one turn is first in the next.
            for each in trainings if turn % 2 == 0 else reversed(trainings):
                each.take_turn(name, steps)
    return [each.error or each.timed(name) for each in trainings]


def training_before_and_after(context: Context) -> tuple[tuple[TrainingStep, TrainingStep] | None, list[str]]:
    """Times training as it was and as it was chosen in turns, unless a race has done so already.

    Returns:
        A step of each, or None if nothing was chosen; and what is in doubt.

    Raises:
        ProbeError: One of them cannot be timed.
    """
    state, choices = context.state, context.state.choices
    first = state.training_steps[0]
    ways = [
        Way("keras", policy_of(context.workload.model), first.batch_size, first.length),
        Way(choices.implementation, choices.training_precision, choices.batch_size, choices.length),
    ]
    if ways[0] == ways[1]:
        return None, []
    for name in dict.fromkeys(step.race for step in state.training_steps if step.race):
        found = [_step_of(state.training_steps, name, way) for way in ways]
        if found[0] is not None and found[1] is not None:
            return (found[0], found[1]), []
    before, after = all_timed(race_trainings(context, "verdict", ways))
    state.training_steps += [before.step, after.step]
    order, doubt = before.order(after), []
    if not order.certain:
        doubt = [
            f"Training as it was chosen was {times(order.factor)} as fast as before, {order.in_words}: that is noise. "
            "Run it again on a quiet machine."
        ]
    return (before.step, after.step), doubt


def busy_machine(steps: Sequence[TrainingStep]) -> list[str]:
    """Warns if one way of training took quite different times in different minutes; gives no more than one sentence."""
    times_ms: dict[tuple[object, ...], list[float]] = {}
    for step in steps:
        times_ms.setdefault((step.way, step.batch_size, step.length), []).append(step.step_ms)
    least, most = max(
        ((min(each), max(each)) for each in times_ms.values()), key=lambda found: found[1] / found[0]
    )
    if most < _NOISE * least:
        return []
    return [
        f"Something else used this machine: the same training step took {milliseconds(least)} in one minute and "
        f"{milliseconds(most)} in another. What is compared was timed in turns, but how many times as fast it is may "
        "be another figure on a quiet machine: run it again there before you quote it."
    ]


def _step_of(steps: Sequence[TrainingStep], race: str, way: Way) -> TrainingStep | None:
    """The newest step of a way to train in a race."""
    wanted = (race, str(way), way.batch_size, way.length)
    return next((s for s in reversed(steps) if (s.race, s.way, s.batch_size, s.length) == wanted), None)


def all_timed(found: Sequence[Timed | ProbeError]) -> list[Timed]:
    """Gives what was timed; raises the error of the first that could not be."""
    for one in found:
        if isinstance(one, ProbeError):
            raise one
    return [one for one in found if isinstance(one, Timed)]


class _Training:
    """A contestant in its process."""

    def __init__(self, probe: Probe, way: Way) -> None:
        self.probe, self.way = probe, way
        self.about: dict[str, Any] = {}
        self.error: ProbeError | None = None
        self._found: list[dict[str, Any]] = []

    def get_ready(self) -> None:
        try:
            self.about = self.probe.answer()
        except ProbeError as error:
            self.error = error

    def take_turn(self, name: str, steps: int) -> None:
        if self.error is not None:
            return
        try:
            self._found.append(self.probe.ask("turn", name=name, steps=steps))
        except ProbeError as error:
            self.error = error

    def timed(self, name: str) -> Timed:
        turns = tuple(as_timing(found["seconds"]) for found in self._found)
        whole = as_timing([seconds for turn in turns for seconds in turn.seconds])
        losses = [found["loss"] for found in self._found]
        step = TrainingStep(
            way=str(self.way),
            batch_size=self.about["batch_size"],
            length=self.about["length"],
            step_ms=1e3 * whole.median_s,
            step_p20_ms=1e3 * whole.percentile_s(0.2),
            step_p80_ms=1e3 * whole.percentile_s(0.8),
            items_per_s=self.about["items"] / whole.median_s,
            peak_memory_bytes=self._found[-1]["peak_memory_bytes"],
            loss=None if None in losses else statistics.fmean(losses),
            race=name,
        )
        return Timed(step, turns)


def race_uses(context: Context, files: Sequence[str]) -> tuple[list[list[Speed]], list[list[Speed]]]:
    """Times the original in Keras and packed models in turns: Keras in one process, all that is packed in another.

    Args:
        context: The context.
        files: The packed models.

    Returns:
        (ways, turns) of the original, and (files, turns) of the packed models.

    Raises:
        ProbeError: One of the processes failed.
    """
    turns: list[list[list[Speed]]] = [[], []]
    with context.probe() as keras, context.probe() as packed:
        asked: tuple[tuple[Probe, list[str]], ...] = ((keras, []), (packed, [str(file) for file in files]))
        for probe, given in asked:
            probe.tell("open", files=given)
        for probe, _ in asked:
            probe.answer()
        for _ in range(TURNS):
            for found, (probe, given) in zip(turns, asked, strict=True):
                answer = probe.ask("use", files=given, turns=TURNS)
                found.append([Speed(**one) for one in answer])
    there, here = ([list(each) for each in zip(*found, strict=True)] for found in turns)
    return there, here
