"""How the model was trained, as its record says."""

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
    """The settings that a model was trained with; the usual ones where its record has none that can be used."""
    told = record.payload.get("training")
    known = {field.name for field in dataclasses.fields(TrainingSettings)}
    kept = {name: value for name, value in told.items() if name in known} if isinstance(told, dict) else {}
    try:
        return TrainingSettings(**kept)
    except (ConfigError, TypeError):
        return TrainingSettings()


def policy_of(model: keras.Model) -> str:
    """The dtype policy that a model trains in: that of its first recurrent layer, or of all of it."""
    recurrent = [found.layer for found in find_over_time(model) if isinstance(found.layer, keras.layers.RNN)]
    return str(getattr(recurrent[0] if recurrent else model, "dtype_policy", model.dtype_policy).name)


def way_of(implementation: str, policy: str) -> str:
    """How a model is trained, in words."""
    return f"{'Keras' if implementation == 'keras' else 'fused kernels'}, {policy}"


def learning_rate_of(settings: TrainingSettings, factor: float) -> float:
    """The learning rate to begin with where a batch is so many times as large as it was.

    It grows with the batch for SGD, with its square root for the optimizers that divide by the size of gradients;
    a batch of which a few rows are missing changes nothing.

    Source: Goyal et al., "Accurate, Large Minibatch SGD", 2017; Malladi et al., "On the SDEs and Scaling Rules for
        Adaptive Gradient Algorithms", 2022.
    """
    if abs(factor - 1) < _SAME_BATCH:
        return settings.learning_rate
    return settings.learning_rate * (factor if settings.optimizer == "sgd" else math.sqrt(factor))


def batch_size_of(record: TaskRecord, default: int) -> int:
    """Rows of a training batch, as a record says; models of earlier versions do not."""
    found = record.payload.get("batch_size")
    return found if isinstance(found, int) and 0 < found <= _MOST_ROWS else default
