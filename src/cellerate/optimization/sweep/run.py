"""Trains the points of a sweep in turns, and records the measurements of each.

Every point has its own process, so that its memory and its failures are separate. A heat is as many points as the
memory holds; they take turns in changing order, so that a slow minute of the machine affects all of them. The control
takes part in every heat.
"""

from __future__ import annotations

import contextlib
import random
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from cellerate.format import duration, times
from cellerate.listener import Listener
from cellerate.machine.environment import available_memory_bytes
from cellerate.messages import Message
from cellerate.optimization.probe_client import ProbeError
from cellerate.optimization.sweep.plan import START_S, Plan, Point, point_cost_s, within
from cellerate.optimization.sweep.points import (
    STATES,
    PointFiles,
    RunningPoint,
    as_own_error,
    facts_into,
    failed,
)
from cellerate.optimization.sweep.record import PointRecord, SweepRecord
from cellerate.optimization.sweep.settings import CONTROL_PATIENCE_S, SweepSettings

_MOST_ALIVE = 12
_MOST_ON_GPU = 4  # their memory on the GPU is not counted
_SPARE_MEMORY = 1.5  # times the memory of the largest process must be free to start another
_FIRST_MEMORY = 800e6
_LEAST_PATIENCE_S, _PATIENCE, _PATIENCE_BESIDE = 180.0, 30.0, 5.0
_LEAST_LEFT_S = 20.0
_MOST_TURN_S = 600.0
_DRIFT = 0.1


