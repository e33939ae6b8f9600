"""The validation error by stretches of time, and a test for one model being clearly better than another.

The mean over the validation part says little about the next weeks, because a few days may decide it. A model that is
better in nearly all stretches is likely to be better afterwards, too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

STRETCHES = 8
# The share by which the means must differ, and the standard errors by which the gain over the stretches must exceed 0.
_SHARE, _ERRORS = 0.01, 2.0


class ErrorByStretch(keras.metrics.Metric):
    """The mean absolute error, in all and in each stretch of the batches.

    Args:
        batches: The number of batches. A compiled function keeps the number it was compiled with.
        place: The index on the last axis of the quantile to judge; None for forecasts of one value.
        name: As for every Keras metric.
    """

    def __init__(self, batches: int, place: int | None = None, name: str = "mae") -> None:
        super().__init__(name=name)
        self.batches, self._place = max(1, batches), place
        self._sums = self.add_variable((STRETCHES,), "zeros", name="sums")
        self._counted = self.add_variable((STRETCHES,), "zeros", name="weights")
        self._done = self.add_variable((), "zeros", name="done")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Adds a batch.

        Args:
            y_true: (B, ...) floats.
            y_pred: The same shape, or with one more axis of quantiles.
            sample_weight: (B,) or (B, 1); None weights all rows equally.
        """
        if self._place is not None:
            y_pred = y_pred[..., self._place]
        y_true = ops.cast(y_true, "float32")
        error = ops.abs(y_true - ops.cast(y_pred, "float32"))
        error = ops.mean(error, axis=tuple(range(1, len(error.shape))))
        weight = ops.ones_like(error) if sample_weight is None else ops.reshape(sample_weight, (-1,))
        weight = ops.cast(weight, "float32")
        rows = ops.shape(error)[0]
        number = self._done * ops.cast(rows, "float32") + ops.cast(ops.arange(rows), "float32")
        stretch = ops.floor(number * STRETCHES / ops.cast(self.batches * rows, "float32"))
        member = ops.one_hot(ops.cast(ops.minimum(stretch, STRETCHES - 1), "int32"), STRETCHES)
        self._sums.assign_add(ops.sum(member * ops.expand_dims(error * weight, -1), axis=0))
        self._counted.assign_add(ops.sum(member * ops.expand_dims(weight, -1), axis=0))
        self._done.assign_add(1.0)

    def result(self) -> Any:
        """The mean over all rows."""
        return ops.divide_no_nan(ops.sum(self._sums), ops.sum(self._counted))

    def by_stretch(self) -> list[float]:
        """The mean over the rows of each stretch that has any."""
        sums, weights = (ops.convert_to_numpy(one.value) for one in (self._sums, self._counted))
        return (sums[weights > 0] / weights[weights > 0]).tolist()


def clearly_better(
    now: Mapping[str, float],
    before: Mapping[str, float],
    now_by_stretch: Sequence[float] = (),
    before_by_stretch: Sequence[float] = (),
) -> bool:
    """Return True if a model is better by more than what may be chance.

    Args:
        now: The model's losses and metrics; less is better.
        before: The other model's losses and metrics. Each must be worse by a hundredth.
        now_by_stretch: The model's error in each stretch of time.
        before_by_stretch: The other model's error. The mean gain must be at least twice its standard error.
    """
    if not all(now[name] < (1 - _SHARE) * value for name, value in before.items()):
        return False
    gain = np.array(before_by_stretch, np.float64) - np.array(now_by_stretch, np.float64)
    if len(gain) < 2:
        return True
    return bool(gain.mean() >= _ERRORS * gain.std(ddof=1) / math.sqrt(len(gain)))
