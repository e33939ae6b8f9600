"""Runs steps of training in `fit` itself, and times them without making the device wait for Python."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import keras

from cellerate.observe.profiling.feeding import Feed, read_from_disk_bytes, too_few_batches

_WARM_STEPS = 4
_LEAST_STEPS, _MOST_STEPS = 3, 200
# `fit` stops when enough steps are timed.
_EPOCHS = 1_000_000


class CountedSteps(keras.callbacks.CallbackList):
    """A callback list for `fit` that times a window of steps as a whole, after warm-up steps.

    Keras's own callbacks would wait for the loss of every step. Time between epochs does not count.

    Args:
        model: The model.
        seconds: The approximate length of the window, which has as many steps as fit.
        most: The most steps.
        window: Returns the context to enter during the window.
        epoch_steps: The steps of an epoch; None if unknown.

    Attributes:
        seconds: The time of the counted steps.
        steps: The number of counted steps.
        disk_bytes: The bytes that a counted step read from storage; None if the system does not report it.
    """

    def __init__(
        self,
        model: keras.Model,
        seconds: float,
        *,
        most: int = _MOST_STEPS,
        window: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext,
        epoch_steps: int | None = None,
    ) -> None:
        super().__init__([], add_history=True, model=model)
        self._wanted_s, self._most, self._window = seconds, most, window
        self._last_step = math.inf if epoch_steps is None else epoch_steps - 1
        self._within = contextlib.ExitStack()
        self._warm: list[float] = []
        self._wanted: int | None = None
        self._counted_in_epoch, self._first, self._began = 0, -1, math.nan
        self.seconds, self.steps = 0.0, 0
        self._disk: int | None = None
        self.disk_bytes: float | None = None

    @property
    def step_s(self) -> float:
        """The seconds of a step."""
        return self.seconds / self.steps

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Continue to count."""
        super().on_epoch_begin(epoch, logs)
        self._first, self._began = -1, time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Stop counting until the next epoch; Keras has waited for the last step."""
        self._count(self._first + self._counted_in_epoch)
        super().on_epoch_end(epoch, logs)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Do nothing at the start of a step."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Begin or end the window; `batch` is the number of the last batch, and a call may follow several batches."""
        # With several steps at a time, Keras counts beyond the end of an epoch.
        batch = int(min(batch, self._last_step))
        if self._wanted is None:
            _wait(self.model, logs)
            now = time.perf_counter()
            self._warm.append((now - self._began) / (batch - self._first))
            if len(self._warm) == _WARM_STEPS or (
                len(self._warm) > 1 and sum(self._warm) > 2 * self._wanted_s
            ):
                # The first step compiles, and the second may.
                fitting = int(self._wanted_s / max(min(self._warm[1:]), 1e-6))
                self._wanted = min(max(fitting, _LEAST_STEPS), self._most)
                self._disk = read_from_disk_bytes()
                self._within.enter_context(self._window())
                now = time.perf_counter()
            self._first, self._began = batch, now
            return
        self._counted_in_epoch = batch - self._first
        if self.steps + self._counted_in_epoch >= self._wanted:
            _wait(self.model, logs)
            self._count(batch)
            self.close()
            disk = read_from_disk_bytes()
            if disk is not None and self._disk is not None:
                self.disk_bytes = (disk - self._disk) / self.steps
            self.model.stop_training = True

    def close(self) -> None:
        """Leave the window, if `fit` ended within it."""
        self._within.close()

    def _count(self, batch: int) -> None:
        if self._counted_in_epoch:
            self.seconds += time.perf_counter() - self._began
            self.steps += batch - self._first
        self._counted_in_epoch = 0


def timed_steps(model: keras.Model, feed: Feed, seconds: float, **options: Any) -> CountedSteps:
    """Train a model for a few steps, which change it.

    Args:
        model: A compiled model.
        feed: The data for `fit`.
        seconds: See `CountedSteps`.
        options: Options of `CountedSteps`.

    Raises:
        ConfigError: The data end before any step could be timed.
    """
    steps = CountedSteps(model, seconds, epoch_steps=feed.batches, **options)
    with contextlib.closing(feed), contextlib.closing(steps):
        model.fit(**feed.arguments, epochs=_EPOCHS, callbacks=steps, verbose=0)
    if not steps.steps:
        raise too_few_batches()
    return steps


def _wait(model: keras.Model, logs: Any) -> None:
    """Wait until a step is done, by reading one of its results: a figure of its logs, else a weight."""
    values = keras.tree.flatten(dict(logs or {})) or [model.trainable_variables[-1]]
    keras.ops.convert_to_numpy(values[0])
