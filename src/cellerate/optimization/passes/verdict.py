"""The verdict: the best of all candidates that are good enough, if it keeps its promise; timed in a new process."""

import dataclasses
import itertools
import shutil
from collections.abc import Sequence

from cellerate.files import atomic_write
from cellerate.format import percent, times
from cellerate.optimization.context import ORIGINAL, Context
from cellerate.optimization.passes.loading import load_passes
from cellerate.optimization.passes.promise import hold
from cellerate.optimization.passes.steps import batch_items, step_gain, training_step
from cellerate.optimization.probe_client import ProbeError
from cellerate.optimization.training import learning_rate_of, settings_of, way_of
from cellerate.report.effects import effect, loss_in_words
from cellerate.report.record import Candidate, Change, Speed, TrainingStep, Verdict, training_item

_NAME = "optimized"
_ALIKE = 1.05  # two speeds within this factor count as the same
_NOISE = 1.5  # two timings of the same thing may differ by this factor


def verdict(context: Context) -> Verdict:
    """Chooses a model, judges it on the test part, copies its files to their final place, and times it again.

    Raises:
        OutputError: A file cannot be written.
    """
    state, settings = context.state, context.settings
    state.candidates[:] = front(state.candidates, higher_is_better=context.workload.metric.higher_is_better)
    chosen = choose(state.candidates, settings.objective)
    promise, rejected = hold(context, chosen), None
    warnings = list(promise.warnings)
    if promise.broken:
        # Not the second best in its place: that would be a choice by the test part.
        rejected, chosen = chosen.id, context.before
    files, speeds = _copy(context, chosen), chosen.speeds
    if chosen.file is not None and chosen.file.endswith(".cell"):
        context.listener.note("measuring it again in a process of its own")
        try:
            with context.probe() as probe:
                again = probe.ask("packed", file=str((context.folder / f"{_NAME}.cell").resolve()))
        except ProbeError as error:
            warnings.append(f"These are the figures of the search: it could not be measured again, {error}.")
        else:
            found = Speed(**again)
            if not 1 / _NOISE < found.per_s / speeds[0].per_s < _NOISE:
                warnings.append(
                    f"It was {times(found.per_s / speeds[0].per_s)} as fast in a process of its own: something else "
                    "may use this machine."
                )
            speeds = (found,)
    try:
        _train_as_before(context)
    except ProbeError as error:
        warnings.append(f"Training as it was chosen could not be measured on batches as before: {error}.")
    rows = _rows(context, chosen, speeds)
    _credit(context, chosen)
    if chosen.id == ORIGINAL and rejected is None:
        made = [one for one in state.candidates if one.id != ORIGINAL and not one.is_control]
        if not made:
            why = "No pass made another model"
        elif any(one.passes_gate for one in made):
            why = "None that passes the gate is better"
        else:
            why = "No candidate passes the gate"
        warnings.append(f"{why}, so this one stays as it was.")
    return Verdict(
        sentence=_sentence(context, chosen, rows, promise.broken),
        chosen=chosen.id,
        rows=rows,
        files=files,
        training=_training(context),
        warnings=tuple(warnings),
        tested=promise.tested,
        rejected=rejected,
    )


def _train_as_before(context: Context) -> None:
    """Measures the chosen way of training on batches like the baseline's, unless that is already measured."""
    state, choices = context.state, context.state.choices
    first = state.training_steps[0]
    way = way_of(choices.implementation, choices.training_precision)
    if any(
        (s.way, s.batch_size, s.length) == (way, first.batch_size, first.length) for s in state.training_steps
    ):
        return
    context.listener.note("training it on batches like those of the baseline")
    with context.probe() as probe:
        step = training_step(
            probe,
            implementation=choices.implementation,
            policy=choices.training_precision,
            batch_size=first.batch_size,
            length=first.length,
        )
    state.training_steps.append(step)


def choose(candidates: Sequence[Candidate], objective: str) -> Candidate:
    """Gives the best candidate that passes the gate, or the original; for training, one with an unchanged model."""
    # A control is to compare with. Who wants it wants `train`, and not a few steps of it.
    passing = [one for one in candidates if (one.passes_gate or one.id == ORIGINAL) and not one.is_control]
    if objective == "training":
        changing = {name for name, kind in load_passes().items() if kind.changes_model}
        passing = [one for one in passing if one.made_by not in changing]

    def small(one: Candidate) -> tuple[int, float]:
        # A student and its twin have the same size.
        return one.file_bytes, one.worst_loss

    if objective == "size":
        return min(passing, key=small)

    def rate(one: Candidate) -> float:
        first = one.speeds[0]
        if objective == "throughput":
            return first.throughput_per_s or first.per_s
        return 1 / first.latency_p50_ms

    # Among those that another timing might order differently, the smallest.
    fastest = max(map(rate, passing))
    return min((one for one in passing if rate(one) * _ALIKE >= fastest), key=small)


