"""The first weights of a model: drawn at once, or counted without being drawn.

Drawing them one by one would compile dozens of programs, and a hostile description names more of them than fit.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import math
from collections.abc import Callable
from typing import Any, ParamSpec

import keras
from keras.src.backend.common import global_state
from keras.src.legacy.saving import saving_options, saving_utils
from keras.src.saving import serialization_lib

_P = ParamSpec("_P")
_WAITING = "uninitialized_variables"


def at_once(build: Callable[_P, keras.Model]) -> Callable[_P, keras.Model]:
    """Make a function that builds a model draw all its weights at once.

    JAX compiles a program for each operation of each initialiser and each shape: about 25 for a model of one LSTM,
    which take as long as importing JAX and Keras. One program draws the same bits in half the time. The other backends
    compile nothing here.

    Args:
        build: Returns a new model, whose initialisers are seeded and read no other variable.

    Returns:
        A function that gives the same model.
    """

    @functools.wraps(build)
    def built(*arguments: _P.args, **options: _P.kwargs) -> keras.Model:
        if keras.config.backend() != "jax":
            return build(*arguments, **options)
        # In such a scope Keras postpones the creation of weights to the scope's end.
        with keras.StatelessScope():
            model = build(*arguments, **options)
            _draw(model.variables)
        return model

    return built


def described_weights(config: Any, *, hdf5: bool = False) -> int:
    """Return how many numbers the variables of a model hold, without allocating any of them.

    Of a description that Keras, or a registered class, cannot build, the variables up to the failure count: building it
    to say what is wrong would allocate those.

    Args:
        config: The model as `keras.saving.serialize_keras_object` describes it, or as an HDF5 file does.
        hdf5: Whether it is from an HDF5 file, which describes layers in the words of Keras 2.
    """
    before = list(global_state.get_global_attribute(_WAITING, []))
    try:
        # In such a scope, Keras creates the values of variables only at the end, and these never.
        with keras.StatelessScope(initialize_variables=False):
            build = _from_hdf5 if hdf5 else keras.saving.deserialize_keras_object
            with contextlib.suppress(Exception):
                build(config)
            made = global_state.get_global_attribute(_WAITING, [])[len(before) :]
            return sum(math.prod(variable.shape) for variable in made)
    finally:
        # The next scope would create the values of all that wait.
        global_state.set_global_attribute(_WAITING, before)


def _from_hdf5(config: Any) -> Any:
    """The model that an HDF5 file describes, as Keras builds it when it loads one, and without running code of it."""
    with saving_options.keras_option_scope(use_legacy_config=True), serialization_lib.SafeModeScope(True):
        return saving_utils.model_from_config(config, custom_objects=keras.saving.get_custom_objects())


def _draw(variables: list[Any]) -> None:
    """Gives each variable that waits for its value an initialiser that has the value already."""
    waiting = [one for one in variables if callable(getattr(one, "_initializer", None))]
    bridge = importlib.import_module("cellerate.bridges.jax")
    values = bridge.computed_at_once(
        [functools.partial(one._initializer, one.shape, dtype=one.dtype) for one in waiting]
    )
    for one, value in zip(waiting, values, strict=True):
        one._initializer = functools.partial(_known, value)


def _known(value: Any, shape: Any, dtype: Any = None) -> Any:
    return value
