"""Divides the time among the stages: the stage with the highest worth per second comes next.

The time is divided again before each stage, so later stages get the time that a stage leaves.
"""

from __future__ import annotations

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
"""A stage may exceed the budget by this share of it, rather than be left out."""
# The seconds that the verdict takes to time a packed model, or the original, in turns.
_MODEL_S = 5 * MEASURED_S
_WANTED: dict[Objective, Quantity] = {
    "latency": "use",
    "throughput": "use",
    "size": "size",
    "training": "training",
}
# The weight of a gain in a quantity that the objective does not name.
_BESIDE = 0.5


def verdict_s(context: Context) -> float:
    """The seconds to keep for the verdict, which is always reached."""
    state = context.state
    # The original counts too; each model that a stage makes adds its own time.
    models = 1 + sum(one.passes_gate and not one.is_control for one in state.candidates[1:])
    training = verdict_race_s(context) if state.training_steps else 0.0
    return _MODEL_S * models + state.process_s + 3 * state.judge_s + training


def worth(context: Context, one: Stage) -> float:
    """Return the expected gain of a stage per second: the logarithm of a factor, weighted by the objective."""
    wanted = _WANTED[context.settings.objective]
    share = 1.0 if wanted in one.improves else _BESIDE
    return share * one.gain(context) / max(one.cost_s(context), 0.1)


def fitting(context: Context, waiting: Sequence[Stage], left_s: float) -> dict[Stage, float]:
    """Choose the stages that fit into the time, with the seconds of each.

    Stages with the highest worth per second come first, each after the stages that it builds on. Every chosen stage
    gets the least time that it needs; the rest goes to the stages that can use more.

    Args:
        context: The context.
        waiting: The needed stages that have not run.
        left_s: The seconds left, including those of the verdict.

    Returns:
        The seconds of each stage, in the order of running.
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
    # The rest is divided in proportion to the time that each stage can use.
    useful = {one: max(0.0, one.most_s(context) - cost) for one, cost in chosen.items()}
    share = min(1.0, spare / whole) if (whole := sum(useful.values())) else 0.0
    return {one: cost + share * useful[one] for one, cost in chosen.items()}


def left_out(context: Context, found: Sequence[StageRecord], now: Sequence[str]) -> tuple[str, ...]:
    """Say which stages had no time, the seconds that they need, and the budget with which they would run.

    Args:
        context: The context; its state has the seconds of the whole run.
        found: The stages of the run.
        now: The names of the stages that this call had to run.
    """
    needs = {one.title: one.needs_s for one in found if one.name in now and one.needs_s is not None}
    if not needs:
        return ()
    listed = ", ".join(f"{title} ({duration(seconds)})" for title, seconds in needs.items())
    whole = context.state.seconds + sum(needs.values()) + verdict_s(context)
    # A tenth more, because the speed of a machine varies.
    budget = 10 * math.ceil(1.1 * whole / 10)
    return (
        # Words for both the command line and Python: the page and the record of the run keep no marks of arguments.
        f"Left out for lack of time, with the least that each needs: {listed}. The same run with a time budget of "
        f"{budget} seconds continues and runs them, too.",
    )
