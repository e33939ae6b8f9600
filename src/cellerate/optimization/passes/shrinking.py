"""Quantise, prune, distil: smaller models, each judged as it will be used, and kept if it is good enough."""

import contextlib
from typing import Any

import keras

from cellerate.compress.distill import distill
from cellerate.compress.prune import prune
from cellerate.compress.quantize import quantize
from cellerate.compress.record import CompressionRecord
from cellerate.compress.student import smaller
from cellerate.data.pipeline import KerasBatches
from cellerate.errors import ConfigError, ModelError
from cellerate.format import milliseconds, percent
from cellerate.keras_graph.ties import units_of
from cellerate.optimization.context import PACKED, Context
from cellerate.optimization.passes.base import NotNeededError, OptimizerPass
from cellerate.program import PRECISIONS
from cellerate.report.record import Candidate, Curve, Pass

_LEAST_STEPS = 50
_TRAINED_FURTHER = (
    "It is trained further, which the original was not: part of what it is worth comes from that."
)


class Quantize(OptimizerPass):
    """The original in 16 and in 8 bits."""

    name = "quantize"
    title = "Quantise"
    reads = ("candidates", "judged")
    writes = ("candidates", "judged", "choices")
    changes_model = inherited = True

    def cost_s(self, context: Context) -> float:
        """Two models to pack, judge and time."""
        return 10.0

    def run(self, context: Context) -> Pass:
        """See `OptimizerPass.run`."""
        packed = context.candidate(PACKED)
        if packed is not None and packed.error:
            raise NotNeededError("the model cannot be packed, and only a packed model runs in 8 bits")
        model, curves, facts = context.original(), [], []
        found = []
        for precision in PRECISIONS[1:]:
            context.listener.note(precision)
            rounded, record = quantize(
                model,
                _data(context, model),
                precision=precision,
                gate=context.gate,
                steps=_steps(context, 0.3, least=0),
                **_common(context, model),
            )
            found.append(context.consider(precision, f"packed in {precision}", self.name, rounded, precision))
            curves += _losses(record, f"quantised to {precision}")
            facts.append((precision, _in_words(found[-1]) + f"; weights {record.details['kept']}"))
        passing = [candidate for candidate in found if candidate.passes_gate]
        if passing:
            # Of all precisions that keep the quality, the narrowest is the fastest and the smallest.
            context.state.choices.packed_precision = passing[-1].precision
        return Pass(
            name=self.name,
            title=self.title,
            status="done",
            decision=_decision(context, passing[-1:], found),
            kept=bool(passing),
            curves=tuple(curves),
            facts=tuple(facts),
        )


class Prune(OptimizerPass):
    """The original without the hidden units that matter least, trained further."""

    name = "prune"
    title = "Prune"
    reads = ("candidates", "judged", "choices", "training_steps")
    writes = ("candidates", "judged")
    changes_model = True

    def cost_s(self, context: Context) -> float:
        """At least a short training."""
        return 20.0 + _LEAST_STEPS * _step_s(context)

    def run(self, context: Context) -> Pass:
        """See `OptimizerPass.run`."""
        model = context.to_train()
        if not units_of(model).layers:
            raise NotNeededError("no LSTM layer of the model can have fewer units")
        found: list[Candidate] = []
        curves, facts, reason = [], [], ""
        for share in sorted(context.settings.keep):
            if found and found[-1].passes_gate:
                break
            words = f"{percent(share)} of the units"
            try:
                candidate, told, losses = self._pruned(context, model, share, words)
            except NotNeededError as error:
                reason = str(error)
                break
            except ConfigError as error:
                # Of so few units that rounding keeps them all.
                facts.append((words, str(error)))
                continue
            found.append(candidate)
            facts.append((words, told))
            curves += losses
        if not found:
            raise NotNeededError(reason or "; ".join(told for _, told in facts))
        passing = [candidate for candidate in found if candidate.passes_gate]
        skipped = bool(reason) and not passing
        return Pass(
            name=self.name,
            title=self.title,
            # A skipped pass continues when a later call has more time.
            status="skipped" if skipped else "done",
            reason=reason if skipped else "",
            decision="" if skipped else _decision(context, passing, found),
            kept=bool(passing),
            curves=tuple(curves),
            facts=tuple(facts),
            notes=(_TRAINED_FURTHER,),
        )

    def _pruned(
        self, context: Context, model: keras.Model, share: float, words: str
    ) -> tuple[Candidate, str, list[Curve]]:
        """Gives the candidate that keeps a share of the units, a sentence on it, and the curves of its training."""
        precision = context.state.choices.packed_precision
        name = f"pruned-{round(100 * share)}-{precision}"
        if before := context.candidate(name):
            # Made by an earlier call, which ran out of time before it tried another share.
            return before, _in_words(before), []
        steps = _steps(context, 0.4)
        context.listener.note(words)
        pruned, record = prune(
            model, _data(context, model), keep=share, steps=steps, **_common(context, model)
        )
        title = f"pruned to {percent(share)} of its units, {precision}"
        candidate = context.consider(name, title, self.name, context.trained(pruned), precision)
        layers = ", ".join(
            f"{path} {of['units']} to {of['kept']}" for path, of in record.details["layers"].items()
        )
        return candidate, f"{_in_words(candidate)}, after {steps} steps; {layers}", _losses(record, words)


