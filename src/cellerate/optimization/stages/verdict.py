"""The verdict: all models that are good enough are timed in turns, and the best is chosen if it keeps its promise."""

from __future__ import annotations

import dataclasses
import itertools
import shutil
import statistics
import time
from collections.abc import Iterator, Sequence

from cellerate.files import atomic_write
from cellerate.format import percent, times
from cellerate.optimization.clocks import TURNS, fastest_first, middle
from cellerate.optimization.context import ORIGINAL, Context
from cellerate.optimization.probe_client import ProbeError
from cellerate.optimization.stages.choice import ALIKE, Turns, choosable, choose, front, order_in_turns, rate
from cellerate.optimization.stages.loading import load_stages
from cellerate.optimization.stages.promise import hold, judge_on_test_part
from cellerate.optimization.stages.racing import busy_machine, race_uses, training_before_and_after
from cellerate.optimization.stages.steps import step_gain
from cellerate.optimization.train_command import train_command
from cellerate.report.effects import effect, loss_in_words
from cellerate.report.record import Candidate, Change, Speed, TrainingStep, Verdict, training_item

_NAME = "optimized"


def verdict(context: Context) -> Verdict:
    """Chooses a model, judges it on the test part, and copies its files to their final place.

    Raises:
        OutputError: A file cannot be written.
    """
    state, settings = context.state, context.settings
    turns: Turns = {}
    warnings = []
    try:
        turns = _time_in_turns(context)
    except ProbeError as error:
        warnings.append(
            f"The models could not be timed in turns: {error}. Their speeds are from the stages, at different times."
        )
    state.candidates[:] = front(state.candidates, higher_is_better=context.workload.metric.higher_is_better)
    chosen = choose(state.candidates, settings.objective, turns)
    warnings += _doubt(context, chosen, turns)
    promise, rejected = hold(context, chosen), None
    warnings += promise.warnings
    if promise.broken:
        # The second best does not take its place: that would be a choice by the test part.
        rejected, chosen = chosen.id, context.before
    files = _copy(context, chosen)
    trained: tuple[TrainingStep, TrainingStep] | None = None
    try:
        trained, doubt = training_before_and_after(context)
        warnings += doubt
    except ProbeError as error:
        warnings.append(f"The chosen training could not be timed beside the original one: {error}.")
    rows = _rows(context, chosen, trained)
    _credit(context, chosen)
    if chosen.id == ORIGINAL and rejected is None:
        made = [one for one in state.candidates if one.id != ORIGINAL and not one.is_control]
        if not made:
            why = "No stage made another model"
        elif any(one.passes_gate for one in made):
            why = "None of the models within the allowed loss is better"
        else:
            why = "No other model is within the allowed loss"
        warnings.append(f"{why}, so the model stays as it was.")
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


def _time_in_turns(context: Context) -> Turns:
    """Time the original and all packed models that may be chosen in turns; update their speeds.

    While a process opens the packed models, this process judges the original on the test part.
    """
    candidates = context.state.candidates
    packed = [
        one
        for one in choosable(candidates, context.settings.objective)
        if one.file is not None and one.file.endswith(".cell")
    ]
    if not packed:
        return {}
    files = [str((context.folder / one.file).resolve()) for one in packed if one.file]
    with context.probe() as probe:
        probe.tell("open", files=files)
        judge_on_test_part(context, context.before)
        context.listener.notify(f"timing {len(packed) + 1} models in turns")
        until = time.perf_counter() + context.spare_s
        turns: dict[str, list[Speed]] = {one.id: [] for one in packed}
        original: list[list[Speed]] = []
        for there, here in race_uses(context, probe, files, until=until):
            original.append(there)
            for one, speed in zip(packed, here, strict=True):
                turns[one.id].append(speed)
            if len(original) == TURNS and _sure(context, {ORIGINAL: _fastest_way(original)} | turns):
                break
    speeds = {ORIGINAL: fastest_first(middle(each) for each in zip(*original, strict=True))}
    speeds |= {name: (middle(each),) for name, each in turns.items()}
    candidates[:] = [dataclasses.replace(one, speeds=speeds.get(one.id, one.speeds)) for one in candidates]
    return {ORIGINAL: _fastest_way(original)} | turns


def _fastest_way(turns: Sequence[Sequence[Speed]]) -> list[Speed]:
    """The speed of the fastest way to use the original, in each turn."""
    ways = [list(way) for way in zip(*turns, strict=True)]
    return max(ways, key=lambda way: middle(way).per_s)


def _sure(context: Context, turns: Turns) -> bool:
    """Return True if the turns order each model and the fastest one without doubt."""
    objective = context.settings.objective
    rates = {name: statistics.median(rate(one, objective) for one in each) for name, each in turns.items()}
    fastest = max(rates, key=lambda name: rates[name])
    orders = [order_in_turns(name, fastest, objective, turns) for name in turns if name != fastest]
    return all(order is None or order.certain or order.factor < ALIKE for order in orders)


def _doubt(context: Context, chosen: Candidate, turns: Turns) -> list[str]:
    """Return a note if the choice depended on a model that is faster in only some turns."""
    objective = context.settings.objective
    if objective == "size":
        return []
    passing = choosable(context.state.candidates, objective)
    fastest = max(passing, key=lambda one: rate(one.speeds[0], objective))
    order = order_in_turns(chosen.id, fastest.id, objective, turns)
    if order is None or order.certain or order.factor < ALIKE:
        return []
    return [
        f"{fastest.title} was {times(order.factor)} as fast as {chosen.title}, but only {order.in_words}, which is "
        "noise: the smaller of the two was chosen. Run it again on a quiet machine to be sure."
    ]