class Sweep:
    """A sweep under way.

    Args:
        plan: The points.
        settings: The limits.
        record: The record, which is kept up to date; its measured points continue.
        folder: The folder of the record.
        listener: Receives progress.
    """

    def __init__(
        self, plan: Plan, settings: SweepSettings, record: SweepRecord, folder: Path, listener: Listener
    ) -> None:
        self._plan, self._settings, self._record = plan, settings, record
        self._folder, self._listener = folder, listener
        self._files = PointFiles(folder)
        self._began, self._before_s = time.perf_counter(), record.seconds
        self._start_s, self._largest = START_S, _FIRST_MEMORY
        self._alive: list[RunningPoint] = []
        self._again: list[Point] = []
        self._tried_again: list[Point] = []
        self._drifts: dict[int, float] = {}
        self._ready_s: dict[bool, float] = {}
        self._records = {point.key: one for point, one in zip(plan.points, record.points, strict=True)}

    def run(self) -> None:
        """Trains all points, or as many as there is time for.

        Raises:
            CellerateError: The control cannot be trained.
            KeyboardInterrupt: Ctrl-C; the record has all measurements.
        """
        try:
            control, *others = self._plan.points
            self._start_control(control)
            waiting = self._fit([point for point in others if self._is_open(self._records[point.key])])
            heat = 1
            self._heat(heat, waiting)
            while waiting or self._again:
                heat += 1
                # Points that had too little memory beside others come last, one by one.
                self._heat(heat, waiting if waiting else [self._again.pop(0)])
            self._note_drift()
            self._record.status = "finished"
        except KeyboardInterrupt:
            self._record.status = "interrupted"
            raise
        finally:
            for one in self._alive:
                one.end()
            self._write()
        shutil.rmtree(self._folder / STATES, ignore_errors=True)

    def _is_open(self, record: PointRecord) -> bool:
        """True if a point has turns to come."""
        return record.status in ("waiting", "measured") and len(record.turns) < self._settings.rounds

    def _start_control(self, control: Point) -> None:
        began = time.perf_counter()
        record = self._records[control.key]
        try:
            running = self._begin(control, record)
        except ProbeError as error:
            raise as_own_error(error) from None
        self._start_s = time.perf_counter() - began
        self._alive.append(running)

    def _begin(self, point: Point, record: PointRecord) -> RunningPoint:
        running = RunningPoint(self._plan.base, point, record, self._files)
        about = running.begin(CONTROL_PATIENCE_S if point.control else self._patience_s())
        if record.control:
            facts_into(self._record, about)
            for sentence in about["messages"]:
                self._listener.message(sentence)
        # Batches come in rising order, and stock Keras may take much longer to warm up than others.
        self._ready_s[point.stock] = record.ready_s
        return running

    def _patience_s(self) -> float:
        """The seconds that a point may take to get ready; within a budget, they must leave time to train."""
        patience_s = patience_to_start(self._start_s, self._record.point_s)
        if self._settings.budget_s is None:
            return patience_s
        return min(patience_s, max(_LEAST_LEFT_S, self._left_s() - self._open_s()))

    def _open_s(self) -> float:
        """The seconds that the running points still have to train."""
        return sum(max(0.0, self._record.point_s - one.record.seconds) for one in self._alive)

    def _fit(self, waiting: list[Point]) -> list[Point]:
        """Return the points that fit into the time, each with its share of the seconds; leave the others out."""
        budget, settings = self._settings.time_budget, self._settings
        seconds = settings.point_s if settings.steps is None else self._control_s()
        if budget is not None:
            seconds, fitting, left_out = within(waiting, self._left_s() - seconds, self._start_s, seconds)
            self._leave_out(left_out)
            waiting = fitting
            if settings.steps is None and seconds < settings.point_s:
                self._note(
                    Message(
                        f"Each point trains for {seconds:.2g} s in place of {settings.point_s:g} s, so that all fit "
                        f"into the time budget of {duration(budget)}."
                    )
                )
            # Other points come first, because stock Keras may take all the time left.
            waiting = sorted(waiting, key=lambda point: point.stock)
        if settings.steps is None:
            self._record.point_s = seconds
        left = [point for point in waiting if not self._records[point.key].measured]
        cost = len(left) * point_cost_s(self._start_s, seconds) + seconds
        self._listener.message(f"about {duration(max(1.0, cost))} from here on")
        return waiting

    def _control_s(self) -> float:
        """About the seconds of the control for the requested steps."""
        step_s = self._alive[0].step_s or 0.0
        return step_s * (self._settings.steps or 0)

    def _heat(self, number: int, waiting: list[Point]) -> None:
        """Start as many points as the memory holds beside the control, train them in turns, and end them."""
        control = self._alive[0]
        late: list[Point] = []
        if number > 1:
            self._time_control(control, number)
        while waiting and (len(self._alive) == 1 or self._has_room()):
            point = waiting.pop(0)
            if self._late_for(point):
                late.append(point)
            else:
                self._start(point, number)
        self._leave_out(late)
        for round_ in range(self._settings.rounds):
            order = list(self._alive if number == 1 else self._alive[1:])
            random.Random(f"{number} {round_}").shuffle(order)
            for one in order:
                steps = self._steps(one)
                if steps:
                    self._turn(one, steps)
        for one in self._alive[1:]:
            one.end()
        del self._alive[1:]

    def _start(self, point: Point, heat: int) -> None:
        record = self._records[point.key]
        record.heat = heat
        try:
            self._alive.append(self._begin(point, record))
        except ProbeError as error:
            self._fail(point, error)
        self._progress()

    def _turn(self, one: RunningPoint, steps: int) -> None:
        """One turn of a point."""
        record = one.record
        try:
            one.turn(len(record.turns) + 1, steps, _MOST_TURN_S + _PATIENCE * self._record.point_s)
            self._largest = max(self._largest, record.peak_memory_bytes or 0)
        except ProbeError as error:
            if record.control:
                raise as_own_error(error) from None
            self._fail(one.point, error)
            one.end()
            self._alive.remove(one)
        self._progress()
        self._write()

    def _fail(self, point: Point, error: ProbeError) -> None:
        """Record a failure; a point that lacked memory beside others is tried once more without them."""
        record = self._records[point.key]
        if error.memory and len(self._alive) > 2 and point not in self._tried_again:
            self._again.append(point)
            self._tried_again.append(point)
            record.turns, record.judged = [], []
            return
        failed(record, error)
        self._listener.message(f"{record.label} failed: {error}")

    def _time_control(self, control: RunningPoint, heat: int) -> None:
        """Times the control once more, to see whether the machine is as fast as in the first heat."""
        with contextlib.suppress(ProbeError):
            again = control.time(control.record.turns[-1]["steps"], _MOST_TURN_S)
            self._drifts[heat] = again.median_s / control.record.step.median_s

    def _steps(self, one: RunningPoint) -> int:
        """The steps of the next turn of a point; 0 if it has had its share or the time is up."""
        if one.record.measured and self._is_late():
            return 0
        return one.next_steps(self._settings.rounds, self._record.point_s, self._settings.steps)

    def _has_room(self) -> bool:
        """True if one more process fits beside the running ones."""
        on_gpu = sum(1 for one in self._alive if one.point.values.get("device") == "gpu")
        if len(self._alive) >= _MOST_ALIVE or on_gpu >= _MOST_ON_GPU:
            return False
        free = available_memory_bytes()
        return free is None or free > _SPARE_MEMORY * self._largest

    def _late_for(self, point: Point) -> bool:
        """True if a point would not finish in time."""
        if self._settings.time_budget is None:
            return False
        start_s = max(self._start_s, self._ready_s.get(point.stock, 0.0))
        return self._left_s() < point_cost_s(start_s, self._record.point_s) + self._open_s()

    def _is_late(self) -> bool:
        return self._settings.time_budget is not None and self._left_s() <= 0

    def _left_s(self) -> float:
        budget = self._settings.time_budget
        assert budget is not None  # noqa: S101 (only asked with one)
        return budget - self._seconds

    @property
    def _seconds(self) -> float:
        return self._before_s + time.perf_counter() - self._began

    def _leave_out(self, points: Sequence[Point]) -> None:
        for point in points:
            record = self._records[point.key]
            if not record.measured:
                record.status, record.reason = "left out", "there was no time for it"
        left_out = [point.label for point in points if not self._records[point.key].measured]
        if left_out:
            self._note(
                Message(
                    f"{len(left_out)} of {len(self._plan.points)} points were left out for lack of time: "
                    f"{'; '.join(left_out)}. A larger time budget has room for them."
                )
            )

    def _note(self, said: Message) -> None:
        self._record.notes.append(str(said))
        self._listener.message(said)

    def _note_drift(self) -> None:
        """Add a note if the machine was faster or slower in a later heat."""
        off = [
            f"{times(factor)} in heat {heat}"
            for heat, factor in self._drifts.items()
            if abs(factor - 1) > _DRIFT
        ]
        if off:
            self._note(
                Message(
                    "The speed of the machine changed: compared with the first heat, a step of the control took "
                    f"{', '.join(off)}. Times of different heats compare with that uncertainty."
                )
            )

    def _progress(self) -> None:
        rounds = self._settings.rounds
        done = sum(
            rounds if one.status in ("failed", "left out") else min(rounds, len(one.turns))
            for one in self._record.points
        )
        self._listener.progress(done, rounds * len(self._record.points))

    def _write(self) -> None:
        self._record.seconds = self._seconds
        self._record.write(self._folder)


def patience_to_start(start_s: float, point_s: float) -> float:
    """The seconds that a point may take to get ready, beside a control that took `start_s`."""
    return max(_LEAST_PATIENCE_S, _PATIENCE * point_s, _PATIENCE_BESIDE * start_s)
