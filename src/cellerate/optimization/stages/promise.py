"""The promise that a chosen model is no worse than allowed, checked on data that no choice has seen.

Only this module reads the test part, and only after everything is chosen: quality on a part that helped to choose is
biased by the choice.
"""

from __future__ import annotations

import dataclasses

from cellerate.format import percent
from cellerate.layers.accelerate import accelerate
from cellerate.models.storage import load_model
from cellerate.optimization.context import ORIGINAL, Context
from cellerate.optimization.judging import Judged, interval
from cellerate.optimization.stages.further import better_buy
from cellerate.report.effects import loss_reach
from cellerate.report.quality import Interval, Tested
from cellerate.report.record import Candidate
from cellerate.runtime.packed import load


@dataclasses.dataclass(frozen=True)
class Promise:
    """The judgement of the test part on a chosen model.

    Attributes:
        tested: The original, its control and the chosen model.
        broken: A sentence on how the promise is broken; "" if it is kept.
        warnings: The doubts that the test part leaves.
    """

    tested: tuple[Tested, ...]
    broken: str
    warnings: tuple[str, ...]


def hold(context: Context, chosen: Candidate) -> Promise:
    """Judge the chosen model, the original and a control on the test part; the state keeps the figures."""
    context.listener.notify("judging the chosen model on the test part")
    before = judge_on_test_part(context, context.before)
    control = _control_of(context, chosen)
    beside = None if control is None else judge_on_test_part(context, control)
    tested = [Tested(candidate=ORIGINAL, role="before", quality=interval(before))]
    warnings = []
    if control is not None and beside is not None:
        loss = context.loss(before, beside)
        tested.append(Tested(candidate=control.id, role="control", quality=interval(beside), loss=loss))
        if loss.high < 0:
            warnings.append(better_buy(control, loss, "the test part"))
    broken = ""
    if chosen.id != ORIGINAL:
        after = judge_on_test_part(context, chosen)
        loss = context.loss(before, after)
        control_loss = context.loss(beside, after) if beside is not None and chosen.control else None
        broken, doubt = _held_against(context, chosen, loss, control_loss)
        warnings += doubt
        tested.append(
            Tested(
                candidate=chosen.id,
                role="rejected" if broken else "after",
                quality=interval(after),
                loss=loss,
                control_loss=control_loss,
            )
        )
    return Promise(tuple(tested), broken, (*warnings, *_seen_before(context, chosen)))


def judge_on_test_part(context: Context, one: Candidate) -> Judged:
    """Judge a model once, as it is used: a packed model from its file, others in Keras."""
    if one.id in context.judged_now:
        return context.state.tested[one.id]
    context.judged_now.add(one.id)
    if one.file is None:
        # On our kernels, if they judge the model as Keras does.
        model = context.original() if context.kernels_are_right else context.workload.model
    elif one.file.endswith(".cell"):
        model = load(context.folder / one.file)
    else:
        model = accelerate(load_model(context.folder / one.file)[0])
    context.state.tested[one.id] = context.workload.judge(model, "test")
    return context.state.tested[one.id]


def _control_of(context: Context, chosen: Candidate) -> Candidate | None:
    """Return the control of a model; for a model that was not trained further, the best control of the run."""
    if chosen.control is not None:
        return context.candidate(chosen.control)
    controls = [one for one in context.state.candidates if one.is_control]
    return min(controls, key=lambda one: one.worst_loss, default=None)


def _held_against(
    context: Context, chosen: Candidate, loss: Interval, control_loss: Interval | None
) -> tuple[str, list[str]]:
    """Return a sentence if the promise is certainly broken, else "", and sentences on doubts."""
    limit = percent(context.settings.max_quality_loss)
    doubt = []
    for one, words in ((loss, "the original"), (control_loss, "the original trained as long")):
        if one is None or context.allowed(one.value):
            continue
        reach = f"95 % interval {loss_reach(one)}"
        sentence = f"is {percent(one.value)} worse than {words} ({reach}), and {limit} is allowed"
        if not context.allowed(one.low):
            return (
                f"The promise is broken: on the test part, {chosen.title} {sentence}. The original is kept.",
                [],
            )
        doubt.append(f"On the test part, {chosen.title} {sentence}. That may be chance, so it is kept.")
    return "", doubt


def _seen_before(context: Context, chosen: Candidate) -> list[str]:
    """Warn if an earlier verdict in the folder judged another model."""
    controls = {one.id for one in context.state.candidates if one.is_control}
    others = context.state.tested.keys() - controls - {ORIGINAL, chosen.id}
    if not others:
        return []
    return [
        f"An earlier verdict of this run judged {', '.join(sorted(others))} on the test part: if you continued "
        "the run because of it, the test part has helped to choose. To be sure, judge the model on new data (cellerate "
        "evaluate)."
    ]
