"""Detects training that diverges without becoming NaN, and suggests a remedy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from cellerate.messages import Message, argument, marked
from cellerate.training.settings import TrainingSettings

# A loss this many times that of a model that has learned nothing never leads to a good model.
_FAR = 10.0
# A smaller excess may be chance, such as an easy first batch.
_WORSE = 1.1
# Keras's own defaults, from which most models learn.
_USUAL_RATE = {"sgd": 0.01}
_USUAL_RATE_ELSE = 0.001


def reference_loss(first: float | None, ignorant: float | None) -> float:
    """The loss that training must not end above; infinite if nothing is known.

    Args:
        first: The loss of the first step.
        ignorant: The loss of a model that knows nothing.
    """
    return max((loss for loss in (first, ignorant) if loss is not None), default=math.inf)


def is_far(logs: Mapping[str, float], reference: float) -> bool:
    """Return True if the losses of an epoch, in training and in validation, are far above a reference."""
    return all(logs[name] > _FAR * reference for name in ("loss", "val_loss") if name in logs)


def made_worse(history: Sequence[Mapping[str, Any]], reference: float) -> bool:
    """Return True if the loss of the last epoch is above a reference."""
    return bool(history) and history[-1]["loss"] > _WORSE * reference


def remedy(settings: TrainingSettings) -> str:
    """The settings to try against divergence."""
    usual = _USUAL_RATE.get(settings.optimizer, _USUAL_RATE_ELSE)
    rate = usual if settings.learning_rate > usual else settings.learning_rate / 10
    clips = (settings.clipnorm, settings.clipvalue, settings.global_clipnorm)
    clip = f"{argument('clipnorm', 1)} or " if all(one is None for one in clips) else ""
    return Message(f"{clip}{argument('learning_rate', float(f'{rate:g}'))}")


def diverged(record: Mapping[str, Any], first: float | None, settings: TrainingSettings) -> str:
    """The error message for an epoch that ends far from where training began."""
    began = "" if first is None else f"; it was {first:,.4g} in the first step"
    norm = record.get("gradient_norm", math.inf)
    return Message(
        f"training diverged: the loss of epoch {record['epoch']} is {record['loss']:,.4g}{began}. The norm of its "
        f"gradients is {norm:,.4g} on average. Try {marked(remedy(settings))}. The last checkpoint and the best "
        "model so far have not changed."
    )


def why_not_better(history: Sequence[Mapping[str, Any]], reference: float, settings: TrainingSettings) -> str:
    """A sentence on why a model is no better than one that has learned nothing, and what to try.

    Args:
        history: The records of the epochs.
        reference: See `reference_loss`.
        settings: The settings of the training.
    """
    if not history:
        return ""
    last = history[-1]
    norms = ", ".join(f"{one['gradient_norm']:,.3g}" for one in history[-3:] if "gradient_norm" in one)
    epochs = "the last epoch" if len(history) == 1 else f"the last {min(3, len(history))} epochs"
    if made_worse(history, reference):
        return Message(
            f"Training made it worse: the loss rose from {reference:,.4g} to {last['loss']:,.4g}, and the norm of the "
            f"gradients was {norms} in {epochs}. Try {marked(remedy(settings))}."
        )
    return Message(
        f"It has not learned enough yet: train for longer, or, if the loss falls no more, try "
        f"{marked(remedy(settings))}. The norm of the gradients was {norms} in {epochs}."
    )
