"""Finding which of the activations that Cellerate computes comes nearest to one that it does not know."""

import functools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from cellerate.activations import ACTIVATIONS

_REACH, _POINTS = 4.0, 801
RANGE = f"x from {-_REACH:g} to {_REACH:g}"
"""Where activations are compared, in words."""


@functools.cache
def nearest_activation(function: Callable[..., Any]) -> tuple[str, float] | None:
    """Return the known activation whose values come nearest to those of a function, by the largest difference.

    Args:
        function: Any activation: a function, or a layer.

    Returns:
        The name, and the largest difference on a grid in `RANGE`; None for what is not element-wise, draws random
        numbers, is a layer that is not built, or does not run on an array of any shape.
    """
    values = _values(function)
    if values is None:
        return None
    known = {name: _values(keras.activations.get(name)) for name in ACTIVATIONS}
    distances = {
        name: float(np.max(np.abs(values - each))) for name, each in known.items() if each is not None
    }
    name = min(distances, key=lambda one: distances[one])
    return name, distances[name]


def _values(function: Callable[..., Any]) -> np.ndarray | None:
    """The values of an element-wise function on the grid; None for any other function."""
    if isinstance(function, keras.Layer) and not function.built:
        # A call would build it for this grid.
        return None
    grid = np.linspace(-_REACH, _REACH, _POINTS, dtype="float32")
    try:
        row, column = (
            np.asarray(keras.ops.convert_to_numpy(function(keras.ops.convert_to_tensor(grid.reshape(shape)))))
            for shape in ((1, -1), (-1, 1))
        )
    except Exception:  # anything: it is somebody else's code, on a shape that it may not be made for
        return None
    if row.size != _POINTS or column.size != _POINTS:
        return None
    values = row.astype("float64").ravel()
    # What depends on the neighbours, such as softmax, has other values in a column.
    equal = np.allclose(values, column.astype("float64").ravel(), rtol=1e-5, atol=1e-6)
    return values if equal and np.isfinite(values).all() else None
