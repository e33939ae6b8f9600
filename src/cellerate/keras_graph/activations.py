"""Recognizing the Keras activation functions that Cellerate computes."""

import functools
from collections.abc import Callable
from typing import Any

import keras

from cellerate.activations import ACTIVATIONS


@functools.cache
def activation_name(function: Callable[..., Any]) -> str | None:
    """The name by which the kernels know an activation, or None."""
    return next((name for name in ACTIVATIONS if keras.activations.get(name) is function), None)
