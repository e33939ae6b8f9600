"""How the model was trained, as its record says.

A module of its own because both the passes and the process that measures need it.
"""

import dataclasses

import keras

from cellerate.errors import ConfigError
from cellerate.layers.graph import find_over_time
from cellerate.models.storage import TaskRecord
from cellerate.training.settings import TrainingSettings

_MOST_ROWS = 1 << 20


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


def batch_size_of(record: TaskRecord, default: int) -> int:
    """Rows of a training batch, as a record says; models of earlier versions do not."""
    found = record.payload.get("batch_size")
    return found if isinstance(found, int) and 0 < found <= _MOST_ROWS else default


def training_item(item: str) -> str:
    """What training reads, where use makes so many `item`: characters, windows, lines."""
    return {"forecasts": "windows"}.get(item, item)
