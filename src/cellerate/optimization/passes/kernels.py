"""Kernels: the same model on Cellerate's kernels, checked for equal quality."""

import numpy as np

from cellerate.compress.record import relative_loss
from cellerate.errors import ModelError
from cellerate.format import percent, times
from cellerate.keras_graph.graph import find_over_time, inner_layers
from cellerate.layers.accelerate import is_accelerated
from cellerate.optimization.context import ORIGINAL, PACKED, Context
from cellerate.optimization.passes.base import OptimizerPass
from cellerate.optimization.passes.steps import step_gain, training_step
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
        """A process that opens the model, and a few training steps."""
        return 10.0

    def run(self, context: Context) -> Pass:
        """See `OptimizerPass.run`."""
        state, work, choices = context.state, context.workload, context.state.choices
        model, policy = context.original(), policy_of(work.model)
        # For a Bidirectional, both inner layers too.
        recurrent = [
            one for found in find_over_time(model) for one in (found.layer, *inner_layers(found.layer))
        ]
        fused = [layer for layer in recurrent if is_accelerated(layer)]
        context.listener.note("checking that both compute the same")
        here, there = work.judge(model, "validation"), state.judged[ORIGINAL]
        apart = float(np.max(np.abs(np.subtract(here.values, there.values))) / max(abs(there.mean), 1e-9))
        if apart > _ROUNDING.get(policy, _ROUNDING_16_BITS):
            raise ModelError(
                f"the fused kernels judge the model {percent(apart)} apart from Keras on a stretch of the held-out "
                "data, which is more than rounding: please report it, with the model"
            )
        gains, decision = [], "no layer can be fused"
        if fused:
            context.listener.note("training on the fused kernels")
            first = state.training_steps[0]
            with context.probe() as probe:
                # On batches like the baseline's, whatever a pass of an earlier call has chosen since.
                step = training_step(
                    probe,
                    implementation="auto",
                    policy=policy,
                    batch_size=first.batch_size,
                    length=first.length,
                )
            state.training_steps.append(step)
            gain = step_gain(first, step)
            decision = f"training steps {times(gain.factor)} as fast, with equal results"
            if gain.factor > 1:
                choices.implementation = "auto"
                gains.append(gain)
        packed = context.consider(PACKED, "packed in float32", self.name, model, "float32")
        if not packed.error:
            slow = context.before.speeds[0]
            decision += f"; {work.verb} {times(packed.speeds[0].per_s / slow.per_s)} as fast as {slow.way}"
        return Pass(
            name=self.name,
            title=self.title,
            status="done",
            decision=decision,
            kept=bool(gains) or not packed.error,
            gains=tuple(gains),
            facts=(
                ("fused layers", str(len(fused))),
                ("difference in quality", f"{abs(relative_loss(there.mean, here.mean)):.2g} of its value"),
            ),
            notes=(packed.error,) if packed.error else (),
        )
