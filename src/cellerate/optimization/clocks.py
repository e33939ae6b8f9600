"""Times a model's answers: calls are timed one by one until a given time has passed.

Keras's ways to use a model and ours are timed by the same rules, so that they can be compared. Contestants are timed in
turns, because other programs change the speed of the machine.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from cellerate.report.record import Speed

MEASURED_S = 1.0
"""About the seconds to measure each figure."""
BRIEFLY_S = 0.2
"""The same for a figure that only has to be roughly right, because turns decide the comparison."""
TURNS = 6
"""The number of turns to time ways to use a model: the fewest that give a sure order."""
_LEAST_CALLS, _MOST_CALLS = 6, 20_000
_WARM_S = 0.1


@dataclasses.dataclass(frozen=True)
class Use:
    """A way to use a model, ready to be timed.

    Attributes:
        way: The name of the way.
        one: A call that makes one item.
        many: A call that makes `steps` items for each of `batch` sequences; None if this is not measured.
        batch: See `many`.
        several: A call that makes a given number of items one after another; None if each item takes a call of `one`.
        steps: See `many`.
    """

    way: str
    one: Callable[[], object]
    many: Callable[[], object] | None
    batch: int
    several: Callable[[int], object] | None = None
    steps: int = 1


def speed(use: Use, seconds: float | None = None) -> Speed:
    """Times a way to use a model.

    Args:
        use: The way.
        seconds: How long to measure each figure; None for `MEASURED_S`.

    Returns:
        Its speeds, and its latency: the time of a call of `one`.
    """
    seconds = MEASURED_S if seconds is None else min(seconds, MEASURED_S)
    calls = timed_calls(use.one, seconds)
    throughput = None
    if use.many is not None:
        throughput = float(use.batch * use.steps / np.median(timed_calls(use.many, seconds)))
    p50, p99 = (1e3 * float(np.quantile(calls, share)) for share in (0.5, 0.99))
    return Speed(
        way=use.way,
        latency_p50_ms=p50,
        latency_p99_ms=p99,
        per_s=float(1 / np.median(calls)) if use.several is None else _per_s(use.several, seconds),
        throughput_per_s=throughput,
        batch=use.batch,
    )


def middle(turns: Sequence[Speed]) -> Speed:
    """Return the speed of a way that was timed in turns: the median of each figure."""
    figures = ("latency_p50_ms", "latency_p99_ms", "per_s", "throughput_per_s")
    values = {name: [getattr(one, name) for one in turns] for name in figures}
    known = {name: statistics.median(found) for name, found in values.items() if None not in found}
    return dataclasses.replace(turns[0], **known)


def fastest_first(speeds: Iterable[Speed]) -> tuple[Speed, ...]:
    """The speeds of the ways to use a model, in the order in which models are compared."""
    return tuple(sorted(speeds, key=lambda one: one.per_s, reverse=True))


def predict_uses(model: Any, one: Any, many: Any, batch: int) -> tuple[Use, Use]:
    """Keras's `predict` and `predict_on_batch`, with inputs of one row and of `batch` rows."""
    return (
        Use(
            "predict",
            lambda: model.predict(one, verbose=0),
            lambda: model.predict(many, verbose=0, batch_size=batch),
            batch,
        ),
        Use(
            "predict_on_batch",
            lambda: model.predict_on_batch(one),
            lambda: model.predict_on_batch(many),
            batch,
        ),
    )


def timed_calls(call: Callable[[], object], seconds: float | None = None) -> list[float]:
    """Return the seconds of each call, after some warm-up calls, for as many calls as fit.

    Args:
        call: The call.
        seconds: How long to measure; None for `MEASURED_S`. A shorter time accepts fewer calls.
    """
    seconds = MEASURED_S if seconds is None else seconds
    share = min(1.0, seconds / MEASURED_S) if MEASURED_S else 1.0
    began = time.perf_counter()
    call()
    while time.perf_counter() - began < _WARM_S * share:
        call()
    found: list[float] = []
    least = max(1, math.ceil(_LEAST_CALLS * share))
    began = last = time.perf_counter()
    while len(found) < least or (last - began < seconds and len(found) < _MOST_CALLS):
        call()
        now = time.perf_counter()
        found.append(now - last)
        last = now
    return found


def _per_s(several: Callable[[int], object], seconds: float) -> float:
    """Return items per second: the median of calls that each take a fifth of the time."""
    count, taken = 16, 0.0
    while taken < seconds / 20:
        began = time.perf_counter()
        several(count)
        taken = time.perf_counter() - began
        count *= 2
    count = max(1, int(count / 2 * seconds / 5 / taken))
    rates = []
    for _ in range(5):
        began = time.perf_counter()
        several(count)
        rates.append(count / (time.perf_counter() - began))
    return float(np.median(rates))
