"""Decides how many steps candidates are trained further.

All stages that train share one number of steps where possible, so that one control serves them all.
"""

from __future__ import annotations

from cellerate.format import percent
from cellerate.optimization.context import Context, OutOfTimeError
from cellerate.report.effects import loss_reach
from cellerate.report.quality import Interval
from cellerate.report.record import Candidate

LEARNING_RATE = 4e-3
"""Adam's learning rate at the start, for pruned models, students and their control."""
GENTLE_RATE = 1e-4
"""The same for quantised models, which only adapt to rounding, and their control."""
LEAST_STEPS = 50

# The cost of distilling in trainings of the original: the student also needs its teacher's forward pass.
DISTILLING = 2.5
# The share of the time left that steps may take, because the speed of a machine varies.
_SHARE = 0.9
# The seconds before the first training begins; at milliseconds a step, they are worth many steps.
_START_S = 1.0
# This share of the fewest steps is enough to start, because preparing a training takes some of its time.
_ENOUGH = 0.8
# How often a training judges its model, to keep the best.
_STAGES = 4
# If there is time for this many times as many steps, as in a later call with a larger budget, the number of steps is
# decided again.
_MORE = 4


def step_s(context: Context) -> float:
    """The seconds per training step of the original on the fastest kernels, with its own batch size."""
    first = context.state.training_steps[0]
    alike = [step for step in context.state.training_steps if step.batch_size == first.batch_size]
    return min(step.step_ms for step in alike) / 1e3


def least_steps(context: Context) -> int:
    """The fewest steps of a useful training; no more than the settings ask for."""
    return min(LEAST_STEPS, context.settings.steps)


def trainings(context: Context, own: float) -> float:
    """The cost of a stage in trainings of the original, with the control if there is none yet."""
    return own + _controls(context)


def least_s(context: Context, own: float) -> float:
    """The seconds of `own` trainings of the fewest steps, with their control if there is none yet."""
    return trainings_s(context, trainings(context, own), least_steps(context))


def most_s(context: Context, own: float) -> float:
    """The seconds of `own` trainings of the most steps, with their control if there is none yet."""
    return trainings_s(context, trainings(context, own), context.settings.steps)


def trainings_s(context: Context, count: float, steps: int) -> float:
    """The seconds of `count` trainings of `steps` steps."""
    return _START_S + _around_s(context, count) + steps * step_s(context) * count / _SHARE


def _around_s(context: Context, count: float) -> float:
    """The seconds of `count` trainings apart from their steps: compiling, judging, packing, timing."""
    state = context.state
    compiling = context.workload.shapes * state.compile_s + state.first_judge_s
    return int(count) * (compiling + _STAGES * state.judge_s + context.consider_s())


def further_steps(context: Context, now: float, later: float = 0.0) -> int:
    """Return how many steps to train candidates further: the number decided before, if there is time for it.

    Args:
        context: The context.
        now: The cost of the next training, in trainings of the original.
        later: The cost of the later trainings of the stage, in the same unit.

    Raises:
        OutOfTimeError: There is no time for a useful training.
    """
    decided = context.state.further_steps
    if decided is not None:
        own = now + _controls(context)
        needed = decided * step_s(context) * own
        most = min(context.settings.steps, _fitting(context, now + later))
        if needed <= context.usable_s() - _around_s(context, own) and most < _MORE * decided:
            return decided
    fitting, least = _fitting(context, now + later + 1), least_steps(context)
    if fitting < least:
        # Train the next one alone rather than none.
        if _fitting(context, now + 1) < _ENOUGH * least:
            raise OutOfTimeError(
                f"there was no time for {least} steps of training and as many of a control",
                least_s(context, now),
            )
        fitting = least
    context.state.further_steps = fitting
    return fitting


def fine_tuning_steps(context: Context) -> int:
    """Return the number of steps that a quantised model and its control may be trained."""
    return _fitting(context, 2)


def plain_training(candidates: list[Candidate]) -> tuple[str, ...]:
    """Return a note if a control is certainly better than the original, otherwise an empty tuple."""
    return tuple(
        better_buy(one, one.loss, "the validation part")
        for one in candidates
        if one.is_control and one.loss and one.loss.high < 0
    )


def better_buy(control: Candidate, loss: Interval, where: str) -> str:
    """Says that the original has not finished learning, and how much plain further training is worth."""
    return (
        f"Plain further training is the better buy: {control.title} is {percent(-loss.value)} better on {where} (95 % "
        f"interval {loss_reach(loss)}), with nothing removed or rounded. Train the model to its end first, then "
        "optimize it."
    )


def _controls(context: Context) -> int:
    """The number of controls that still have to be trained for the decided steps: 0 or 1."""
    steps = context.state.further_steps
    return 0 if steps is not None and context.candidate(context.control_id(steps, LEARNING_RATE)) else 1


def _fitting(context: Context, trainings: float) -> int:
    """Return the steps that fit into the time left for each training, at most those of the settings."""
    trainings = max(trainings, 1)
    left = _SHARE * max(0.0, context.usable_s() - _around_s(context, trainings))
    return int(min(left / (trainings * step_s(context)), context.settings.steps))
