"""The display of a run of `optimize`: nothing, or a line for each stage in a terminal.

Stages report facts and leave formatting to a listener, so a notebook or a test can listen too.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from cellerate.listener import Listener
from cellerate.live_line import LiveLine
from cellerate.report.record import StageRecord


class StageListener(Listener):
    """Listens to a run and shows nothing; subclasses override what they want to show."""

    def start(self, stages: Sequence[str], left_s: float) -> None:
        """Called when the run starts or continues, with the stages and the seconds left."""

    def begin(self, title: str) -> None:
        """Called when a stage starts."""

    def notify(self, text: str) -> None:
        """Called with what the stage is doing."""

    def step(self, done: int, total: int, loss: float) -> None:
        """Called after a training step."""

    def end(self, found: StageRecord) -> None:
        """Called when a stage is over."""

    def stop(self) -> None:
        """Called when the run is over, for whatever reason."""


class TerminalListener(StageListener):
    """A live line on a terminal and a line for each stage, both on stderr."""

    def __init__(self) -> None:
        self._line = LiveLine()
        self._number = self._count = 0
        self._title = ""

    def start(self, stages: Sequence[str], left_s: float) -> None:
        """Opens the live line."""
        self._end, self._count = time.perf_counter() + left_s, len(stages)
        if not self._line.on_terminal:
            return
        from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

        self._line.start(SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())

    def begin(self, title: str) -> None:
        """Shows the name of the stage."""
        # A stage whose time was too short may begin a second time.
        self._number = min(self._number + 1, self._count)
        self._title = title
        self._show("")

    def notify(self, text: str) -> None:
        """Shows what the stage is doing."""
        self._show(text)

    def step(self, done: int, total: int, loss: float) -> None:
        """Shows the progress of a training."""
        self._show(f"step {done} of {total}, loss {loss:.4f}")

    def end(self, found: StageRecord) -> None:
        """Prints the line of a finished stage, which stays on the screen."""
        mark = {"done": "+" if found.kept else "=", "failed": "!", "skipped": "."}[found.status]
        reason = found.decision or found.reason
        self.message(f" {mark} {found.title} ({found.seconds:.0f} s): {reason}")

    def message(self, text: str) -> None:
        """Prints a sentence above the live line."""
        self._line.print(text)

    def stop(self) -> None:
        """Removes the live line."""
        self._line.stop()

    def _show(self, text: str) -> None:
        if not self._line.shown:
            return
        left = max(0.0, self._end - time.perf_counter())
        where = f"{self._number}/{self._count} {self._title}" + (f": {text}" if text else "")
        from rich.markup import escape

        self._line.update(description=escape(f"{where}  ({left:.0f} s of the budget left)"))
