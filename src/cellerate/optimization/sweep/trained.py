"""The settings of a trained model, from its record, for a sweep that continues its training."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from cellerate.errors import ConfigError, ModelError
from cellerate.messages import argument
from cellerate.tasks.settings import RECORDS, recorded_kinds
from cellerate.training.settings import TrainingSettings

_NOT_RECORDED = ("paths", "path", "reading")


def trained_settings(path: str, given: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The task of a trained model, and the settings of its training.

    Args:
        path: The file of the model.
        given: The user's settings; none may be a size of the model.

    Raises:
        ConfigError: A setting needs another architecture.
        ModelError: The file cannot be used, or does not name its task.
    """
    # Keras takes seconds to import, and a sweep of new models does not need it here.
    from cellerate.models.storage import load_model
    from cellerate.optimization.training import policy_of, settings_of

    model, record = load_model(path)
    if record is None:
        raise ModelError(
            f"{path} does not say what it is for (no Cellerate record). Train it a little with `cellerate train TASK "
            "DATA --model` first, which adds one."
        )
    task, payload = record.task, record.payload
    sizes = [name for name in given if name in _names(RECORDS[task]["architecture"])]
    if sizes:
        raise ConfigError(
            f"{argument(sizes[0])} needs another architecture than that of {path}, whose weights every point goes on "
            f"with: leave it out, or sweep new models with `cellerate sweep {task} DATA`."
        )
    found = {
        name: value
        for name, value in dataclasses.asdict(settings_of(record)).items()
        if name in _names(TrainingSettings)
    }
    if found["precision"] == "auto":
        # The precision that "auto" found to be faster.
        found["precision"] = policy_of(model)
    options = payload.get("options", payload)
    for kind in recorded_kinds(task):
        found |= {
            name: options[name] for name in _names(kind) if name in options and name not in _NOT_RECORDED
        }
    if task == "series":
        found["quantile"] = payload.get("quantiles", [])
        found["missing_values"] = payload.get("missing_values", [])
    # The tokenizer is the model's own.
    found.pop("tokenizer", None)
    return task, found


def _names(record: type) -> list[str]:
    return [field.name for field in dataclasses.fields(record)]
