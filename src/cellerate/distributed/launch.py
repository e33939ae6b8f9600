"""Starts the processes of a group on this machine, and ends them all if one fails."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import IO, Any

from cellerate.distributed.group import Membership
from cellerate.errors import ConfigError
from cellerate.format import counted
from cellerate.machine.environment import LAUNCHED_VARIABLE, PROBE_VARIABLE, processors
from cellerate.machine.gpu import facts
from cellerate.messages import argument

BEGIN = (sys.executable, "-S", str(Path(__file__).with_name("begin.py")))
# How long the others may still take once one has failed: they wait for it, and notice sooner or later.
_GRACE_S = 5.0
_LOOK_EVERY_S = 0.05
# More only take memory from each other.
_PROCESSES_A_PROCESSOR = 8
# How much of what a process said last is repeated.
_TOLD_BYTES = 4000


def launch(
    command: Sequence[str],
    count: int,
    extra: Mapping[str, str] | None = None,
    *,
    parts: int | None = None,
    gpus: bool = True,
) -> int:
    """Runs a command in `count` processes and waits for them; each learns its place from its environment.

    The first has the terminal, and what it says is what the command says. Of another one, what it said last is shown if
    it failed first. Each has its share of this machine's processors, and a GPU of its own if there are any.
    Ctrl-C and SIGTERM go to all of them.

    Args:
        command: The command.
        count: How many processes.
        extra: Further variables for their environment.
        gpus: Whether they compute on GPUs, if there are any.
        parts: Into how many parts this machine's processors are divided, one for each process; None for `count`.

    Returns:
        The exit code: that of the process that failed first, or 0.

    Raises:
        ConfigError: There are GPUs, but fewer than processes; or far more processes than processors.
    """
    if count > (most := _PROCESSES_A_PROCESSOR * processors()):
        raise ConfigError(
            f"{count:,} processes are too many for this machine, which has {counted(processors(), 'processor')}: one "
            f"for each is the most that pays, and {most} are allowed."
        )
    port = free_port()
    with contextlib.ExitStack() as opened:
        logs = [opened.enter_context(tempfile.TemporaryFile()) for _ in range(count - 1)]
        started: list[subprocess.Popen[bytes]] = []
        try:
            for number in range(count):
                place = Membership(number, count, f"127.0.0.1:{port}") if count > 1 else None
                started.append(
                    subprocess.Popen(  # noqa: S603 (the user's own command, or a part of it)
                        [*BEGIN, str(os.getpid()), _processors_of(number, parts or count), *command],
                        env={
                            **os.environ,
                            LAUNCHED_VARIABLE: "1",
                            **(extra or {}),
                            **(place.environment() if place else {}),
                            **(_gpu_of(number, count) if gpus else {}),
                        },
                        stdin=None if number == 0 else subprocess.DEVNULL,
                        stdout=None if number == 0 else subprocess.DEVNULL,
                        stderr=None if number == 0 else logs[number - 1],
                        # Ctrl-C in a terminal reaches the whole group of processes, and each would hear of it twice.
                        start_new_session=True,
                    )
                )
            with _passed_on(started):
                failed = _first_failure(started)
        finally:
            for process in started:
                process.kill()
                process.wait()
        if failed is None:
            return 0
        number, code = failed
        # Process 0 has said itself why it failed, unless a signal ended it.
        if number or code < 0:
            _repeat(number, code, logs[number - 1] if number else None)
        return code if code > 0 else 128 - code


def probe(run: Callable[[int, Mapping[str, str]], int], count: int, folder: Path) -> str:
    """Times a few steps of a training in one process and in several.

    Args:
        run: Runs the training in a number of processes, with variables for their environment; gives its exit code.
        count: How many processes.
        folder: A folder that the processes can write into, wherever they run.

    Returns:
        What was found, in words.

    Raises:
        ConfigError: Several processes are no faster.
        SystemExit: The training itself fails; it has said why.
    """
    alone, together = (_step_seconds(run, each, folder) for each in (1, count))
    gain = alone / together
    found = (
        f"a step takes {1e3 * alone:.3g} ms in one process and {1e3 * together:.3g} ms in {count}: {gain:.2f} times as "
        f"fast, an efficiency of {gain / count:.0%}"
    )
    if gain <= 1:
        raise ConfigError(
            f"{found}. Train in one process, or with a larger batch; {argument('probe', False)} trains in {count} "
            "all the same."
        )
    return found


def _step_seconds(run: Callable[[int, Mapping[str, str]], int], count: int, folder: Path) -> float:
    with tempfile.TemporaryDirectory(prefix=".cellerate-probe-", dir=folder) as made:
        result = Path(made).absolute() / "probe.json"
        code = run(count, {PROBE_VARIABLE: json.dumps({"result": str(result), "shares": [1]})})
        if code or not result.exists():
            raise SystemExit(code or 1)
        return float(json.loads(result.read_text())["step_s"]["1"])


def _first_failure(started: Sequence[subprocess.Popen[bytes]]) -> tuple[int, int] | None:
    """Waits for all processes; returns the number and exit code of the first that failed. The others then soon end."""
    failed: tuple[int, int] | None = None
    deadline = float("inf")
    while True:
        codes = [process.poll() for process in started]
        ended = [(number, code) for number, code in enumerate(codes) if code]
        if failed is None and ended:
            # If several ended since the last look, prefer one that a signal ended: it did not fail because of another.
            failed = min(ended, key=lambda one: one[1] > 0)
            deadline = time.monotonic() + _GRACE_S
        if None not in codes or time.monotonic() >= deadline:
            break
        time.sleep(_LOOK_EVERY_S)
    # If process 0 failed with the same code, name it, because its message has been shown already.
    return (0, failed[1]) if failed is not None and (0, failed[1]) in ended else failed


@contextlib.contextmanager
def _passed_on(started: Sequence[subprocess.Popen[bytes]]) -> Iterator[None]:
    """Passes Ctrl-C and SIGTERM on to all processes, which end by themselves."""

    def pass_on(number: int, frame: FrameType | None) -> None:
        for process in started:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)

    before: dict[int, Any] = {
        number: signal.signal(number, pass_on) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _repeat(number: int, code: int, log: IO[bytes] | None) -> None:
    """Shows how a process failed, and its last output, if it has a log."""
    said = ""
    if log is not None:
        size = log.seek(0, os.SEEK_END)
        log.seek(max(0, size - _TOLD_BYTES))
        said = log.read().decode(errors="replace").strip()
    how = f"ended with exit code {code}" if code > 0 else f"was ended by {signal.Signals(-code).name}"
    how += " (as the system does if the memory is full)" * (code == -signal.SIGKILL)
    print(f"process {number} {how}{':' if said else ''}\n{said}".strip(), file=sys.stderr)


def _processors_of(number: int, count: int) -> str:
    """A process's share of the processors; empty if there are more processes than processors, which then share all."""
    if not hasattr(os, "sched_getaffinity") or count > processors():
        return ""
    known = sorted(os.sched_getaffinity(0))
    share = known[len(known) * number // count : len(known) * (number + 1) // count]
    return ",".join(map(str, share))


def _gpu_of(number: int, count: int) -> dict[str, str]:
    """The environment variable that limits a process to its own GPU; nothing without GPUs.

    Raises:
        ConfigError: There are GPUs, but fewer than processes.
    """
    if count == 1:
        return {}
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = visible.split(",") if visible else [str(gpu) for gpu in range(len(facts().devices))]
    if 0 < len(names) < count:
        raise ConfigError(
            f"{count} processes need a GPU each, and this machine has {len(names)}: ask for {len(names)} processes, or "
            "hide the GPUs (CUDA_VISIBLE_DEVICES=)."
        )
    return {"CUDA_VISIBLE_DEVICES": names[number]} if names else {}


def free_port() -> int:
    """A free port of this machine."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
