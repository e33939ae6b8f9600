"""Chooses the dtype policy of a run by trying each on the run's own model and batches.

Whether mixed precision is faster depends on the machine, the backend and the sizes, so a short measurement decides,
and its result is kept with the run.
"""

from __future__ import annotations

import dataclasses
import importlib
import math
from collections.abc import Callable, Sequence
from typing import Any

import keras

from cellerate.data.arrays import BatchSource
from cellerate.errors import in_a_line
from cellerate.layers.accelerate import accelerate
from cellerate.models.rewrite import with_dtype_policy
from cellerate.training.parallel import Processes
from cellerate.training.settings import TrainingSettings
from cellerate.training.telemetry import Display
from cellerate.training.trial import try_training

_TIMED_STEPS = 24
MIN_SPEEDUP = 1.05
"""The factor by which another policy must be faster to be chosen."""
_MAX_LOSS_RATIO = 1.01


@dataclasses.dataclass(frozen=True)
class PrecisionTrial:
    """The result of trying one policy.

    Attributes:
        policy: The Keras dtype policy.
        step_ms: The median time of a training step, in milliseconds; None if the policy cannot run here.
        loss: The mean loss of the trial's steps; None if the policy cannot run here.
        error: Why the policy cannot run here, or "".
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
        on_trial: Called with each trial.

    Returns:
        The fastest policy that is at least 5 % faster than float32 and whose mean loss over the trial is at
        most 1 % above float32's, or "float32" if there is none; and every trial.
    """
    trials = []
    for policy in ("float32", *(precision_candidates() if candidates is None else candidates)):
        trial = _try_policy(policy, model, source, loss=loss, settings=settings)
        trials.append(trial)
        on_trial(trial)
    return fastest_precision(trials).policy, tuple(trials)


def fastest_precision(trials: Sequence[PrecisionTrial]) -> PrecisionTrial:
    """The fastest trial that is at least 5 % faster than the first with at most 1 % more loss; else the first."""
    base = chosen = trials[0]
    for trial in trials[1:]:
        if trial.step_ms is None or trial.loss is None or base.step_ms is None or base.loss is None:
            continue
        holds = math.isfinite(trial.loss) and trial.loss <= base.loss * _MAX_LOSS_RATIO
        if holds and trial.step_ms * MIN_SPEEDUP <= base.step_ms and trial.step_ms < (chosen.step_ms or 0.0):
            chosen = trial
    return chosen


def precision_candidates() -> tuple[str, ...]:
    """The 16-bit policies that may be faster here."""
    return ("mixed_bfloat16", "mixed_float16") if gpu_visible() else ("mixed_bfloat16",)


def gpu_visible() -> bool:
    """True if the backend computes on a GPU."""
    bridge = importlib.import_module(f"cellerate.bridges.{keras.config.backend()}")
    return bool(bridge.gpu_available())


def _try_policy(
    policy: str, model: keras.Model, source: BatchSource, *, loss: Any, settings: TrainingSettings
) -> PrecisionTrial:
    copy = accelerate(with_dtype_policy(model, policy), settings.implementation, sum_embedding_gradients=True)
    try:
        trial = try_training(copy, source, loss=loss, settings=settings, policy=policy, steps=_TIMED_STEPS)
    # Backends raise different errors if their kernels lack a type (JAX: NotImplementedError and XLA errors;
    # TensorFlow: its own classes), so any Exception means that the policy cannot run here.
    except Exception as error:
        if policy == "float32":
            raise
        return PrecisionTrial(policy, None, None, in_a_line(error))
    return PrecisionTrial(policy, 1e3 * trial.steps.median_s, trial.loss)


def precision_for(
    model: keras.Model,
    source: BatchSource,
    *,
    loss: Any,
    settings: TrainingSettings,
    display: Display,
    processes: Processes,
) -> str:
    """The dtype policy to train in: the requested one, or the one that a trial chooses.

    Args:
        model: The model to train, in float32. It is not changed.
        source: The training batches.
        loss: The loss.
        settings: The run's settings.
        display: Shows the trials.
        processes: Those that train together.
    """
    if settings.precision != "auto":
        return settings.precision

    def on_trial(trial: PrecisionTrial) -> None:
        found = trial.error or f"{trial.step_ms:.1f} ms a step, loss {trial.loss:.4f}"
        display.message(f"precision trial: {trial.policy}: {found}")

    _, trials = choose_precision(
        model, processes.share(source), loss=loss, settings=settings, on_trial=on_trial
    )
    # Each process has measured for itself, but all must train in the same precision.
    fastest = trials.index(fastest_precision(trials))
    chosen = trials[processes.of_first(fastest)].policy
    display.message(f"precision: {chosen}")
    return chosen
