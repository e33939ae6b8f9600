"""The quantile (pinball) loss, which Keras does not have.

Only training, evaluation and saved compile states use `QuantileLoss`: the architectures in this folder hold
nothing but Keras's own layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from cellerate.errors import ConfigError
from cellerate.models.quantiles import check_quantiles


def middle_place(quantiles: Sequence[float]) -> int:
    """The index of the quantile nearest to 0.5, which is the point forecast."""
    return min(range(len(quantiles)), key=lambda place: abs(quantiles[place] - 0.5))


@keras.saving.register_keras_serializable(package="cellerate")
class QuantileLoss(keras.losses.Loss):
    """The pinball loss, averaged over the quantiles; the true conditional quantiles minimise it.

    Args:
        quantiles: Q ascending numbers, strictly between 0 and 1, in the order of the predictions' last axis.
        reduction: As for every Keras loss.
        name: As for every Keras loss.

    Raises:
        ConfigError: The quantiles are not ascending numbers in (0, 1).

    Source: Koenker & Bassett, "Regression Quantiles", Econometrica 46(1), 1978.
    """

    def __init__(
        self,
        quantiles: Sequence[float],
        reduction: str | None = "sum_over_batch_size",
        name: str = "quantile_loss",
        **kwargs: Any,
    ) -> None:
        super().__init__(name=name, reduction=reduction, **kwargs)
        self.quantiles = check_quantiles(quantiles)

    def call(self, y_true: Any, y_pred: Any) -> Any:
        """Computes the loss of every sample and time step.

        Args:
            y_true: (B, ..., targets) floats.
            y_pred: (B, ..., targets, Q) floats; the last axis may be missing when Q is 1.

        Returns:
            (B, ...), averaged over targets and quantiles, so that sample weights of shape (B, 1) or
            (B, horizon) apply as they do for Keras's own regression losses.

        Raises:
            ConfigError: The last axis of the predictions does not have one entry for each quantile.
        """
        if len(y_pred.shape) == len(y_true.shape) and len(self.quantiles) == 1:
            y_pred = ops.expand_dims(y_pred, -1)
        if len(y_pred.shape) != len(y_true.shape) + 1 or y_pred.shape[-1] != len(self.quantiles):
            raise ConfigError(
                f"QuantileLoss has {len(self.quantiles)} quantiles, so predictions need the shape of the "
                f"targets {tuple(y_true.shape)} and one more axis of that size; got {tuple(y_pred.shape)}. "
                "Build the model with the same quantiles."
            )
        levels = ops.convert_to_tensor(self.quantiles, dtype=y_pred.dtype)
        error = ops.expand_dims(y_true, -1) - y_pred
        return ops.mean(ops.maximum(levels * error, (levels - 1.0) * error), axis=(-2, -1))

    def get_config(self) -> dict[str, Any]:
        """The arguments that build this loss again."""
        return {**super().get_config(), "quantiles": list(self.quantiles)}
