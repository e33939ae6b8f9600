"""The training of the model, according to its record."""

from __future__ import annotations

import dataclasses
import math

import keras

from cellerate.errors import ConfigError
from cellerate.keras_graph.graph import find_over_time
from cellerate.models.storage import TaskRecord
from cellerate.training.settings import TrainingSettings

_MOST_ROWS = 1 << 20
_SAME_BATCH = 0.1


def settings_of(record: TaskRecord) -> TrainingSettings:
    """Return the settings a model was trained with, or the defaults if its record has no usable ones."""
    recorded = record.payload.get("training")
    known = {field.name for field in dataclasses.fields(TrainingSettings)}
    kept = (
        {name: value for name, value in recorded.items() if name in known}
        if isinstance(recorded, dict)
        else {}
    )
    try:
        return TrainingSettings(**kept)
    except (ConfigError, TypeError):
        return TrainingSettings()


def policy_of(model: keras.Model) -> str:
    """Return the dtype policy that a model trains in: its first recurrent layer's, else the whole model's."""
    recurrent = [found.layer for found in find_over_time(model) if isinstance(found.layer, keras.layers.RNN)]
    return str(getattr(recurrent[0] if recurrent else model, "dtype_policy", model.dtype_policy).name)


def way_of(implementation: str, policy: str) -> str:
    """Says in words how a model is trained."""
    return f"{'Keras' if implementation == 'keras' else 'fused kernels'}, {policy}"


def learning_rate_of(settings: TrainingSettings, factor: float) -> float:
    """Return the initial learning rate for batches `factor` times as large as before.

    It grows with the batch for SGD, and with the square root of the batch for optimizers that divide by the
    size of gradients. A batch that is only a few rows smaller changes nothing.

    Source: Goyal et al., "Accurate, Large Minibatch SGD", 2017; Malladi et al., "On the SDEs and Scaling Rules for
        Adaptive Gradient Algorithms", 2022.
    """
    if abs(factor - 1) < _SAME_BATCH:
        return settings.learning_rate
    return settings.learning_rate * (factor if settings.optimizer == "sgd" else math.sqrt(factor))


def batch_size_of(record: TaskRecord, default: int) -> int:
    """Return the rows of a training batch according to a record; models of earlier versions don't record it."""
    found = record.payload.get("batch_size")
    return found if isinstance(found, int) and 0 < found <= _MOST_ROWS else default
