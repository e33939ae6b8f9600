"""Kernels: the same training on Cellerate's kernels, beside Keras's."""

from __future__ import annotations

import dataclasses

from cellerate.format import milliseconds
from cellerate.optimization.context import Context
from cellerate.optimization.hardware import fused_layers
from cellerate.optimization.stages.base import NotNeededError, Stage
from cellerate.optimization.stages.pack import check_alike
from cellerate.optimization.stages.racing import Timed, all_timed, new_race_s, race_trainings
from cellerate.optimization.stages.steps import step_gain
from cellerate.report.record import StageRecord


class Kernels(Stage):
    """Trains on the fused kernels."""

    name = "kernels"
    title = "Kernels"
    improves = ("training",)
    first = True

    def cost_s(self, context: Context) -> float:
        """The seconds to start and compile in a process, and to take turns."""
        return new_race_s(context, 2)

    def gain(self, context: Context) -> float:
        """Return the logarithm of 2: training is usually twice as fast."""
        return 0.7

    def run(self, context: Context) -> StageRecord:
        """See `Stage.run`."""
        state, choices = context.state, context.state.choices
        check_alike(context)
        fused = fused_layers(context.original())
        if not fused:
            raise NotNeededError("no layer of the model can be fused; `cellerate explain` says why")
        # On batches like the baseline's, even if a stage of an earlier call has chosen others.
        first = context.first_way
        ways = [first, dataclasses.replace(first, implementation="auto")]
        stock, ours = all_timed(race_trainings(context, self.name, ways))
        state.training_steps += [stock.step, ours.step]
        order = stock.order(ours)
        decision, kept = f"a training step in {_ms(ours)} on them, in {_ms(stock)} on Keras's", False
        if order.certain and order.factor > 1:
            choices.implementation, kept = "auto", True
        elif order.certain:
            decision += ", which stay"
        else:
            faster = "faster" if order.factor > 1 else "slower"
            decision += f"; they were {faster} {order.in_words}, which is noise: Keras's stay"
        return StageRecord(
            name=self.name,
            title=self.title,
            status="done",
            decision=decision,
            kept=kept,
            gains=(step_gain(stock.step, ours.step),) if kept else (),
            facts=(("fused layers", str(len(fused))), ("times as fast", order.reach)),
        )


def _ms(one: Timed) -> str:
    return milliseconds(one.step.step_ms)
