"""Watches the memory of training steps, and divides it among its uses."""

from __future__ import annotations

import math
import threading
import time
from typing import Any

import keras

from cellerate.machine.environment import resident_memory_bytes
from cellerate.observe.profiling.record import Memory

_INTERVAL_S = 0.005
_MOST_POINTS = 400


class MemoryWatch:
    """Reads the resident memory of this process every few milliseconds, within a `with`."""

    def __init__(self) -> None:
        self._points: list[tuple[float, int]] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="cellerate-memory", daemon=True)

    def __enter__(self) -> MemoryWatch:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        began = time.perf_counter()
        while not self._ended.wait(_INTERVAL_S):
            self._points.append((time.perf_counter() - began, resident_memory_bytes()))

    def found(self, model: keras.Model, batch: Any, before_bytes: int) -> Memory | None:
        """The memory that was in use, and its uses.

        Args:
            model: The model that was trained.
            batch: A batch.
            before_bytes: The memory of this process before the first step.

        Returns:
            The memory; activations and working memory are the rest after the weights, the optimizer, the gradients, the
            batch, and the memory before the first step. None if the steps were too short to read it.
        """
        if not self._points:
            return None
        peak = max(value for _, value in self._points)
        owners = owners_of(model, batch)
        # The weights were in memory before, and have their own entry.
        owners["Python, the framework and the data"] = max(0, before_bytes - owners["weights"])
        left = peak - sum(owners.values())
        owners["activations and working memory"] = max(0, left)
        # Memory that was freed and reused would count twice.
        owners["Python, the framework and the data"] += min(0, left)
        every = max(1, len(self._points) // _MOST_POINTS)
        return Memory(peak, owners, tuple(self._points[::every]), "this process")


def owners_of(model: keras.Model, batch: Any) -> dict[str, int]:
    """The bytes that a training certainly holds."""
    return {
        "weights": _bytes(model.variables),
        "optimizer": _bytes(model.optimizer.variables),
        "gradients": _bytes(model.trainable_variables),
        "batch": sum(array.nbytes for array in keras.tree.flatten(batch) if array is not None),
    }


def _bytes(variables: Any) -> int:
    sizes = {
        "float64": 8,
        "int64": 8,
        "uint64": 8,
        "float16": 2,
        "bfloat16": 2,
        "int16": 2,
        "int8": 1,
        "uint8": 1,
    }
    return sum(math.prod(one.shape) * sizes.get(str(one.dtype), 4) for one in variables)
