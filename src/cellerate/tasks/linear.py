"""The linear forecast that a network has to beat: from the window to the horizon in one matrix, in closed form.

It is NLinear: the last value is subtracted from the window, one linear map gives the horizon, and the last value is
added again. Where NLinear is trained by gradient descent, this is the least squares solution, in one pass over the
training windows and float64.

Source: Zeng, Chen, Zhang & Xu 2023, "Are Transformers Effective for Time Series Forecasting?".
"""

import dataclasses
from collections.abc import Mapping

import numpy as np

from cellerate.data.gather import WindowIndex, open_rows
from cellerate.data.series import SeriesPart

# More windows than these change the solution little; of more, every so many are taken.
MOST_WINDOWS = 200_000
# The penalty on the coefficients, as a share of the mean variance of the inputs.
_RIDGE = 1e-3
# What its matrices may hold: 512 MiB.
_MOST_NUMBERS = 1 << 26
# Windows are taken together up to so many numbers.
_NUMBERS_AT_ONCE = 1 << 21


@dataclasses.dataclass(frozen=True)
class NLinear:
    """A fitted linear forecast; each target is forecast from its own past.

    Attributes:
        coefficients: (targets, window + 1, horizon); the last row is the constant, in units of the series' scale.
    """

    coefficients: np.ndarray

    def forecast(self, past: np.ndarray, scale: np.ndarray) -> np.ndarray:
        """Continues windows.

        Args:
            past: (B, window, targets) in the units of the data.
            scale: (B, targets) the scale of the series that each window is of; see `fit_linear`.

        Returns:
            (B, horizon, targets) in the units of the data.
        """
        last = past[:, -1:]
        made = np.einsum("bwt,twh->bht", past - last, self.coefficients[:, :-1], optimize=True)
        return last + made + self.coefficients[:, -1].T * scale[:, None]


def scale_or_one(scales: np.ndarray) -> np.ndarray:
    """Scales of series, with 1 where none is known."""
    return np.where(np.isfinite(scales), scales, 1.0)


def too_large(targets: int, window: int, horizon: int) -> bool:
    """Whether the matrices of a fit would take more memory than a baseline is worth."""
    return targets * (window + 1) * (window + 1 + horizon) > _MOST_NUMBERS


def fit_linear(
    part: SeriesPart, window: int, horizon: int, scales: Mapping[str, np.ndarray]
) -> NLinear | None:
    """Fits the linear forecast on the windows of a training part.

    Args:
        part: The training part. Of more than 200,000 windows, evenly spaced ones are taken.
        window: Rows it sees.
        horizon: Rows it forecasts.
        scales: (targets,) for each series, as `metrics.in_sample_errors` gives them: so that a series of large
            numbers counts no more than one of small ones. What is not known counts as 1.

    Returns:
        The forecast; None if the part has fewer windows than two.
    """
    data = part.data
    targets = list(data.target_columns)
    spans = [(first, last) for first, last in part.spans(window) if last - first >= window + horizon]
    every = WindowIndex(np.array(spans).reshape(-1, 2), window + horizon, 1)
    if every.count < 2:
        return None
    numbers = np.unique(np.linspace(0, every.count - 1, min(every.count, MOST_WINDOWS)).astype(np.int64))
    starts = every.starts(numbers)
    places = np.searchsorted([first for first, _, _ in data.segments], starts, side="right") - 1
    unknown = np.full(len(targets), np.nan)
    scale = np.array([scale_or_one(scales.get(name, unknown)) for _, _, name in data.segments])[places]
    moments = np.zeros((len(targets), window + 1, window + 1))
    products = np.zeros((len(targets), window + 1, horizon))
    reader = open_rows(data.values)
    some = max(1, _NUMBERS_AT_ONCE // ((window + horizon) * len(targets)))
    begin = 0
    while begin < len(starts):
        # Windows that begin within so many rows: what is read stays small, however far apart they are.
        end = int(np.searchsorted(starts, starts[begin] + some, side="left"))
        end = min(end, begin + some)
        first = int(starts[begin])
        rows = np.empty(
            (int(starts[end - 1]) + window + horizon - first, data.values.shape[1]), data.values.dtype
        )
        reader.read(first, rows)
        values = np.ascontiguousarray(rows[:, targets].T, np.float64)
        whole = np.lib.stride_tricks.sliding_window_view(values, window + horizon, axis=1)[
            :, starts[begin:end] - first
        ]
        cut = (whole - whole[..., window - 1 : window]) / scale[begin:end].T[..., None]
        inputs = np.concatenate([cut[..., :window], np.ones((*cut.shape[:2], 1))], axis=-1)
        moments += inputs.swapaxes(1, 2) @ inputs
        products += inputs.swapaxes(1, 2) @ cut[..., window:]
        begin = end
    penalty = _RIDGE * np.trace(moments[:, :-1, :-1], axis1=1, axis2=2) / window + 1e-12
    diagonal = np.arange(window)
    moments[:, diagonal, diagonal] += penalty[:, None]
    # The last value, less itself, is always 0, and a series that never changes has nothing else: the penalty keeps
    # both solvable.
    return NLinear(np.linalg.solve(moments, products))