def front(candidates: Sequence[Candidate], *, higher_is_better: bool) -> list[Candidate]:
    """Gives the candidates, marking those that no other beats in both quality and latency; controls don't count."""
    sign = -1 if higher_is_better else 1

    def beats(one: Candidate, other: Candidate) -> bool:
        assert one.quality and other.quality  # noqa: S101 (all of them were judged)
        mine = (sign * one.quality.value, one.speeds[0].latency_p50_ms)
        its = (sign * other.quality.value, other.speeds[0].latency_p50_ms)
        return mine != its and mine[0] <= its[0] and mine[1] <= its[1]

    others = [one for one in candidates if not one.is_control]
    return [
        dataclasses.replace(one, on_front=not (one.is_control or any(beats(other, one) for other in others)))
        for one in candidates
    ]


def _copy(context: Context, chosen: Candidate) -> tuple[tuple[str, str], ...]:
    """Puts the files of the chosen model beside the report, and removes those of an earlier run."""
    files = []
    source = context.model_file if chosen.file is None else context.folder / chosen.file
    names = [("the model in Keras, to train further", ".keras")]
    if source.suffix == ".cell":
        names.insert(0, ("the packed model, to use: cellerate.load(...)", ".cell"))
    for label, suffix in names:
        taken = context.model_file if chosen.file is None else source.with_suffix(suffix)
        target = context.folder / f"{_NAME}{suffix}"
        with atomic_write(target) as beside:
            shutil.copyfile(taken, beside)
        files.append((label, target.name))
    if len(names) == 1:
        # A file of an earlier run would be taken for the model chosen now.
        (context.folder / f"{_NAME}.cell").unlink(missing_ok=True)
    return tuple(files)


def _rows(context: Context, chosen: Candidate, speeds: Sequence[Speed]) -> tuple[Change, ...]:
    """The rows of the table of figures before and after."""
    state, work = context.state, context.workload
    original = context.before
    rate = f"{work.item}/s"

    def now(before: Speed) -> Speed:
        """The speed to compare with a way of Keras's: the same way, if the model still runs on Keras."""
        return next((one for one in speeds if one.way == before.way), speeds[0])

    rows = []
    for before in original.speeds:
        rows.append(
            Change(
                quantity="use",
                label=f"{work.verb}, {work.alone}, from {before.way}",
                before=before.per_s,
                after=now(before).per_s,
                unit=rate,
                higher_is_better=True,
            )
        )
    fastest = max(original.speeds, key=lambda one: one.throughput_per_s or 0)
    if fastest.throughput_per_s and now(fastest).throughput_per_s:
        rows.append(
            Change(
                quantity="use",
                label=f"{work.verb}, {now(fastest).batch} at a time, from {fastest.way}",
                before=fastest.throughput_per_s,
                after=now(fastest).throughput_per_s or 0,
                unit=rate,
                higher_is_better=True,
            )
        )
    best = original.speeds[-1]
    for label, was, becomes in (
        ("latency of a call, median", best.latency_p50_ms, now(best).latency_p50_ms),
        ("latency of a call, one in a hundred", best.latency_p99_ms, now(best).latency_p99_ms),
    ):
        rows.append(
            Change(
                quantity="use",
                label=f"{label}, from {best.way}",
                before=was,
                after=becomes,
                unit="ms",
                higher_is_better=False,
            )
        )
    rows.append(
        Change(
            quantity="size",
            label="file",
            before=original.file_bytes,
            after=chosen.file_bytes,
            unit="bytes",
            higher_is_better=False,
        )
    )
    rows += _training_rows(context)
    rows.append(
        Change(
            quantity=None,
            label=f"{work.metric.name} on the test part",
            before=state.tested[ORIGINAL].mean,
            after=state.tested[chosen.id].mean,
            unit=work.metric.unit,
            higher_is_better=work.metric.higher_is_better,
        )
    )
    return tuple(rows)


