"""Run the parts of the GPU suite, each in separate processes that are ended when their time is over.

If a process dies or an item hangs, that item has failed, and another process continues after it. This program does not
touch CUDA: a kernel that hangs blocks every process that waits for it.
"""

import contextlib
import dataclasses
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import ROOT
from benchmarks.gpu.journal import ENDS, Reader, append, journal, log_tail
from benchmarks.gpu.part import ANEW
from benchmarks.processes import program

# The time to load Python and a framework before the first item; between two items it is negligible.
STARTUP_S = 120.0
_POLL_S, _DYING_S, _TELLING_S = 0.05, 3.0, 0.3
Line = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Part:
    """Items that run in one process, or in several.

    Attributes:
        name: The function that returns the items.
        module: The module of that function.
        expected_s: The expected time.
        most_s: The time limit.
        workers: The number of processes that share the items; more than one only if nothing is timed.
        gpu: Whether it needs a GPU.
    """

    name: str
    module: str
    expected_s: float
    most_s: float
    workers: int = 1
    gpu: bool = True


def run(part: Part, folder: Path, seconds: float, tell: Callable[[Line], None]) -> str:
    """Run a part for at most the given seconds.

    Args:
        part: The part.
        folder: The folder of its journal.
        seconds: The time after which all of its processes are killed.
        tell: Called with each new line of the journal.

    Returns:
        The reason why it ended: "done" after its last item.
    """
    began = time.monotonic()
    reader, why = Reader(journal(folder, part.module)), "done"
    reader.lines()  # skip the lines of earlier parts
    workers = [_Worker(part, folder, nth) for nth in range(part.workers)]
    running = list(workers)
    try:
        while running:
            if time.monotonic() - began > seconds:
                why = f"its {seconds:.0f} s were over"
                break
            # This order matters: a process that has ended has written all of its lines.
            codes = [worker.code() for worker in running]
            lines = reader.lines()
            for line in lines:
                tell(line)
            running = [w for w, code in zip(running, codes, strict=True) if w.goes_on(code, lines)]
            time.sleep(_POLL_S if running else 0)
    except BaseException:
        why = "it was interrupted"
        raise
    finally:
        for worker in workers:
            worker.kill()
        lines = reader.lines()
        for worker in running:
            worker.cut(why, lines)
        why = next((worker.broken for worker in workers if worker.broken), why)
        took = time.monotonic() - began
        append(journal(folder, part.module), part=part.name, event="end", reason=why, seconds=took)
        for line in [*lines, *reader.lines()]:
            tell(line)
    return why


class _Worker:
    """The process of a part, and its successors.

    Attributes:
        broken: The reason why no other process continued, if the part is not finished.
    """

    def __init__(self, part: Part, folder: Path, nth: int) -> None:
        self._part, self._folder, self._nth = part, folder, nth
        self.broken: str | None = None
        self._start()

    def _start(self) -> None:
        part = self._part
        of = (str(self._folder.resolve()), str(self._nth), str(part.workers))
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (`kill` closes it)
        # A new session, so that its children end with it.
        self._process = subprocess.Popen(
            program("gpu.part", part.module, part.name, *of),
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._killed = self._came_on = False
        self._item: str | None = None
        self._wait(STARTUP_S)

    def _wait(self, seconds: float) -> None:
        self._limit_s, self._due = seconds, time.monotonic() + seconds

    def code(self) -> int | None:
        """The exit status of the process; None while it runs."""
        return self._process.poll()

    def goes_on(self, code: int | None, lines: list[Line]) -> bool:
        """Check the progress of the process and act on it; return True while more may come.

        Args:
            code: Its exit status, if it has ended.
            lines: The new lines of the journal, at least up to that moment.
        """
        self._follow(lines)
        if code is None and time.monotonic() < self._due:
            return True
        if code is None:
            self._dump_traceback()
            self._failed("Hang", f"it took more than {self._limit_s:g} s")
        elif code not in (0, ANEW):
            how = signal.Signals(-code).name if code < 0 else f"{code}"
            self._failed("Crash", f"the process ended with {how}")
        self.kill()
        # A process that never completes an item would be restarted forever.
        if code == 0 or not self._came_on:
            return False
        self._start()
        return True

    def _follow(self, lines: list[Line]) -> None:
        """Find the current item of the process. Journal lines without a worker are the suite's own."""
        for line in lines:
            if line.get("worker") != self._nth or line["part"] != self._part.name:
                continue
            if line["event"] == "begin":
                self._item = line["item"]
                self._wait(line["limit_s"])
            elif line["event"] in ENDS:
                self._item, self._came_on = None, True
                self._wait(STARTUP_S)

    def _failed(self, kind: str, message: str) -> None:
        """Record the outcome of the current item, or of the part if there is no current item."""
        error = {"type": kind, "message": message, "log": log_tail(self._log.fileno())}
        self._append("failed", error=error)
        if self._item is None and not self._came_on:
            self.broken = message
        self._came_on |= self._item is not None

    def cut(self, why: str, lines: list[Line]) -> None:
        """Record that the current item of a killed process did not end."""
        self._follow(lines)
        if self._item is not None:
            self._append("left out", reason=why)

    def _append(self, event: str, **more: Any) -> None:
        file = journal(self._folder, self._part.module)
        append(file, part=self._part.name, event=event, item=self._item, **more)

    def _dump_traceback(self) -> None:
        """Have the process print its stack."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGUSR1)
            time.sleep(_TELLING_S)

    def kill(self) -> None:
        """End the process and its children, without waiting for one that cannot be killed."""
        if self._killed:
            return
        self._killed = True
        self._log.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_DYING_S)
