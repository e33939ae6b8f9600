"""The quality of a model as a mean over held-out data, with its uncertainty.

Two models judged on the same data are compared block by block. This shows far smaller differences than
comparing two means, each with its own error.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from cellerate.errors import DataError, ModelError
from cellerate.report.quality import Interval

# Neighbouring windows of a text or a series are correlated; the means of longer stretches hardly are.
_MOST_BLOCKS = 64
# The 97.5 % quantiles of Student's t by degrees of freedom; a series expansion is as exact for more.
_T = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23)
_NORMAL = 1.96


@dataclasses.dataclass(frozen=True)
class Judged:
    """The quality of a model on each stretch of the held-out data.

    Attributes:
        values: (blocks,) the mean of each block.
        weights: (blocks,) the weight of each block.
    """

    values: tuple[float, ...]
    weights: tuple[float, ...]

    def __post_init__(self) -> None:
        """Convert sequences, such as lists from JSON, to tuples."""
        object.__setattr__(self, "values", tuple(self.values))
        object.__setattr__(self, "weights", tuple(self.weights))

    @property
    def mean(self) -> float:
        """The mean over all blocks."""
        return float(np.average(self.values, weights=self.weights))


def judged(
    values: Sequence[float] | np.ndarray, weights: Sequence[float] | np.ndarray | None = None
) -> Judged:
    """Group the values of items, in the order of the data, into blocks.

    Args:
        values: (N,) the mean of each item, such as a window or a line.
        weights: (N,) the weights of the items; None for equal weights. Items of weight 0 are left out.

    Raises:
        DataError: There are no values.
        ModelError: A value is not a finite number.
    """
    found = np.asarray(values, np.float64)
    share = np.ones(len(found)) if weights is None else np.asarray(weights, np.float64)
    found, share = found[share > 0], share[share > 0]
    if not len(found):
        raise DataError("there is nothing to judge the model on: hold out more of the data.")
    if not np.isfinite(found).all():
        raise ModelError(
            "the model's results on the held-out data are not finite: its training diverged. Train it again, with a "
            "lower learning rate."
        )
    edges = np.linspace(0, len(found), min(_MOST_BLOCKS, len(found)) + 1).astype(int)[:-1]
    total = np.add.reduceat(share, edges)
    return Judged(tuple((np.add.reduceat(found * share, edges) / total).tolist()), tuple(total.tolist()))


def interval(one: Judged) -> Interval:
    """The mean with its 95 % interval."""
    values, weights = np.array(one.values), np.array(one.weights)
    reach = _reach(values, weights)
    return Interval(value=one.mean, low=one.mean - reach, high=one.mean + reach)


def paired_loss(before: Judged, after: Judged, *, higher_is_better: bool) -> Interval:
    """Return the loss of quality from one model to another, as a share of the first one's value; negative is a gain.

    Args:
        before: The values of the first model.
        after: The values of the second model, on the same data.
        higher_is_better: Whether higher values are better.

    Returns:
        The loss, with the 95 % interval of the differences block by block.
    """
    sign = -1.0 if higher_is_better else 1.0
    weights = np.array(before.weights)
    differences = sign * (np.array(after.values) - np.array(before.values))
    scale = abs(before.mean)
    found = float(np.average(differences, weights=weights))
    if scale == 0:
        # As in `compress.record.relative_loss`: a value worse than perfect is infinitely worse.
        worst = 0.0 if found == 0 else math.copysign(1e9, found)
        return Interval(value=worst, low=worst, high=worst)
    reach = _reach(differences, weights) / scale
    return Interval(value=found / scale, low=found / scale - reach, high=found / scale + reach)


def _reach(values: np.ndarray, weights: np.ndarray) -> float:
    """Return half the width of the 95 % interval of a weighted mean of blocks.

    Source: Cochran, "Sampling Techniques", 3rd ed., section 2.11 (the variance of a ratio of means).
    """
    count = len(values)
    if count < 2:
        return 0.0
    centred = weights * (values - np.average(values, weights=weights))
    error = math.sqrt(count / (count - 1) * float(np.square(centred).sum())) / float(weights.sum())
    return error * _student(count - 1)


def _student(freedom: int) -> float:
    """Return the 97.5 % quantile of Student's t.

    Source: Abramowitz & Stegun, "Handbook of Mathematical Functions", 26.7.5.
    """
    if freedom <= len(_T):
        return _T[freedom - 1]
    x = _NORMAL
    return x + (x**3 + x) / (4 * freedom) + (5 * x**5 + 16 * x**3 + 3 * x) / (96 * freedom**2)
