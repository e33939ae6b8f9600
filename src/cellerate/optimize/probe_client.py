"""Asks the process of `probe`, and ends it in time.

A module of its own, apart from the program that it starts, because it runs here: it imports nothing that measures.
"""

import contextlib
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from cellerate.errors import CellerateError

PATIENCE_S = 600.0
"""What one answer may take, however little time is left: the verdict is always reached."""


class ProbeError(CellerateError):
    """A question had no answer.

    Attributes:
        memory: Whether there was not enough memory.
    """

    def __init__(self, message: str, *, memory: bool) -> None:
        super().__init__(message)
        self.memory = memory


class Probe:
    """A process that has opened a model and its data.

    Args:
        model: The model's file.
        data: Of its task.
        seed: Of everything that is drawn.
        backend: The Keras backend.
        patience_s: How long to wait for an answer.

    Example:
        >>> with Probe(Path("book.keras"), ["book.txt"], seed=0, backend="jax") as probe:
        ...     probe.ask("judge")
    """

    def __init__(
        self,
        model: Path,
        data: Sequence[str | Path],
        *,
        seed: int,
        backend: str,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._patience_s = patience_s
        self._opened = {"model": str(model), "data": [str(path) for path in data], "seed": seed}
        self._environment = os.environ | {"KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"}

    def __enter__(self) -> "Probe":
        self._start()
        return self

    def _start(self) -> None:
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 (`_end` closes it)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "cellerate.optimize.probe_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            text=True,
            env=self._environment,
            # A Ctrl-C is for this process, which then ends that one.
            start_new_session=True,
        )
        self._answers: queue.Queue[str] = queue.Queue()
        threading.Thread(
            target=_listen, args=(self._process, self._answers), name="cellerate-probe", daemon=True
        ).start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _end(self) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            # What was written to a process that has ended stays unwritten.
            with contextlib.suppress(OSError):
                stream.close()  # type: ignore[union-attr]
        self._stderr.close()

    def ask(self, kind: str, *, timeout_s: float | None = None, **options: Any) -> Any:
        """Asks a question; a process that the one before has cost its life is started anew.

        Args:
            kind: What: the name of one of the program's.
            timeout_s: How long to wait; None for as long as for any.
            options: Of the question.

        Raises:
            ProbeError: It failed, it took too long, or the process ended.
        """
        timeout_s = self._patience_s if timeout_s is None else timeout_s
        if self._process.poll() is not None:
            self._end()
            self._start()
        try:
            assert self._process.stdin is not None  # noqa: S101 (it is a pipe)
            self._process.stdin.write(json.dumps({**self._opened, "kind": kind, "with": options}) + "\n")
            self._process.stdin.flush()
            line = self._answers.get(timeout=timeout_s)
        except queue.Empty:
            # Its answer, when it comes, would be taken for that of the next question.
            self._process.kill()
            self._process.wait()
            raise ProbeError(f"it took more than {timeout_s:.0f} s", memory=False) from None
        except OSError:
            line = ""
        if not line:
            raise self._ended()
        answer = json.loads(line)
        if "error" in answer:
            raise ProbeError(answer["error"], memory=answer["memory"])
        return answer["answer"]

    def _ended(self) -> ProbeError:
        code = self._process.wait()
        if code == -9:
            return ProbeError("the system ended the process: it had no memory left", memory=True)
        self._stderr.seek(0)
        told = self._stderr.read()[-4000:].decode(errors="replace").strip().splitlines()
        memory = any("MemoryError" in line or "out of memory" in line.lower() for line in told)
        return ProbeError(
            f"the process ended with {code}: {(told or ['no message'])[-1]:.300}", memory=memory
        )


def _listen(process: subprocess.Popen[str], answers: "queue.Queue[str]") -> None:
    assert process.stdout is not None  # noqa: S101 (it is a pipe)
    with contextlib.suppress(ValueError):  # closed while it was read
        for line in process.stdout:
            answers.put(line)
    answers.put("")
