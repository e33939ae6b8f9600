"""Who gets how much of the time: each stage what it needs at least, and a fair share of what is over.

It is divided anew before each stage, so what one leaves goes to those that follow.
"""

import math
from collections.abc import Sequence

from cellerate.format import duration
from cellerate.optimization.context import Context
from cellerate.optimization.passes.base import OptimizerPass
from cellerate.report.record import Pass

# Of the verdict: judging on the test part aside, what it takes to time each packed model and a training in turns.
_MODEL_S = 4.0
_TRAINING_S = 6.0
_PROCESSES = 3


def verdict_s(context: Context) -> float:
    """The seconds to keep for the verdict, which is always reached."""
    state = context.state
    # The original too, and one more that a stage to come may make.
    models = 2 + sum(one.passes_gate and not one.is_control for one in state.candidates[1:])
    return _TRAINING_S + _MODEL_S * models + _PROCESSES * state.process_s + 2 * state.judge_s


def shares(context: Context, waiting: Sequence[OptimizerPass], left_s: float) -> dict[str, float]:
    """Divides the time that is left.

    If not all stages can have what they need at least, those that need least come first: so most get their turn.

    Args:
        context: The context.
        waiting: The stages to come.
        left_s: The seconds that are left, those of the verdict among them.

    Returns:
        The seconds of each stage that has time, by its name.
    """
    left_s -= verdict_s(context)
    costs: dict[str, float] = {}
    for one in sorted(waiting, key=lambda one: one.cost_s(context)):
        if (cost := one.cost_s(context)) <= left_s - sum(costs.values()):
            costs[one.name] = cost
    weights = {one.name: one.weight(context) for one in waiting if one.name in costs}
    spare, whole = left_s - sum(costs.values()), sum(weights.values())
    return {name: cost + (spare * weights[name] / whole if whole else 0.0) for name, cost in costs.items()}


def left_out(context: Context, found: Sequence[Pass], now: Sequence[str]) -> tuple[str, ...]:
    """Says which stages had no time, what they need, and with which budget they would run.

    Args:
        context: The context; its state has the seconds of the whole run.
        found: The stages of the run.
        now: The names of those that this call was to run.
    """
    needs = {one.title: one.needs_s for one in found if one.name in now and one.needs_s is not None}
    if not needs:
        return ()
    listed = ", ".join(f"{title} ({duration(seconds)})" for title, seconds in needs.items())
    whole = context.state.seconds + sum(needs.values()) + verdict_s(context)
    # A tenth more, as a machine is not always equally fast.
    budget = 10 * math.ceil(1.1 * whole / 10)
    return (
        f"Left out for lack of time, with what each needs at least: {listed}. The same command with --time-budget "
        f"{budget} goes on and runs them, too.",
    )
