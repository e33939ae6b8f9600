"""Asks processes that only measure, such as `probe_process`, and ends them in time.

This module runs in the main process, so it imports nothing that measures.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from cellerate import errors
from cellerate.data.settings import TableOptions
from cellerate.errors import CellerateError
from cellerate.messages import from_json
from cellerate.tasks.settings import ReadingOptions

PATIENCE_S = 600.0
"""The seconds that an answer may take even if less time is left, because every run reaches the verdict."""


class ProbeError(CellerateError):
    """A question got no answer.

    Attributes:
        memory: Whether memory ran out.
        kind: The name of the error if it is one of Cellerate's; else "".
    """

    def __init__(self, message: str, *, memory: bool, kind: str = "") -> None:
        super().__init__(message)
        self.memory, self.kind = memory, kind

    @property
    def original(self) -> CellerateError | None:
        """The error of the process in its own class, if it is one of Cellerate's."""
        kind = getattr(errors, self.kind, None) if self.kind else None
        if isinstance(kind, type) and issubclass(kind, CellerateError):
            return kind(self.args[0])
        return None


class MeasuringProcess:
    """A child process that measures; it answers one question per line.

    Args:
        module: The module that the process runs, which calls `probe_process.answer_questions`.
        opened: The arguments of opening, which the process does before the first question, as JSON.
        backend: The Keras backend.
        patience_s: How long to wait for an answer.
        environment: Environment variables to add to those of this process; None removes a variable.

    Attributes:
        patience_s: The argument; it may be changed before a question.
    """

    def __init__(
        self,
        module: str,
        opened: Mapping[str, Any],
        *,
        backend: str,
        patience_s: float = PATIENCE_S,
        environment: Mapping[str, str | None] | None = None,
    ) -> None:
        self.patience_s = patience_s
        self._module, self._opened = module, dict(opened)
        # By default a framework takes most of a GPU's memory when it starts, but several processes share the GPU.
        shared = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "TF_FORCE_GPU_ALLOW_GROWTH": "true"}
        own = {"KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
        merged = shared | dict(os.environ) | own | dict(environment or {})
        self._environment = {name: value for name, value in merged.items() if value is not None}
        # Everything to close, registered at once: Ctrl-C may come while the process starts.
        self._held = contextlib.ExitStack()

    def __enter__(self) -> Self:
        self.start()
        return self

    def start(self) -> None:
        """Starts the process."""
        self._stderr = self._held.enter_context(tempfile.TemporaryFile())  # noqa: SIM115 (`close` closes it)
        self._process = subprocess.Popen(  # noqa: S603 (our own interpreter)
            [sys.executable, "-m", self._module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            text=True,
            env=self._environment,
            # Ctrl-C must reach only this process, which then ends the other.
            start_new_session=True,
        )
        self._held.callback(self._end)
        self._answers: queue.Queue[str] = queue.Queue()
        threading.Thread(
            target=_listen, args=(self._process, self._answers), name="cellerate-probe", daemon=True
        ).start()

    @property
    def has_ended(self) -> bool:
        """True if the process has ended, so that everything it had prepared is lost."""
        return self._process.poll() is not None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the process, if there is one."""
        self._held.close()

    def _end(self) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            # A pipe to a dead process cannot be flushed.
            with contextlib.suppress(OSError):
                stream.close()  # type: ignore[union-attr]

    def ask(self, kind: str, *, timeout_s: float | None = None, **options: Any) -> Any:
        """Ask a question; restart the process first if the previous question killed it.

        Args:
            kind: A kind of question that `probe_process` knows.
            timeout_s: How long to wait; None for `patience_s`.
            options: The arguments of the question.

        Raises:
            ProbeError: The question failed or took too long, or the process ended.
        """
        self.tell(kind, **options)
        return self.answer(timeout_s)

    def tell(self, kind: str, **options: Any) -> None:
        """Send a question without waiting for its answer, so that several processes can get ready at once."""
        if self.has_ended:
            self.close()
            self.start()
        assert self._process.stdin is not None  # noqa: S101 (it is a pipe)
        # If the process has just ended, `answer` raises the error.
        with contextlib.suppress(OSError):
            self._process.stdin.write(json.dumps({**self._opened, "kind": kind, "with": options}) + "\n")
            self._process.stdin.flush()

    def answer(self, timeout_s: float | None = None) -> Any:
        """Wait for the answer to the question that `tell` sent; arguments and errors as for `ask`."""
        timeout_s = self.patience_s if timeout_s is None else timeout_s
        try:
            line = self._answers.get(timeout=timeout_s)
        except queue.Empty:
            # A late answer would be taken for the answer to the next question.
            self._process.kill()
            self._process.wait()
            raise ProbeError(f"it took more than {timeout_s:.0f} s", memory=False) from None
        if not line:
            raise self._ended()
        answer = json.loads(line)
        if "error" in answer:
            raise ProbeError(from_json(answer["error"]), memory=answer["memory"], kind=answer.get("kind", ""))
        return answer["answer"]

    def _ended(self) -> ProbeError:
        code = self._process.wait()
        if code == -9:
            return ProbeError("the system ended the process: the machine had no memory left", memory=True)
        self._stderr.seek(0)
        lines = self._stderr.read()[-4000:].decode(errors="replace").strip().splitlines()
        memory = any("MemoryError" in line or "out of memory" in line.lower() for line in lines)
        return ProbeError(
            f"the process ended with {code}: {(lines or ['no message'])[-1]:.300}", memory=memory
        )


class Probe(MeasuringProcess):
    """A process that has opened a model and its data.

    Args:
        model: The model's file.
        data: The data of its task.
        seed: The seed of everything random.
        reading: Options of reading tables that differ from the training.
        table: The format of tables, where it cannot be detected.
        backend: The Keras backend.
        patience_s: How long to wait for an answer.

    Example:
        >>> with Probe(Path("book.keras"), ["book.txt"], seed=0, backend="jax") as probe:
        ...     probe.ask("judge", part="validation")
    """

    def __init__(
        self,
        model: Path,
        data: Sequence[str | Path],
        *,
        seed: int,
        backend: str,
        reading: ReadingOptions = ReadingOptions(),  # noqa: B008 (frozen)
        table: TableOptions = TableOptions(),  # noqa: B008 (frozen)
        patience_s: float = PATIENCE_S,
    ) -> None:
        opened = {
            "model": str(model),
            "data": [str(path) for path in data],
            "seed": seed,
            "reading": vars(reading),
            "table": vars(table),
        }
        super().__init__(
            "cellerate.optimization.probe_process", opened, backend=backend, patience_s=patience_s
        )


def _listen(process: subprocess.Popen[str], answers: queue.Queue[str]) -> None:
    assert process.stdout is not None  # noqa: S101 (it is a pipe)
    with contextlib.suppress(ValueError):  # closed while being read
        for line in process.stdout:
            answers.put(line)
    answers.put("")
