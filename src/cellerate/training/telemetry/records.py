"""The figures of a run while it trains: speed, waiting, memory and loss, about once a second.

They go to `telemetry.jsonl` in the run's folder, a line each, which may be read while the run goes on; to
`telemetry.csv` at its end; and to trackers. Telemetry never ends a run: what cannot be written is left out, and said.
"""

from __future__ import annotations

import contextlib
import csv
import functools
import io
import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from cellerate.errors import OutputError
from cellerate.files import atomic_write
from cellerate.machine.readings import MachineReadings
from cellerate.training.telemetry.display import Display, RunPlan
from cellerate.training.telemetry.trackers import Ending, Tracker, open_trackers


class Sample(NamedTuple):
    """A model's output for an input.

    Attributes:
        given: The input, such as the beginning of a text.
        made: The output, such as the continuation of the text.
    """

    given: str
    made: str


LIVE = "telemetry.jsonl"
_TABLE = "telemetry.csv"
# Seconds between two lines.
_EVERY_S = 1.0


class Telemetry(Display):
    """Listens to a run, passes every event on to the display, and records the figures of the run and the machine.

    Attributes:
        status: The end of the run; if nothing sets it before the end, the run has failed.

    Args:
        display: Shows the run.
        folder: The run's folder.
        trackers: The trackers that also get the figures, by the names of `trackers`.
        made_of: The settings and data of the run, for the trackers.
        resumed: Whether the run is resumed; otherwise the figures of an earlier run are replaced.
        sample: Returns a sample of the model's output, called after each epoch; None if there are no samples.
        show_samples: Whether to show samples on the display, too.
    """

    def __init__(
        self,
        display: Display,
        folder: Path,
        trackers: Sequence[str] = (),
        made_of: Mapping[str, Any] | None = None,
        *,
        resumed: bool = False,
        sample: Callable[[], Sample] | None = None,
        show_samples: bool = False,
    ) -> None:
        self.status: Ending = "failed"
        self._display = display
        self._folder = folder
        self._names = trackers
        self._made_of = made_of or {}
        self._trackers: list[Tracker] = []
        self._resumed = resumed
        self._sample = sample
        self._show_samples = show_samples
        self._file: io.TextIOBase | None = None
        self._wait = 0.0
        self._machine: dict[str, float] = {}
        self._reference: tuple[float, int] | None = None

    def __enter__(self) -> Telemetry:
        """Opens the file, and begins with all trackers.

        Raises:
            ConfigError: A tracker cannot begin.
        """
        self._trackers = open_trackers(self._names, self._folder, self._made_of, resumed=self._resumed)
        self._try(LIVE, self._open)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends the run with all trackers."""
        if self._file is not None:
            self._try(LIVE, self._close)
            self._try(_TABLE, self._write_table)
        for tracker in self._trackers:
            self._try(type(tracker).__name__, functools.partial(tracker.close, self.status))

    def start(self, plan: RunPlan) -> None:
        """Training begins."""
        self._plan = plan
        self._readings: MachineReadings | None = None
        self._try("reading the machine", self._read_machine)
        self._display.start(plan)

    def step(self, epoch: int, step: int, logs: Mapping[str, float]) -> None:
        """Writes the figures of a step, if it is time."""
        self._display.step(epoch, step, logs)
        now, done = time.perf_counter(), epoch * self._plan.steps_per_epoch + step
        if self._reference is None or done <= self._reference[1]:
            # The first step of an epoch also waits for the work before it, and the first step of a run compiles.
            self._reference = now, done
            self._record(epoch, done, logs, None)
        elif now - self._reference[0] >= _EVERY_S:
            steps, seconds = done - self._reference[1], now - self._reference[0]
            self._reference = now, done
            self._record(epoch, done, logs, steps * self._plan.items_per_step / seconds)

    def data_wait(self, share: float) -> None:
        """Keeps the share for the next line."""
        self._wait = share
        self._display.data_wait(share)

    def phase(self, text: str) -> None:
        """Passes a phase on."""
        self._begin()
        self._display.phase(text)

    def epoch(self, record: Mapping[str, Any]) -> None:
        """Writes the figures of an epoch, each named `epoch/...`."""
        self._display.epoch(record)
        done = (record["epoch"] - 1) * self._plan.steps_per_epoch + record["steps"]
        values = {f"epoch/{name}": value for name, value in record.items() if isinstance(value, float)}
        self._write(record["epoch"], done, values)
        self.sample(record["epoch"], done)

    def sample(self, epoch: int, step: int) -> None:
        """Asks for a sample, and writes and shows it."""
        if self._sample is not None and not self._try("a sample", lambda: self._write_sample(epoch, step)):
            self._sample = None
        # The next figures of speed must not count the time that it took.
        self._begin()

    def message(self, text: str) -> None:
        """Passes a sentence on."""
        self._display.message(text)

    def end_at_once(self) -> None:
        """Passes it on."""
        self._display.end_at_once()

    def stop(self) -> None:
        """Passes the end on."""
        self._display.stop()

    def _begin(self) -> None:
        """Speed counts from the next step on."""
        self._reference = None

    def _record(self, epoch: int, done: int, logs: Mapping[str, float], items_per_s: float | None) -> None:
        values = dict(logs)
        if items_per_s is not None:
            values |= {"items_per_s": items_per_s, "data_wait": self._wait}
        if self._readings is not None and not self._try("reading the machine", self._read_machine):
            self._readings, self._machine = None, {}
        self._write(epoch + 1, done, {**values, **self._machine})

    def _write(self, epoch: int, step: int, values: Mapping[str, float]) -> None:
        # JSON has no word for NaN and infinity.
        finite = {name: value if math.isfinite(value) else None for name, value in values.items()}
        line = {"time": round(time.time(), 3), "epoch": epoch, "step": step, **finite}
        if self._file is not None and not self._try(LIVE, lambda: self._append(line)):
            self._file = None
        for tracker in tuple(self._trackers):
            if not self._try(type(tracker).__name__, functools.partial(tracker.log, step, values)):
                self._trackers.remove(tracker)
                with contextlib.suppress(Exception):
                    tracker.close("failed")

    def _write_sample(self, epoch: int, done: int) -> None:
        assert self._sample is not None  # noqa: S101 (it was asked for)
        sample = self._sample()
        if self._show_samples:
            self.message(f"--- sample after step {done} ---\n{sample.given}{sample.made}\n---")
        if self._file is not None:
            self._append(
                {"time": round(time.time(), 3), "epoch": epoch, "step": done, "sample": sample._asdict()}
            )

    def _open(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / LIVE
        self._file = path.open("a" if self._resumed else "w", encoding="utf-8")
        # A killed run may have left half a line, which would spoil the next.
        with path.open("rb") as written:
            if written.seek(0, os.SEEK_END) and written.seek(-1, os.SEEK_END) and written.read() != b"\n":
                self._file.write("\n")

    def _append(self, line: Mapping[str, Any]) -> None:
        assert self._file is not None  # noqa: S101 (it was asked for)
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()

    def _close(self) -> None:
        assert self._file is not None  # noqa: S101 (it was asked for)
        with contextlib.closing(self._file):
            self._append({"time": round(time.time(), 3), "status": self.status})

    def _read_machine(self) -> None:
        self._readings = self._readings or MachineReadings()
        self._machine = {f"machine/{name}": value for name, value in self._readings.read().items()}

    def _write_table(self) -> None:
        # Twice, as it may be long: for the columns, and for the rows.
        columns = list(dict.fromkeys(name for row in _rows(self._folder) for name in row))
        with atomic_write(self._folder / _TABLE) as beside, beside.open("w", newline="") as file:
            table = csv.DictWriter(file, columns, lineterminator="\n")
            table.writeheader()
            table.writerows(_rows(self._folder))

    def _try(self, name: str, do: Callable[[], None]) -> bool:
        """Does something that may fail without an end to the run; whether it went well."""
        try:
            do()
        except Exception as error:
            reason = next(iter(str(error).splitlines()), "") or type(error).__name__
            with contextlib.suppress(OutputError):
                self._display.message(f"{name} fails, and the run goes on without it: {reason}")
            return False
        return True


def read_telemetry(folder: Path) -> list[dict[str, Any]]:
    """The figures of a run's telemetry so far."""
    with contextlib.suppress(FileNotFoundError):
        return list(_rows(folder))
    return []


def _rows(folder: Path) -> Iterator[dict[str, Any]]:
    with (folder / LIVE).open("rb") as file:
        for text in file:
            yield from (line for line in telemetry_lines(text) if "step" in line and "sample" not in line)


def telemetry_lines(content: bytes) -> list[dict[str, Any]]:
    """The whole lines of a telemetry file: figures, and at the end of a run its `status`. Others are left out."""
    found = []
    for text in content.split(b"\n"):
        with contextlib.suppress(ValueError, RecursionError):
            line = json.loads(text, parse_constant=lambda _: None)
            if isinstance(line, dict) and isinstance(line.get("time"), float | int):
                found.append(line)
    return found
