"""Runs the stages: chooses the next one, gives it time, and handles failures."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import time
from collections.abc import Iterator, Sequence

from cellerate.errors import in_a_line
from cellerate.format import duration
from cellerate.optimization.budget import fitting, verdict_s
from cellerate.optimization.context import Context, OutOfTimeError
from cellerate.optimization.probe_client import ProbeError
from cellerate.optimization.stages import registry
from cellerate.optimization.stages.base import NotNeededError, Stage
from cellerate.optimization.stages.baseline import SHARE, Baseline
from cellerate.optimization.stages.loading import chosen_stages
from cellerate.optimization.stages.verdict import keep_interim
from cellerate.optimization.state import State, save_state
from cellerate.report.record import StageRecord

# The first stages may take this share of the budget, even if too little is left for the verdict.
_FIRST_SHARE = 0.4


def run_stages(context: Context, began: float, before: float) -> list[str]:
    """Run the stages not done yet, and return their names; a failing stage is reported, and the others continue.

    A stage whose share of the time was too short runs once more at the end if the others left enough.
    """
    state, settings, listener = context.state, context.settings, context.listener
    done = {one.name for one in state.passes if one.status == "done"}
    chosen = [Baseline(), *(kind() for kind in chosen_stages(settings).values())]
    waiting = [one for one in chosen if one.name not in done]
    names = [one.name for one in waiting]
    listener.start([one.title for one in waiting] + ["Verdict"], settings.time_budget - before)
    spent_s: dict[str, float] = {}
    short: dict[Stage, float] = {}
    needed_s = 0.0
    while waiting or short:
        left = settings.time_budget - before - (time.perf_counter() - began)
        if not waiting:
            left -= verdict_s(context)
            again = next((one for one, needs_s in short.items() if needs_s <= left), None)
            if again is None:
                break
            waiting, needed_s = [again], short.pop(again)
            continue
        one, share, spare = _next(context, waiting, left)
        waiting.remove(one)
        listener.begin(one.title)
        started = time.perf_counter()
        expected = None
        if isinstance(one, Baseline):
            context.give(None)
            context.deadline = began + SHARE * settings.time_budget
            found = _result(one, context)
        elif share is None:
            found = _without_time(one, context)
        else:
            share = max(share, one.cost_s(context), needed_s)
            expected = one.expected_s(context, share)
            context.give(share, spare)
            found = _result(one, context)
        if share is not None and found.needs_s is not None and one.name not in spent_s:
            short[one] = max(found.needs_s, one.cost_s(context))
        spent_s[one.name] = spent_s.get(one.name, 0.0) + time.perf_counter() - started
        expected = expected if found.status == "done" else None
        found = dataclasses.replace(found, seconds=spent_s[one.name], expected_s=expected)
        _keep(context, found)
        state.seconds = before + time.perf_counter() - began
        save_state(state, context.folder)
        if found.kept:
            keep_interim(context)
        listener.end(found)
    return names


def _keep(context: Context, found: StageRecord) -> None:
    """Put the record of a stage into the state, in place of its earlier record."""
    # The order covers all stages, because an earlier call may have chosen others.
    place = [Baseline.name, *registry.STAGES]
    kept = [other for other in context.state.passes if other.name != found.name]
    context.state.passes[:] = sorted([*kept, found], key=lambda other: place.index(other.name))


def _next(context: Context, waiting: Sequence[Stage], left_s: float) -> tuple[Stage, float | None, float]:
    """Return the stage that comes next, its seconds, and the seconds that no stage needs.

    The seconds are None if the stage has no time. Stages marked `first` come first. Stages that cannot help come next,
    because skipping them takes no time.
    """
    if isinstance(waiting[0], Baseline):
        return waiting[0], None, 0.0
    needed = [one for one in waiting if not one.pointless(context)]
    chosen = fitting(context, needed, left_s)
    spare = max(0.0, left_s - verdict_s(context) - sum(chosen.values()))
    if first := next((one for one in needed if one.first), None):
        most_s = math.inf if first.always else _FIRST_SHARE * context.settings.time_budget
        cost_s = first.cost_s(context)
        return first, chosen.get(first, cost_s if cost_s <= most_s else None), spare
    if pointless := [one for one in waiting if one not in needed]:
        return pointless[0], 0.0, spare
    one, share = next(iter(chosen.items()), (needed[0], None))
    return one, share, spare


def _without_time(one: Stage, context: Context) -> StageRecord:
    needs_s = one.cost_s(context)
    reason = f"there was no time for it: it needs about {duration(needs_s)}"
    return StageRecord(name=one.name, title=one.title, status="skipped", reason=reason, needs_s=needs_s)


def _result(one: Stage, context: Context) -> StageRecord:
    """Return the record of a stage, or of its failure. Errors of the baseline are raised: nothing works without it."""
    if reason := one.pointless(context):
        return StageRecord(name=one.name, title=one.title, status="skipped", reason=reason)
    try:
        with _as_it_was(context.state):
            return one.run(context)
    except NotNeededError as error:
        return StageRecord(name=one.name, title=one.title, status="skipped", reason=str(error))
    except OutOfTimeError as error:
        return StageRecord(
            name=one.name, title=one.title, status="skipped", reason=str(error), needs_s=error.needs_s
        )
    # A backend may raise anything; if one stage fails, the others can still work.
    except Exception as error:
        original = error.original if isinstance(error, ProbeError) else None
        if isinstance(one, Baseline) and original is not None:
            raise original from error
        if isinstance(one, Baseline) or os.environ.get("CELLERATE_TRACEBACK"):
            raise
        return StageRecord(name=one.name, title=one.title, status="failed", reason=in_a_line(error)[:500])


@contextlib.contextmanager
def _as_it_was(state: State) -> Iterator[None]:
    """Undo the choices of a stage that fails or is interrupted; the candidates that it made stay valid."""
    choices, steps = dataclasses.replace(state.choices), len(state.training_steps)
    try:
        yield
    except BaseException:
        state.choices = choices
        del state.training_steps[steps:]
        raise
