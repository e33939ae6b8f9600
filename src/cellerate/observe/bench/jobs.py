"""A job: one piece of work that a contestant is timed at, and how far its result is from the truth."""

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
        work: Which of the case's works it is: "training", "1 row", "32 rows", "one stream".
        call: What the timed call is, in words.
        precision: Of the weights and their products: "float32" or "int8".
        ways: The ways in which it can be run, such as numbers of threads, each with what runs it so many times and
            gives the seconds of each call. The fastest is timed.
        error: How far the result is from float64, of a way; run before anything is timed.
        items: Characters of a call.
        anew: Whether what is run is made anew for each turn (`timed_anew`), so that it can have many short ones.
    """

    work: str
    call: str
    precision: str
    ways: dict[str, Callable[[int], list[float]]]
    error: Callable[[str], float]
    items: int
    anew: bool = False


def timed(work: Callable[[], object]) -> Callable[[int], list[float]]:
    """A function that runs work so many times and gives the seconds of each; it must end when its work is done."""

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
    """As `timed`, of work that is made anew for each turn.

    Where the weights of a small model happen to lie in memory makes a step up to 10 % faster or slower, as long as the
    process lives. A turn on other memory is like one of another process, at a fraction of what it takes to start one.
    """
    # As long as these are held, the memory of the next one is another.
    kept: collections.deque[Callable[[], object]] = collections.deque(maxlen=_KEPT)

    def run(count: int) -> list[float]:
        kept.append(make())
        return timed(kept[-1])(count)

    return run
