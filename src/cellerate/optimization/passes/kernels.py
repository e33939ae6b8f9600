"""Kernels: the same model on Cellerate's kernels, checked to give the same predictions."""

import numpy as np

from cellerate.compress.record import relative_loss
from cellerate.errors import ModelError
from cellerate.format import milliseconds, percent, short
from cellerate.keras_graph.graph import find_over_time, inner_layers
from cellerate.layers.accelerate import is_accelerated
from cellerate.measure import Order
from cellerate.optimization.context import ORIGINAL, PACKED, Context
from cellerate.optimization.passes.base import OptimizerPass
from cellerate.optimization.passes.racing import Timed, Way, all_timed, race_trainings
from cellerate.optimization.passes.steps import step_gain
from cellerate.optimization.training import policy_of
from cellerate.report.record import Pass

# How far the result on each stretch of held-out data may be from Keras's, as a share.
_ROUNDING = {"float32": 1e-3}
_ROUNDING_16_BITS = 2e-2


class Kernels(OptimizerPass):
    """Trains on the fused kernels, and uses the model packed in float32."""

    name = "kernels"
    title = "Kernels"
    reads = ("candidates", "judged", "training_steps", "choices")
    writes = ("candidates", "judged", "training_steps", "choices")
    inherited = True

    def cost_s(self, context: Context) -> float:
        """Two processes that compile, a few training steps, and a model to judge, pack, judge again and time."""
        return 2 * (context.state.process_s + context.state.judge_s) + 8

    def run(self, context: Context) -> Pass:
        """See `OptimizerPass.run`."""
        state, work, choices = context.state, context.workload, context.state.choices
        model, policy = context.original(), policy_of(work.model)
        # For a Bidirectional, both inner layers too.
        recurrent = [
            one for found in find_over_time(model) for one in (found.layer, *inner_layers(found.layer))
        ]
        fused = [layer for layer in recurrent if is_accelerated(layer)]
        context.listener.note("checking that both predict the same")
        here, there = work.judge(model, "validation"), state.judged[ORIGINAL]
        apart = float(np.max(np.abs(np.subtract(here.values, there.values))) / max(abs(there.mean), 1e-9))
        if apart > _ROUNDING.get(policy, _ROUNDING_16_BITS):
            raise ModelError(
                f"the fused kernels judge the model {percent(apart)} apart from Keras on a stretch of the held-out "
                "data, which is more than rounding: please report it, with the model"
            )
        gains, decision = [], "no layer can be fused"
        if fused:
            first = state.training_steps[0]
            # On batches like the baseline's, whatever a pass of an earlier call has chosen since.
            ways = [Way(one, policy, first.batch_size, first.length) for one in ("keras", "auto")]
            stock, ours = all_timed(race_trainings(context, self.name, ways))
            state.training_steps += [stock.step, ours.step]
            order = stock.order(ours)
            decision = f"a training step in {_ms(ours)} on them, in {_ms(stock)} on Keras's"
            if order.certain and order.factor > 1:
                choices.implementation = "auto"
                gains.append(step_gain(stock.step, ours.step))
            elif order.certain:
                decision += ", which stay"
            else:
                decision += f"; they were {_faster(order)} {order.in_words}, which is noise: Keras's stay"
        packed = context.consider(PACKED, "packed in float32", self.name, model, "float32")
        if not packed.error:
            decision += f"; packed: {short(packed.speeds[0].per_s)} {work.item}/s"
        return Pass(
            name=self.name,
            title=self.title,
            status="done",
            decision=decision,
            kept=bool(gains) or not packed.error,
            gains=tuple(gains),
            facts=(
                ("fused layers", str(len(fused))),
                (
                    "difference of their quality",
                    f"{abs(relative_loss(there.mean, here.mean)):.2g} of its value",
                ),
            ),
            notes=(packed.error,) if packed.error else (),
        )


def _ms(one: Timed) -> str:
    return milliseconds(one.step.step_ms)


def _faster(order: Order) -> str:
    return "faster" if order.factor > 1 else "slower"
