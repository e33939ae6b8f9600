"""What a compression did to a model, and whether its quality may stay.

A module of its own because every way to compress answers with the same record, and one gate judges them all.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Literal

from cellerate.errors import ConfigError


@dataclasses.dataclass(frozen=True)
class CompressionRecord:
    """What was done to a model; plain values that JSON holds.

    Attributes:
        method: How it was made smaller.
        settings: With what.
        metric: What `quality_before` and `quality_after` are: "loss", or as the caller names it; less is better.
        quality_before: Of the model that was given; None where nothing could judge it.
        quality_after: Of the model that came out.
        parameters_before: Weights of the model that was given, in numbers.
        parameters_after: Weights of the model that came out.
        seconds: What it took, fine-tuning and judging included.
        details: What only this method has to tell, such as the units of each layer.
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
        """By how much worse it is, as a share of what it was; below 0 where it is better."""
        if self.quality_before is None or self.quality_after is None:
            return None
        return relative_loss(self.quality_before, self.quality_after)

    def to_json(self) -> dict[str, Any]:
        """The record as JSON values."""
        return {**dataclasses.asdict(self), "quality_loss": self.quality_loss}


@dataclasses.dataclass(frozen=True)
class QualityGate:
    """How much worse a model may become.

    Args:
        max_loss: The largest loss of quality, as a share: 0.01 lets a metric of 2.00 become 2.02.

    Raises:
        ConfigError: `max_loss` is no finite number of at least 0.

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
        """Whether a metric, of which less is better, may go from `before` to `after`; NaN may not."""
        return relative_loss(before, after) <= self.max_loss


def relative_loss(before: float, after: float) -> float:
    """By how much worse a metric became, of which less is better, as a share of what it was.

    A metric of exactly 0 can only stay: anything above it is infinitely worse. What is no number makes it none.
    """
    if before == after:
        return 0.0
    if math.isnan(before) or math.isnan(after):
        return math.nan
    return (after - before) / abs(before) if before else math.copysign(math.inf, after - before)
