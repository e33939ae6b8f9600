"""Pipeline: the wait of training for its data."""

from __future__ import annotations

from cellerate.format import percent
from cellerate.optimization.clocks import MEASURED_S
from cellerate.optimization.context import Context
from cellerate.optimization.stages.base import Stage
from cellerate.optimization.stages.steps import batch_items
from cellerate.report.record import StageRecord


class Pipeline(Stage):
    """Measures the loader's share of a training step."""

    name = "pipeline"
    title = "Pipeline"
    improves = ("training",)
    after = ("kernels", "batch")

    def cost_s(self, context: Context) -> float:
        """The second that the process of the baseline spends on making batches."""
        return MEASURED_S + 0.2

    def gain(self, context: Context) -> float:
        """Return nearly nothing: batches are made ahead."""
        return 0.02

    def run(self, context: Context) -> StageRecord:
        """See `Stage.run`."""
        choices = context.state.choices
        probe = context.processes.keras()
        batch_ms = probe.ask("load", batch_size=choices.batch_size, length=choices.length)["batch_ms"]
        step = min(context.state.training_steps, key=lambda step: step.step_ms / batch_items(step))
        step_ms = step.step_ms * batch_items(choices) / batch_items(step)
        share = batch_ms / step_ms
        if share < 0.5:
            decision = (
                f"making a batch takes {batch_ms:.3g} ms, {percent(share)} of a step, and a thread makes batches "
                "ahead: training never waits"
            )
        else:
            decision = (
                f"making a batch takes {batch_ms:.3g} ms of a step of {step_ms:.3g}: training waits for data. Keep "
                "the data on a faster disk or in memory, or in a narrower type "
                "(`cellerate data pack --storage float16` for series)"
            )
        return StageRecord(
            name=self.name,
            title=self.title,
            status="done",
            decision=decision,
            facts=(("a batch", f"{batch_ms:.3g} ms"), ("a step", f"{step_ms:.3g} ms")),
            notes=(
                "Batches are cut from a memory map, never stored as windows, and 8 of them are made ahead.",
            ),
        )
