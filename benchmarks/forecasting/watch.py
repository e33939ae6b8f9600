"""Train a peer for some seconds and keep its best weights: a callback of Lightning, for Darts and NeuralForecast.

Both can stop after a time by Lightning's own `max_time`; the callback does the same, keeps the best weights in memory
instead of files, and counts the steps.
"""

import copy
import time
from typing import Any

from pytorch_lightning.callbacks import Callback


class Watch(Callback):
    """End a fit some seconds after the start of its first batch, with the weights of the best validation.

    Args:
        budget_s: Seconds, validation included.
        monitor: Lightning's name of the validation loss.
    """

    def __init__(self, budget_s: float, monitor: str) -> None:
        self.budget_s, self.monitor = budget_s, monitor
        self.best, self.best_step, self.steps, self.validations = float("inf"), 0, 0, 0
        self.trained_s = 0.0
        self._began, self._weights = 0.0, None

    def __deepcopy__(self, memo: Any) -> "Watch":
        """Return this object itself, because NeuralForecast copies its models and the copy must share its result."""
        return self

    def on_train_start(self, trainer: Any, module: Any) -> None:
        """Start the clock."""
        self._began = time.monotonic()

    def on_train_batch_end(self, trainer: Any, module: Any, *_: Any) -> None:
        """Count the last validation, which Lightning runs when it stops."""
        self.steps += 1
        if time.monotonic() - self._began >= self.budget_s:
            trainer.should_stop = True

    def on_validation_end(self, trainer: Any, module: Any) -> None:
        """Keep the weights if they are the best."""
        self.validations += 1
        loss = float(trainer.callback_metrics[self.monitor])
        if loss < self.best:
            self.best, self.best_step = loss, self.steps
            self._weights = copy.deepcopy(module.state_dict())

    def on_train_end(self, trainer: Any, module: Any) -> None:
        """Restore the best weights."""
        self.trained_s = time.monotonic() - self._began
        if self._weights is not None:
            module.load_state_dict(self._weights)

    def told(self) -> dict[str, Any]:
        """The result of the training, for the record."""
        return {
            "trained_s": self.trained_s,
            "steps": self.steps,
            "validations": self.validations,
            "best_validation": self.best,
            "best_step": self.best_step,
        }


QUIET: dict[str, Any] = {
    "accelerator": "cpu",
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "logger": False,
    "num_sanity_val_steps": 0,
}
"""Trainer arguments that turn off logs, bars and summaries, which cost time."""
