"""The verdict: the best of the models that are good enough, if it keeps its promise; all of them timed in turns."""

import dataclasses
import itertools
import shutil
from collections.abc import Mapping, Sequence

from cellerate.files import atomic_write
from cellerate.format import percent, times
from cellerate.measure import Order
from cellerate.optimization.clocks import middle
from cellerate.optimization.context import ORIGINAL, Context
from cellerate.optimization.passes.loading import load_passes
from cellerate.optimization.passes.promise import hold
from cellerate.optimization.passes.racing import busy_machine, race_uses, training_before_and_after
from cellerate.optimization.passes.steps import step_gain
from cellerate.optimization.probe_client import ProbeError
from cellerate.optimization.train_command import train_command
from cellerate.report.effects import effect, loss_in_words
from cellerate.report.record import Candidate, Change, Speed, TrainingStep, Verdict, training_item

_NAME = "optimized"
_ALIKE = 1.05  # two speeds within this factor count as the same

_Turns = Mapping[str, Sequence[Speed]]
"""How fast each model was in each turn, by its id."""


def verdict(context: Context) -> Verdict:
    """Chooses a model, judges it on the test part, and copies its files to their final place.

    Raises:
        OutputError: A file cannot be written.
    """
    state, settings = context.state, context.settings
    turns: _Turns = {}
    warnings = []
    try:
        turns = _time_in_turns(context)
    except ProbeError as error:
        warnings.append(
            f"The models could not be timed in turns, {error}. Their speeds are of the search, each of another minute."
        )
    state.candidates[:] = front(state.candidates, higher_is_better=context.workload.metric.higher_is_better)
    chosen = choose(state.candidates, settings.objective, turns)
    warnings += _doubt(context, chosen, turns)
    promise, rejected = hold(context, chosen), None
    warnings += promise.warnings
    if promise.broken:
        # Not the second best in its place: that would be a choice by the test part.
        rejected, chosen = chosen.id, context.before
    files = _copy(context, chosen)
    trained: tuple[TrainingStep, TrainingStep] | None = None
    try:
        trained, doubt = training_before_and_after(context)
        warnings += doubt
    except ProbeError as error:
        warnings.append(f"Training as it was chosen could not be timed beside training as before: {error}.")
    rows = _rows(context, chosen, trained)
    _credit(context, chosen)
    if chosen.id == ORIGINAL and rejected is None:
        made = [one for one in state.candidates if one.id != ORIGINAL and not one.is_control]
        if not made:
            why = "No stage made another model"
        elif any(one.passes_gate for one in made):
            why = "None of those within the allowed loss is better"
        else:
            why = "No other model is within the allowed loss"
        warnings.append(f"{why}, so this one stays as it was.")
    warnings += busy_machine(state.training_steps)
    return Verdict(
        sentence=_sentence(context, chosen, rows, promise.broken),
        chosen=chosen.id,
        rows=rows,
        files=files,
        training=train_command(context),
        warnings=tuple(warnings),
        tested=promise.tested,
        rejected=rejected,
    )


def _time_in_turns(context: Context) -> _Turns:
    """Times the original and all packed models that may be chosen in turns; their speeds become those."""
    candidates = context.state.candidates
    packed = [
        one
        for one in choosable(candidates, context.settings.objective)
        if one.file is not None and one.file.endswith(".cell")
    ]
    if not packed:
        return {}
    context.listener.note(f"timing {len(packed) + 1} models in turns")
    files = [str((context.folder / one.file).resolve()) for one in packed if one.file]
    there, here = race_uses(context, files)
    speeds = {ORIGINAL: tuple(map(middle, there))}
    speeds |= {one.id: (middle(turns),) for one, turns in zip(packed, here, strict=True)}
    candidates[:] = [dataclasses.replace(one, speeds=speeds.get(one.id, one.speeds)) for one in candidates]
    return {ORIGINAL: there[0]} | {one.id: turns for one, turns in zip(packed, here, strict=True)}


def choosable(candidates: Sequence[Candidate], objective: str) -> list[Candidate]:
    """Gives the original and the models within the allowed loss; for training, only those not changed."""
    # A control is to compare with. Who wants it wants `train`, and not a few steps of it.
    passing = [one for one in candidates if (one.passes_gate or one.id == ORIGINAL) and not one.is_control]
    if objective == "training":
        changing = {name for name, kind in load_passes().items() if kind.changes_model}
        passing = [one for one in passing if one.made_by not in changing]
    return passing