def _training_rows(context: Context) -> list[Change]:
    steps = context.state.training_steps
    first, best = steps[0], fastest_step(context)
    alike = [s for s in steps if (s.batch_size, s.length) == (first.batch_size, first.length)]
    rows = []
    quickest = min(alike, key=lambda step: step.step_ms)
    if quickest is not first:
        rows.append(step_gain(first, quickest, f"training step, batch of {first.batch_size}"))
    if best is not first and best is not quickest:
        rows.append(
            Change(
                quantity="training",
                label=f"training, batch of {best.batch_size}",
                before=first.items_per_s,
                after=best.items_per_s,
                unit=f"{training_item(context.workload.item)}/s",
                higher_is_better=True,
            )
        )
    return rows


def fastest_step(context: Context) -> TrainingStep:
    """The training step that reads the most items per second."""
    return max(context.state.training_steps, key=lambda step: step.items_per_s)


def _credit(context: Context, chosen: Candidate) -> None:
    """Writes into each pass what it contributed to the chosen model's speed and size, and whether it is kept."""
    state, work = context.state, context.workload
    chain, kinds = [context.before], load_passes()
    for name, kind in kinds.items() if chosen.id != ORIGINAL else ():
        if name == chosen.made_by:
            chain.append(chosen)
            break
        made = [one for one in state.candidates if one.made_by == name and one.passes_gate]
        same = [one for one in made if one.precision in (state.choices.packed_precision, "float32")]
        if kind.inherited and same:
            chain.append(same[-1])
    brought = {}
    for before, after in itertools.pairwise(chain):
        brought[after.made_by] = (
            Change(
                quantity="use",
                label=f"{work.verb}, {work.alone}",
                before=before.speeds[0].per_s,
                after=after.speeds[0].per_s,
                unit=f"{work.item}/s",
                higher_is_better=True,
            ),
            Change(
                quantity="size",
                label="file",
                before=before.file_bytes,
                after=after.file_bytes,
                unit="bytes",
                higher_is_better=False,
            ),
        )
    for place, one in enumerate(state.passes):
        training = tuple(gain for gain in one.gains if gain.quantity == "training")
        kept = one.kept
        if one.name in kinds and kinds[one.name].changes_model:
            kept = one.name in brought
        state.passes[place] = dataclasses.replace(
            one, gains=(*training, *brought.get(one.name, ())), kept=kept
        )


def _sentence(context: Context, chosen: Candidate, rows: Sequence[Change], broken: str) -> str:
    work = context.workload
    told = []
    uses = [row for row in rows if row.quantity == "use" and row.higher_is_better]
    if chosen.id != ORIGINAL and uses:
        told.append(f"{work.verb} {effect(uses[0])[0]} than {context.before.speeds[0].way}")
    size = next(row for row in rows if row.quantity == "size")
    if chosen.id != ORIGINAL and effect(size)[1]:
        told.append(f"the file {effect(size)[0]}")
    training = [row for row in rows if row.quantity == "training"]
    if training:
        told.append(f"training {effect(training[0])[0]}")
    if broken:
        return " ".join([broken, *(f"{one[0].upper()}{one[1:]}." for one in told)])
    quality = next(row for row in rows if row.quantity is None)
    state, gate = context.state, percent(context.settings.max_quality_loss)
    change = loss_in_words(context.loss(state.tested[ORIGINAL], state.tested[chosen.id]).value)
    if not told:
        return f"The model stays as it was: nothing is faster within the gate of {gate}."
    first = ", ".join(told)
    if chosen.id == ORIGINAL:
        return f"{first[0].upper()}{first[1:]}; the model stays as it was."
    value = f"{quality.before:.4g} to {quality.after:.4g} {work.metric.name}"
    return f"{first[0].upper()}{first[1:]}; on the test part {change} ({value}; allowed {gate})."


def _training(context: Context) -> str:
    """The settings to train with, as options of `cellerate train`."""
    choices, told = context.state.choices, settings_of(context.workload.record)
    first = context.state.training_steps[0]
    larger = choices.accumulate * batch_items(choices) / batch_items(first)
    options = [f"--batch-size {choices.batch_size}"]
    if choices.accumulate > 1:
        options.append(f"--accumulate {choices.accumulate}")
    if context.workload.length is not None:
        options.append(f"--length {choices.length}")
    options.append(f"--precision {choices.training_precision}")
    if choices.implementation == "keras":
        options.append("--implementation keras")
    options.append(f"--optimizer {told.optimizer}")
    options.append(f"--learning-rate {learning_rate_of(told, larger):.3g}")
    return " ".join(options)
