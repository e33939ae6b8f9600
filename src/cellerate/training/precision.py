"""Chooses the dtype policy of a run by trying each on the run's own model and batches.

A module of its own because "mixed precision is faster" depends on the machine, the backend and the sizes:
the only honest answer is a short measurement, kept with the run.
"""

import contextlib
import dataclasses
import importlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from cellerate.data.batches import BatchSource
from cellerate.data.pipeline import KerasBatches
from cellerate.layers.accelerate import accelerate
from cellerate.measure import as_timing
from cellerate.models.rewrite import with_dtype_policy
from cellerate.training.optimizers import build_optimizer
from cellerate.training.settings import TrainingSettings

_WARMUP_STEPS = 4
_TIMED_STEPS = 24
_MIN_SPEEDUP = 1.05
_MAX_LOSS_RATIO = 1.01


@dataclasses.dataclass(frozen=True)
class PrecisionTrial:
    """What one policy did.

    Attributes:
        policy: The Keras dtype policy.
        step_ms: The median time of a training step, in milliseconds; None if it cannot run here.
        loss: The mean loss of the trial's steps; None if it cannot run here.
        error: Why it cannot run here, or "".
    """

    policy: str
    step_ms: float | None
    loss: float | None
    error: str = ""


def choose_precision(
    model: keras.Model,
    source: BatchSource,
    *,
    loss: Any,
    settings: TrainingSettings,
    candidates: Sequence[str] | None = None,
    on_trial: Callable[[PrecisionTrial], None] = lambda trial: None,
) -> tuple[str, tuple[PrecisionTrial, ...]]:
    """Trains copies of `model` for a few steps in each policy, from the same weights on the same batches.

    Args:
        model: The model to train, in float32. It is not changed.
        source: The training batches.
        loss: The loss.
        settings: The run's settings.
        candidates: The policies to try besides float32; None tries mixed_bfloat16, and on a GPU
            mixed_float16 as well.
        on_trial: Told of each trial.

    Returns:
        The fastest policy that is at least 5 % faster than float32 and whose mean loss over the trial is at
        most 1 % above float32's; "float32" if there is none. And every trial.
    """
    if candidates is None:
        bridge = importlib.import_module(f"cellerate.bridges.{keras.config.backend()}")
        candidates = ("mixed_bfloat16", "mixed_float16") if bridge.gpu_available() else ("mixed_bfloat16",)
    trials = []
    for policy in ("float32", *candidates):
        trial = _try_policy(policy, model, source, loss=loss, settings=settings)
        trials.append(trial)
        on_trial(trial)
    base = trials[0]
    chosen = base
    for trial in trials[1:]:
        if trial.step_ms is None or trial.loss is None or base.step_ms is None or base.loss is None:
            continue
        holds = math.isfinite(trial.loss) and trial.loss <= base.loss * _MAX_LOSS_RATIO
        if holds and trial.step_ms * _MIN_SPEEDUP <= base.step_ms and trial.step_ms < (chosen.step_ms or 0.0):
            chosen = trial
    return chosen.policy, tuple(trials)


def _try_policy(
    policy: str, model: keras.Model, source: BatchSource, *, loss: Any, settings: TrainingSettings
) -> PrecisionTrial:
    steps = min(len(source), _WARMUP_STEPS + _TIMED_STEPS)
    copy = accelerate(with_dtype_policy(model, policy), settings.implementation)
    optimizer = build_optimizer(settings, len(source), policy)
    copy.compile(optimizer=optimizer, loss=loss, jit_compile=settings.jit_compile)
    clock = _Clock()
    try:
        with contextlib.closing(KerasBatches(source, stop=steps)) as batches:
            copy.fit(batches, callbacks=[clock], shuffle=False, verbose=0)
    # What a backend raises where its kernels lack a type is its own affair (JAX: NotImplementedError and XLA
    # errors; TensorFlow: its error classes), so every Exception is an answer here.
    except Exception as error:
        if policy == "float32":
            raise
        return PrecisionTrial(policy, None, None, f"{type(error).__name__}: {str(error).splitlines()[0]}")
    warmup = min(_WARMUP_STEPS, len(clock.ends) - 2)
    step_ms = 1e3 * as_timing(np.diff(clock.ends)[max(warmup, 0) :].tolist() or [math.inf]).median_s
    return PrecisionTrial(policy, step_ms, clock.loss)


class _Clock(keras.callbacks.Callback):
    """Notes when each step ended and the mean loss so far."""

    def __init__(self) -> None:
        super().__init__()
        self.ends: list[float] = []
        self.loss = math.nan

    def on_train_batch_end(self, batch: int, logs: Mapping[str, float] | None = None) -> None:
        """Reading the loss waits for the step to be done."""
        self.loss = float((logs or {})["loss"])
        self.ends.append(time.perf_counter())
