"""Keras's own callbacks, with counters that a checkpoint keeps."""

from collections.abc import Mapping
from typing import Any

import keras

from cellerate.training.callbacks import Progress


class _Resumable:
    """Lets a Keras callback keep its counters through a checkpoint and a second call of `fit`."""

    counted: tuple[str, ...] = ()

    def __init__(self, progress: Progress, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._progress = progress

    def on_train_begin(self, logs: Mapping[str, float] | None = None) -> None:
        """Restores the counters of the run, because Keras resets its own here."""
        super().on_train_begin(logs)  # type: ignore[misc]
        vars(self).update(self._progress.counters.get(type(self).__name__, {}))

    def on_epoch_end(self, epoch: int, logs: Mapping[str, float] | None = None) -> None:
        """Counts as Keras does, and records the counters for the checkpoint."""
        super().on_epoch_end(epoch, logs)  # type: ignore[misc]
        self._progress.counters[type(self).__name__] = {
            name: None if value is None else float(value) if name == "best" else int(value)
            for name in self.counted
            for value in [getattr(self, name)]
        }


class EarlyStopping(_Resumable, keras.callbacks.EarlyStopping):
    """Keras's early stopping, resumable."""

    counted = ("wait", "best", "best_epoch", "stopped_epoch")


class ReduceLROnPlateau(_Resumable, keras.callbacks.ReduceLROnPlateau):
    """Keras's plateau reduction, resumable."""

    counted = ("wait", "best", "cooldown_counter")
