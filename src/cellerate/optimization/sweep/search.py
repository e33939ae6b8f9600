"""A search: points that Optuna suggests, instead of a whole grid, and their gain.

A trial trains like every point of a sweep, in rounds; after each round Optuna may stop it. The best trial on the
validation part is trained once more beside the control, in turns and equally long, and both are judged once on the test
part.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cellerate.format import duration, loss as loss_words
from cellerate.listener import Listener
from cellerate.optimization.probe_client import ProbeError
from cellerate.optimization.sweep.plan import Base, Point, point_cost_s, settings_of_point
from cellerate.optimization.sweep.points import (
    STATES,
    PointFiles,
    RunningPoint,
    as_own_error,
    facts_into,
    failed,
)
from cellerate.optimization.sweep.record import PointRecord, SweepRecord
from cellerate.optimization.sweep.run import patience_to_start
from cellerate.optimization.sweep.settings import CONTROL_PATIENCE_S, LEAST_S, SweepSettings
from cellerate.optimization.sweep.space import Dimension
from cellerate.optimization.sweep.study import Study
from cellerate.optimization.sweep.verdict import difference_of_tests, mean_of_test

_LEAST_TRIALS = 8  # that fit into a budget, unless the seconds of each are given
_LEAST_PATIENCE_S, _PATIENCE = 180.0, 30.0
_MOST_REPEATED = 30  # trials in a row that were tried before, after which the search ends
_FOREVER_S = 1e9
_CONTROL, _CHOSEN = "control, judged", "chosen, judged"


@dataclasses.dataclass
class Search:
    """A search under way.

    Attributes:
        base: The settings that all points share.
        space: The settings that are drawn.
        settings: The limits.
        record: The record, which is filled.
        folder: The folder of the sweep.
        study: The study.
        listener: Receives progress.
    """

    base: Base
    space: Sequence[Dimension]
    settings: SweepSettings
    record: SweepRecord
    folder: Path
    study: Study
    listener: Listener

    def __post_init__(self) -> None:
        """Starts the clock."""
        self._began = time.perf_counter()
        self._start_s = 0.0
        self._expected = 0
        self._files = PointFiles(self.folder)

    def run(self) -> None:
        """Search until the time is up, and judge the best trial.

        Raises:
            CellerateError: The control cannot be trained.
            KeyboardInterrupt: Ctrl-C; the trials that have ended are in the record.
        """
        record = self.record
        try:
            control = self._control()
            self._trials()
            self.study.end()
            # Other processes may still train their trials.
            self.study.wait_for_others(point_cost_s(self._start_s, record.point_s))
            record.points = [control, *self.study.records()]
            record.verdict = self._verdict(control)
            record.status = "finished"
        except KeyboardInterrupt:
            record.status = "interrupted"
            raise
        finally:
            if record.status != "finished" and record.points:
                record.points = [record.points[0], *self.study.records()]
                record.verdict = {
                    "sentence": f"The search ended early, after {len(record.points) - 1} trials."
                }
            record.seconds += time.perf_counter() - self._began
            if record.points and record.points[0].measured:
                record.write(self.folder)
        shutil.rmtree(self.folder / STATES, ignore_errors=True)

    def help(self) -> int:
        """Train trials for the search of another process until it ends; return their number."""
        if not self.study.wait(_LEAST_PATIENCE_S):
            return 0
        self.record.point_s = float(self.study.facts["point_s"])
        return self._trials()

    def _control(self) -> PointRecord:
        """Return the control, trained as long as each trial; a continued search reuses its control."""
        known = self.study.facts.get("control")
        if known is not None:
            record = PointRecord(**known)
            self.record.point_s = float(self.study.facts["point_s"])
            self._start_s = record.ready_s
        else:
            record = PointRecord("the control", {}, control=True)
        self.record.points = [record]
        if known is None:
            began = time.perf_counter()
            try:
                running = self._begun(Point({}, control=True), record)
                self._start_s = time.perf_counter() - began
                self.record.point_s = self._point_s()
                self._announce()
                with contextlib.closing(_Ended(running)):
                    self._train(running, None)
            except ProbeError as error:
                raise as_own_error(error) from None
        left = self._budget_s - (time.perf_counter() - self._began) - self._final_s
        self.study.begin(time.time() + min(left, _FOREVER_S), self.record.point_s, record)
        return record

    @property
    def _budget_s(self) -> float:
        return self.settings.budget_s or math.inf

    @property
    def _final_s(self) -> float:
        """About how many seconds it takes to train and judge the chosen point beside the control."""
        return 2 * point_cost_s(self._start_s, self.record.point_s)

    def _point_s(self) -> float:
        """The seconds that each trial trains for: as asked, or so long that a few trials fit into the budget."""
        asked = self.settings.point_s
        if self.settings.seconds is not None or not math.isfinite(self._budget_s):
            return asked
        # The control, the two that are judged, and the trials.
        fitting = self._budget_s / (_LEAST_TRIALS + 3) - self._start_s
        return min(asked, max(LEAST_S, fitting / point_cost_s(0.0, 1.0)))

    def _announce(self) -> None:
        names = ", ".join(one.axis.name.replace("_", " ") for one in self.space)
        cost = point_cost_s(self._start_s, self.record.point_s)
        count = self.settings.trials
        if math.isfinite(self._budget_s):
            fitting = max(0, int((self._budget_s - cost - self._final_s) / cost))
            count = fitting if count is None else min(count, fitting)
        self._expected = count or 0
        self.listener.message(
            f"searching {names}: about {count} trials of {self.record.point_s:.3g} s, "
            f"{duration(cost * (count or 0) + self._final_s)} from here on"
        )

    def _trials(self) -> int:
        """Train one trial after the other; return their number."""
        done = repeated = 0
        while self.study.goes_on and self._has_trials_left():
            if time.time() + self._start_s > self.study.facts["ends"]:
                break
            if not self._trial():
                # A small space, or its promising part, is exhausted at some point.
                repeated += 1
                if repeated == _MOST_REPEATED:
                    self.listener.message("no point is left that was not tried before, so the search ends")
                    break
                continue
            done, repeated = done + 1, 0
            done_by_all = self.study.count()
            # The bar must not end early: a helping process does not know the number of trials.
            self.listener.progress(done_by_all, self._expected and max(self._expected, done_by_all + 1))
        return done

    def _has_trials_left(self) -> bool:
        return self.settings.trials is None or self.study.count() < self.settings.trials

    def _trial(self) -> bool:
        """Train a trial; return False if its point was tried before, and reuse that result."""
        trial, values = self.study.ask(self.space)
        if self.study.repeat(trial, values):
            return False
        point = Point(values)
        record = PointRecord(point.label, values)
        loss = None
        try:
            settings_of_point(self.base, values)
            with contextlib.closing(_Ended(self._begun(point, record))) as ended:
                loss = self._train(ended.running, trial)
        except ProbeError as error:
            failed(record, error)
        except BaseException:
            record.status, record.reason = "failed", "it was interrupted"
            self.study.tell(trial, record, None)
            raise
        self.study.tell(trial, record, loss)
        return True

    def _begun(self, point: Point, record: PointRecord) -> RunningPoint:
        running = RunningPoint(self.base, point, record, self._files)
        about = running.begin(
            CONTROL_PATIENCE_S if point.control else patience_to_start(self._start_s, self.record.point_s)
        )
        if point.control:
            facts_into(self.record, about)
        return running

    def _train(self, running: RunningPoint, trial: Any) -> float | None:
        """Train a point in rounds, after each of which Optuna may stop it; return its final loss."""
        record = running.record
        loss: float | None = None
        for number in range(1, self.settings.rounds + 1):
            steps = running.next_steps(self.settings.rounds, self.record.point_s)
            if not steps:
                break
            running.turn(number, steps, _LEAST_PATIENCE_S + _PATIENCE * self.record.point_s)
            loss = _last_loss(record)
            if trial is None or loss is None:
                continue
            trial.report(loss, number)
            if number < self.settings.rounds and trial.should_prune():
                record.status, record.reason = "stopped early", f"it was behind after round {number}"
                return None
        if loss is None:
            record.status, record.reason = "failed", "its loss is not finite"
        return loss

    def _verdict(self, control: PointRecord) -> dict[str, Any]:
        """Judge the best trial and the control on the test part, once."""
        trials = self.record.points[1:]
        whole = [one for one in trials if one.status == "measured" and _last_loss(one) is not None]
        early = sum(one.status == "stopped early" for one in trials)
        broken = sum(one.status == "failed" for one in trials)
        tried = (
            f"The search tried {len(trials)} points ({early} stopped early, {broken} failed), each for "
            f"{self.record.point_s:.3g} s."
        )
        found: dict[str, Any] = {"trials": len(trials), "stopped_early": early, "failed": broken}
        best = min(whole, key=lambda one: _last_loss(one) or 0.0, default=None)
        if best is None:
            return {**found, "sentence": f"{tried} None was trained to its end.", "chosen": control.label}
        if (_last_loss(best) or 0.0) >= (_last_loss(control) or math.inf):
            words = f"{tried} On the validation part none is better than the control: it bought nothing."
            return {**found, "sentence": words, "best": best.label, "chosen": control.label}
        pair = self._judged(control, best)
        return {**found, **self._bought(tried, control, best, pair)}

    def _judged(self, control: PointRecord, best: PointRecord) -> list[PointRecord]:
        """Train both again, in turns and equally long, and judge them on the test part."""
        self.listener.message(f"judging {best.label} beside the control on the test part")
        running: list[RunningPoint] = []
        try:
            for label, one in ((_CONTROL, control), (_CHOSEN, best)):
                record = PointRecord(label, one.values, one.control)
                # Their states must not mix with those of the trials.
                files = PointFiles(self.folder / STATES / label.partition(",")[0])
                anew = RunningPoint(self.base, Point(one.values, one.control), record, files)
                running.append(anew)
                anew.begin(CONTROL_PATIENCE_S)
            for number in range(1, self.settings.rounds + 1):
                # The order alternates from round to round.
                for each in running[:: 1 if number % 2 else -1]:
                    if steps := each.next_steps(self.settings.rounds, self.record.point_s):
                        each.turn(number, steps, _LEAST_PATIENCE_S + _PATIENCE * self.record.point_s)
            for each in running:
                each.test(_LEAST_PATIENCE_S)
        except ProbeError as error:
            raise as_own_error(error) from None
        finally:
            for each in running:
                each.end()
        return [each.record for each in running]

    def _bought(
        self, tried: str, control: PointRecord, best: PointRecord, pair: Sequence[PointRecord]
    ) -> dict[str, Any]:
        own, factor = pair[1], self.record.in_bits
        difference = difference_of_tests(own, pair[0], factor)
        mine, theirs = mean_of_test(own, factor), mean_of_test(pair[0], factor)
        unit = "" if self.record.unit == "loss" else f" {self.record.unit}"
        kept: dict[str, Any] = {"best": best.label, "judged": [dataclasses.asdict(one) for one in pair]}
        if difference is None or mine is None or theirs is None:
            words = f"{tried} The test part is too small to judge {best.label} on, so the control stays."
            return {**kept, "sentence": words, "chosen": control.label}
        kept["test"] = {
            "best": dataclasses.asdict(mine),
            "control": dataclasses.asdict(theirs),
            "difference": dataclasses.asdict(difference),
        }
        words = (
            f"{tried} On the test part, judged once, {best.label} has {loss_words(mine.value)}{unit} beside "
            f"{loss_words(theirs.value)} of the control, trained as long"
        )
        if difference.high < 0:
            reach = f"{loss_words(-difference.high)} to {loss_words(-difference.low)} lower"
            return {**kept, "sentence": f"{words}: {reach}.", "chosen": best.label}
        why = "higher" if difference.low > 0 else "not distinguishable"
        return {
            **kept,
            "sentence": f"{words}: {why}, so the search bought nothing and the control stays.",
            "chosen": control.label,
        }


@dataclasses.dataclass
class _Ended:
    """A point whose process ends with a block."""

    running: RunningPoint

    def close(self) -> None:
        """End the process."""
        self.running.end()


def _last_loss(record: PointRecord) -> float | None:
    """The validation loss of a point after its last turn; None if it is not finite."""
    if not record.judged or None in record.judged[-1]["losses"]:
        return None
    losses, weights = record.judged[-1]["losses"], record.judged[-1]["weights"]
    return sum(loss * weight for loss, weight in zip(losses, weights, strict=True)) / sum(weights)
