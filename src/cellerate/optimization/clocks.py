"""How fast a model answers: calls are timed one by one until a given time has passed.

All ways to use a model, Keras's and ours, are timed by the same rules, so that they can be compared.
"""

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from cellerate.report.record import Speed

MEASURED_S = 1.0
"""About how long to measure each figure."""
_LEAST_CALLS, _MOST_CALLS = 5, 20_000
_WARM_S = 0.1


def speed(
    way: str,
    one: Callable[[], object],
    many: Callable[[], object] | None,
    batch: int,
    *,
    several: Callable[[int], object] | None = None,
    steps: int = 1,
) -> Speed:
    """Times a way to use a model.

    Args:
        way: The name of the way.
        one: A call that makes one item.
        many: A call that makes `steps` items for each of `batch` sequences; None if this is not measured.
        batch: See `many`.
        several: A call that makes a given number of items one after another, if the way is used like that;
            None if it takes a call of `one` for each.
        steps: See `many`.

    Returns:
        Its latency, which is the time of a call of `one`, and its speeds.
    """
    calls = timed_calls(one)
    throughput = None
    if many is not None:
        throughput = float(batch * steps / np.median(timed_calls(many)))
    p50, p99 = (1e3 * float(np.quantile(calls, share)) for share in (0.5, 0.99))
    return Speed(
        way=way,
        latency_p50_ms=p50,
        latency_p99_ms=p99,
        per_s=float(1 / np.median(calls)) if several is None else _per_s(several),
        throughput_per_s=throughput,
        batch=batch,
    )


def predict_speeds(model: Any, one: Any, many: Any, batch: int) -> tuple[Speed, Speed]:
    """Times Keras's `predict` and `predict_on_batch`, with inputs of one row and of `batch` rows."""
    return (
        speed(
            "predict",
            lambda: model.predict(one, verbose=0),
            lambda: model.predict(many, verbose=0, batch_size=batch),
            batch,
        ),
        speed(
            "predict_on_batch",
            lambda: model.predict_on_batch(one),
            lambda: model.predict_on_batch(many),
            batch,
        ),
    )


def timed_calls(call: Callable[[], object]) -> list[float]:
    """Gives the seconds each call took, for as many calls as fit into `MEASURED_S` after some warm-up calls."""
    began = time.perf_counter()
    call()
    while time.perf_counter() - began < _WARM_S:
        call()
    found: list[float] = []
    began = last = time.perf_counter()
    while len(found) < _LEAST_CALLS or (last - began < MEASURED_S and len(found) < _MOST_CALLS):
        call()
        now = time.perf_counter()
        found.append(now - last)
        last = now
    return found


def _per_s(several: Callable[[int], object]) -> float:
    """Gives items per second: the median of calls that each take a fifth of the time."""
    count, taken = 16, 0.0
    while taken < MEASURED_S / 20:
        began = time.perf_counter()
        several(count)
        taken = time.perf_counter() - began
        count *= 2
    count = max(1, int(count / 2 * MEASURED_S / 5 / taken))
    rates = []
    for _ in range(5):
        began = time.perf_counter()
        several(count)
        rates.append(count / (time.perf_counter() - began))
    return float(np.median(rates))
