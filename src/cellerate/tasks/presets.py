"""Sizes of a text model, each with the settings that train it well: the presets.

A preset only adds options: those that the user gives win. This module imports nothing heavy.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Literal, get_args

from cellerate.errors import ConfigError
from cellerate.messages import Message, argument
from cellerate.settings import check_choice

Preset = Literal["small", "medium", "large"]

_PRESETS: Mapping[str, Mapping[str, Any]] = {
    "small": {"embedding": 64, "units": 128, "layers": 1, "learning_rate": 0.004, "clipnorm": 1.0},
    "medium": {
        "embedding": 128,
        "units": 512,
        "layers": 1,
        "dropout": 0.1,
        "learning_rate": 0.002,
        "clipnorm": 1.0,
    },
    "large": {
        "embedding": 256,
        "units": 1024,
        "layers": 2,
        "dropout": 0.2,
        "learning_rate": 0.001,
        "clipnorm": 1.0,
    },
}


def preset_options(preset: str, given: Collection[str], *, model: object = None) -> dict[str, Any]:
    """The options that a preset adds to those that are given.

    Args:
        preset: One of `Preset`.
        given: The names of the options that the user gave.
        model: The user's own model, which no preset can size.

    Raises:
        ConfigError: There is no such preset, or there is a model.
    """
    check_choice("preset", preset, get_args(Preset))
    if model is not None:
        raise ConfigError(
            f"{argument('preset')} and {argument('model')} cannot be used together: a model brings its own sizes. "
            "Choose one of the two."
        )
    return {name: value for name, value in _PRESETS[preset].items() if name not in given}


def preset_sentence(preset: str, chosen: Mapping[str, Any]) -> str:
    """The settings that a preset chose, as a sentence."""
    words = " ".join(argument(name, value) for name, value in chosen.items())
    return Message(f"preset {preset}: {words or 'every one of its settings is given'}")
