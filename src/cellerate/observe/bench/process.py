"""Runs a contestant: starts its process, sends it requests one by one, and ends it.

All contestants, ours and theirs, start with the same allocator setting and without a GPU. One that ends early or takes
too long does not fail the run: the reason is kept and shown.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any, cast

from cellerate.errors import BackendError, ConfigError
from cellerate.observe.bench.cases import Contestant
from cellerate.observe.bench.contestant import PROTOCOL

ALLOCATOR: Mapping[str, str] = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(2**31 - 1),
    "MALLOC_TOP_PAD_": str(64 << 20),
    "MALLOC_ARENA_MAX": "1",
}
"""The settings of Cellerate's own processes (`keep_freed_memory`), given to all by variables that any user can set."""
_ALONE: Mapping[str, str] = {
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "CUDA_VISIBLE_DEVICES": "",
    "JAX_PLATFORMS": "cpu",
}
_PROGRAM = "cellerate.observe.bench.contestant"
_REASON = 300  # characters
_PATIENCE_S = 60.0


def command_of(one: Contestant, request: Mapping[str, Any]) -> list[str]:
    """The command of a contestant: our own program, which finds no modules in the working folder."""
    said = json.dumps({"contestant": one.name, **request})
    return [one.python or sys.executable, "-P", "-m", _PROGRAM, said]


def check_other(python: str) -> None:
    """Raises `ConfigError` unless an interpreter has a Cellerate that this one can measure."""
    program = f"from {_PROGRAM} import PROTOCOL; print(PROTOCOL)"
    try:
        found = subprocess.run(  # noqa: S603 (the interpreter that the user named)
            [python, "-P", "-c", program], capture_output=True, text=True, timeout=_PATIENCE_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"{python} cannot be run as an interpreter of Python: {error}.") from error
    if found.returncode or found.stdout.strip() != str(PROTOCOL):
        *_, last = ["", *found.stderr.strip().splitlines()]
        raise ConfigError(
            f"{python} has no Cellerate whose `bench` fits this one{f' ({last})' if last else ''}: give the "
            "interpreter of an environment with a version that has it, such as old/bin/python."
        )


class LateError(BackendError):
    """A contestant took too long."""


class EndedError(BackendError):
    """A contestant's process ended.

    Attributes:
        code: Its exit status.
        said: The text that it wrote.
    """

    def __init__(self, code: int, said: str) -> None:
        super().__init__(_reason(said) or f"it ended with {code} and said nothing")
        self.code, self.said = code, said


class Process:
    """A contestant's process: a line of JSON in, a line of JSON out.

    Args:
        command: The command of the process.
        options: Options of `subprocess.Popen` that replace those of our own contestants.
    """

    def __init__(self, command: Sequence[str], **options: Any) -> None:
        # Ctrl-C must reach this process alone, which then ends its contestants.
        ours: dict[str, Any] = {"env": {**os.environ, **ALLOCATOR, **_ALONE}, "start_new_session": True}
        # Frameworks print much at their start; it is only read if the contestant ends.
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 (`close` closes it)
        try:
            with _later_interrupt():
                self._process = subprocess.Popen(  # noqa: S603 (our own program)
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=self._said,
                    **(ours | options),
                )
                # Ends a process that nothing closes, too, because Ctrl-C came before it was stored.
                self._kill = weakref.finalize(self, _kill, self._process)
        except BaseException:
            if hasattr(self, "_kill"):
                self._kill()
            self._said.close()
            raise
        self._questions = cast(IO[bytes], self._process.stdin)
        self._answers = cast(IO[bytes], self._process.stdout)
        self._buffer = b""

    def ask(self, question: Any, limit_s: float | None = None) -> Any:
        """Send a question and return the answer; raises as `answer` does."""
        self.send(question)
        return self.answer(limit_s)

    def send(self, question: Any) -> None:
        """Sends a question."""
        with contextlib.suppress(BrokenPipeError):  # `answer` says how it ended
            self._questions.write((json.dumps(question) + "\n").encode())
            self._questions.flush()

    def answer(self, limit_s: float | None = None) -> Any:
        """Return the next answer.

        Args:
            limit_s: The seconds to wait; None for no limit.

        Raises:
            LateError: No line came in time; the process is closed.
            EndedError: The process ended; it is closed, and the message says why.
        """
        end = time.monotonic() + (limit_s or 0.0)
        with selectors.DefaultSelector() as selector:
            selector.register(self._answers, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                if not selector.select(None if limit_s is None else max(0.0, end - time.monotonic())):
                    self.close()
                    raise LateError(f"it was not ready in {limit_s:g} s")
                read = os.read(self._answers.fileno(), 1 << 16)
                if not read:
                    code = self._process.wait()
                    self._said.seek(0)
                    said = self._said.read().decode(errors="replace")
                    self.close()
                    raise EndedError(code, said)
                self._buffer += read
        line, _, self._buffer = self._buffer.partition(b"\n")
        return json.loads(line)

    def close(self) -> None:
        """End the process and its children, if they run."""
        self._kill()
        with contextlib.suppress(BrokenPipeError):
            self._questions.close()
        self._answers.close()
        self._said.close()


def _reason(said: str) -> str:
    """The error that a process ended with: the first line below the last traceback, or the last line that it wrote."""
    _, found, last = said.rpartition("Traceback (most recent call last):\n")
    lines = [line for line in last.splitlines() if line.strip()]
    own = [line for line in lines if re.match(r"[\w.]+(: |$)", line)] if found else lines[-1:]
    # Without the modules before the name of the error.
    return re.sub(r"^(\w+\.)+(?=\w+(: |$))", "", own[0])[:_REASON] if own else ""


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End a process and its children, if they run."""
    if process.poll() is None:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:  # it does not yet lead a group
            process.kill()
        process.wait()


@contextlib.contextmanager
def _later_interrupt() -> Iterator[None]:
    """Delay Ctrl-C: if it came while a process starts, nothing would end the process."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if came:
            signal.raise_signal(signal.SIGINT)
