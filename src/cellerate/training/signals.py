"""Ctrl-C and SIGTERM while a model trains."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

from cellerate.training.callbacks import Conductor
from cellerate.training.telemetry import Display


@contextlib.contextmanager
def stop_signals(conductor: Conductor, display: Display) -> Iterator[None]:
    """Makes the first Ctrl-C or SIGTERM finish the step and save; the second stops at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: FrameType | None) -> None:
        if conductor.stop_requested:
            display.end_at_once()
        conductor.stop_requested = True
        display.message(
            "Stopping after this step; once more stops at once and loses the steps since the last save."
        )

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
