"""Times a few steps of training, to tell how fast a model trains without a whole run.

The choice of a precision and the optimizer's passes both time this: real `fit`, after compilation.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np

from cellerate.data.arrays import BatchSource
from cellerate.data.pipeline import KerasBatches
from cellerate.files import atomic_write
from cellerate.measure import Timing, as_timing
from cellerate.training.optimizers import build_optimizer
from cellerate.training.settings import TrainingSettings

_WARMUP_STEPS = 3
_BESIDE = "beside "  # begins the names of numbers in a file of a state
_LEAST_STEPS, _MOST_STEPS = 4, 200


@dataclasses.dataclass(frozen=True)
class Trial:
    """The times and the loss of a few training steps.

    Attributes:
        steps: The time of each step after the warm-up.
        loss: The mean loss of these steps.
    """

    steps: Timing
    loss: float


def try_training(
    model: keras.Model,
    source: BatchSource,
    *,
    loss: Any,
    settings: TrainingSettings,
    policy: str,
    steps: int | None = None,
    seconds: float = 2.0,
) -> Trial:
    """Trains a model in place for a few steps and times them.

    Args:
        model: The model; it is compiled again, and its weights change.
        source: The training batches, repeated as often as needed.
        loss: The loss.
        settings: The run's settings.
        policy: The dtype policy of the model.
        steps: The number of steps to time; None for as many as fit into `seconds`.
        seconds: See `steps`.
    """
    trainer = Trainer(model, source, loss=loss, settings=settings, policy=policy)
    if steps is None:
        fitting = 0 if not math.isfinite(trainer.step_s) else int(seconds / max(trainer.step_s, 1e-6))
        steps = min(max(fitting, _LEAST_STEPS), _MOST_STEPS)
    return trainer.turn(steps)


class Trainer:
    """A model that is compiled and warm, and trains as many steps as it is asked for, again and again.

    Several of them can be timed in turns. All begin with the weights that they were given, after the warm-up, too.

    Args:
        model: The model; it is compiled again, and its weights change.
        source: The training batches, repeated as often as needed.
        loss: The loss.
        settings: The run's settings.
        policy: The dtype policy of the model.

    Attributes:
        step_s: About how many seconds a step takes; infinite if there was only one to warm up.
    """

    def __init__(
        self, model: keras.Model, source: BatchSource, *, loss: Any, settings: TrainingSettings, policy: str
    ) -> None:
        self._model, self._source, self._epoch = model, source, 1
        optimizer = build_optimizer(settings, len(source), policy)
        model.compile(optimizer=optimizer, loss=loss, jit_compile=settings.jit_compile)
        optimizer.build(model.trainable_variables)
        self._start = [
            (variable, np.array(variable)) for variable in (*model.variables, *optimizer.variables)
        ]
        # The first steps compile; on TensorFlow only the first call of `fit` does.
        warmup = _fit(model, source, min(_WARMUP_STEPS, len(source)), epoch=0)
        self.step_s = float(np.diff(warmup.ends).min(initial=math.inf))
        self.restart()

    def restart(self) -> None:
        """Goes back to the start: the weights, the seeds and the optimizer as they were, and the first batch."""
        for variable, value in self._start:
            variable.assign(value)
        self._epoch = 1

    def save(self, path: str | Path, **numbers: float) -> None:
        """Writes the weights, the seeds, the optimizer and the place in the data; whole or not at all.

        Args:
            path: The file, *.npz.
            numbers: Numbers beside them, which `load` gives back.

        Raises:
            OutputError: The file could not be written.
        """
        arrays: dict[str, Any] = {
            str(place): np.array(variable) for place, (variable, _) in enumerate(self._start)
        }
        arrays |= {_BESIDE + name: np.array(value) for name, value in numbers.items()}
        with atomic_write(path) as beside, beside.open("wb") as file:
            np.savez(file, epoch=self._epoch, **arrays)

    def load(self, path: str | Path) -> dict[str, float]:
        """Goes on from what `save` wrote of a trainer that was made alike; gives the numbers beside it."""
        with np.load(path) as saved:
            for place, (variable, _) in enumerate(self._start):
                variable.assign(saved[str(place)])
            self._epoch = int(saved["epoch"])
            return {
                name.removeprefix(_BESIDE): saved[name].item() for name in saved if name.startswith(_BESIDE)
            }

    def turn(self, steps: int) -> Trial:
        """Trains for so many steps more, and times each."""
        found: list[float] = []
        losses = []
        while len(found) < steps:
            clock = _fit(
                self._model, self._source, min(steps - len(found), len(self._source)), epoch=self._epoch
            )
            found += np.diff([clock.began, *clock.ends]).tolist()
            losses.append((clock.loss, len(clock.ends)))
            self._epoch += 1
        mean = float(np.average([value for value, _ in losses], weights=[count for _, count in losses]))
        return Trial(as_timing(found), mean)


def _fit(model: keras.Model, source: BatchSource, steps: int, *, epoch: int) -> _Clock:
    clock = _Clock()
    with contextlib.closing(KerasBatches(source, stop=steps, epoch=epoch)) as batches:
        model.fit(batches, callbacks=[clock], shuffle=False, verbose=0)
    return clock


class _Clock(keras.callbacks.Callback):
    """Notes when each step ended and the mean loss so far."""

    def __init__(self) -> None:
        super().__init__()
        self.began = math.nan
        self.ends: list[float] = []
        self.loss = math.nan

    def on_train_batch_begin(self, batch: int, logs: Mapping[str, float] | None = None) -> None:
        """Starts the clock at the first batch, because `fit` still prepares before it."""
        if not self.ends:
            self.began = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: Mapping[str, float] | None = None) -> None:
        """Notes time and loss; reading the loss waits until the step is done."""
        self.loss = float((logs or {})["loss"])
        self.ends.append(time.perf_counter())
