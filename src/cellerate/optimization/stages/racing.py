"""Races: contestants are timed in turns, each in a process of its own.

The speed of a machine changes while other programs run on it, so two timings from different minutes may differ more
than the contestants do. A race times contestants side by side, and its turns show whether a difference is noise.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Sequence
from typing import Any

from cellerate.format import milliseconds, times
from cellerate.measure import Order, Timing, as_timing, order_of
from cellerate.optimization import clocks
from cellerate.optimization.context import Context
from cellerate.optimization.probe_client import Probe, ProbeError
from cellerate.optimization.processes import Training, TrainingWay
from cellerate.report.record import Speed, TrainingStep

TRAINING_TURNS = 6
"""The turns of each training: the fewest that give a sure order."""
MORE_TURNS = 6
"""The extra turns if the first ones contradict each other: with them, other programs may disturb two turns."""
TURN_S = 0.3
_NOISE = 1.5  # times of the same step may differ by this factor
_LEAST_STEPS, _MOST_STEPS = 1, 50


Turn = tuple[list[Speed], list[Speed]]
"""The speeds of the ways to use the original in one turn, and those of packed models in the same turn."""


@dataclasses.dataclass(frozen=True)
class Timed:
    """A way to train, timed in turns.

    Attributes:
        step: Its figures over all turns.
        turns: The times of the steps of each turn.
    """

    step: TrainingStep
    turns: tuple[Timing, ...]

    def order(self, other: Timed) -> Order:
        """Compare another way of the same race with this one, by the time of a row (or id)."""
        here, there = (each.step.items_per_s * each.step.step_ms for each in (self, other))
        ratios = order_of(self.turns, other.turns).ratios
        return Order(tuple(ratio * there / here for ratio in ratios))


def race_s(context: Context, ways: int) -> float:
    """About the seconds that `ways` ways of training take in their turns, once they are ready."""
    slowest = max(step.step_ms for step in context.state.training_steps) / 1e3
    return TRAINING_TURNS * ways * max(TURN_S, slowest)


def new_race_s(context: Context, ways: int) -> float:
    """About the seconds of such a race if all ways but one must be compiled in new processes."""
    state = context.state
    return (ways - 1) * (state.process_s + state.compile_s) + race_s(context, ways)


def race_trainings(context: Context, name: str, ways: Sequence[TrainingWay]) -> list[Timed | ProbeError]:
    """Train in several ways from the same weights, in turns; take more turns if the turns contradict each other.

    Args:
        context: The context.
        name: The name of the race, by which the record shows which steps were timed together.
        ways: The ways, each different from the others.

    Returns:
        The times of each way, or the error if it cannot be timed.
    """
    context.listener.notify(f"getting {len(ways)} ways of training ready")
    ready = context.processes.trainings(ways)
    if fresh := [one.compile_s for one in ready if isinstance(one, Training) and not one.raced]:
        # The estimate for the next way; until now it was the time of Keras.
        context.state.compile_s = min(fresh)
    racing = [_Racing(one) for one in ready if isinstance(one, Training)]
    context.listener.notify(f"timing {len(ways)} ways of training in turns")
    slowest = max((one.training.step_s for one in racing if one.training.step_s < float("inf")), default=0.0)
    # The same number for all, so that all read the same batches.
    steps = max(_LEAST_STEPS, min(_MOST_STEPS, int(TURN_S / max(slowest, 1e-6))))
    for turn in range(TRAINING_TURNS + MORE_TURNS):
        # The order is checked only once: a check after each turn would finally find an order where there is none.
        if (turn == TRAINING_TURNS and _clear(racing)) or (turn >= TRAINING_TURNS and context.far_beyond()):
            break
        # The order alternates, so that the last contestant of one turn is the first of the next.
        for one in racing if turn % 2 == 0 else reversed(racing):
            one.take_turn(steps)
    for one in racing:
        if one.error is not None:
            context.processes.end(one.training.way)
    raced = iter(racing)
    return [next(raced).result(name) if isinstance(one, Training) else one for one in ready]


def _clear(racing: Sequence[_Racing]) -> bool:
    """Return True if the turns agree how each contestant compares with the first."""
    turns = [one.turns for one in racing if one.error is None]
    return all(order_of(turns[0], other).certain for other in turns[1:])


def training_before_and_after(context: Context) -> tuple[tuple[TrainingStep, TrainingStep] | None, list[str]]:
    """Time training before and after the choices in turns, unless a race has done so already.

    Returns:
        A step of each, or None if nothing was chosen; and sentences on doubts.

    Raises:
        ProbeError: One of them cannot be timed.
    """
    state = context.state
    ways = [context.first_way, context.chosen_way]
    if ways[0] == ways[1]:
        return None, []
    if found := _raced(context, ways):
        return found, []
    before, after = all_timed(race_trainings(context, "verdict", ways))
    state.training_steps += [before.step, after.step]
    order, doubt = before.order(after), []
    if not order.certain:
        doubt = [
            f"The chosen training was {times(order.factor)} as fast as the original one, {order.in_words}: that is "
            "noise. Run it again on a quiet machine."
        ]
    return (before.step, after.step), doubt


def verdict_race_s(context: Context) -> float:
    """The seconds that the verdict takes to time training before and after the choices so far."""
    ways = [context.first_way, context.chosen_way]
    if ways[0] == ways[1] or _raced(context, ways):
        return 0.0
    return new_race_s(context, len(ways))


def _raced(context: Context, ways: Sequence[TrainingWay]) -> tuple[TrainingStep, TrainingStep] | None:
    """The steps of two ways to train in a race of both; None if they never raced."""
    steps = context.state.training_steps
    for name in dict.fromkeys(step.race for step in steps if step.race):
        first, second = (_step_of(steps, name, way) for way in ways)
        if first is not None and second is not None:
            return first, second
    return None


def busy_machine(steps: Sequence[TrainingStep]) -> list[str]:
    """Return a warning if one way of training took different times in different minutes; one sentence at most."""
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
        f"{milliseconds(most)} in another. All comparisons were timed in turns, but their factors may differ on a "
        "quiet machine: run it again there before you quote them."
    ]


def _step_of(steps: Sequence[TrainingStep], race: str, way: TrainingWay) -> TrainingStep | None:
    """The newest step of a way to train in a race."""
    wanted = (race, str(way), way.batch_size, way.length)
    return next((s for s in reversed(steps) if (s.race, s.way, s.batch_size, s.length) == wanted), None)


def all_timed(found: Sequence[Timed | ProbeError]) -> list[Timed]:
    """Return the timed ways; raise the error of the first way that could not be timed."""
    for one in found:
        if isinstance(one, ProbeError):
            raise one
    return [one for one in found if isinstance(one, Timed)]


class _Racing:
    """A contestant of a race."""

    def __init__(self, training: Training) -> None:
        self.training = training
        self.error: ProbeError | None = None
        self._found: list[dict[str, Any]] = []

    def take_turn(self, steps: int) -> None:
        if self.error is not None:
            return
        try:
            self._found.append(self.training.turn(steps, restart=not self._found))
            self.training.raced = True
        except ProbeError as error:
            self.error = error

    @property
    def turns(self) -> tuple[Timing, ...]:
        return tuple(as_timing(found["seconds"]) for found in self._found)

    def result(self, name: str) -> Timed | ProbeError:
        return self.error or Timed(self.training.step(self._found, name), self.turns)


def race_uses(context: Context, packed: Probe, files: Sequence[str], *, until: float) -> Iterator[Turn]:
    """Time the original in Keras and packed models in turns: Keras in one process, all packed models in another.

    Args:
        context: The context.
        packed: A process that is opening the packed models.
        files: The packed models.
        until: The end of the time, by `time.perf_counter`; extra turns are taken only if they end before.

    Yields:
        A turn: the speeds of the ways to use the original, and the speeds of the packed models.

    Raises:
        ProbeError: One of the processes failed.
    """
    keras = context.processes.keras()
    packed.answer()
    seconds = clocks.MEASURED_S / clocks.TURNS
    began = time.perf_counter()
    for turn in range(2 * clocks.TURNS):
        now = time.perf_counter()
        if turn == clocks.TURNS and now + (now - began) > until:
            return
        found = [
            [Speed(**one) for one in probe.ask("use", files=list(given), seconds=seconds)]
            for probe, given in ((keras, ()), (packed, files))
        ]
        yield found[0], found[1]
