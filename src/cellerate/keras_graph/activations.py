"""Recognizing the Keras activations that Cellerate computes, by what they do and not by their names."""

from __future__ import annotations

import copy
import functools
import weakref
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras.src.backend.common import global_state

from cellerate import activations
from cellerate.activations import ACTIVATIONS, PARAMETERS
from cellerate.errors import ConfigError
from cellerate.kernels.lstm.reference_activations import activation_of

# The key of Keras's counters for the automatic names of layers and operations.
_COUNTS = "object_name_uids"
# A recognized activation differs from Keras's values by less: by float32 rounding.
_LIMIT = 1e-5
_ATTRIBUTES = ("activation", *sorted({name for names in PARAMETERS.values() for name in names}))
_REACH, _POINTS = 4.0, 801
RANGE = f"x from {-_REACH:g} to {_REACH:g}"
"""The range in which activations are compared, in words."""
# The recognized activations of each layer, by the attributes or the operation that decide which it is.
_known: weakref.WeakKeyDictionary[keras.Layer, dict[Any, str]] = weakref.WeakKeyDictionary()


def activation_name(function: Any, *, fixed_weights: bool = False) -> str | None:
    """The activation that a function or layer of Keras computes, as `cellerate.activations` writes it, or None.

    Recognized are the functions of `keras.activations` and `keras.ops`; layers such as `keras.layers.ReLU`; and any
    function that is one call of these, such as a `functools.partial` or a lambda.

    Args:
        function: The function or layer.
        fixed_weights: Whether weights keep the values that they have now, as in a packed model. Then a PReLU of one
            slope is known as well.
    """
    if isinstance(function, keras.Layer):
        if isinstance(function, keras.layers.PReLU) and fixed_weights and function.built:
            slopes = np.unique(keras.ops.convert_to_numpy(function.alpha))
            return (
                activations.written("leaky_relu", {"negative_slope": slopes[0]}) if len(slopes) == 1 else None
            )
        return _of_layer(function) if not function.variables else None
    try:
        return _remembered(function)
    except TypeError:  # it cannot be hashed
        return _recognized(function)


def _of_layer(layer: keras.Layer) -> str | None:
    """The activation that a layer computes now. It is cached by the layer's attributes, which may change.

    Every call on torch asks for it, and tracing takes 0.2 ms. While a backend traces a model, the layer cannot be
    computed for comparison.
    """
    known = _known.setdefault(layer, {})
    own = type(layer).__module__.startswith("keras.")
    # The attributes decide in Keras's own layers; in other layers, the operation that they call.
    key = tuple(getattr(layer, name, None) for name in _ATTRIBUTES) if own else _candidate(layer.call)
    if key not in known:
        found = _candidate(layer.call)
        if found is None or not _computes(layer.call, found):
            return None
        known[key] = found
    return known[key]


@functools.lru_cache(maxsize=256)
def _remembered(function: Callable[..., Any]) -> str | None:
    return _named(function) or _recognized(function)


def _recognized(function: Callable[..., Any]) -> str | None:
    found = _candidate(function)
    return found if found is not None and _computes(function, found) else None


def _candidate(function: Callable[..., Any]) -> str | None:
    """The activation that a function seems to be, by the operation of Keras that it calls."""
    call = _only_call(function)
    return call if call == "linear" else operation_activation(call)


def _named(function: Callable[..., Any]) -> str | None:
    """The name by which Keras knows an activation function."""
    for name in ACTIVATIONS:
        if keras.activations.get(name) is function and name != "threshold":
            return name
    return None


def operation_activation(operation: Any) -> str | None:
    """The activation that an operation of a Keras graph computes, or None."""
    name = _names().get(type(operation))
    if name is None:
        return None
    try:
        # `keras.ops.relu` has no parameters.
        parameters = {
            each: getattr(operation, each, default) for each, default in PARAMETERS.get(name, {}).items()
        }
        return _canonical(name, {n: float(np.inf if v is None else v) for n, v in parameters.items()})
    except (AttributeError, TypeError, ValueError, ConfigError):
        return None


def _only_call(function: Callable[..., Any]) -> Any:
    """The one Keras operation that a function applies to its argument; "linear" if it returns the argument, or None."""
    counts = copy.copy(global_state.get_global_attribute(_COUNTS))
    given = keras.KerasTensor((2, 3))
    try:
        found = function(given)
        history = getattr(found, "_keras_history", None)
        if found is given or history is None:
            return "linear" if found is given else None
        node = history.operation._inbound_nodes[history.node_index]
        return history.operation if len(node.input_tensors) == 1 and node.input_tensors[0] is given else None
    except Exception:
        return None
    finally:
        # The operations made here must not change the automatic names of later layers.
        global_state.set_global_attribute(_COUNTS, counts)


@functools.cache
def _names() -> dict[type, str]:
    """The activations by the classes of the operations that compute them."""
    found = {}
    for name in ACTIVATIONS:
        needed = {each: 0.5 for each, default in PARAMETERS.get(name, {}).items() if default is None}
        for functions in (keras.activations, keras.ops):
            function = getattr(functions, name, None)
            call = None if function is None else _only_call(functools.partial(function, **needed))
            if call is not None and call != "linear":
                found[type(call)] = name
    return found


def _canonical(name: str, parameters: dict[str, float]) -> str:
    """The simplest way to write an activation."""
    found = activations.written(name, parameters)
    if name == "relu":
        slope = parameters["negative_slope"]
        if found == activations.written("relu", {"negative_slope": slope}) and slope:
            return activations.written("leaky_relu", {"negative_slope": slope})
        if found == activations.written("relu", {"max_value": 6.0}):
            return "relu6"
    activations.read(found)
    return found


def _computes(function: Callable[..., Any], activation: str) -> bool:
    """Return True if a function has the values of an activation."""
    x = np.linspace(-8, 8, 97, dtype=np.float32)
    try:
        found = np.asarray(keras.ops.convert_to_numpy(function(keras.ops.convert_to_tensor(x))), np.float64)
    except Exception:
        return False
    wanted = activation_of(activation).value(x.astype(np.float64))
    return found.shape == wanted.shape and bool(
        np.all(np.abs(found - wanted) <= _LIMIT * (1 + np.abs(wanted)))
    )


@functools.cache
def nearest_activation(function: Callable[..., Any]) -> tuple[str, float] | None:
    """Return the known activation whose values come nearest to those of a function, by the largest difference.

    Args:
        function: Any activation: a function, or a layer.

    Returns:
        The name, and the largest difference on a grid in `RANGE`; None for a function that is not element-wise, draws
        random numbers, is an unbuilt layer, or does not run on an array of any shape.
    """
    values = _on_grid(function)
    if values is None:
        return None
    known = {name: _on_grid(keras.activations.get(name)) for name in ACTIVATIONS}
    distances = {
        name: float(np.max(np.abs(values - each))) for name, each in known.items() if each is not None
    }
    name = min(distances, key=lambda one: distances[one])
    return name, distances[name]


def _on_grid(function: Callable[..., Any]) -> np.ndarray | None:
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
    except Exception:  # any error: this is the user's code, and it may not support this shape
        return None
    if row.size != _POINTS or column.size != _POINTS:
        return None
    values = row.astype("float64").ravel()
    # A function that depends on neighbours, such as softmax, has other values in a column.
    equal = np.allclose(values, column.astype("float64").ravel(), rtol=1e-5, atol=1e-6)
    return values if equal and np.isfinite(values).all() else None
