"""The record of a compression, which every way to compress returns, and the gate that judges its quality."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Literal

from cellerate.errors import ConfigError


@dataclasses.dataclass(frozen=True)
class CompressionRecord:
    """The changes made to a model, as plain values that JSON holds.

    Attributes:
        method: How the model was made smaller.
        settings: The arguments of the method.
        metric: What `quality_before` and `quality_after` are: "loss" or a name of the caller's; less is better.
        quality_before: The quality of the given model; None if nothing could judge it.
        quality_after: The quality of the resulting model.
        parameters_before: The number of weights of the given model.
        parameters_after: The number of weights of the resulting model.
        seconds: The time it took, including fine-tuning and judging.
        details: What only this method reports, such as the units of each layer.
    """

    method: Literal["quantize", "prune", "distill", "sparsify"]
    settings: Mapping[str, Any]
    metric: str
    quality_before: float | None
    quality_after: float | None
    parameters_before: int
    parameters_after: int
    seconds: float
    details: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def quality_loss(self) -> float | None:
        """The loss of quality, as a share of the original's; below 0 if it is better."""
        if self.quality_before is None or self.quality_after is None:
            return None
        return relative_loss(self.quality_before, self.quality_after)

    def to_json(self) -> dict[str, Any]:
        """The record as JSON values."""
        return {**dataclasses.asdict(self), "quality_loss": self.quality_loss}


@dataclasses.dataclass(frozen=True)
class QualityGate:
    """A limit on how much worse a model may become.

    Args:
        max_loss: The largest loss of quality, as a share: 0.01 lets a metric of 2.00 become 2.02.

    Raises:
        ConfigError: `max_loss` is not a finite number of at least 0.

    Example:
        >>> QualityGate(0.01).passes(2.00, 2.01)
        True
    """

    max_loss: float

    def __post_init__(self) -> None:
        real = isinstance(self.max_loss, int | float) and not isinstance(self.max_loss, bool)
        if not (real and math.isfinite(self.max_loss) and self.max_loss >= 0):
            raise ConfigError(f"max_loss is {self.max_loss!r}; expected a finite number of at least 0.")

    def passes(self, before: float, after: float) -> bool:
        """True if a metric, where less is better, may go from `before` to `after`; NaN may not."""
        return relative_loss(before, after) <= self.max_loss


def relative_loss(before: float, after: float) -> float:
    """Gives the increase of a metric, where less is better, as a share of its value before.

    If the metric was exactly 0, anything above it is infinitely worse. The result is NaN if either value is.
    """
    if before == after:
        return 0.0
    if math.isnan(before) or math.isnan(after):
        return math.nan
    return (after - before) / abs(before) if before else math.copysign(math.inf, after - before)
