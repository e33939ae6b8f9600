"""Train a model briefly, then restore it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import keras
import numpy as np

from cellerate.errors import ModelError
from cellerate.layers.accelerate import as_found, forget_compiled

_SETTINGS = ("run_eagerly", "jit_compile", "steps_per_execution")


@contextlib.contextmanager
def unharmed(model: keras.Model) -> Iterator[None]:
    """Restore the weights, the optimizer, the settings and the kernels of a compiled model after a `with`.

    Within, it trains with a fresh optimizer of the same kind.

    Raises:
        ModelError: The model's optimizer cannot be made anew from its configuration.
    """
    values = [np.array(keras.ops.convert_to_numpy(variable)) for variable in model.variables]
    optimizer, history = model.optimizer, getattr(model, "history", None)
    settings = {name: getattr(model, name) for name in _SETTINGS}
    try:
        fresh = type(optimizer).from_config(optimizer.get_config())
    except (AttributeError, TypeError, ValueError) as error:
        raise ModelError(
            f"the optimizer of model {model.name!r} cannot be made anew from its configuration ({error}), and the "
            "profile must not train with the model's own: compile the model with an optimizer of Keras."
        ) from error
    # While functions compiled before are held, JAX would reuse them instead of compiling anew.
    forget_compiled(model)
    with as_found(model):
        try:
            model.optimizer = fresh
            yield
        finally:
            model.optimizer, model.history = optimizer, history
            for name, value in settings.items():
                setattr(model, name, value)
            if hasattr(model, "_jax_state"):
                # After an interruption, Keras would write this state into the restored weights.
                model._jax_state, model._jax_state_synced = None, True
            for variable, value in zip(model.variables, values, strict=True):
                variable.assign(value)
            model.reset_metrics()
            model.stop_training = False
            forget_compiled(model)


def runs_eagerly(model: keras.Model) -> bool:
    """True if Python calls each operation of a training step, although the backend could compile the step."""
    backend = keras.config.backend()
    return bool(model.run_eagerly) or (backend == "jax" and not model.jit_compile)
