"""Timing, done the same way by the benchmarks, the precision trial and the optimizer's passes."""

import dataclasses
import math
import statistics
import time
from collections.abc import Callable, Sequence

_SURE = 0.95  # the confidence of a median's interval
_FAST = 0.2  # the quantile of a turn's times that stands for the turn


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


def time_repeated(work: Callable[[], object], seconds: float, *, least: int, most: int = 10_000) -> Timing:
    """Times one piece of work again and again for a while.

    Args:
        work: What to time; it must block until it is done.
        seconds: How long to go on.
        least: Timed repetitions, however long they take.
        most: Timed repetitions, however short they are.
    """
    found: list[float] = []
    began = time.perf_counter()
    while len(found) < least or (time.perf_counter() - began < seconds and len(found) < most):
        start = time.perf_counter()
        work()
        found.append(time.perf_counter() - start)
    return Timing(tuple(found))


@dataclasses.dataclass(frozen=True)
class Order:
    """The comparison of two contestants that took turns.

    On a busy machine two timings of one contestant may differ more than two contestants do. The faster contestant is
    faster in turn after turn; if the turns contradict each other, the difference is noise.

    Attributes:
        ratios: (turns,) the time of the first contestant in each turn, divided by the time of the second: above 1 the
            second was faster.
    """

    ratios: tuple[float, ...]

    @property
    def factor(self) -> float:
        """The factor by which the second is faster: the median over the turns."""
        return statistics.median(self.ratios)

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % confidence interval of the median; with less than six turns, the range of all ratios.

        It assumes no distribution of the disturbances, and one spoiled turn of nine does not widen it.

        Source: Conover, "Practical Nonparametric Statistics", 3rd ed., section 3.2 (a confidence interval for a
            quantile from order statistics).
        """
        ordered, count = sorted(self.ratios), len(self.ratios)
        spared, outside = 0, 0.0
        while spared < (count - 1) // 2:
            outside += 2 * math.comb(count, spared) / 2**count
            if outside + 2 * math.comb(count, spared + 1) / 2**count > 1 - _SURE:
                break
            spared += 1
        return ordered[spared], ordered[-1 - spared]

    @property
    def reach(self) -> str:
        """The factor with its interval: "2.1 (95 % interval 1.9 to 2.2)"."""
        low, high = self.interval
        return f"{self.factor:.3g} (95 % interval {low:.3g} to {high:.3g})"

    @property
    def agreeing(self) -> int:
        """The number of turns in the order of the median."""
        return sum((ratio > 1) == (self.factor > 1) for ratio in self.ratios)

    @property
    def certain(self) -> bool:
        """True if the interval leaves no doubt which of the two is faster; one turn alone always leaves some."""
        low, high = self.interval
        return len(self.ratios) > 1 and (low > 1 or high < 1)

    @property
    def in_words(self) -> str:
        """The agreement of the turns: "in 4 of 6 turns"."""
        return f"in {self.agreeing} of {len(self.ratios)} turns"


def order_of(first: Sequence[Timing], second: Sequence[Timing]) -> Order:
    """Compares the times of two contestants, turn by turn.

    Args:
        first: (turns,) the times of the first contestant in each turn.
        second: (turns,) the times of the second, each taken right after that of the first.
    """
    # Other work makes single times longer, never shorter, so the fast ones show the contestant's own time.
    return Order(
        tuple(
            one.percentile_s(_FAST) / other.percentile_s(_FAST)
            for one, other in zip(first, second, strict=True)
        )
    )


def as_timing(seconds: Sequence[float]) -> Timing:
    """A `Timing` of wall times already measured."""
    return Timing(tuple(seconds))
