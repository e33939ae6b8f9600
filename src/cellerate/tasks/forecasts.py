"""Naive forecasts, the errors that judge a forecaster, and forecasts as a table.

It is plain NumPy and knows no model, so it can be checked by hand.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cellerate.runtime.forecasting import Example

_DAY = np.timedelta64(1, "D")


class Naive:
    """Forecasts that need no model and that a model has to beat.

    Args:
        horizon: Rows to forecast, H.
        season: Rows of a season, or None.

    Source: Hyndman & Athanasopoulos, "Forecasting: Principles and Practice", 3rd ed., section 5.2.
    """

    def __init__(self, horizon: int, season: int | None) -> None:
        self.horizon = horizon
        self.season = season

    def names(self, window: int) -> list[str]:
        """The names of the forecasts that windows of `window` rows allow."""
        seasonal = self.season is not None and 1 < self.season <= window
        return ["last_value", "seasonal_naive"] if seasonal else ["last_value"]

    def forecast(self, name: str, past: np.ndarray) -> np.ndarray:
        """Continues (B, window, targets) rows to (B, H, targets)."""
        if name == "last_value":
            return np.repeat(past[:, -1:], self.horizon, axis=1)
        assert self.season is not None  # noqa: S101 (`names` gives no other name without one)
        last = past[:, -self.season :]
        return last[:, np.arange(self.horizon) % self.season]


class ErrorSums:
    """Mean absolute and squared errors, summed batch by batch.

    Args:
        scale: (targets,) the standard deviation of each target on the training part.
    """

    def __init__(self, scale: np.ndarray) -> None:
        self.windows = 0
        self._scale = scale
        self._sums = np.zeros(4)

    def add(self, forecast: np.ndarray, truth: np.ndarray) -> None:
        """Adds (B, H, targets) forecasts and the true values."""
        error = forecast - truth
        scaled = error / self._scale
        each = [np.abs(error), error**2, np.abs(scaled), scaled**2]
        self._sums += [values.mean(axis=(1, 2)).sum() for values in each]
        self.windows += len(error)

    def means(self) -> dict[str, float]:
        """`mae` and `mse` in the units of the data, `scaled_mae` and `scaled_mse` in standard deviations."""
        names = ("mae", "mse", "scaled_mae", "scaled_mse")
        return {
            name: float(value) for name, value in zip(names, self._sums / max(1, self.windows), strict=True)
        }


def daily_season(step: Any) -> int | None:
    """Rows per day (per week, for daily rows) from the time step; None if there is no such whole number."""
    if not isinstance(step, np.timedelta64) or step <= np.timedelta64(0):
        return None
    if step == _DAY:
        return 7
    rows = _DAY / step
    return round(rows) if rows >= 2 and abs(rows - round(rows)) < 1e-9 else None


def forecast_table(examples: Sequence[Example]) -> tuple[list[str], list[list[Any]]]:
    """Forecasts as a table: its column names, and one row for each series and time."""
    many = any(example.series for example in examples)
    first = examples[0]
    names = [
        f"{target}_q{q:g}" if first.quantiles else target
        for target in first.targets
        for q in (first.quantiles or (None,))
    ]
    rows: list[list[Any]] = []
    for example in examples:
        flat = example.forecast.reshape(len(example.times), -1)
        for time, values in zip(example.times, flat, strict=True):
            shown = (
                str(time).replace("T", " ").removesuffix(".000000")
                if isinstance(time, np.datetime64)
                else time.item()
            )
            rows.append([*([example.series] if many else []), shown, *map(float, values)])
    return [*(["series"] if many else []), "time", *names], rows


def example_record(example: Example) -> Mapping[str, Any]:
    """A forecast as JSON values."""
    columns, rows = forecast_table([example])
    return {"series": example.series, "rows": [dict(zip(columns, row, strict=True)) for row in rows]}
