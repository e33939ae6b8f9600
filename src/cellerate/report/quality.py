"""The part of a report's record that says how good a model is: on what it was judged, and how sure that is.

A module of its own because the optimizer's judging needs nothing else of the record.
"""

from typing import Literal

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)
"""The rules by which every record of a report is read."""


@dataclass(frozen=True, config=STRICT)
class Metric:
    """The measure of a model's quality.

    Attributes:
        name: Such as "bits per character".
        unit: The unit shown after a value, or "".
        higher_is_better: Whether more is better.
        source: What candidates were chosen on: "80,231 characters of the validation part".
        test_source: What the verdict was given on, which no choice has seen; "" without such a part.
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
