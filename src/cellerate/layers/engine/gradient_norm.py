"""Averages the gradient norms of an optimizer, in Keras's own steps and in the engine's."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

_COUNTED = "_cellerate_norms"


class GradientNorm:
    """Sums an optimizer's gradient norms, each over all weights together and before clipping.

    The sums are variables of the optimizer, so that a checkpoint holds them and no step waits for them.

    Args:
        optimizer: The optimizer, before it has taken a step.
    """

    def __init__(self, optimizer: keras.optimizers.Optimizer) -> None:
        # A loss-scaling optimizer passes unscaled gradients to its inner optimizer.
        inner = getattr(optimizer, "inner_optimizer", optimizer)
        self._sums = inner.add_variable((2,), dtype="float32", name="gradient_norms")
        apply: Callable[..., None] = inner.apply

        def counted(grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> None:
            self._add(grads)
            apply(grads, trainable_variables)

        setattr(counted, _COUNTED, self._sums)
        inner.apply = counted

    def reset(self) -> None:
        """Sets the sums to zero."""
        self._sums.assign(np.zeros(2, np.float32))

    def mean(self) -> float:
        """The mean norm over the steps since `reset`; NaN without any."""
        total, steps = map(float, ops.convert_to_numpy(self._sums.value))
        return total / steps if steps else math.nan

    def _add(self, grads: Sequence[Any]) -> None:
        squares = 0.0
        for grad in grads:
            if grad is not None:
                # For an embedding TensorFlow returns only the rows that were used, and clips by the norm of these rows.
                rows = getattr(grad, "values", None)
                flat = ops.reshape(
                    ops.cast(grad if rows is None or callable(rows) else rows, "float32"), (-1,)
                )
                squares = squares + ops.dot(flat, flat)
        self._sums.assign_add(ops.stack([ops.sqrt(squares), 1.0]))


def norms_of(optimizer: Any) -> Any | None:
    """The variable that holds the sums of a `GradientNorm`; None for an optimizer without one."""
    return getattr(vars(optimizer).get("apply"), _COUNTED, None)
