"""Points in training: their processes, their turns, and their entries in the record."""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path
from typing import Any

from cellerate.errors import CellerateError
from cellerate.measure import Timing, as_timing
from cellerate.messages import argument
from cellerate.optimization.probe_client import MeasuringProcess, ProbeError
from cellerate.optimization.sweep.devices import environment_of
from cellerate.optimization.sweep.plan import Base, Point, settings_of_point
from cellerate.optimization.sweep.record import PointRecord, SweepRecord

_MODULE = "cellerate.optimization.sweep.point_process"
STATES = "points"
"""The folder, inside the sweep's folder, for the states of unfinished points."""


@dataclasses.dataclass(frozen=True)
class PointFiles:
    """The files of the states of points, to continue from.

    Attributes:
        folder: The folder of the sweep.
    """

    folder: Path

    def state(self, point: Point) -> Path:
        """The file of a point's state."""
        name = hashlib.blake2b(point.key.encode(), digest_size=8).hexdigest()
        return self.folder / STATES / f"{name}.npz"


class RunningPoint:
    """A point whose process is alive.

    Args:
        base: The settings that all points share.
        point: The point.
        record: Its record, which receives its turns.
        files: The files of states.
    """

    def __init__(self, base: Base, point: Point, record: PointRecord, files: PointFiles) -> None:
        self.point, self.record = point, record
        self._state = files.state(point)
        self._state.parent.mkdir(parents=True, exist_ok=True)
        parts = settings_of_point(base, point.values)
        device = parts.pop("process", {}).get("device", "auto")
        opened = {
            "task": base.task,
            "paths": list(base.paths),
            "model": base.model,
            "parts": parts,
            "device": device,
        }
        self._asked_rows = parts.get("data", {}).get("batch_size") or base.value("batch_size")
        self._process = MeasuringProcess(
            _MODULE, opened, backend=base.backend, environment=environment_of(device)
        )
        self.step_s: float | None = None

    def begin(self, patience_s: float) -> dict[str, Any]:
        """Start the process and wait until the point is compiled; a point that has had turns continues.

        Raises:
            ProbeError: The point cannot be trained; its process has ended.
        """
        try:
            return self._begin(patience_s)
        except BaseException:
            self.end()
            raise

    def _begin(self, patience_s: float) -> dict[str, Any]:
        self._process.start()
        record = self.record
        goes_on = record.measured and self._state.is_file()
        if not goes_on:
            record.turns, record.judged = [], []
        state = str(self._state) if goes_on else None
        about: dict[str, Any] = self._process.ask("ready", timeout_s=patience_s, state=state)
        if goes_on and about["steps"] != record.steps:
            # The run was ended between writing the state and the record: turns missing in one are trained again.
            record.turns, record.judged = [], []
            self.end()
            self._state.unlink()
            return self._begin(patience_s)
        if about["batch_size"] != self._asked_rows:
            raise ProbeError(
                f"the data fill a batch of {about['batch_size']:,} at most, not of {self._asked_rows:,}: give a "
                f"smaller {argument('batch_size')}, or more data.",
                memory=False,
                kind="DataError",
            )
        self.step_s = about["step_s"]
        record.batch_size, record.items = about["batch_size"], about["items"]
        record.weights, record.ready_s = about["weights"], about["ready_s"]
        record.judged += about["judged"]
        return about

    def turn(self, number: int, steps: int, patience_s: float) -> None:
        """Train for `steps` steps as turn `number` of the record.

        Raises:
            ProbeError: The training failed.
        """
        found = self._process.ask("turn", timeout_s=patience_s, steps=steps, state=str(self._state))
        record = self.record
        record.judged += found.pop("judged")
        record.peak_memory_bytes = found.pop("peak_memory_bytes")
        record.peak_gpu_memory_bytes = found.pop("peak_gpu_memory_bytes")
        record.turns.append({"round": number, **found})
        record.status, record.reason = "measured", ""
        self.step_s = record.step.median_s

    def next_steps(self, rounds: int, point_s: float, steps: int | None = None) -> int:
        """The steps of the next turn; 0 if the point has trained for as long as the others.

        Args:
            rounds: The turns of each point.
            point_s: Seconds that each trains for.
            steps: Steps that each trains for, in place of seconds.
        """
        record = self.record
        turns = rounds - len(record.turns)
        if turns <= 0:
            return 0
        if steps is not None:
            return max(0, -(-(steps - record.steps) // turns))
        left_s = point_s - record.seconds
        if left_s <= 0:
            return 0
        # Without a second step in the warm-up, the first turn shows the time of a step.
        step_s = self.step_s or point_s
        return max(1, round(left_s / turns / max(step_s, 1e-6)))

    def time(self, steps: int, patience_s: float) -> Timing:
        """Time `steps` more steps that are not part of the point's training.

        Raises:
            ProbeError: The steps failed.
        """
        found = self._process.ask("turn", timeout_s=patience_s, steps=steps)
        return as_timing(found["times_s"])

    def test(self, patience_s: float) -> None:
        """Judges the point on the test part.

        Raises:
            ProbeError: It failed.
        """
        self.record.test = self._process.ask("test", timeout_s=patience_s)

    def end(self) -> None:
        """Ends the process."""
        self._process.close()


def failed(record: PointRecord, error: ProbeError) -> None:
    """Record a point's failure and its reason; its turns remain."""
    record.status, record.reason = "failed", str(error)


def as_own_error(error: ProbeError) -> CellerateError:
    """Return the error of the process, in its own class."""
    return error.original or CellerateError(f"the control cannot be trained: {error}")


def facts_into(record: SweepRecord, about: dict[str, Any]) -> None:
    """Copy the facts that all points share from the first ready point into the record."""
    record.item = about["item"]
    record.unit = about["bits"] or "loss"
