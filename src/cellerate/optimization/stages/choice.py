"""The choice among the models of a run: the models that may be chosen, the best one, and the Pareto front."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from cellerate.measure import Order
from cellerate.optimization.context import ORIGINAL
from cellerate.optimization.stages.loading import load_stages
from cellerate.report.record import Candidate, Speed

ALIKE = 1.05
"""Two speeds within this factor count as the same."""

Turns = Mapping[str, Sequence[Speed]]
"""The speed of each model in each turn, by its id."""


def choosable(candidates: Sequence[Candidate], objective: str) -> list[Candidate]:
    """Return the original and the models within the allowed loss; for training, only those not changed."""
    # A control only serves comparison. A user who wants it should run `train` to the end.
    passing = [one for one in candidates if (one.passes_gate or one.id == ORIGINAL) and not one.is_control]
    if objective == "training":
        changing = {name for name, kind in load_stages().items() if kind.changes_model}
        passing = [one for one in passing if one.made_by not in changing]
    return passing


def choose(candidates: Sequence[Candidate], objective: str, turns: Turns = {}) -> Candidate:  # noqa: B006 (read only)
    """Return the best of the models that can be chosen.

    Args:
        candidates: The models.
        objective: As in the settings.
        turns: The speed of each model in each turn; two models whose turns contradict each other count as equally fast.
    """
    passing = choosable(candidates, objective)

    def small(one: Candidate) -> tuple[int, float]:
        # Two students have the same size.
        return one.file_bytes, one.worst_loss

    if objective == "size":
        return min(passing, key=small)
    fastest = max(passing, key=lambda one: rate(one.speeds[0], objective))
    most = rate(fastest.speeds[0], objective)

    # Choose the smallest of the models that another timing might order differently.
    def alike(one: Candidate) -> bool:
        if rate(one.speeds[0], objective) * ALIKE >= most:
            return True
        order = order_in_turns(one.id, fastest.id, objective, turns)
        return order is not None and not order.certain

    return min(filter(alike, passing), key=small)


def rate(speed: Speed, objective: str) -> float:
    """Return the figure of a speed that counts for an objective: more is better."""
    if objective == "throughput":
        return speed.throughput_per_s or speed.per_s
    return 1 / speed.latency_p50_ms


def order_in_turns(one: str, other: str, objective: str, turns: Turns) -> Order | None:
    """Compare another model with one, turn by turn; None if they were not timed in the same turns."""
    if one not in turns or other not in turns:
        return None
    rates = ([rate(speed, objective) for speed in turns[each]] for each in (one, other))
    return Order(tuple(after / before for before, after in zip(*rates, strict=True)))


def front(candidates: Sequence[Candidate], *, higher_is_better: bool) -> list[Candidate]:
    """Return the candidates, marking those that no other beats in both quality and latency; controls don't count."""
    sign = -1 if higher_is_better else 1

    def beats(one: Candidate, other: Candidate) -> bool:
        assert one.quality and other.quality  # noqa: S101 (all of them were judged)
        mine = (sign * one.quality.value, one.speeds[0].latency_p50_ms)
        its = (sign * other.quality.value, other.speeds[0].latency_p50_ms)
        return mine != its and mine[0] <= its[0] and mine[1] <= its[1]

    others = [one for one in candidates if not one.is_control]
    return [
        dataclasses.replace(one, on_front=not (one.is_control or any(beats(other, one) for other in others)))
        for one in candidates
    ]
