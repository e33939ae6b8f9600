"""The list of callbacks that `fit` calls: those of the user, then those of the run, and only when one is due."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras

from cellerate.errors import ConfigError
from cellerate.training.callbacks import Conductor


class WhenDue(keras.callbacks.CallbackList):
    """Calls the callbacks after a batch only when the conductor says that one is due.

    Reading a batch's loss makes Python wait for the device, and `fit` by default does so at every step. The user's
    callbacks that watch batches still see every batch.

    Args:
        own: The user's callbacks.
        ours: The run's callbacks, which come after the user's.
        conductor: The conductor, the last of `ours`.
        model: The compiled model.
        arguments: The values that callbacks find in `params`.
    """

    def __init__(
        self,
        own: list[keras.callbacks.Callback],
        ours: list[keras.callbacks.Callback],
        conductor: Conductor,
        *,
        model: keras.Model,
        **arguments: Any,
    ) -> None:
        super().__init__([*own, *ours], add_history=True, model=model, verbose=0, **arguments)
        self._conductor = conductor
        self._watch_batches = [callback for callback in own if _watches_batches(callback)]

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Passes a batch on if it is due."""
        if self._conductor.due(batch):
            super().on_train_batch_end(batch, logs)
        elif self._watch_batches:
            values = {name: float(value) for name, value in (logs or {}).items()}
            for callback in self._watch_batches:
                callback.on_train_batch_end(batch, logs=values)


def check_callbacks(callbacks: Sequence[keras.callbacks.Callback]) -> list[keras.callbacks.Callback]:
    """The callbacks as a list. Raises `ConfigError` if one of them is not a Keras callback."""
    given = [callbacks] if isinstance(callbacks, keras.callbacks.Callback) else list(callbacks)
    for one in given:
        if not isinstance(one, keras.callbacks.Callback) or isinstance(one, keras.callbacks.CallbackList):
            raise ConfigError(
                f"callbacks must be a list of keras.callbacks.Callback, and one of them is a {type(one).__name__}: "
                "make an object of such a class, or wrap functions in keras.callbacks.LambdaCallback."
            )
    return given


def _watches_batches(callback: keras.callbacks.Callback) -> bool:
    """True if a callback does anything at the end of a batch."""
    # `LambdaCallback` has its functions in the object, not in its class.
    return any(
        getattr(getattr(callback, name), "__func__", None) is not getattr(keras.callbacks.Callback, name)
        for name in ("on_train_batch_end", "on_batch_end")
    )