def keep_interim(context: Context) -> None:
    """Write the best model so far to its final place, so that a stopped run leaves it there.

    The validation part and brief timings decide the choice; the verdict replaces or removes the model.
    """
    chosen = choose(context.state.candidates, context.settings.objective)
    if chosen.id != ORIGINAL:
        _copy(context, chosen)


def _copy(context: Context, chosen: Candidate) -> tuple[tuple[str, str], ...]:
    """Put the files of the chosen model beside the report, and remove those of an earlier run."""
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
    if chosen.file is not None:
        packed = context.folder / f"{_NAME}.cell" if len(names) > 1 else None
        context.workload.finish(context.folder / f"{_NAME}.keras", packed)
    if len(names) == 1:
        # A file of an earlier run would look like the model chosen now.
        (context.folder / f"{_NAME}.cell").unlink(missing_ok=True)
    return tuple(files)


def _rows(
    context: Context, chosen: Candidate, trained: tuple[TrainingStep, TrainingStep] | None
) -> tuple[Change, ...]:
    """The rows of the table of figures before and after; the first row of each quantity is its headline everywhere."""
    state, metric = context.state, context.workload.metric
    rows = [*_speed_rows(context, chosen.speeds), *_latency_rows(context.before.speeds[0], chosen.speeds)]
    rows.append(
        Change(
            quantity="size",
            label="file",
            before=context.before.file_bytes,
            after=chosen.file_bytes,
            unit="bytes",
            higher_is_better=False,
        )
    )
    rows += [] if trained is None else [_training_row(context, *trained)]
    rows.append(
        Change(
            quantity=None,
            label=f"{metric.name} on the test part",
            before=state.tested[ORIGINAL].mean,
            after=state.tested[chosen.id].mean,
            unit=metric.unit,
            higher_is_better=metric.higher_is_better,
        )
    )
    return tuple(rows)


def _beside(before: Speed, speeds: Sequence[Speed]) -> Speed:
    """The speed to compare with a way of using Keras: the same way, if the model still runs on Keras."""
    return next((one for one in speeds if one.way == before.way), speeds[0])


def _speed_rows(context: Context, speeds: Sequence[Speed]) -> Iterator[Change]:
    """The speed of one item at a time, compared with each way to use the original, fastest first; and of many."""
    work, original = context.workload, context.before.speeds
    rate = f"{work.item}/s"
    for before in original:
        yield Change(
            quantity="use",
            label=f"{work.verb}, {work.alone}, from {before.way}",
            before=before.per_s,
            after=_beside(before, speeds).per_s,
            unit=rate,
            higher_is_better=True,
        )
    fastest = max(original, key=lambda one: one.throughput_per_s or 0)
    now = _beside(fastest, speeds)
    if fastest.throughput_per_s and now.throughput_per_s:
        yield Change(
            quantity="use",
            label=f"{work.verb}, {now.batch} at a time, from {fastest.way}",
            before=fastest.throughput_per_s,
            after=now.throughput_per_s,
            unit=rate,
            higher_is_better=True,
        )


def _latency_rows(before: Speed, speeds: Sequence[Speed]) -> Iterator[Change]:
    """The median and the 99th percentile of the time of a call."""
    now = _beside(before, speeds)
    for label, was, becomes in (
        ("latency of a call, median", before.latency_p50_ms, now.latency_p50_ms),
        ("latency of a call, 99th percentile", before.latency_p99_ms, now.latency_p99_ms),
    ):
        yield Change(
            quantity="use",
            label=f"{label}, from {before.way}",
            before=was,
            after=becomes,
            unit="ms",
            higher_is_better=False,
        )


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
    """Write into each stage its effect on the chosen model's speed and size, and whether it is kept."""
    state, work = context.state, context.workload
    chain, kinds = [context.before], load_stages()
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
        kept, made_by = one.kept, kinds.get(one.name)
        if made_by is not None and made_by.changes_model:
            kept = one.name in brought
        elif made_by is not None and "training" not in made_by.improves:
            kept = kept and one.name in brought
        state.passes[place] = dataclasses.replace(
            one, gains=(*training, *brought.get(one.name, ())), kept=kept
        )


def _sentence(context: Context, chosen: Candidate, rows: Sequence[Change], broken: str) -> str:
    work = context.workload
    sentences = []
    uses = [row for row in rows if row.quantity == "use" and row.higher_is_better]
    if chosen.id != ORIGINAL and uses:
        sentences.append(f"{work.verb} {effect(uses[0])[0]} than {context.before.speeds[0].way}")
    size = next(row for row in rows if row.quantity == "size")
    if chosen.id != ORIGINAL and effect(size)[1]:
        sentences.append(f"the file {effect(size)[0]}")
    training = [row for row in rows if row.quantity == "training"]
    if training:
        sentences.append(f"training {effect(training[0])[0]}")
    if broken:
        return " ".join([broken, *(f"{one[0].upper()}{one[1:]}." for one in sentences)])
    quality = next(row for row in rows if row.quantity is None)
    state, allowed = context.state, percent(context.settings.max_quality_loss)
    change = loss_in_words(context.loss(state.tested[ORIGINAL], state.tested[chosen.id]).value)
    if not sentences:
        return f"The model stays as it was: nothing is faster within the {allowed} allowed."
    first = ", ".join(sentences)
    if chosen.id == ORIGINAL:
        return f"{first[0].upper()}{first[1:]}; the model stays as it was."
    value = f"{quality.before:.4g} to {quality.after:.4g} {work.metric.name}"
    return f"{first[0].upper()}{first[1:]}; on the test part {change} ({value}; allowed {allowed})."
