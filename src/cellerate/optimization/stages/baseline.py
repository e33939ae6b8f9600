"""The baseline: the model as its user runs it today, in processes that never load our kernels."""

from __future__ import annotations

import math
import time

import keras
import numpy as np

from cellerate.kernels import native
from cellerate.optimization.clocks import BRIEFLY_S, fastest_first
from cellerate.optimization.context import ORIGINAL, Context
from cellerate.optimization.hardware import Hardware, measure_hardware
from cellerate.optimization.judging import Judged
from cellerate.optimization.processes import Training, TrainingWay
from cellerate.optimization.stages.base import Stage
from cellerate.optimization.training import policy_of
from cellerate.report.record import Candidate, Speed, StageRecord, TrainingStep

SHARE = 1 / 6
"""The share of the time budget that the baseline may take, unless starting the backend alone takes longer."""
_FIGURE_SHARE, _STEPS_SHARE = (
    0.05,
    0.5,
)  # of the time left, for each figure of use, and for training steps
_LEAST_STEPS, _MOST_STEPS, _MOST_S = 3, 100, 2.0


class Baseline(Stage):
    """Judges, uses and trains the original with Keras alone."""

    name = "baseline"
    title = "Baseline"

    def cost_s(self, context: Context) -> float:
        """Zero, as nothing works without it."""
        return 0.0

    def run(self, context: Context) -> StageRecord:
        """See `Stage.run`."""
        work, state, listener = context.workload, context.state, context.listener
        choices, policy = state.choices, policy_of(work.model)
        listener.notify("starting Keras in separate processes")
        way = TrainingWay("keras", policy, choices.batch_size, choices.length)
        context.processes.prepare(way)
        used = context.processes.keras()
        state.process_s = context.processes.opened_s
        (training,) = context.processes.trainings([way])
        if not isinstance(training, Training):
            raise training
        state.compile_s = training.compile_s
        state.explanation[:] = [tuple(row) for row in used.ask("explain")]
        listener.notify("timing the model in Keras")
        speeds = fastest_first(Speed(**one) for one in used.ask("use", files=[], seconds=_brief(context)))
        listener.notify("timing its training in Keras")
        step = _trained(context, training)
        choices.batch_size = step.batch_size
        state.training_steps[:] = [step]
        judged, hardware = _judged(context)
        candidate = context.add(
            Candidate(
                id=ORIGINAL,
                title="the original model, in Keras",
                made_by=self.name,
                precision="float32",
                parameters=int(work.model.count_params()),
                file_bytes=context.model_file.stat().st_size,
                quality=None,
                loss=None,
                passes_gate=True,
                speeds=speeds,
                sample=work.sample(work.model, None),
            ),
            judged,
        )
        assert candidate.quality is not None  # noqa: S101 (`add` has set it)
        first = speeds[0]
        return StageRecord(
            name=self.name,
            title=self.title,
            status="done",
            decision=(
                f"{candidate.quality.value:.4g} {work.metric.name}, {first.per_s:,.0f} {work.item}/s by "
                f"{first.way}, a training step in {step.step_ms:.1f} ms on {keras.config.backend()}"
            ),
            facts=_facts(hardware),
        )


def _brief(context: Context) -> float:
    """Return the seconds to measure each figure of use: the verdict times it again, beside the chosen model."""
    return min(BRIEFLY_S, max(0.0, _FIGURE_SHARE * context.seconds_left()))


def _trained(context: Context, training: Training) -> TrainingStep:
    """Time as many training steps as fit into a part of the time."""
    seconds = min(_MOST_S, _STEPS_SHARE * max(0.0, context.seconds_left()))
    fitting = int(seconds / training.step_s) if math.isfinite(training.step_s) else 0
    return training.step([training.turn(min(max(fitting, _LEAST_STEPS), _MOST_STEPS), restart=True)])


def _facts(hardware: Hardware | None) -> tuple[tuple[str, str], ...]:
    if hardware is None:
        return ()
    layer, threads = f"an LSTM layer of {hardware.units} units", native.num_threads()
    found = {f"{threads} threads beside one": hardware.threads} if threads > 1 else {}
    found["bfloat16 beside float32"] = hardware.bfloat16
    return tuple((name, f"{layer} trains {order.reach} times as fast") for name, order in found.items())


def _judged(context: Context) -> tuple[Judged, Hardware | None]:
    """Judge the original on our kernels if a check shows that Keras judges it the same; else in Keras.

    Returns:
        The quality, and the speed of the model's largest layer, which is measured after the check.
    """
    work, state, listener = context.workload, context.state, context.listener
    listener.notify("judging the model on held-out data")
    used = context.processes.keras()
    there = Judged(**used.ask("judge", part="validation", brief=True))
    model, began = context.original(), time.perf_counter()
    here = work.judge(model, "validation", brief=True)
    state.first_judge_s = time.perf_counter() - began
    apart = np.abs(np.subtract(here.values, there.values)) / max(abs(there.mean), 1e-9)
    state.apart = float(np.max(apart))
    if not context.kernels_are_right:
        began = time.perf_counter()
        judged = Judged(**used.ask("judge", part="validation"))
        state.judge_s = time.perf_counter() - began
        return judged, None
    if measured := measure_hardware(model, state.training_steps[0].batch_size, work.length):
        state.bfloat16, state.units = measured.bfloat16.ratios, measured.units
    context.limit_judging(model)
    began = time.perf_counter()
    judged = work.judge(model, "validation")
    state.judge_s = time.perf_counter() - began
    return judged, measured