def choose(candidates: Sequence[Candidate], objective: str, turns: _Turns = {}) -> Candidate:  # noqa: B006 (read only)
    """Gives the best of the models that can be chosen.

    Args:
        candidates: The models.
        objective: As in the settings.
        turns: How fast each was in each turn; where turns contradict each other, two count as equally fast.
    """
    passing = choosable(candidates, objective)

    def small(one: Candidate) -> tuple[int, float]:
        # Two students have the same size.
        return one.file_bytes, one.worst_loss

    if objective == "size":
        return min(passing, key=small)
    fastest = max(passing, key=lambda one: _rate(one.speeds[0], objective))
    most = _rate(fastest.speeds[0], objective)

    # Among those that another timing might order differently, the smallest.
    def alike(one: Candidate) -> bool:
        if _rate(one.speeds[0], objective) * _ALIKE >= most:
            return True
        order = _order(one, fastest, objective, turns)
        return order is not None and not order.certain

    return min(filter(alike, passing), key=small)


def _rate(speed: Speed, objective: str) -> float:
    if objective == "throughput":
        return speed.throughput_per_s or speed.per_s
    return 1 / speed.latency_p50_ms


def _order(one: Candidate, other: Candidate, objective: str, turns: _Turns) -> Order | None:
    """How much faster the other is in each turn; None if they were not timed in the same turns."""
    if one.id not in turns or other.id not in turns:
        return None
    rates = ([_rate(speed, objective) for speed in turns[each.id]] for each in (one, other))
    return Order(tuple(after / before for before, after in zip(*rates, strict=True)))


def _doubt(context: Context, chosen: Candidate, turns: _Turns) -> list[str]:
    """Says that another model is faster in some turns only, if the choice depended on that."""
    objective = context.settings.objective
    if objective == "size":
        return []
    passing = choosable(context.state.candidates, objective)
    fastest = max(passing, key=lambda one: _rate(one.speeds[0], objective))
    order = _order(chosen, fastest, objective, turns)
    if order is None or order.certain or order.factor < _ALIKE:
        return []
    return [
        f"{fastest.title} was {times(order.factor)} as fast as {chosen.title}, but only {order.in_words}, which is "
        "noise: the smaller of the two was chosen. Run it again on a quiet machine to be sure."
    ]


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


def _rows(
    context: Context, chosen: Candidate, trained: tuple[TrainingStep, TrainingStep] | None
) -> tuple[Change, ...]:
    """The rows of the table of figures before and after; the first of each quantity is its headline everywhere."""
    state, work, speeds = context.state, context.workload, chosen.speeds
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
        ("latency of a call, 99th percentile", best.latency_p99_ms, now(best).latency_p99_ms),
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
    rows += [] if trained is None else [_training_row(context, *trained)]
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


def _training_row(context: Context, before: TrainingStep, after: TrainingStep) -> Change:
    if (before.batch_size, before.length) == (after.batch_size, after.length):
        return step_gain(before, after, f"training step, batch of {before.batch_size}")
    sizes = f"batches of {after.batch_size} instead of {before.batch_size}"
    if before.length != after.length:
        sizes = f"{after.batch_size} rows of {after.length} instead of {before.batch_size} of {before.length}"
    return Change(
        quantity="training",
        label=f"training, {sizes}",
        before=before.items_per_s,
        after=after.items_per_s,
        unit=f"{training_item(context.workload.item)}/s",
        higher_is_better=True,
    )


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
    state, allowed = context.state, percent(context.settings.max_quality_loss)
    change = loss_in_words(context.loss(state.tested[ORIGINAL], state.tested[chosen.id]).value)
    if not told:
        return f"The model stays as it was: nothing is faster within the {allowed} allowed."
    first = ", ".join(told)
    if chosen.id == ORIGINAL:
        return f"{first[0].upper()}{first[1:]}; the model stays as it was."
    value = f"{quality.before:.4g} to {quality.after:.4g} {work.metric.name}"
    return f"{first[0].upper()}{first[1:]}; on the test part {change} ({value}; allowed {allowed})."
