"""Lets a model be trained for a while, and be then as it was."""

import contextlib
from collections.abc import Iterator

import keras
import numpy as np

from cellerate.layers.accelerate import as_found

_SETTINGS = ("run_eagerly", "jit_compile", "steps_per_execution")


@contextlib.contextmanager
def unharmed(model: keras.Model) -> Iterator[None]:
    """Gives a compiled model its weights, its optimizer, its settings and its kernels back after a `with`.

    Within, it trains with a fresh optimizer of the same kind.
    """
    values = [np.array(keras.ops.convert_to_numpy(variable)) for variable in model.variables]
    optimizer = model.optimizer
    settings = {name: getattr(model, name) for name in _SETTINGS}
    with as_found(model):
        try:
            model.optimizer = type(optimizer).from_config(optimizer.get_config())
            forget_compiled(model)
            yield
        finally:
            model.optimizer = optimizer
            for name, value in settings.items():
                setattr(model, name, value)
            for variable, value in zip(model.variables, values, strict=True):
                variable.assign(value)
            model.reset_metrics()
            model.stop_training = False
            forget_compiled(model)


def forget_compiled(model: keras.Model) -> None:
    """Makes Keras build its functions of a model anew, for what has changed in it."""
    model.train_function = model.test_function = model.predict_function = None
