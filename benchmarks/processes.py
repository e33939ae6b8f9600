"""A contestant: a process that is told what to do next, line by line, so that many can take turns in one run.

Every contestant of a contest, ours and theirs, starts with the same allocator setting (`ALLOCATORS`), and says which
one it found; a race in which they differ ends with an error. A contestant that cannot run is kept with its reason.
"""

import contextlib
import json
import os
import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from benchmarks import ROOT

# "kept" is what Cellerate sets in its own processes (docs/decisions/0004-keep-freed-memory.md), here given to all by
# the variables that any user can set; "stock" is the C library as it comes.
ALLOCATORS: Mapping[str, Mapping[str, str]] = {
    "kept": {
        "MALLOC_MMAP_MAX_": "0",
        "MALLOC_TRIM_THRESHOLD_": str(2**31 - 1),
        "MALLOC_TOP_PAD_": str(64 << 20),
        "MALLOC_ARENA_MAX": "1",
    },
    "stock": {},
}
ALLOCATOR_WORDS = {"kept": "keeps freed memory", "stock": "as the C library comes"}
# A pool of OpenMP threads spins for so long after its last work, and would slow the next contestant.
SPINNING_S = 0.25


class RefusedError(RuntimeError):
    """A contestant cannot take part; the message is the reason that the record keeps."""


class Process:
    """A contestant's process: a line of JSON in, a line of JSON out.

    Args:
        command: What to start.
        name: How errors call it.
        allocator: Of `ALLOCATORS`.
        environment: More variables.
    """

    def __init__(
        self, command: Sequence[str], name: str, allocator: str = "kept", **environment: str
    ) -> None:
        self.name = name
        given = as_environment(allocator) | environment
        # Frameworks say much at their start; it is shown where a contestant ends.
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 (`close` closes it)
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._said, env=given, cwd=ROOT
        )
        self._buffer = b""

    def ask(self, question: Any, limit_s: float | None = None, what: str = "answer") -> Any:
        """Send a question and give the answer.

        Raises:
            RefusedError: It takes longer than `limit_s`, and is ended; or it says why it cannot.
            RuntimeError: The process ended.
        """
        assert self._process.stdin
        with contextlib.suppress(BrokenPipeError):  # `answer` says how it ended
            self._process.stdin.write((json.dumps(question) + "\n").encode())
            self._process.stdin.flush()
        return self.answer(limit_s, what)

    def answer(self, limit_s: float | None = None, what: str = "answer") -> Any:
        """The next line; raises as `ask` does."""
        assert self._process.stdout
        end = None if limit_s is None else time.monotonic() + limit_s
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                left = None if end is None else max(0.0, end - time.monotonic())
                if not selector.select(left):
                    self.close(kill=True)
                    raise RefusedError(f"did not {what} in {limit_s:g} s")
                read = os.read(self._process.stdout.fileno(), 1 << 16)
                if not read:
                    code = self._process.wait()
                    self._said.seek(0)
                    said = self._said.read().decode(errors="replace").rstrip()
                    print(said, file=sys.stderr)
                    *_, last = ["", *said.splitlines()]
                    raise RuntimeError(f"{self.name} ended with {code}: {last[:200]}")
                self._buffer += read
        line, _, self._buffer = self._buffer.partition(b"\n")
        found = json.loads(line)
        if isinstance(found, dict) and "refused" in found:
            self.close()
            raise RefusedError(found["refused"])
        return found

    def close(self, *, kill: bool = False) -> None:
        """End the process, if it has not ended."""
        assert self._process.stdin and self._process.stdout
        if kill:
            self._process.kill()
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()
        self._said.close()


def program(module: str, *arguments: str, python: str = sys.executable) -> list[str]:
    """The command that runs a module of the benchmarks as a program, in the folder `ROOT`."""
    return [python, "-m", f"benchmarks.{module}", *arguments]


def result_of(module: str, *arguments: str, environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The JSON in the last line that a program of the benchmarks prints; if it fails, the case ends with its words."""
    command = program(module, *arguments)
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment, cwd=ROOT)
    if done.returncode:
        raise SystemExit(f"{module} {arguments[0]}: {done.stderr or done.stdout}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def as_environment(allocator: str) -> dict[str, str]:
    """The variables of this process, with one of `ALLOCATORS` and without what somebody set of another."""
    clean = {key: value for key, value in os.environ.items() if key not in ALLOCATORS["kept"]}
    return clean | {"TF_CPP_MIN_LOG_LEVEL": "3"} | dict(ALLOCATORS[allocator])


def same_allocator(found: Iterable[str], wanted: str = "kept") -> None:
    """Raise `RuntimeError` unless all contestants of a race found the allocator setting that they were to get."""
    if wrong := set(found) - {wanted, "unknown"}:
        raise RuntimeError(
            f"contestants of a race run with the allocator {wrong}; expected {wanted!r} for all"
        )


def two_at_a_time(makers: Sequence[Callable[[], Any]]) -> list[Any]:
    """Start contestants, which takes longer than to time them; the results in order."""
    with ThreadPoolExecutor(2) as pool:
        return [each.result() for each in [pool.submit(make) for make in makers]]
