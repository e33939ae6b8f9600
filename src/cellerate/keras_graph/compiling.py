"""Compiles a model like another one."""

from __future__ import annotations

import warnings
from typing import Any

import keras

from cellerate.errors import in_a_line


def compile_as(model: keras.Model, source: keras.Model) -> keras.Model:
    """Compiles a model with the optimizer, loss, metrics and options that another one was compiled with.

    The model gets its own optimizer and metrics, with fresh states. Keras's `compile_from_config` does not work for a
    loss that Keras cannot store, such as a lambda. If an optimizer or a metric cannot be copied, the model stays
    uncompiled, with a warning.

    Args:
        model: The model to compile, with the outputs of `source`.
        source: The model to copy from. If it is not compiled, nothing happens.

    Returns:
        `model` itself.
    """
    compiled = getattr(source, "_compile_config", None)
    if compiled is None or not source.compiled:
        return model
    try:
        arguments = {name: keras.tree.map_structure(_own, value) for name, value in compiled.config.items()}
    except (TypeError, ValueError, NotImplementedError) as error:
        warnings.warn(
            f"{model.name!r} is returned uncompiled, because how {source.name!r} was compiled cannot be copied; "
            f"call its compile() ({in_a_line(error)}).",
            stacklevel=3,
        )
    else:
        model.compile(**arguments)
    return model


def loss_weights_of(model: keras.Model) -> Any:
    """Gives the weights of the outputs' losses that a model was compiled with; None if there are none."""
    compiled = getattr(model, "_compile_config", None)
    return None if compiled is None else compiled.config.get("loss_weights")


def _own(value: Any) -> Any:
    """A fresh copy of an optimizer or metric; any other value unchanged."""
    if isinstance(value, keras.optimizers.Optimizer | keras.Metric):
        kind = type(value)
        if kind.__module__.startswith("keras.src.backend."):
            # torch's own class, by which a file names it, and which other backends cannot run.
            kind = getattr(keras.optimizers, kind.__name__, kind)
        return kind.from_config(value.get_config())
    return value
