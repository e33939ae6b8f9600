"""A contestant: a process that takes requests line by line, so that many can take turns in one run.

Every contestant, ours and theirs, starts with the same allocator setting (`ALLOCATORS`), and reports the setting that
it found; a race with different settings ends with an error. A contestant that cannot run is kept with its reason.
"""

import contextlib
import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks import ROOT
from cellerate.observe.bench import process

# "kept" is the setting of Cellerate's own processes (docs/decisions/0004-keep-freed-memory.md); "stock" is the C
# library's default.
ALLOCATORS: Mapping[str, Mapping[str, str]] = {"kept": process.ALLOCATOR, "stock": {}}
ALLOCATOR_WORDS = {"kept": "keeps freed memory", "stock": "as the C library comes"}
# An OpenMP pool spins for this long after its last work, and would slow the next contestant.
SPINNING_S = 0.25


class RefusedError(RuntimeError):
    """A contestant cannot take part; the message is the reason that the record keeps."""


def refusal(error: Exception) -> dict[str, str]:
    """The answer of a contestant that cannot run: the error's message; the traceback goes to stderr.

    The record keeps it: a contestant that cannot run is never dropped silently.
    """
    traceback.print_exception(error)
    words = (str(error).strip().splitlines() or [""])[0]
    return {"refused": f"{type(error).__name__}: {words[:200]}"}


class Process(process.Process):
    """A contestant's process, in the group of the case, so that it ends with the case.

    Args:
        command: The command, run in the folder `ROOT`.
        name: Its name in errors.
        allocator: The setting, of `ALLOCATORS`.
        environment: Further variables.
    """

    def __init__(
        self, command: Sequence[str], name: str, allocator: str = "kept", **environment: str
    ) -> None:
        self.name = name
        variables = as_environment(allocator) | environment
        super().__init__(command, env=variables, cwd=ROOT, start_new_session=False)

    def ask(self, question: Any, limit_s: float | None = None, what: str = "answer") -> Any:
        """Send a question and return the answer; raise like `answer`."""
        self.send(question)
        return self.answer(limit_s, what)

    def answer(self, limit_s: float | None = None, what: str = "answer") -> Any:
        """The next line.

        Raises:
            RefusedError: It takes longer than `limit_s`, and is ended; or it answers that it cannot run.
            RuntimeError: The process ended.
        """
        try:
            found = super().answer(limit_s)
        except process.LateError:
            raise RefusedError(f"did not {what} in {limit_s:g} s") from None
        except process.EndedError as error:
            said = error.said.rstrip()
            print(said, file=sys.stderr)
            *_, last = ["", *said.splitlines()]
            raise RuntimeError(f"{self.name} ended with {error.code}: {last[:200]}") from None
        if isinstance(found, dict) and "refused" in found:
            self.close()
            raise RefusedError(found["refused"])
        return found


def program(module: str, *arguments: str, python: str = sys.executable) -> list[str]:
    """The command that runs a module of the benchmarks as a program, in the folder `ROOT`."""
    return [python, "-m", f"benchmarks.{module}", *arguments]


def result_of(module: str, *arguments: str, environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The JSON in the last line of a benchmark program; if the program fails, the case ends with its message."""
    command = program(module, *arguments)
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment, cwd=ROOT)
    if done.returncode:
        raise SystemExit(f"{module} {arguments[0]}: {done.stderr or done.stdout}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def build(module: str, *arguments: str) -> None:
    """Run a benchmark program that prepares files for contestants, with Keras on JAX."""
    environment = os.environ | {"KERAS_BACKEND": "jax"}
    subprocess.run(program(module, *arguments), check=True, cwd=ROOT, env=environment)


def cellerate(*arguments: Any) -> list[str]:
    """The command `cellerate` of this environment with its arguments."""
    return [str(Path(sys.executable).parent / "cellerate"), *map(str, arguments)]


def report_of(*arguments: Any) -> dict[str, Any]:
    """The JSON printed by a Cellerate command with `--json`."""
    done = subprocess.run(cellerate(*arguments), check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def as_environment(allocator: str) -> dict[str, str]:
    """The variables of this process, with one of `ALLOCATORS` and without settings of another allocator."""
    clean = {key: value for key, value in os.environ.items() if key not in ALLOCATORS["kept"]}
    return clean | {"TF_CPP_MIN_LOG_LEVEL": "3"} | dict(ALLOCATORS[allocator])


def same_allocator(found: Iterable[str], wanted: str = "kept") -> None:
    """Raise `RuntimeError` unless all contestants of a race have their intended allocator setting."""
    if wrong := set(found) - {wanted, "unknown"}:
        raise RuntimeError(
            f"contestants of a race run with the allocator {wrong}; expected {wanted!r} for all"
        )


def two_at_a_time(makers: Sequence[Callable[[], Any]]) -> list[Any]:
    """Start contestants in parallel, because starting takes longer than timing; return the results in order."""
    with ThreadPoolExecutor(2) as pool:
        return [each.result() for each in [pool.submit(make) for make in makers]]


def in_turn(jobs: Iterable[tuple[Any, str]]) -> Iterator[tuple[Any, str]]:
    """Run a turn of each job, a contestant and its work; wait until its threads rest before the next."""
    last = None
    for job in jobs:
        if job[0] != last:
            time.sleep(SPINNING_S)
        last = job[0]
        yield job


@contextlib.contextmanager
def busy_process() -> Iterator[None]:
    """Keep one core busy within a `with`, as a browser does."""
    # It ends with this process, however that ends.
    program = "import os\nparent = os.getppid()\nwhile os.getppid() == parent:\n for _ in range(10**6): pass"
    process = subprocess.Popen([sys.executable, "-c", program])
    try:
        yield
    finally:
        process.kill()
        process.wait()
