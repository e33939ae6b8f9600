"""The baseline: the model as its user runs it today, in a process without any code of ours in it."""

import time

import keras

from cellerate.optimization.clocks import TURNS, middle
from cellerate.optimization.context import ORIGINAL, Context
from cellerate.optimization.judging import Judged
from cellerate.optimization.passes.base import OptimizerPass
from cellerate.optimization.passes.steps import training_step
from cellerate.optimization.training import policy_of
from cellerate.report.record import Candidate, Pass, Speed


class Baseline(OptimizerPass):
    """Judges, uses and trains the original with Keras alone."""

    name = "baseline"
    title = "Baseline"
    reads = ("choices",)
    writes = ("candidates", "judged", "training_steps", "explanation", "process_s", "judge_s")

    def cost_s(self, context: Context) -> float:
        """Zero, as nothing works without it."""
        return 0.0

    def run(self, context: Context) -> Pass:
        """See `OptimizerPass.run`."""
        work, choices, listener = context.workload, context.state.choices, context.listener
        began = time.perf_counter()
        with context.probe() as probe:
            context.state.explanation[:] = [tuple(row) for row in probe.ask("explain")]
            context.state.process_s = time.perf_counter() - began
            listener.note("judging the model on held-out data")
            began = time.perf_counter()
            judged = Judged(**probe.ask("judge", part="validation"))
            context.state.judge_s = time.perf_counter() - began
            listener.note("using it as Keras does")
            turns = [[Speed(**one) for one in probe.ask("use", files=[], turns=TURNS)] for _ in range(TURNS)]
            speeds = tuple(middle(found) for found in zip(*turns, strict=True))
        listener.note("training it as Keras does")
        # A new process, so that the memory `predict` took does not count for training.
        with context.probe() as probe:
            step = training_step(
                probe,
                implementation="keras",
                policy=policy_of(work.model),
                batch_size=choices.batch_size,
                length=choices.length,
            )
        choices.batch_size = step.batch_size
        context.state.training_steps[:] = [step]
        candidate = context.add(
            Candidate(
                id=ORIGINAL,
                title="the model as it was, in Keras",
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
        return Pass(
            name=self.name,
            title=self.title,
            status="done",
            decision=(
                f"{candidate.quality.value:.4g} {work.metric.name}, {first.per_s:,.0f} {work.item}/s by "
                f"{first.way}, a training step in {step.step_ms:.1f} ms on {keras.config.backend()}"
            ),
        )
