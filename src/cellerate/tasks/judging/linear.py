"""The linear forecast that a network has to beat: from the window to the horizon in one matrix, in closed form.

It is NLinear: the last value is subtracted from the window, one linear map gives the horizon, and the last value is
added again. The paper trains NLinear by gradient descent; this is the least squares solution, in float64 and one pass
over the training windows. `tasks.series.linear_start` begins a forecaster with it.

Source: Zeng, Chen, Zhang & Xu 2023, "Are Transformers Effective for Time Series Forecasting?".
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

import numpy as np

from cellerate.data.arrays import WindowIndex, open_rows
from cellerate.data.series import SeriesPart
from cellerate.data.windows import known_medians, spread

# More windows would change the solution little, so an evenly spaced sample is used.
MOST_WINDOWS = 200_000
# The penalty on the coefficients, as a share of the mean variance of the inputs.
_RIDGE = 1e-3
# The most bytes of the matrices: 512 MiB.
_MOST_NUMBERS = 1 << 26
# More targets share one map: in a packed model, each target's map is a separate operation.
_MOST_OWN = 1000
# The most numbers in a batch of windows: 2 MB stay in a cache.
_NUMBERS_AT_ONCE = 1 << 18


@dataclasses.dataclass(frozen=True)
class NLinear:
    """A fitted linear forecast; each target is forecast from its own past.

    Attributes:
        coefficients: (targets, window + 1, horizon), or (1, window + 1, horizon) if all targets share one map; the last
            row is the constant, in the units of the fit.
        windows: The number of windows of the fit.
        unknown: (targets,) the constant's units for a series whose own are unknown.
    """

    coefficients: np.ndarray
    windows: int
    unknown: np.ndarray

    def forecast(self, past: np.ndarray, units: np.ndarray) -> np.ndarray:
        """Continue windows.

        Args:
            past: (B, window, targets) in the units of the data.
            units: (B, targets) the constant's units, for each window's series, see `fit_linear`; NaN if unknown.

        Returns:
            (B, horizon, targets) in the units of the data.
        """
        last, units = past[:, -1:], np.where(np.isfinite(units), units, self.unknown)
        each = np.broadcast_to(self.coefficients, (past.shape[2], *self.coefficients.shape[1:]))
        made = np.einsum("bwt,twh->bht", past - last, each[:, :-1], optimize=True)
        return last + made + each[:, -1].T * units[:, None]


def too_large(window: int, horizon: int) -> bool:
    """True if the matrices of a fit would take too much memory for a baseline."""
    return (window + 1) * (window + 1 + horizon) > _MOST_NUMBERS


def shares_map(targets: int, window: int, horizon: int) -> bool:
    """Return True if all targets have the same map, because there are too many for each to have its own."""
    return targets > _MOST_OWN or targets * (window + 1) * (window + 1 + horizon) > _MOST_NUMBERS


def fit_linear(
    part: SeriesPart,
    window: int,
    horizon: int,
    scales: Mapping[str, np.ndarray],
    units: Mapping[str, np.ndarray] | None = None,
    *,
    shared: bool | None = None,
) -> NLinear | None:
    """Fits the linear forecast on the windows of a training part.

    Args:
        part: The training part. Of more than 200,000 windows, evenly spaced ones are taken.
        window: Rows of the input.
        horizon: Rows to forecast.
        scales: (targets,) for each series, from `metrics.in_sample_errors`, so that a series of large numbers counts no
            more than one of small ones. A series of unknown scale, such as one that never changes, counts by the median
            of the known ones, and has no constant; if none is known, all are 1.
        units: (targets,) for each series, the unit of the constant; None takes the scales.
        shared: Whether all targets have one map; None decides as `shares_map`.

    Returns:
        The forecast; None if the part has fewer than two windows.
    """
    data = part.data
    targets = len(data.target_columns)
    if shared is None:
        shared = shares_map(targets, window, horizon)
    windows = TargetWindows(part, window, horizon, MOST_WINDOWS)
    if windows.count < 2:
        return None
    usual, unknown = _where_unknown(np.array(list(scales.values())).reshape(-1, targets))
    scale = windows.by_series(scales, usual)
    constant = windows.by_series(scales if units is None else units, unknown) / scale
    maps = 1 if shared else targets
    moments = np.zeros((maps, window + 1, window + 1))
    products = np.zeros((maps, window + 1, horizon))
    for some, values in windows.read():
        last = values[..., window - 1 : window]
        cut = (values - last) / scale[some].T[..., None]
        inputs = np.concatenate([cut[..., :window], constant[some].T[..., None]], axis=-1)
        ahead = cut[..., window:]
        if shared:
            inputs, ahead = inputs.reshape(1, -1, window + 1), ahead.reshape(1, -1, horizon)
        moments += inputs.swapaxes(1, 2) @ inputs
        products += inputs.swapaxes(1, 2) @ ahead
    penalty = _RIDGE * np.trace(moments[:, :-1, :-1], axis1=1, axis2=2) / window + 1e-12
    diagonal = np.arange(window)
    moments[:, diagonal, diagonal] += penalty[:, None]
    # The last value less itself is always 0, and so are all values of a constant series: the penalty keeps both
    # solvable.
    return NLinear(np.linalg.solve(moments, products), windows.count, unknown)


def _where_unknown(scales: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The scale and the constant's units for series of unknown scale.

    A scale of 1 would let a series that never changes count more than all others together where these are counted in
    thousands, and a constant in the units of other series would move it.

    Args:
        scales: (S, targets), NaN where unknown.

    Returns:
        Twice (targets,).
    """
    usual = known_medians(scales, np.ones(scales.shape[1]))
    return usual, np.where(np.isfinite(scales).any(axis=0), 0.0, 1.0)


