"""The display of a run that trains: a live line in a terminal, plain lines in a log, nothing when silent.

The loop reports facts and never formats them. A notebook or a test can listen through the same few calls.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import time
from collections.abc import Mapping
from typing import Any

from cellerate.format import duration, loss, short
from cellerate.listener import Listener
from cellerate.live_line import LiveLine
from cellerate.machine.readings import MachineReadings

# A smaller share of the time than this is not worth a word.
_TOLD_WAIT = 0.05


@dataclasses.dataclass(frozen=True)
class RunPlan:
    """The plan of a run.

    Attributes:
        epochs: The number of epochs.
        steps_per_epoch: Batches per epoch.
        items_per_step: Items per batch.
        item: What the items are called ("characters", "windows", "lines").
        bits: Also show the loss in bits, under this name; None if the loss is not a cross-entropy in nats.
        max_seconds: The time limit, or None.
    """

    epochs: int
    steps_per_epoch: int
    items_per_step: int
    item: str
    bits: str | None = None
    max_seconds: float | None = None


class Display(Listener):
    """Listens to a run and shows nothing; subclasses override what they show.

    `progress` is that of reading the data: rows, or bytes of text.
    """

    def start(self, plan: RunPlan) -> None:
        """Training begins."""

    def step(self, epoch: int, step: int, logs: Mapping[str, float]) -> None:
        """`step` batches of `epoch` are done; called at most a few times a second."""

    def data_wait(self, share: float) -> None:
        """The share of the epoch's time so far in which training waited for batches; called before `step`."""

    def phase(self, text: str) -> None:
        """Something other than training begins ("validating"); an empty text ends it."""

    def epoch(self, record: Mapping[str, Any]) -> None:
        """An epoch is over; `record` is its entry in the history."""

    def sample(self, epoch: int, step: int) -> None:
        """It is time to show what the model makes, after `step` steps of the run, in `epoch` (from 1)."""

    def end_at_once(self) -> None:
        """The user does not wait for the end of the step. Raises `KeyboardInterrupt`, unless the process may end."""
        raise KeyboardInterrupt

    def stop(self) -> None:
        """Training is over, whatever the reason."""


class Lines(Display):
    """Puts what a run does into lines of text; subclasses show them.

    `message` shows a line that stays, and `_show` one that the next takes the place of.
    """

    def start(self, plan: RunPlan) -> None:
        """Begins to count."""
        self._plan = plan
        self._began = time.perf_counter()
        self._done_before = -1
        self._rate = self._data_wait = 0.0
        self._phase = ""
        self._readings = MachineReadings()

    def step(self, epoch: int, step: int, logs: Mapping[str, float]) -> None:
        """Shows the figures of a step."""
        now, plan = time.perf_counter(), self._plan
        done = epoch * plan.steps_per_epoch + step
        if self._done_before < 0:
            # The first step includes the compilation, so speed counts from its end.
            self._done_before, self._began = done, now
            return
        if now > self._began:
            self._rate = (done - self._done_before) / (now - self._began)
        where = f"epoch {epoch + 1}/{plan.epochs} step {step}/{plan.steps_per_epoch}"
        self._show(done, where, self._phase or self._facts(logs, done))

    def data_wait(self, share: float) -> None:
        """Shows a share that is worth a word with the next figures."""
        self._data_wait = share

    def phase(self, text: str) -> None:
        """Shows `text` in place of the figures until the phase ends."""
        self._phase = text

    def epoch(self, record: Mapping[str, Any]) -> None:
        """Shows the line of an epoch."""
        self._phase = ""
        parts = [f"epoch {record['epoch']}/{self._plan.epochs}", f"loss {loss(record['loss'])}"]
        if "val_loss" in record:
            parts.append(f"val_loss {loss(record['val_loss'])}")
        if self._plan.bits:
            shown = record.get("val_loss", record["loss"])
            parts.append(f"{shown / math.log(2):.3f} {self._plan.bits}")
        parts += [
            f"{name} {loss(value)}"
            for name, value in record.items()
            if name.removeprefix("val_") not in ("loss",) and name in record.get("metrics", ())
        ]
        if record["items_per_s"] > 0:
            parts.append(f"{short(record['items_per_s'])} {self._plan.item}/s")
        parts.append(f"{record['seconds']:.0f} s")
        if record["data_wait"] >= _TOLD_WAIT:
            parts.append(f"waited for data {record['data_wait']:.0%} of the time")
        if record.get("best"):
            parts.append("best so far, saved")
        self.message("  ".join(parts))

    def _show(self, done: int, where: str, text: str) -> None:
        """Shows where a run stands after `done` steps, and its figures."""
        raise NotImplementedError

    def _facts(self, logs: Mapping[str, float], done: int) -> str:
        plan = self._plan
        parts = [f"{name} {loss(value)}" for name, value in logs.items()]
        if plan.bits and "loss" in logs:
            parts.insert(1, f"{logs['loss'] / math.log(2):.3f} {plan.bits}")
        if self._rate > 0:
            parts.append(f"{short(self._rate * plan.items_per_step)} {plan.item}/s")
            left = (plan.epochs * plan.steps_per_epoch - done) / self._rate
            if plan.max_seconds is not None:
                left = min(left, max(0.0, plan.max_seconds - (time.perf_counter() - self._began)))
            parts.append(f"{duration(left)} left")
        if self._data_wait >= _TOLD_WAIT:
            parts.append(f"waits for data {self._data_wait:.0%} of the time")
        taken = self._readings.read()
        parts.append(f"{taken['memory_bytes'] / 1e9:.1f} GB  CPU {taken['cpu']:.0%}")
        for number in itertools.takewhile(lambda n: f"gpu{n}_use" in taken, itertools.count()):
            parts.append(f"GPU {taken[f'gpu{number}_use']:.0%}")
        return "  ".join(parts)


