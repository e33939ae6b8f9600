"""Pack: the same model in float32, run by the native core, checked to give the same predictions."""

from __future__ import annotations

from cellerate.errors import ModelError
from cellerate.format import percent, short
from cellerate.optimization.context import PACKED, Context
from cellerate.optimization.stages.base import Stage
from cellerate.report.record import StageRecord


def check_alike(context: Context) -> None:
    """Raise `ModelError` if our kernels and Keras judge the original differently."""
    if not context.kernels_are_right:
        raise ModelError(
            f"the fused kernels and Keras judge the model {percent(context.state.apart)} apart on a stretch of the "
            "held-out data, which is more than rounding: please report it, with the model"
        )


class Pack(Stage):
    """Packs the model in float32."""

    name = "pack"
    title = "Pack"
    improves = ("use",)
    first = always = inherited = True

    def cost_s(self, context: Context) -> float:
        """The seconds to pack, judge and time a model."""
        return context.consider_s()

    def run(self, context: Context) -> StageRecord:
        """See `Stage.run`."""
        check_alike(context)
        packed = context.consider(PACKED, "packed in float32", self.name, context.original(), "float32")
        return StageRecord(
            name=self.name,
            title=self.title,
            status="done",
            decision=packed.error or f"{short(packed.speeds[0].per_s)} {context.workload.item}/s",
            kept=not packed.error,
            facts=(("difference from Keras on held-out data", f"{context.state.apart:.2g} of its value"),),
        )
