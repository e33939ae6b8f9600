"""Builds a stock Keras optimizer from the settings of a run, for the training loop and for trials of training."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

import keras

from cellerate.errors import ConfigError
from cellerate.messages import argument
from cellerate.training.settings import TrainingSettings


def build_optimizer(
    settings: TrainingSettings, steps_per_epoch: int, policy: str = "float32"
) -> keras.optimizers.Optimizer:
    """The optimizer of a run, with its learning-rate schedule, clipping and gradient accumulation.

    Args:
        settings: The run's settings.
        steps_per_epoch: Batches per epoch; schedules are stretched over `epochs` times that.
        policy: The dtype policy of the training; mixed_float16 adds loss scaling.

    Returns:
        A stock Keras optimizer.
    """
    updates = max(1, math.ceil(steps_per_epoch * settings.epochs / settings.accumulate))
    arguments: dict[str, Any] = {
        "learning_rate": _learning_rate(settings, updates),
        "clipnorm": settings.clipnorm,
        "clipvalue": settings.clipvalue,
        "global_clipnorm": settings.global_clipnorm,
        # Keras averages over the accumulated batches; for Keras, None means no accumulation.
        "gradient_accumulation_steps": settings.accumulate if settings.accumulate > 1 else None,
    }
    if settings.weight_decay is not None:
        arguments["weight_decay"] = settings.weight_decay
    if settings.optimizer == "sgd":
        arguments |= {"momentum": settings.momentum, "nesterov": settings.momentum > 0}
    makers = {
        "adam": keras.optimizers.Adam,
        "adamw": keras.optimizers.AdamW,
        "nadam": keras.optimizers.Nadam,
        "sgd": keras.optimizers.SGD,
        "lion": keras.optimizers.Lion,
    }
    return loss_scaled(makers[settings.optimizer](**arguments), [policy])


def check_updates(settings: TrainingSettings, steps_per_epoch: int) -> None:
    """Raises `ConfigError` if a run ends before its first update."""
    steps = steps_per_epoch * settings.epochs
    if settings.accumulate > steps:
        raise ConfigError(
            f"{argument('accumulate')} averages {settings.accumulate:,} batches into an update, and the run has "
            f"{steps:,}, so no weight would change. Give at most {steps:,}, or more {argument('epochs')}."
        )


def loss_scaled(
    optimizer: keras.optimizers.Optimizer, policies: Collection[str]
) -> keras.optimizers.Optimizer:
    """The optimizer, with loss scaling if one of the training's dtype policies is mixed_float16.

    Without loss scaling, float16 gradients underflow. Keras adds it only if the model as a whole has that policy;
    here each layer has it.
    """
    return keras.optimizers.LossScaleOptimizer(optimizer) if "mixed_float16" in policies else optimizer


def current_learning_rate(optimizer: keras.optimizers.Optimizer) -> float:
    """The learning rate of the next update."""
    return float(keras.ops.convert_to_numpy(keras.ops.convert_to_tensor(optimizer.learning_rate)))


def _learning_rate(settings: TrainingSettings, updates: int) -> Any:
    """A number or a Keras schedule of updates. Warm-up takes the first updates, the schedule the rest."""
    peak, final = settings.learning_rate, settings.final_rate
    if settings.schedule == "constant" and settings.warmup_steps == 0:
        return peak
    schedules = keras.optimizers.schedules
    after = max(1, updates - settings.warmup_steps)
    if settings.schedule == "exponential":
        # Reaches `final_rate` of the peak at the last update; an exponential never reaches exactly zero.
        main = schedules.ExponentialDecay(peak, after, max(final, 1e-3))
    elif settings.schedule == "linear":
        main = schedules.PolynomialDecay(peak, after, peak * final)
    elif settings.schedule == "cosine":
        main = schedules.CosineDecay(peak, after, alpha=final)
    else:
        main = schedules.PolynomialDecay(peak, after, peak)
    rate = Warmup(main, settings.warmup_steps) if settings.warmup_steps else main
    return ByUpdate(rate, settings.accumulate) if settings.accumulate > 1 else rate


class ByUpdate(keras.optimizers.schedules.LearningRateSchedule):
    """The learning rate of an update for all `batches` that it accumulates.

    Keras calls a schedule with the number of batches, also where only every `batches`-th of them ends in an update.
    Like `Warmup`, it never ends up in a saved model.
    """

    def __init__(self, by_update: keras.optimizers.schedules.LearningRateSchedule, batches: int) -> None:
        self.by_update = by_update
        self.batches = batches

    def __call__(self, step: Any) -> Any:
        """The learning rate of batch `step`, a scalar tensor."""
        return self.by_update(keras.ops.floor_divide(step, self.batches))

    def get_config(self) -> dict[str, Any]:
        """The arguments that build this schedule again."""
        return {"by_update": keras.saving.serialize_keras_object(self.by_update), "batches": self.batches}


class Warmup(keras.optimizers.schedules.LearningRateSchedule):
    """Rises linearly from zero over `steps` updates, then follows `after` from its beginning.

    Keras has warm-up only in its cosine schedule. This class never ends up in a saved model: a checkpoint keeps
    the optimizer of a run, as plain arrays.
    """

    def __init__(self, after: keras.optimizers.schedules.LearningRateSchedule, steps: int) -> None:
        self.after = after
        self.steps = steps

    def __call__(self, step: Any) -> Any:
        """The learning rate of update `step`, a scalar tensor."""
        step = keras.ops.cast(step, "float32")
        # As a float, because a backend takes no integer that its own integers cannot hold.
        steps = float(self.steps)
        rising = self.after(0) * (step + 1.0) / steps
        following = self.after(keras.ops.maximum(step - steps, 0.0))
        return keras.ops.where(step < steps, rising, following)

    def get_config(self) -> dict[str, Any]:
        """The arguments that build this schedule again."""
        return {"after": keras.saving.serialize_keras_object(self.after), "steps": self.steps}
