"""Timing, done the same way by the benchmarks, the precision trial and the optimizer's passes."""

import dataclasses
import statistics
import time
from collections.abc import Callable, Sequence


@dataclasses.dataclass(frozen=True)
class Timing:
    """Repeated wall times of one piece of work.

    Attributes:
        seconds: One wall time per repetition, in the order measured.
    """

    seconds: tuple[float, ...]

    @property
    def median_s(self) -> float:
        """The median, in seconds."""
        return statistics.median(self.seconds)

    def percentile_s(self, share: float) -> float:
        """The `share` quantile (0 to 1) by linear interpolation, in seconds."""
        ordered = sorted(self.seconds)
        place = share * (len(ordered) - 1)
        low = int(place)
        high = min(low + 1, len(ordered) - 1)
        return ordered[low] + (ordered[high] - ordered[low]) * (place - low)

    def summary(self) -> dict[str, float | int]:
        """Median, 20th and 80th percentile in seconds, and the count: what a result file keeps."""
        return {
            "median_s": self.median_s,
            "p20_s": self.percentile_s(0.2),
            "p80_s": self.percentile_s(0.8),
            "repeats": len(self.seconds),
        }


def time_alternating(
    contestants: dict[str, Callable[[], object]], *, repeats: int, warmup: int = 1
) -> dict[str, Timing]:
    """Times contestants in turn (A B A B …), so that a drift of the machine's speed affects all of them equally.

    Args:
        contestants: Name → callable; the callable must block until its work is done.
        repeats: Timed rounds.
        warmup: Untimed rounds first.

    Returns:
        A `Timing` for each name.
    """
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(warmup + repeats):
        for name, work in contestants.items():
            start = time.perf_counter()
            work()
            elapsed = time.perf_counter() - start
            if turn >= warmup:
                seconds[name].append(elapsed)
    return {name: Timing(tuple(values)) for name, values in seconds.items()}


def as_timing(seconds: Sequence[float]) -> Timing:
    """A `Timing` of wall times already measured."""
    return Timing(tuple(seconds))
