"""The metrics of a forecast: errors, scaled errors, and metrics of quantiles. Plain NumPy, checked by hand.

All figures are means over windows, so that sums over pieces of the data add up exactly.

Sources: Hyndman & Koehler 2006, "Another look at measures of forecast accuracy" (MASE); Makridakis, Spiliotis &
Assimakopoulos 2020, "The M4 Competition" (sMAPE, MASE of several series); Koenker & Bassett 1978, "Regression
Quantiles" (pinball loss); Gneiting & Ranjan 2011, "Comparing Density Forecasts Using Threshold- and
Quantile-Weighted Scoring Rules" (the CRPS as an integral of pinball losses).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from cellerate.data.arrays import open_rows
from cellerate.data.series import SeriesPart

# Of each target: the absolute and the squared error in its units, and sMAPE in percent.
ERRORS = ("mae", "mse", "smape")
_ROWS_AT_ONCE = 1 << 16
# A share of the largest value: a smaller mean change comes from rounding in the data, as in a sine at 0.
_ROUNDING = 2.0**-40


def window_errors(forecast: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """The errors of each window and target, averaged over the horizon.

    sMAPE is 200 · |truth - forecast| / (|truth| + |forecast|), from 0 to 200 percent, and 0 where both are 0.

    Args:
        forecast: (B, H, targets).
        truth: (B, H, targets), the true values.

    Returns:
        (B, targets, 3): the `ERRORS`, in their order.
    """
    distance = np.abs(forecast - truth)
    size = np.abs(truth) + np.abs(forecast)
    share = np.divide(distance, size, out=np.zeros_like(distance), where=size != 0)
    return np.stack([each.mean(axis=1) for each in (distance, distance**2, 200 * share)], axis=-1)


def pinball_losses(forecast: np.ndarray, truth: np.ndarray, quantiles: Sequence[float]) -> np.ndarray:
    """The pinball loss of each window, target and quantile q, averaged over the horizon.

    The loss is q · (truth - forecast) or (1 - q) · (forecast - truth), whichever is not negative.

    Args:
        forecast: (B, H, targets, Q).
        truth: (B, H, targets).
        quantiles: The Q quantiles.

    Returns:
        (B, targets, Q), in the units of the target.
    """
    above = truth[..., None] - forecast
    levels = np.array(quantiles)
    return np.maximum(levels * above, (levels - 1) * above).mean(axis=1)


def crps_weights(quantiles: Sequence[float]) -> np.ndarray:
    """(Q,) the weights with which the pinball losses of quantiles add up to the CRPS.

    The CRPS is twice the integral of the pinball loss over all quantiles from 0 to 1. Each given quantile stands for
    the quantiles nearest to it: its weight is twice the distance between the midpoints to its two neighbours, with 0
    and 1 as the outer ends. With the median alone, the sum is the absolute error, which is also the CRPS of a forecast
    of one value.
    """
    middles = [(low + high) / 2 for low, high in itertools.pairwise(quantiles)]
    return 2 * np.diff([0.0, *middles, 1.0])


def central_intervals(quantiles: Sequence[float]) -> dict[float, tuple[int, int]]:
    """The central intervals that quantiles span: the nominal share of an interval → the indices of its ends.

    0.1 and 0.9 span the interval of 0.8, which is central because equal shares lie below and above it.
    """
    return {
        round(high - low, 9): (first, second)
        for (first, low), (second, high) in itertools.combinations(enumerate(quantiles), 2)
        if abs(low + high - 1) < 1e-9
    }


def covered(forecast: np.ndarray, truth: np.ndarray, quantiles: Sequence[float]) -> np.ndarray:
    """The share of the horizon where the truth was at most each quantile, and within each central interval.

    Args:
        forecast: (B, H, targets, Q).
        truth: (B, H, targets).
        quantiles: The Q quantiles, rising.

    Returns:
        (B, targets, Q + I): the quantiles, then the I intervals in the order of `central_intervals`.
    """
    value = truth[..., None]
    inside = [
        (forecast[..., [low]] <= value) & (value <= forecast[..., [high]])
        for low, high in central_intervals(quantiles).values()
    ]
    return np.concatenate([value <= forecast, *inside], axis=-1).mean(axis=1)


def in_sample_errors(part: SeriesPart, season: int) -> dict[str, np.ndarray]:
    """The mean absolute change from one season to the next in a training part: the divisor of MASE.

    Args:
        part: The training part; no change crosses a gap.
        season: Rows of a season; 1 for changes from row to row.

    Returns:
        For each series (targets,) in the units of the targets; NaN, for which MASE has no meaning, if the part is no
        longer than a season, or changes by rounding only.
    """
    data = part.data
    targets = list(data.target_columns)
    firsts = [first for first, _, _ in data.segments]
    places = np.searchsorted(firsts, [begin for _, begin, _ in part.bounds], side="right") - 1
    names = [data.segments[place][2] for place in places]
    sums = {name: np.zeros(len(targets)) for name in names}
    largest = {name: np.zeros(len(targets)) for name in names}
    counts = dict.fromkeys(names, 0)
    reader = open_rows(data.values)
    for name, (_, begin, stop) in zip(names, part.bounds, strict=True):
        for first in range(begin, stop - season, _ROWS_AT_ONCE):
            last = min(stop, first + _ROWS_AT_ONCE + season)
            rows = np.empty((last - first, data.values.shape[1]), data.values.dtype)
            reader.read(first, rows)
            values = rows[:, targets].astype(np.float64)
            sums[name] += np.abs(values[season:] - values[:-season]).sum(axis=0)
            largest[name] = np.maximum(largest[name], np.abs(values).max(axis=0))
            counts[name] += len(values) - season
    found = {}
    for name, total in sums.items():
        mean = total / counts[name] if counts[name] else np.zeros(len(targets))
        found[name] = np.where(mean > _ROUNDING * largest[name], mean, np.nan)
    return found
