"""Time two ways of doing the same in turns, so that the load of the machine affects both alike."""

import contextlib
import itertools
import subprocess
import sys
import time
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def busy_programs(count: int) -> Iterator[None]:
    """Run `count` other programs that keep a core busy each, within the context."""
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
    """The time of the second call divided by the first's, for each pair of calls; the two take turns to begin.

    Args:
        first: The reference.
        second: The call to compare with it.
        pairs: The most pairs.
        most_seconds: No pair begins after this many seconds.
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
