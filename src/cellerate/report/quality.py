"""The part of a report's record on the quality of a model: its measure, its value and its uncertainty.

It is a separate module because the optimizer's judging needs only this part of the record.
"""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)
"""The validation rules for all records of a report."""


@dataclass(frozen=True, config=STRICT)
class Metric:
    """The measure of a model's quality.

    Attributes:
        name: Such as "bits per character".
        unit: The unit shown after a value, or "".
        higher_is_better: Whether more is better.
        source: The data on which candidates were chosen: "80,231 characters of the validation part".
        test_source: The data of the verdict, which no choice has used; "" without such a part.
    """

    name: str
    unit: str
    higher_is_better: bool
    source: str
    test_source: str = ""


@dataclass(frozen=True, config=STRICT)
class Interval:
    """A mean with its 95 % confidence interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, config=STRICT)
class Tested:
    """The quality of a model on the test part.

    Attributes:
        candidate: The id of the model.
        role: "before" is the original, "control" the original trained further, "after" the chosen model, and
            "rejected" the model that was chosen and broke the promise on the test part.
        quality: The quality.
        loss: How much worse than the original it is, as a share of the original's value, with the 95 %
            interval of the paired difference; None for the original.
        control_loss: The same against the control; None if it was not trained further.
    """

    candidate: str
    role: Literal["before", "control", "after", "rejected"]
    quality: Interval
    loss: Interval | None = None
    control_loss: Interval | None = None
