"""Batch size and sequence length: measures curves of speed and memory, and chooses from them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence

from cellerate.format import duration, percent, short, times
from cellerate.layers.accelerate import accelerate
from cellerate.machine.environment import available_memory_bytes
from cellerate.messages import Message, argument
from cellerate.models.rewrite import reinitialized
from cellerate.optimization.context import Context, OutOfTimeError
from cellerate.optimization.judging import Judged, paired_loss
from cellerate.optimization.probe_client import ProbeError
from cellerate.optimization.stages.base import Stage
from cellerate.optimization.stages.racing import all_timed, new_race_s, race_trainings
from cellerate.optimization.stages.steps import training_step
from cellerate.optimization.training import learning_rate_of, policy_of, settings_of
from cellerate.report.record import Change, Curve, StageRecord, TrainingStep, training_item
from cellerate.training.trial import try_training

_HEADROOM = 0.8  # the usable share of free memory
_FLAT = 1.03  # a doubling that brings less than this factor ends the curve
_WORTH = 1.1  # another batch size must bring this factor to be proposed
_BETTER = 0.01  # another length must certainly be better by this share
_LARGEST_BATCH = 65536
_BISECTIONS = 3
_PROBE_S = 1.0


class BatchSize(Stage):
    """Doubles the batch until speed stops growing or memory runs out, then finds the largest batch that fits."""

    name = "batch"
    title = "Batch size"
    improves = ("training",)
    after = ("kernels",)

    def cost_s(self, context: Context) -> float:
        """The seconds of a process that compiles at least four sizes."""
        return context.state.process_s + 4 * _size_s(context)

    def most_s(self, context: Context) -> float:
        """The seconds of three more sizes, and of two processes that train with the old and the new size in turns."""
        return self.cost_s(context) + 3 * _size_s(context) + new_race_s(context, 2)

    def expected_s(self, context: Context, share_s: float) -> float:
        """Usually four sizes show where the speed stops growing."""
        return self.cost_s(context)

    def gain(self, context: Context) -> float:
        """Return the logarithm of about a quarter more speed."""
        return 0.2

    def pointless(self, context: Context) -> str:
        """See `Stage.pointless`."""
        rows = context.workload.model.inputs[0].shape[0]
        return "" if rows is None else f"the model is built for a batch of {rows}"

    def run(self, context: Context) -> StageRecord:
        """See `Stage.run`."""
        free = available_memory_bytes()
        points, limit = _measured_sizes(context, free)
        if not points:
            raise ProbeError(f"no batch fits: {limit}", memory=True)
        now, chosen, too_large = _choose_size(points, context.state.choices.batch_size, free)
        old, new, doubt = now, chosen, ""
        if chosen.items_per_s < _WORTH * now.items_per_s and not too_large:
            doubt = f"no size is {percent(_WORTH - 1)} faster"
        elif not too_large:
            old, new, doubt = _in_turns(context, now, chosen)
        notes = [limit] if limit else []
        gains: tuple[Change, ...] = ()
        decision = f"{now.batch_size} stays: {doubt}"
        if not doubt:
            context.state.training_steps += [new] if too_large else [old, new]
            notes.append(_use_size(context, now.batch_size, chosen.batch_size))
            decision = (
                f"{chosen.batch_size} instead of {now.batch_size}: {short(new.items_per_s)} {_item(context)}/s "
                f"instead of {short(old.items_per_s)}"
            )
            gains = (
                Change(
                    quantity="training",
                    label="training speed",
                    before=old.items_per_s,
                    after=new.items_per_s,
                    unit=f"{_item(context)}/s",
                    higher_is_better=True,
                ),
            )
        mark = (points.index(now), "as it was") if doubt else (points.index(chosen), "chosen")
        return StageRecord(
            name=self.name,
            title=self.title,
            status="done",
            decision=decision,
            kept=bool(gains),
            gains=gains,
            curves=tuple(_curves_by_size(points, f"{_item(context)}/s", mark)),
            facts=(("largest that was tried", str(points[-1].batch_size)),)
            + ((("memory free at the start", f"{free / 1e9:.1f} GB"),) if free else ()),
            notes=tuple(notes),
        )


def _measured_sizes(context: Context, free: int | None) -> tuple[list[TrainingStep], str]:
    """Sweep the batch sizes in a separate process; see `sweep`."""
    choices = context.state.choices
    with context.probe() as probe:

        def measure(size: int) -> TrainingStep:
            context.listener.notify(f"batches of {size}")
            return training_step(
                probe,
                implementation=choices.implementation,
                policy=policy_of(context.workload.model),
                batch_size=size,
                length=choices.length,
                seconds=_PROBE_S,
                timeout_s=max(30.0, context.seconds_left()),
            )

        kept_s = new_race_s(context, 2)
        return sweep(measure, choices.batch_size, free, lambda: context.seconds_left() > kept_s)


def _choose_size(
    points: Sequence[TrainingStep], usual: int, free: int | None
) -> tuple[TrainingStep, TrainingStep, bool]:
    """Return the size in use, the size to use, and True if the size in use needs too much memory."""
    fits = [p for p in points if not free or (p.peak_memory_bytes or 0) <= _HEADROOM * free] or points[:1]
    best = max(point.items_per_s for point in fits)
    # The data may have fewer rows, or memory may not allow as many.
    now = min(points, key=lambda point: abs(point.batch_size - usual))
    # The smallest of the fastest sizes: larger ones take more memory and make fewer updates per epoch.
    chosen = min(
        (point for point in fits if point.items_per_s * _FLAT >= best), key=lambda point: point.batch_size
    )
    return now, chosen, now not in fits


def _use_size(context: Context, now: int, chosen: int) -> str:
    """Choose a batch size, and return a sentence on its effect on training."""
    choices = context.state.choices
    choices.batch_size = chosen
    if chosen > now:
        return _rate_note(context, chosen / now)
    choices.accumulate *= max(1, round(now / chosen))
    return Message(
        f"Gradients of {choices.accumulate} batches make one update, so that training stays the same "
        f"({argument('accumulate')})."
    )


def _curves_by_size(points: Sequence[TrainingStep], unit: str, mark: tuple[int, str]) -> Iterator[Curve]:
    """The curves of speed and, if the system reports it, of memory by batch size."""
    x = tuple(float(point.batch_size) for point in points)
    yield Curve(
        chart="Training speed by batch size",
        name=points[0].way,
        x_label="rows of a batch",
        y_label=unit,
        x=x,
        y=tuple(point.items_per_s for point in points),
        log_x=True,
        marks=(mark,),
    )
    if all(point.peak_memory_bytes for point in points):
        yield Curve(
            chart="Memory by batch size",
            name="peak of the process",
            x_label="rows of a batch",
            y_label="MB",
            x=x,
            y=tuple((point.peak_memory_bytes or 0) / 1e6 for point in points),
            log_x=True,
            marks=(mark,),
        )


def _size_s(context: Context) -> float:
    """The seconds to compile and time a size."""
    return context.state.compile_s + _PROBE_S


def _in_turns(
    context: Context, now: TrainingStep, chosen: TrainingStep
) -> tuple[TrainingStep, TrainingStep, str]:
    """Time two batch sizes in turns; return both, and the reason against the second, or ""."""
    policy = policy_of(context.workload.model)
    ways = [
        dataclasses.replace(context.chosen_way, policy=policy, batch_size=one.batch_size)
        for one in (now, chosen)
    ]
    try:
        old, new = all_timed(race_trainings(context, BatchSize.name, ways))
    except ProbeError as error:
        return now, chosen, f"{chosen.batch_size} could not be timed beside it ({error})"
    order = old.order(new)
    doubt = ""
    if not order.certain:
        doubt = f"{chosen.batch_size} was faster only {order.in_words}, which is noise"
        if order.factor <= 1:
            doubt = f"{chosen.batch_size} was no faster in turns with it"
    elif order.factor < _WORTH:
        doubt = f"{chosen.batch_size} was {times(order.factor)} as fast in turns with it"
    return old.step, new.step, doubt


def sweep(
    measure: Callable[[int], TrainingStep], usual: int, free: int | None, go_on: Callable[[], bool]
) -> tuple[list[TrainingStep], str]:
    """Measure batch sizes, doubling each time; when memory runs out, find the largest size that fits.

    Args:
        measure: Measures a size; raises `ProbeError`.
        usual: The size in use. The sweep starts at a quarter of it, and always measures the size itself.
        free: Bytes of free memory; None if unknown. A size is not tried if the two before it predict that it
            takes more than four fifths of the free memory.
        go_on: Returns True if there is time for another size.

    Returns:
        The points, ascending, and a sentence if memory or time ended the sweep.

    Raises:
        ProbeError: A size failed for a reason other than memory.
    """
    points: list[TrainingStep] = []
    halved = filter(None, (usual >> 2, usual >> 1))
    doubled = (usual << n for n in range(_LARGEST_BATCH.bit_length()))
    too_large, why = 0, ""
    for size in (*halved, *doubled):
        if size > max(usual, _LARGEST_BATCH):
            break
        if size > usual and not go_on():
            return points, "There was no time for larger batches."
        foretold = _foretold(points, size)
        if free and foretold > _HEADROOM * free:
            too_large = size
            why = f"Batches of {size} would take about {foretold / 1e9:.1f} GB of the {free / 1e9:.1f} that are free."
            break
        try:
            found = measure(size)
        except ProbeError as error:
            if not error.memory:
                raise
            too_large, why = size, f"Batches of {size} do not fit into memory ({error})."
            break
        if points and found.batch_size <= points[-1].batch_size:
            break  # the data have no more rows
        points.append(found)
        if len(points) > 2 and points[-1].items_per_s < _FLAT * max(p.items_per_s for p in points[:-1]):
            break
    low = points[-1].batch_size if points else 0
    for _ in range(_BISECTIONS if too_large else 0):
        middle = (low + too_large) // 2
        if middle in (low, too_large) or not go_on():
            break
        if free and _foretold(points, middle) > _HEADROOM * free:
            too_large = middle
            continue
        try:
            points.append(measure(middle))
            low = middle
        except ProbeError as error:
            if not error.memory:
                raise
            too_large = middle
    return points, why


def _foretold(points: list[TrainingStep], size: int) -> float:
    """Predict the memory of a batch from the last two sizes; 0 if it is unknown."""
    known = [(point.batch_size, point.peak_memory_bytes) for point in points if point.peak_memory_bytes]
    if len(known) < 2:
        return 0.0
    (first, less), (second, more) = known[-2:]
    return more + (more - less) / max(1, second - first) * (size - second)


def _rate_note(context: Context, factor: float) -> str:
    settings = settings_of(context.workload.record)
    rate = learning_rate_of(settings, factor)
    rule = "with the batch" if settings.optimizer == "sgd" else "with the square root of the batch"
    return Message(
        f"A batch {factor:.3g} times as large makes {factor:.3g} times fewer updates an epoch. A learning rate that "
        f"grows {rule} is the usual start: {argument('learning_rate', float(f'{rate:.3g}'))} instead of "
        f"{settings.learning_rate:g}; watch the held-out loss."
    )


def _item(context: Context) -> str:
    return training_item(context.workload.item)


def _around_length_s(context: Context) -> float:
    """The seconds to compile and judge the model of a length."""
    state = context.state
    return state.compile_s + state.first_judge_s + state.judge_s


class SequenceLength(Stage):
    """Trains briefly from new weights on rows half and twice as long, with the same number of characters per batch."""

    name = "length"
    title = "Sequence length"
    improves = ("training",)
    after = ("kernels", "batch")
    _CHARACTERS_S = 6.0  # seconds of training for each length

    def cost_s(self, context: Context) -> float:
        """The seconds of three trainings of a second, each compiled and judged."""
        return 3 * (1.0 + _around_length_s(context))

    def most_s(self, context: Context) -> float:
        """The seconds of longer trainings."""
        return self.cost_s(context) + 3 * (self._CHARACTERS_S - 1.0)

    def gain(self, context: Context) -> float:
        """Return little: another length is rarely better by a hundredth."""
        return 0.05

    def pointless(self, context: Context) -> str:
        """See `Stage.pointless`."""
        if (length := context.state.choices.length) is None:
            return "the length of a row belongs to the model"
        dynamic = context.workload.model.inputs[0].shape[:2] == (None, None)
        return "" if dynamic else f"the model is built for rows of {length}"

    def run(self, context: Context) -> StageRecord:
        """See `Stage.run`."""
        choices, metric = context.state.choices, context.workload.metric
        assert choices.length is not None  # noqa: S101 (else it is pointless)
        tokens = choices.batch_size * choices.length
        found, steps = self._judged_lengths(context, choices.length, tokens)
        base = found[choices.length]
        losses = {
            length: paired_loss(base, judged, higher_is_better=metric.higher_is_better)
            for length, judged in found.items()
        }
        chosen = min(
            (length for length in found if losses[length].high < -_BETTER or length == choices.length),
            key=lambda length: losses[length].value,
        )
        read = steps * tokens
        decision = (
            f"{choices.length} stays: after {read:,} characters no other length is {percent(_BETTER)} better"
        )
        longer_or_shorter = chosen != choices.length
        if longer_or_shorter:
            decision = (
                f"{chosen} instead of {choices.length}: {percent(-losses[chosen].value)} fewer {metric.unit} after "
                f"{read:,} characters"
            )
            choices.batch_size = max(1, tokens // chosen)
            choices.length = chosen
        return StageRecord(
            name=self.name,
            title=self.title,
            status="done",
            decision=decision,
            kept=longer_or_shorter,
            curves=(
                Curve(
                    chart=f"Quality by row length, after {read:,} characters from new weights",
                    name=metric.name,
                    x_label="characters of a row",
                    y_label=metric.unit or metric.name,
                    x=tuple(map(float, found)),
                    y=tuple(judged.mean for judged in found.values()),
                    log_x=True,
                ),
            ),
            notes=(
                "These are short trainings: the best length after seconds may not be the best after hours.",
                "The model keeps its weights: the length is for its next training.",
            ),
        )

    def _judged_lengths(self, context: Context, usual: int, tokens: int) -> tuple[dict[int, Judged], int]:
        """Train on rows of each length while time is left; return the quality of each model, and the steps.

        Raises:
            OutOfTimeError: There was time for one length only.
        """
        work = context.workload
        steps, least_left = 0, 0.0
        found = {}
        # The length in use comes first, because the others are compared with it.
        lengths = (usual, max(8, usual // 2), 2 * usual)
        # A batch of one row cannot have rows twice as long and as many characters.
        for length in dict.fromkeys(length for length in lengths if length <= tokens):
            began = context.seconds_left()
            if began < least_left:
                break
            context.listener.notify(f"rows of {length}")
            model = accelerate(reinitialized(work.model, seed=context.settings.seed))
            source = work.source(model, max(1, tokens // length), length)
            # All lengths get the same number of characters.
            steps = steps or self._steps_for_each(context, tokens)
            try_training(
                model,
                source,
                loss=work.loss(model),
                settings=settings_of(work.record),
                policy=policy_of(model),
                steps=steps,
            )
            found[length] = work.judge(model, "validation")
            least_left = began - context.seconds_left() if context.share_s is not None else 0.0
        if len(found) < 2 and least_left:
            raise OutOfTimeError(
                f"the training of one length took {duration(least_left)}, and there was no time for another",
                len(lengths) * least_left,
            )
        return dict(sorted(found.items())), steps

    def _steps_for_each(self, context: Context, tokens: int) -> int:
        """The steps of `tokens` characters each that fit into the time for one length."""
        speed = max(step.items_per_s for step in context.state.training_steps)
        each = context.seconds_left() / 3 - _around_length_s(context)
        seconds = min(self._CHARACTERS_S, max(1.0, each))
        return max(8, int(speed * seconds / tokens))
