"""The calls that a runtime offers for the model of the generation contest, timed and checked."""

import functools
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from benchmarks.generation.peers import (
    TEXT,
    Job,
    clocked,
    error_of,
    error_of_loop,
    in_chunks,
    one_by_one,
    read,
)

THREADS = (1, 2)
Jobs = tuple[dict[str, Job], dict[str, Any]]


class Ways(NamedTuple):
    """The calls of a runtime with one precision and number of threads.

    Attributes:
        step: ids (1,), h, c → logits (1, V), h, c.
        sequence: ids (T,), the next ids (T,) → the sum of their log-likelihoods, from a state of zeros.
        loop: h, c → `CHUNK` ids drawn by the graph itself, h, c.
    """

    step: Callable[..., Any] | None = None
    sequence: Callable[..., Any] | None = None
    loop: Callable[..., Any] | None = None


def jobs_of(ways: dict[str, dict[int, Ways]], truth: Any, about: dict[str, Any]) -> Jobs:
    """The jobs of each precision with its faster number of threads on this machine, and their errors.

    Args:
        ways: The calls, by precision and number of threads.
        truth: The results in float64.
        about: Receives "errors", "ways" and "about_s", the rough time of a character.
    """
    jobs: dict[str, Job] = {}
    about |= {"errors": {}, "ways": {}, "about_s": {}}
    zeros = [np.zeros((1, truth["h"].size), np.float32)] * 2
    for precision, by_threads in ways.items():
        found: dict[str, dict[int, Job]] = {}
        for threads, way in by_threads.items():
            for kind, job in _jobs(way, truth, zeros).items():
                found.setdefault(kind, {})[threads] = job
        for kind, choices in found.items():
            name = f"{kind} {precision}"
            quick = {threads: _seconds(job) for threads, job in choices.items()}
            threads = min(quick, key=quick.__getitem__)
            jobs[name], about["about_s"][name] = choices[threads], quick[threads]
            about["ways"][name] = f"{threads} thread{'s' * (threads > 1)}"
            about["errors"][name] = _error(kind, by_threads[threads], truth, zeros)
    return jobs, about


def _jobs(ways: Ways, truth: Any, zeros: list[Any]) -> dict[str, Job]:
    jobs: dict[str, Job] = {}
    if ways.step:
        jobs["logits"] = functools.partial(one_by_one, ways.step, zeros, False)
        jobs["draw"] = functools.partial(one_by_one, ways.step, zeros, True)
    if ways.sequence:
        jobs["sequence"] = functools.partial(
            sequences, functools.partial(ways.sequence, truth["text"][:-1], truth["text"][1:])
        )
    if ways.loop:
        jobs["loop"] = clocked(functools.partial(in_chunks, ways.loop, zeros))
    return jobs


def sequences(judge: Callable[[], Any], count: int) -> tuple[list[float], int]:
    """Score the text until `count` characters are scored; return the seconds and characters of each call."""
    seconds = []
    for _ in range(max(1, count // TEXT)):
        start = time.perf_counter()
        judge()
        seconds.append(time.perf_counter() - start)
    return seconds, TEXT


def _seconds(job: Job) -> float:
    """The seconds of a character in the fastest of a few short turns."""
    seconds, made = job(16)
    # Fewer characters are enough to time a slow one.
    count = max(16, min(400, round(0.1 * made / min(seconds))))
    return min(min(job(count)[0]) / made for _ in range(3))


def _error(kind: str, ways: Ways, truth: Any, zeros: list[Any]) -> float:
    if kind == "sequence":
        assert ways.sequence
        found = ways.sequence(truth["text"][:-1], truth["text"][1:])
        return error_of(np.asarray(found, np.float64).reshape(()), truth["likelihood"])
    assert ways.step
    if kind == "loop":
        assert ways.loop
        return error_of_loop(ways.loop, ways.step, zeros)
    return error_of(np.asarray(read(ways.step, truth["ids"], zeros)[0])[0], truth["logits"])
