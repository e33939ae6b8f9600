"""A sample of many batches or windows, spread evenly over all of them."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from cellerate.data.arrays import BatchSource
from cellerate.data.windows.changed import ChangedBatches


def spread(count: int, most: int) -> list[int]:
    """At most `most` of the numbers below `count`, evenly spread from the first to the last."""
    return list(map(int, np.unique(np.linspace(0, count - 1, min(count, most)).astype(int))))


def spread_order(count: int) -> list[int]:
    """All numbers below `count`, in an order whose every prefix is spread evenly over them.

    Source: van der Corput 1935: the bits of 0, 1, 2, … in reverse.
    """
    bits = max(1, (count - 1).bit_length())
    places = np.arange(1 << bits)
    turned = np.zeros_like(places)
    for bit in range(bits):
        turned |= (places >> bit & 1) << (bits - 1 - bit)
    return turned[turned < count].tolist()


def spread_within(count: int, seconds: float | None) -> Iterator[int]:
    """Yield numbers below `count` until time is over: spread evenly, or all of them in order without a limit.

    Args:
        count: The number of all.
        seconds: The most seconds for the caller's work on the numbers, counted after the first, which compiles; None
            for no limit.
    """
    if seconds is None:
        yield from range(count)
        return
    deadline = math.inf
    for number in spread_order(count):
        if time.perf_counter() > deadline:
            return
        yield number
        if deadline == math.inf:
            deadline = time.perf_counter() + seconds


class SampledBatches(ChangedBatches):
    """Some full batches of an evaluation source.

    Their weights are scaled to a mean of 1, so that Keras's mean of batch means is the mean over their items; see
    `MeanOverItems`.

    Args:
        source: The batches, of which only the last may be filled up with rows of weight 0.
        count: The number of batches to take, fewer than all.
        in_order: Whether to take the first batches, for streams whose rows continue from batch to batch.
    """

    def __init__(self, source: BatchSource, count: int, *, in_order: bool = False) -> None:
        super().__init__(source)
        self._chosen = list(range(count)) if in_order else spread(len(source) - 1, count)
        _, _, *weight = source.batch(0, 0)
        self._factor = np.float32(1 / weight[0].mean()) if weight else np.float32(1)
        if hasattr(source, "extremes"):
            # Lines for evaluation are sorted by length.
            self.extremes = lambda epoch: (0, len(self) - 1)

    def __len__(self) -> int:
        return len(self._chosen)

    def batch(self, epoch: int, index: int) -> tuple[Any, ...]:
        """Batch `index` of the sample."""
        return super().batch(epoch, self._chosen[index])

    def fingerprint(self) -> str:
        """The fingerprint of the other source, with the numbers of the batches."""
        return f"{self._chosen} of {super().fingerprint()}"

    def _change(self, x: Any, y: Any, *weight: Any) -> tuple[Any, ...]:
        return x, y, *(array * self._factor for array in weight)
