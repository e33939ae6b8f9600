"""Times two ways of doing the same in turns, alone or beside a busy program, which then meets both."""

import contextlib
import itertools
import subprocess
import sys
import time
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def busy_programs(count: int) -> Iterator[None]:
    """Has so many other programs compute within a `with`."""
    programs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for program in programs:
            program.kill()
            program.wait()


def ratios(
    first: Callable[[], object], second: Callable[[], object], pairs: int, most_seconds: float = 3600
) -> list[float]:
    """The time of the second over that of the first, of each pair of calls; which begins changes.

    Args:
        first: What the other is held against.
        second: What is judged.
        pairs: The most pairs.
        most_seconds: No pair begins after so many.
    """
    found: list[float] = []
    begin = time.perf_counter()
    for turn in itertools.cycle([(first, second), (second, first)]):
        taken = {}
        for call in turn:
            start = time.perf_counter()
            call()
            taken[call] = time.perf_counter() - start
        found.append(taken[second] / taken[first])
        if len(found) == pairs or time.perf_counter() - begin > most_seconds:
            return found
    raise AssertionError  # `cycle` does not end