class Distill(OptimizerPass):
    """A small model of the same layers, taught by the original; and its twin, trained without a teacher."""

    name = "distill"
    title = "Distil"
    reads = ("candidates", "judged", "choices", "training_steps")
    writes = ("candidates", "judged")
    changes_model = True

    def cost_s(self, context: Context) -> float:
        """At least a short training of two models."""
        return 20.0 + 3 * _LEAST_STEPS * _step_s(context)

    def run(self, context: Context) -> Pass:
        """See `OptimizerPass.run`."""
        teacher, precision = context.to_train(), context.state.choices.packed_precision
        student, goal_ms = _student(context, teacher)
        share = percent(student.count_params() / teacher.count_params())
        # The twin takes as long as a plain training; the student needs a forward pass of the teacher on top.
        steps = _steps(context, 0.35)
        found: list[Candidate] = []
        curves, facts = [], [("latency goal", milliseconds(goal_ms))]
        for name, title, weight in (
            ("student", f"a student of {share} of the weights", 1.0),
            ("untaught", f"the student's twin of {share} without a teacher", 0.0),
        ):
            context.listener.note(title)
            small, record = distill(
                teacher,
                student,
                _data(context, teacher),
                weight=weight,
                steps=steps,
                **_common(context, teacher),
            )
            found.append(
                context.consider(
                    f"{name}-{precision}",
                    f"{title}, {precision}",
                    self.name,
                    context.trained(small),
                    precision,
                )
            )
            curves += _losses(record, title)
            facts.append((title, f"{_in_words(found[-1])}, after {steps} steps"))
        # The better one comes last.
        passing = sorted((one for one in found if one.passes_gate), key=_loss_of, reverse=True)
        return Pass(
            name=self.name,
            title=self.title,
            status="done",
            decision=_decision(context, passing, found),
            kept=bool(passing),
            curves=tuple(curves),
            facts=tuple(facts),
            notes=(_TRAINED_FURTHER,),
        )


def _student(context: Context, teacher: keras.Model) -> tuple[keras.Model, float]:
    """Gives a model with new weights that is about as fast as wanted, and the wanted latency in milliseconds."""
    packed = [one for one in context.state.candidates if not one.error and one.speeds[0].way == "packed"]
    whole = [one for one in packed if one.parameters == context.before.parameters]
    precision = context.state.choices.packed_precision
    now = next((one for one in whole if one.precision == precision), context.candidate(PACKED))
    if now is None:
        raise NotNeededError("how fast the model is has to be known first: run the pass kernels too")
    latency = now.speeds[0].latency_p50_ms
    goal = context.settings.latency_goal_ms or latency / 2
    if goal >= latency:
        raise NotNeededError(
            f"{milliseconds(goal)} are requested, and the model takes {milliseconds(latency)}"
        )
    # A step spends its time reading the weights, so its time is proportional to their number.
    wanted = teacher.count_params() * goal / latency
    made = []
    for sixteenths in range(2, 16):
        # If rounding leaves a layer all its units, there is no student of this size.
        with contextlib.suppress(ModelError):
            made.append(smaller(teacher, sixteenths / 16, seed=context.settings.seed))
    if not made:
        raise NotNeededError("no LSTM layer of the model can have fewer units")
    return min(made, key=lambda one: abs(one.count_params() - wanted)), goal


def _data(context: Context, model: keras.Model) -> Any:
    """Gives the data to train a model further on: batches as large as in its own training."""
    batch_size = context.state.training_steps[0].batch_size
    return KerasBatches(context.workload.source(model, batch_size))


def _common(context: Context, model: keras.Model) -> dict[str, Any]:
    """Gives the arguments that all calls of `compress` share."""
    return {
        "loss": context.workload.loss(model),
        "judge": context.judge,
        "metric": context.workload.metric.name,
        "seed": context.settings.seed,
        "on_step": context.listener.step,
    }


def _step_s(context: Context) -> float:
    """The seconds per training step of the original on the fastest kernels, with its own batch size."""
    first = context.state.training_steps[0]
    alike = [step for step in context.state.training_steps if step.batch_size == first.batch_size]
    return min(step.step_ms for step in alike) / 1e3


def _steps(context: Context, share: float, *, least: int = _LEAST_STEPS) -> int:
    """Gives how many training steps fit into a share of the time left."""
    fitting = int(share * max(0.0, context.seconds_left() - 20) / _step_s(context))
    if fitting < least:
        raise NotNeededError(f"there is no time for {least} steps of training: give a larger time_budget")
    return min(context.settings.steps, fitting)


def _losses(record: CompressionRecord, name: str) -> list[Curve]:
    # On the true labels alone: a loss that also compares with a teacher is another quantity.
    losses = record.details.get("hard_losses") or record.details.get("losses") or ()
    if len(losses) < 2:
        return []
    total = int(record.settings["steps"])
    x = [1 + place * (total - 1) / (len(losses) - 1) for place in range(len(losses))]
    return [
        Curve(
            chart="Loss of the training that follows",
            name=name,
            x_label="step",
            y_label="training loss",
            x=tuple(x),
            y=tuple(float(loss) for loss in losses),
        )
    ]


def _loss_of(candidate: Candidate) -> float:
    """Gives how much worse than the original a candidate is."""
    assert candidate.loss is not None  # noqa: S101 (`Context.add` has set it)
    return candidate.loss.value


def _in_words(candidate: Candidate) -> str:
    """Says how good and how fast a candidate is."""
    change = _loss_of(candidate)
    worse = (
        "as good" if abs(change) < 5e-5 else f"{percent(abs(change))} {'worse' if change > 0 else 'better'}"
    )
    return f"{worse}, {milliseconds(candidate.speeds[0].latency_p50_ms)}"


def _decision(context: Context, kept: list[Candidate], found: list[Candidate]) -> str:
    if kept:
        return f"{kept[-1].title}: {_in_words(kept[-1])}"
    limit = percent(context.settings.max_quality_loss)
    failed = "; ".join(f"{candidate.title}: {_in_words(candidate)}" for candidate in found)
    return f"nothing passes the gate of {limit}: {failed}"