class TerminalProgress(Lines):
    """A live progress line on a terminal, or a plain line now and then elsewhere; both on stderr.

    Args:
        every_s: Seconds between two plain lines when stderr is not a terminal.
    """

    def __init__(self, every_s: float = 10.0) -> None:
        self._line = LiveLine()
        self._every_s = every_s

    def start(self, plan: RunPlan) -> None:
        """Opens the progress line."""
        super().start(plan)
        self._last_line = self._began
        if not self._line.on_terminal:
            return
        from rich.progress import BarColumn, TextColumn

        self._line.start(
            TextColumn("{task.fields[where]}"),
            BarColumn(bar_width=20),
            TextColumn("{task.fields[text]}"),
            total=plan.epochs * plan.steps_per_epoch,
            where="compiling",
            text="the first step compiles",
        )

    def phase(self, text: str) -> None:
        """Shows `text` in place of the figures until the phase ends."""
        super().phase(text)
        if text:
            self._line.update(text=text)

    def message(self, text: str) -> None:
        """Prints a sentence above the live line."""
        self._line.print(text)

    def stop(self) -> None:
        """Removes the live line."""
        self._line.stop()

    def _show(self, done: int, where: str, text: str) -> None:
        now = time.perf_counter()
        if self._line.shown:
            self._line.update(completed=done, where=where, text=text)
        elif now - self._last_line >= self._every_s:
            self._last_line = now
            self._line.print(f"{where}  {text}")


class Notebook(Lines):
    """A line in the output of a notebook's cell that is written again and again, and a line that stays an epoch.

    It needs no widgets, and stdout, because notebooks show stderr as if it were errors.
    """

    _width = 0

    def start(self, plan: RunPlan) -> None:
        """Says why nothing is to be seen at first."""
        super().start(plan)
        self._write("the first step compiles")

    def message(self, text: str) -> None:
        """Writes a sentence in place of the line, which goes on below."""
        self._write(text)
        print(flush=True)
        self._width = 0

    def stop(self) -> None:
        """Removes the line."""
        self._write("")
        print("\r", end="", flush=True)

    def _show(self, done: int, where: str, text: str) -> None:
        self._write(f"{where}  {text}")

    def _write(self, text: str) -> None:
        # Blanks cover what the line before had more.
        print("\r" + text.ljust(self._width), end="", flush=True)
        self._width = len(text)
