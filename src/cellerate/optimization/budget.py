"""Who gets how much of the time: the stage that is worth most for each second comes next.

The time is divided anew before each stage, so what one leaves goes to those that follow.
"""

import math
from collections.abc import Sequence

from cellerate.format import duration
from cellerate.optimization.clocks import MEASURED_S
from cellerate.optimization.context import Context
from cellerate.optimization.settings import Objective
from cellerate.optimization.stages.base import Stage
from cellerate.optimization.stages.racing import verdict_race_s
from cellerate.report.record import Quantity, StageRecord

OVERTIME = 0.1
"""A stage may go beyond the budget by this share of it, rather than be left out."""
# Of the verdict: what it takes to time a packed model, or the original, in turns.
_MODEL_S = 5 * MEASURED_S
_WANTED: dict[Objective, Quantity] = {
    "latency": "use",
    "throughput": "use",
    "size": "size",
    "training": "training",
}
# What a gain counts in a quantity that the objective does not name.
_BESIDE = 0.5


def verdict_s(context: Context) -> float:
    """The seconds to keep for the verdict, which is always reached."""
    state = context.state
    # The original too; a model that a stage makes adds its own.
    models = 1 + sum(one.passes_gate and not one.is_control for one in state.candidates[1:])
    training = verdict_race_s(context) if state.training_steps else 0.0
    return _MODEL_S * models + state.process_s + 3 * state.judge_s + training


def worth(context: Context, one: Stage) -> float:
    """Return the expected gain of a stage for each second: the logarithm of a factor, weighted by the objective."""
    wanted = _WANTED[context.settings.objective]
    share = 1.0 if wanted in one.improves else _BESIDE
    return share * one.gain(context) / max(one.cost_s(context), 0.1)


def fitting(context: Context, waiting: Sequence[Stage], left_s: float) -> dict[Stage, float]:
    """Chooses the stages that there is time for, with the seconds of each.

    Those that are worth most for each second come first, each behind those that it builds on. The time that is
    left after each has the least that it needs goes to those that can use it.

    Args:
        context: The context.
        waiting: The stages to come that are needed.
        left_s: The seconds that are left, those of the verdict among them.

    Returns:
        The seconds of each stage, in their order.
    """
    left_s -= verdict_s(context)
    most_s = left_s + OVERTIME * context.settings.time_budget
    chosen: dict[Stage, float] = {}
    by_worth = sorted(waiting, key=lambda one: worth(context, one), reverse=True)
    while True:
        room = most_s - sum(chosen.values())
        open_ = [one for one in by_worth if one not in chosen and one.cost_s(context) <= room]
        names = {one.name for one in open_}
        one = next((one for one in open_ if not names.intersection(one.after)), None)
        if one is None:
            break
        chosen[one] = one.cost_s(context)
    spare = max(0.0, left_s - sum(chosen.values()))
    # More time for those that can use it, in parts of what they can use.
    useful = {one: max(0.0, one.most_s(context) - cost) for one, cost in chosen.items()}
    share = min(1.0, spare / whole) if (whole := sum(useful.values())) else 0.0
    return {one: cost + share * useful[one] for one, cost in chosen.items()}


def left_out(context: Context, found: Sequence[StageRecord], now: Sequence[str]) -> tuple[str, ...]:
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
        # In words of both users, because the page and the record of the run keep no marks of arguments.
        f"Left out for lack of time, with what each needs at least: {listed}. The same run with a time budget of "
        f"{budget} seconds goes on and does them, too.",
    )
