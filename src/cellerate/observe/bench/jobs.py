"""A job: one piece of timed work of a contestant, and the error of its result."""

from __future__ import annotations

import collections
import time
from collections.abc import Callable
from typing import Any, NamedTuple

Settings = dict[str, Any]
"""The task of a contestant; see `contestant`."""


_KEPT = 8


class Job(NamedTuple):
    """A piece of work.

    Attributes:
        work: The work of the case: "training", "1 row", "32 rows", "one stream".
        call: The timed call, in words.
        precision: The precision of the weights and their products: "float32" or "int8".
        ways: The ways to run the job, such as numbers of threads, each with a function that runs it a number of times
            and returns the seconds of each call. The fastest way is timed.
        error: Returns the error of a way against float64; called before anything is timed.
        items: Characters of a call.
        anew: True if the work is built again for each turn (`timed_anew`), so that it can have many short turns.
    """

    work: str
    call: str
    precision: str
    ways: dict[str, Callable[[int], list[float]]]
    error: Callable[[str], float]
    items: int
    anew: bool = False


def timed(work: Callable[[], object]) -> Callable[[int], list[float]]:
    """Return a function that runs work a number of times and returns the seconds of each; the work must block."""

    def run(count: int) -> list[float]:
        # Others ran meanwhile: the first call finds the caches cold and the threads asleep.
        work()
        seconds = []
        for _ in range(count):
            start = time.perf_counter()
            work()
            seconds.append(time.perf_counter() - start)
        return seconds

    return run


def timed_anew(make: Callable[[], Callable[[], object]]) -> Callable[[int], list[float]]:
    """As `timed`, for work that is rebuilt for each turn.

    The place of a small model's weights in memory makes its steps up to 10 % faster or slower for the life of the
    process. A turn on other memory replaces a turn in another process, at a fraction of the time to start one.
    """
    # While the old work is held, the next gets other memory.
    kept: collections.deque[Callable[[], object]] = collections.deque(maxlen=_KEPT)

    def run(count: int) -> list[float]:
        kept.append(make())
        return timed(kept[-1])(count)

    return run
