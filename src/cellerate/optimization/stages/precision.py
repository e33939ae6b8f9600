"""Precision: tries each dtype policy on the model and its data, and keeps it if it is faster and learns as well."""

from __future__ import annotations

import dataclasses
import math

from cellerate.format import milliseconds, times
from cellerate.measure import Order
from cellerate.optimization.context import Context
from cellerate.optimization.probe_client import ProbeError
from cellerate.optimization.stages.base import Stage
from cellerate.optimization.stages.racing import Timed, all_timed, new_race_s, race_trainings
from cellerate.optimization.stages.steps import step_gain
from cellerate.optimization.training import policy_of
from cellerate.report.record import Change, StageRecord
from cellerate.training.precision import MIN_SPEEDUP, PrecisionTrial, fastest_precision, precision_candidates


class Precision(Stage):
    """Trains a few steps in each dtype policy, from the same weights and on the same batches."""

    name = "precision"
    title = "Precision"
    improves = ("training",)
    after = ("kernels",)

    def cost_s(self, context: Context) -> float:
        """The seconds to compile in one process per policy, and to take turns."""
        return new_race_s(context, len(_policies(context)))

    def gain(self, context: Context) -> float:
        """Return the gain of the largest layer in bfloat16, reduced because a step has more than that layer."""
        factor = Order(context.state.bfloat16).factor if context.state.bfloat16 else 1.2
        return 0.7 * math.log(max(1.0, factor))

    def pointless(self, context: Context) -> str:
        """See `Stage.pointless`."""
        ratios = context.state.bfloat16
        if not ratios or _policies(context) != ["float32", "mixed_bfloat16"]:
            return ""
        order = Order(ratios)
        if order.factor >= MIN_SPEEDUP:
            return ""
        layer = f"an LSTM layer of {context.state.units} units"
        return f"on this machine {layer} trains {order.reach} times as fast in bfloat16 as in float32"

    def run(self, context: Context) -> StageRecord:
        """See `Stage.run`."""
        choices, policies = context.state.choices, _policies(context)
        now = policies[0]
        ways = [dataclasses.replace(context.chosen_way, policy=policy) for policy in policies]
        raced = dict(zip(policies, race_trainings(context, self.name, ways), strict=True))
        (base,) = all_timed([raced[now]])
        tried = [_Tried(policy, base, found) for policy, found in raced.items()]
        trials = [one.trial for one in tried if one.policy == now or not one.doubt]
        chosen = raced[fastest_precision(trials).policy]
        gains: tuple[Change, ...] = ()
        doubts = [f"{one.policy} was {times(one.factor)} as fast, {one.doubt}" for one in tried if one.doubt]
        decision = f"{now} stays: " + (
            "; ".join(doubts) if doubts else "no other policy is 5 % faster with a loss that holds"
        )
        if isinstance(chosen, Timed) and chosen is not base:
            policy = next(name for name, found in raced.items() if found is chosen)
            choices.training_precision = policy
            context.state.training_steps += [base.step, chosen.step]
            gains = (step_gain(base.step, chosen.step),)
            decision = (
                f"{policy}: a step in {milliseconds(chosen.step.step_ms)} instead of "
                f"{milliseconds(base.step.step_ms)}, loss {chosen.step.loss:.4f} over them against "
                f"{base.step.loss:.4f}"
            )
        return StageRecord(
            name=self.name,
            title=self.title,
            status="done",
            decision=decision,
            kept=bool(gains),
            gains=gains,
            facts=tuple((one.policy, one.in_words) for one in tried),
        )


def _policies(context: Context) -> list[str]:
    """The policies to try; the model's own comes first."""
    now = policy_of(context.workload.model)
    return [now, *(policy for policy in ("float32", *precision_candidates()) if policy != now)]


class _Tried:
    """A policy compared with the one in use, by their times in turns."""

    def __init__(self, policy: str, base: Timed, found: Timed | ProbeError) -> None:
        self.policy, self.factor, self.doubt = policy, 1.0, ""
        if isinstance(found, ProbeError):
            self.trial = PrecisionTrial(policy, None, None, str(found))
            self.in_words = str(found)
            return
        if found.step.loss is None:
            self.trial = PrecisionTrial(policy, None, None, "its loss is not finite")
            self.in_words = self.trial.error
            return
        order = base.order(found)
        self.factor = order.factor
        # Compared turn by turn: in the medians of all steps, a busy minute would weigh more.
        self.trial = PrecisionTrial(policy, base.step.step_ms / order.factor, found.step.loss)
        self.in_words = f"{found.step.step_ms:.2f} ms a step, loss {found.step.loss:.4f}"
        if found is base:
            return
        self.in_words += f"; {'faster' if order.factor > 1 else 'slower'} {order.in_words}"
        if not order.certain:
            self.doubt = (
                f"but only {order.in_words}, which is noise" if order.factor > 1 else "which is noise"
            )
            self.in_words += ", which is noise"