class TargetWindows:
    """The targets of windows of a training part, read in float64 and in bounded memory.

    Args:
        part: The part.
        window: Rows of the past.
        horizon: Rows after it.
        most: The most windows; of more, an evenly spaced sample.

    Attributes:
        count: The number of windows.
    """

    def __init__(self, part: SeriesPart, window: int, horizon: int, most: int) -> None:
        self._data, self._span = part.data, window + horizon
        spans = [(first, last) for first, last in part.spans(window) if last - first >= self._span]
        every = WindowIndex(np.array(spans).reshape(-1, 2), self._span, 1)
        numbers = np.array(spread(every.count, most), np.int64)
        self.count = len(numbers)
        self._starts = every.starts(numbers) if self.count else numbers

    def by_series(self, values: Mapping[str, np.ndarray], unknown: np.ndarray) -> np.ndarray:
        """(windows, targets) the values for each window's series; `unknown` (targets,) where they are missing."""
        segments = self._data.segments
        places = np.searchsorted([first for first, _, _ in segments], self._starts, side="right") - 1
        own = np.array([values.get(name, unknown) for _, _, name in segments])
        return np.where(np.isfinite(own), own, unknown)[places]

    def read(self) -> Iterator[tuple[slice, np.ndarray]]:
        """Yield some windows at a time: their indices, and their values (targets, B, window + horizon)."""
        targets, starts = list(self._data.target_columns), self._starts
        stored = self._data.values
        reader = open_rows(stored)
        some = max(1, _NUMBERS_AT_ONCE // (self._span * len(targets)))
        begin = 0
        while begin < len(starts):
            # The windows of a batch begin within a limited range of rows, so that few rows are read at a time.
            end = min(begin + some, int(np.searchsorted(starts, starts[begin] + some, side="left")))
            first = int(starts[begin])
            rows = np.empty((int(starts[end - 1]) + self._span - first, stored.shape[1]), stored.dtype)
            reader.read(first, rows)
            values = np.ascontiguousarray(rows[:, targets].T, np.float64)
            whole = np.lib.stride_tricks.sliding_window_view(values, self._span, axis=1)
            yield slice(begin, end), whole[:, starts[begin:end] - first]
            begin = end
