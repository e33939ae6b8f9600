"""Activations to test: each that the kernels know, and each parameter with a value of its own."""

import functools
import math
from collections.abc import Callable
from typing import Any

from cellerate import activations
from cellerate.activations import ACTIVATIONS, VARIANTS

_THRESHOLD = "threshold(threshold=0.5, default_value=-1.5)"
WITH_PARAMETERS = (
    "leaky_relu(negative_slope=0.05)",
    "leaky_relu(negative_slope=-0.3)",
    "leaky_relu(negative_slope=0.0)",
    "relu(max_value=3.0)",
    "relu(negative_slope=0.1, max_value=2.0)",
    "relu(threshold=0.125)",
    "relu(negative_slope=0.1, threshold=-1.25)",
    "relu(negative_slope=0.25, max_value=1.5, threshold=-0.5)",
    "elu(alpha=0.3)",
    "elu(alpha=-0.5)",
    "celu(alpha=0.4)",
    "gelu(approximate=1.0)",
    "hard_shrink(threshold=1.25)",
    "soft_shrink(threshold=0.25)",
    "squareplus(b=1.5)",
    _THRESHOLD,
)
"""Activations with parameters that are not Keras's defaults."""

IN_FILES = (*[name for name in ACTIVATIONS if name != "threshold"], *WITH_PARAMETERS)
"""All that a `.cell` file may hold."""

VARIANTS_WITH_PARAMETERS = (
    "leaky_relu_from_above(negative_slope=0.05)",
    "leaky_relu_from_above(negative_slope=0.0)",
    "leaky_relu_from_above(negative_slope=-0.3)",
    "celu_of_both_sides(alpha=0.4)",
    "relu_between(max_value=3.0)",
    "relu_between(negative_slope=0.25, max_value=1.5, threshold=-0.5)",
    "hard_shrink_of_numbers(threshold=1.25)",
    "soft_shrink_of_numbers(threshold=0.25)",
)
IN_KERNELS = (*IN_FILES, *VARIANTS, *VARIANTS_WITH_PARAMETERS)
"""All that the kernels of layers know."""


def in_keras(activation: str) -> Callable[[Any], Any]:
    """Keras's function for an activation; for a variant, the function that it varies."""
    import keras

    if activation in ("softmax", "log_softmax"):
        return keras.activations.get(activation)
    name, parameters = activations.read(activation)
    given: dict[str, Any] = {key: None if value == math.inf else value for key, value in parameters.items()}
    if name == "gelu":
        given = {"approximate": bool(parameters["approximate"])}
    function = keras.activations.get(VARIANTS.get(name, (name,))[0])
    return functools.partial(function, **given) if given else function
