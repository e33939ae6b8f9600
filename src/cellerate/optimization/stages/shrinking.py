"""Quantise, prune, distil: smaller models, each judged as it will be used, and kept if it is good enough."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import keras

from cellerate.compress.distill import distill
from cellerate.compress.prune import prune
from cellerate.compress.quantize import STRETCHES, quantize
from cellerate.compress.record import CompressionRecord
from cellerate.compress.student import smaller
from cellerate.errors import ConfigError, ModelError
from cellerate.format import milliseconds, percent
from cellerate.keras_graph.ties import units_of
from cellerate.optimization import clocks
from cellerate.optimization.context import PACKED, Context, OutOfTimeError
from cellerate.optimization.stages.base import NotNeededError, Stage
from cellerate.optimization.stages.choice import ALIKE, choose, rate
from cellerate.optimization.stages.further import (
    DISTILLING,
    GENTLE_RATE,
    LEARNING_RATE,
    fine_tuning_steps,
    further_steps,
    least_s,
    least_steps,
    most_s,
    plain_training,
    trainings_s,
)
from cellerate.report.effects import loss_in_words
from cellerate.report.record import Candidate, Curve, Speed, StageRecord
from cellerate.runtime.packed import load
from cellerate.tasks.packing import packed

# The narrowest first. int4 is tried beside int8 unless `_why_not_int4` finds a reason against it.
_NARROW = ("int8", "bfloat16")
# Fewer weights, a byte each, fit into the caches of a core; there int4 is slower, because it must be widened.
_LEAST_WEIGHTS = 1 << 20
_INT4, _INT4_TURNS = "int4", 3
_NO_TIME = "there was no time to train it"

# The seconds to build students until one is about as fast as the goal.
_STUDENTS_S = 2.0

_WITH_CONTROL = (
    "Each model is compared with the original and with a control: the original trained for as many further steps "
    "on the same batches. The worse of the two losses counts."
)


class Quantize(Stage):
    """The original in 8 bits; if that loses too much, in 16 bits, and in 8 bits after a little training.

    If it may pay, the original is also tried in 4 bits.
    """

    name = "quantize"
    title = "Quantise"
    improves = ("use", "size")
    first = always = True
    changes_model = inherited = True

    def cost_s(self, context: Context) -> float:
        """The seconds to judge a model three times while it is rounded, and to pack it."""
        state = context.state
        return 0.5 + state.first_judge_s + 3 * state.judge_s + context.consider_s()

    def most_s(self, context: Context) -> float:
        """The seconds to try a second precision, too, and to train beside a control."""
        return 2 * self.cost_s(context) + trainings_s(context, 2, context.settings.steps)

    def expected_s(self, context: Context, share_s: float) -> float:
        """Usually 8 bits keep the quality without training; then 4 bits are tried if they may pay."""
        tries = 1 if _why_not_int4_by_size(context) else 2
        return tries * self.cost_s(context)

    def run(self, context: Context) -> StageRecord:
        """See `Stage.run`."""
        before = context.candidate(PACKED)
        if before is not None and before.error:
            raise NotNeededError("the model cannot be packed, but only packed models run in 8 bits")
        found: dict[str, Candidate] = {}
        curves, facts = [], []
        attempts = [(precision, False) for precision in _NARROW]
        attempts += [(precision, True) for precision, _ in attempts]
        for precision, train in attempts:
            if any(one.passes_gate for one in found.values()):
                # Of all precisions that keep the quality, the narrowest is the fastest and the smallest.
                break
            steps = fine_tuning_steps(context) if train else 0
            if train and steps < least_steps(context):
                facts.append((precision, _NO_TIME))
                break
            candidate, record = self._rounded(context, precision, steps)
            found[precision] = candidate
            curves += _losses(record, f"quantised to {precision}")
            facts.append((precision, _in_words(candidate) + f"; weights {record.details['kept']}"))
        passing = [one for one in found.values() if one.passes_gate]
        if passing:
            # Models that are trained further are rounded once, after training: that is too coarse in 4 bits.
            context.state.choices.packed_precision = passing[-1].precision
        facts += self._in_int4(context, found, curves)
        made = list(found.values())
        passing = [one for one in made if one.passes_gate]
        best = [choose(passing, context.settings.objective)] if passing else []
        return StageRecord(
            name=self.name,
            title=self.title,
            status="done",
            decision=_decision(context, best, made),
            kept=bool(passing),
            curves=tuple(curves),
            facts=(*facts, *_facts(context, made)),
            notes=_notes(context, made),
        )

    def _in_int4(
        self, context: Context, found: dict[str, Candidate], curves: list[Curve]
    ) -> list[tuple[str, str]]:
        """Try 4 bits if they may pay, and return the facts about them."""
        if reason := _why_not_int4(context, list(found.values())):
            return [(_INT4, f"not tried: {reason}")]
        facts, steps = [], 0
        while True:
            candidate, record = self._rounded(context, _INT4, steps)
            found[_INT4] = candidate
            curves += _losses(record, f"quantised to {_INT4}")
            facts.append((_INT4, f"{_in_words(candidate)}; weights {record.details['kept']}"))
            # Training is worth its time only if the file must be as small as possible.
            if candidate.passes_gate or steps or context.settings.objective != "size":
                return facts
            steps = fine_tuning_steps(context)
            if steps < least_steps(context):
                return [*facts, (_INT4, _NO_TIME)]

    def _rounded(self, context: Context, precision: str, steps: int) -> tuple[Candidate, CompressionRecord]:
        """Return the model rounded to a precision, trained for `steps` if it loses too much without training."""
        context.listener.notify(precision)
        model = context.original()
        # Keras's float32 would pass gates that the file fails, and the model would not be trained.
        arguments = context.training_arguments(model) | {"judge": None, "judge_packed": context.judge_packed}
        rounded, record = quantize(
            model,
            context.training_data(model),
            precision=precision,
            gate=context.gate,
            steps=steps,
            learning_rate=GENTLE_RATE,
            metric=context.workload.metric.name,
            **arguments,
        )
        control = None
        if record.details["kept"] == "fine-tuned":
            control = context.control(steps, learning_rate=GENTLE_RATE, parts=STRETCHES, model=model)
        title = f"packed in {precision}"
        return context.consider(precision, title, self.name, rounded, precision, control=control), record


class Prune(Stage):
    """The original without the hidden units that matter least, trained further."""

    name = "prune"
    title = "Prune"
    improves = ("use", "size")
    after = ("kernels", "quantize")
    changes_model = True

    def cost_s(self, context: Context) -> float:
        """The seconds of a short training and of its control."""
        return least_s(context, 1)

    def most_s(self, context: Context) -> float:
        """The seconds of a training for each share of the units."""
        return most_s(context, len(context.settings.keep))

    def gain(self, context: Context) -> float:
        """Half of the units need a quarter of the arithmetic, if the quality allows it."""
        return 0.5

    def pointless(self, context: Context) -> str:
        """See `Stage.pointless`."""
        layers = units_of(context.workload.model).layers
        return "" if layers else "no LSTM layer of the model can have fewer units"

    def run(self, context: Context) -> StageRecord:
        """See `Stage.run`."""
        model = context.to_train()
        found: list[Candidate] = []
        curves, facts, reason, needs_s = [], [], "", None
        shares = sorted(context.settings.keep)
        for number, share in enumerate(shares):
            if found and found[-1].passes_gate:
                break
            words = f"{percent(share)} of the units"
            try:
                later = len(shares) - number - 1
                candidate, note, losses = self._pruned(context, model, share, words, later)
            except OutOfTimeError as error:
                if not found:
                    raise
                reason, needs_s = f"{error}, to keep {words}", error.needs_s
                break
            except ConfigError as error:
                # There are so few units that rounding keeps them all.
                facts.append((words, str(error)))
                continue
            found.append(candidate)
            facts.append((words, note))
            curves += losses
        if not found:
            raise NotNeededError("; ".join(note for _, note in facts))
        passing = [candidate for candidate in found if candidate.passes_gate]
        skipped = bool(reason) and not passing
        return StageRecord(
            name=self.name,
            title=self.title,
            # A skipped stage continues when a later call has more time.
            status="skipped" if skipped else "done",
            reason=reason if skipped else "",
            needs_s=needs_s if skipped else None,
            decision="" if skipped else _decision(context, passing, found),
            kept=bool(passing),
            curves=tuple(curves),
            facts=(*facts, *_facts(context, found)),
            notes=_notes(context, found),
        )

    def _pruned(
        self, context: Context, model: keras.Model, share: float, words: str, later: float
    ) -> tuple[Candidate, str, list[Curve]]:
        """Return the candidate that keeps a share of the units, a sentence on it, and the curves of its training."""
        precision = context.state.choices.packed_precision
        name = f"pruned-{round(100 * share)}-{precision}"
        if before := context.candidate(name):
            # Made by an earlier call, which ran out of time before it tried another share.
            return before, _in_words(before), []
        steps = further_steps(context, 1, later)
        control = context.control(steps, learning_rate=LEARNING_RATE)
        context.listener.notify(words)
        pruned, record = prune(
            model,
            context.training_data(model),
            keep=share,
            steps=steps,
            learning_rate=LEARNING_RATE,
            metric=context.workload.metric.name,
            **context.training_arguments(model),
        )
        title = f"pruned to {percent(share)} of its units, {precision}"
        candidate = context.consider(name, title, self.name, context.trained(pruned), precision, control)
        layers = ", ".join(
            f"{path} {layer['units']} to {layer['kept']}" for path, layer in record.details["layers"].items()
        )
        return candidate, f"{_in_words(candidate)}, after {steps} steps; {layers}", _losses(record, words)


class Distill(Stage):
    """A small model of the same layers, taught by the original; and the same one trained without a teacher."""

    name = "distill"
    title = "Distil"
    improves = ("use", "size")
    after = ("kernels", "quantize")
    changes_model = True

    def cost_s(self, context: Context) -> float:
        """The seconds of short trainings of two models and a control."""
        return _STUDENTS_S + least_s(context, DISTILLING)

    def most_s(self, context: Context) -> float:
        """The seconds of longer trainings of both models."""
        return _STUDENTS_S + most_s(context, DISTILLING)

    def gain(self, context: Context) -> float:
        """Half of the weights, if the quality allows it, which is rarer than with pruning."""
        return 0.4

    def run(self, context: Context) -> StageRecord:
        """See `Stage.run`."""
        teacher, precision = context.to_train(), context.state.choices.packed_precision
        student, goal_ms = _student(context, teacher)
        share = percent(student.count_params() / teacher.count_params())
        steps = further_steps(context, DISTILLING)
        control = context.control(steps, learning_rate=LEARNING_RATE)
        found: list[Candidate] = []
        curves, facts = [], [("latency goal", milliseconds(goal_ms))]
        for name, title, weight in (
            ("student", f"a student of {share} of the weights", 1.0),
            ("untaught", f"the same student of {share}, trained without a teacher", 0.0),
        ):
            context.listener.notify(title)
            small, record = distill(
                teacher,
                student,
                context.training_data(teacher),
                weight=weight,
                steps=steps,
                learning_rate=LEARNING_RATE,
                metric=context.workload.metric.name,
                **context.training_arguments(teacher),
            )
            found.append(
                context.consider(
                    f"{name}-{precision}",
                    f"{title}, {precision}",
                    self.name,
                    context.trained(small),
                    precision,
                    control,
                )
            )
            curves += _losses(record, title)
            facts.append((title, f"{_in_words(found[-1])}, after {steps} steps"))
        # The better one comes last.
        passing = sorted(
            (one for one in found if one.passes_gate), key=lambda one: one.worst_loss, reverse=True
        )
        return StageRecord(
            name=self.name,
            title=self.title,
            status="done",
            decision=_decision(context, passing, found),
            kept=bool(passing),
            curves=tuple(curves),
            facts=(*facts, *_facts(context, found)),
            notes=_notes(context, found),
        )


def _why_not_int4_by_size(context: Context) -> str:
    """The reason why int4 cannot pay for a model of this size; "" if it may."""
    weights = context.before.parameters
    if context.settings.objective == "size" or weights >= _LEAST_WEIGHTS:
        return ""
    return f"int4 pays for weights that outgrow the caches or for a small file, but {weights:,} weights fit"


def _why_not_int4(context: Context, made: Sequence[Candidate]) -> str:
    """The reason why int4 cannot pay beside the precisions that were tried; "" if it may."""
    if reason := _why_not_int4_by_size(context):
        return reason
    int8 = next((one for one in made if one.precision == "int8"), None)
    if int8 is None:
        return "the model cannot be packed, but only packed models run in 4 bits"
    if not int8.passes_gate or int8.control is not None:
        return "rounding to int8 loses too much, and int4 rounds more coarsely"
    return "" if context.settings.objective == "size" else _slower_in_int4(context, int8)


def _slower_in_int4(context: Context, int8: Candidate) -> str:
    """Return a sentence if the original, timed in turns, runs slower in int4 than in int8; else ""."""
    assert int8.file is not None  # noqa: S101 (a model in int8 is packed)
    context.listener.notify("timing int4 beside int8")
    work, objective = context.workload, context.settings.objective
    models = {
        "int8": load(context.folder / int8.file),
        _INT4: packed(work.model, work.record, precision=_INT4),
    }
    uses = {name: work.packed_use(model) for name, model in models.items()}
    turns: dict[str, list[Speed]] = {name: [] for name in uses}
    for _ in range(_INT4_TURNS):
        for name, use in uses.items():
            turns[name].append(clocks.speed(use, clocks.BRIEFLY_S))
    rates = {name: rate(clocks.middle(each), objective) for name, each in turns.items()}
    # If both are equally fast, the smaller file is better.
    if rates[_INT4] * ALIKE >= rates["int8"]:
        return ""
    return f"its {objective} is {percent(1 - rates[_INT4] / rates['int8'])} worse than that of int8"


def _student(context: Context, teacher: keras.Model) -> tuple[keras.Model, float]:
    """Return a model with new weights that is about as fast as the goal, and the goal in milliseconds."""
    used = [one for one in context.state.candidates if not one.error and one.speeds[0].way == "packed"]
    whole = [one for one in used if not one.is_control and one.parameters == context.before.parameters]
    precision = context.state.choices.packed_precision
    now = next((one for one in whole if one.precision == precision), context.candidate(PACKED))
    if now is None:
        raise NotNeededError("the speed of the packed model must be known first: run the stage pack, too")
    latency = now.speeds[0].latency_p50_ms
    # A step spends its time on reading the weights, so its time is proportional to their number; the time of the call
    # around it is not.
    computing = min(latency, 1e3 / now.speeds[0].per_s)
    goal = context.settings.latency_goal_ms or latency - computing / 2
    if goal >= latency:
        raise NotNeededError(
            f"{milliseconds(goal)} are requested, and the model takes {milliseconds(latency)}"
        )
    wanted = teacher.count_params() * (computing - (latency - goal)) / computing
    # More units mean more weights, so each student built halves the range of units: a bisection.
    low, high = 2, 15
    made: dict[int, keras.Model] = {}
    while low <= high:
        middle = (low + high) // 2
        # If rounding leaves a layer all its units, there is no student of this size.
        with contextlib.suppress(ModelError):
            made[middle] = smaller(teacher, middle / 16, seed=context.settings.seed)
        if middle in made and made[middle].count_params() < wanted:
            low = middle + 1
        else:
            high = middle - 1
    if not made:
        raise NotNeededError("no LSTM layer of the model can have fewer units")
    return min(made.values(), key=lambda one: abs(one.count_params() - wanted)), goal


def _losses(record: CompressionRecord, name: str) -> list[Curve]:
    # Only the loss on the true labels: a loss that includes a teacher is another quantity.
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


def _controls(context: Context, found: list[Candidate]) -> list[Candidate]:
    """Return the controls of the candidates, each once."""
    names = {one.control for one in found}
    return [one for one in context.state.candidates if one.id in names]


def _facts(context: Context, found: list[Candidate]) -> tuple[tuple[str, str], ...]:
    return tuple((f"control: {one.title}", _in_words(one)) for one in _controls(context, found))


def _notes(context: Context, found: list[Candidate]) -> tuple[str, ...]:
    controls = _controls(context, found)
    return (_WITH_CONTROL, *plain_training(controls)) if controls else ()


def _in_words(candidate: Candidate) -> str:
    """Describe the quality and the speed of a candidate."""
    assert candidate.loss is not None  # noqa: S101 (`Context.add` has set it)
    words = loss_in_words(candidate.loss.value)
    if candidate.control_loss is not None:
        words += f", and beside its control {loss_in_words(candidate.control_loss.value)}"
    return f"{words}, {milliseconds(candidate.speeds[0].latency_p50_ms)}"


def _decision(context: Context, kept: list[Candidate], found: list[Candidate]) -> str:
    if kept:
        return f"{kept[-1].title}: {_in_words(kept[-1])}"
    limit = percent(context.settings.max_quality_loss)
    failed = "; ".join(f"{candidate.title}: {_in_words(candidate)}" for candidate in found)
    return f"nothing keeps within the {limit} allowed: {failed}"
