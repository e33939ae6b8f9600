"""Naive forecasts, and forecasts as a table.

It is plain NumPy and knows no model, so it can be checked by hand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cellerate.runtime.forecast import Example


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


def forecast_columns(
    examples: Sequence[Example],
    before: Mapping[str, Sequence[Any]] | None = None,
    behind: Mapping[str, Sequence[Any]] | None = None,
) -> dict[str, Any]:
    """Forecasts as columns, with one row for each series and time.

    Args:
        examples: The forecasts.
        before: Columns to begin with, if any.
        behind: Columns to end with, if any.

    Returns:
        `series` (a list; missing if no series has a name), `time`, and for each target a column, or one for each
        quantile of it, and two for each interval, such as `OT_low80` and `OT_high80`. A name that an earlier column
        has gets an underscore: a target called time is in the column `time_`.
    """
    first = examples[0]
    columns = dict(before or {})
    if any(example.series for example in examples):
        _add(columns, "series", [example.series for example in examples for _ in example.times])
    _add(columns, "time", first.form.column(np.concatenate([example.times for example in examples])))
    names = [
        f"{target}_q{q:g}" if first.quantiles else target
        for target in first.targets
        for q in (first.quantiles or (None,))
    ]
    flat = np.concatenate([example.forecast.reshape(len(example.times), -1) for example in examples])
    for name, values in zip(names, flat.T.astype(np.float64), strict=True):
        _add(columns, name, values)
    for place, target in enumerate(first.targets):
        for level in first.intervals:
            both = np.concatenate([example.intervals[level][:, place] for example in examples])
            for end, values in zip(("low", "high"), both.T, strict=True):
                _add(columns, f"{target}_{end}{100 * level:g}", values)
    for name, given in (behind or {}).items():
        _add(columns, name, given)
    return columns


def _add(columns: dict[str, Any], name: str, values: Any) -> None:
    while name in columns:
        name += "_"
    columns[name] = values


def forecast_table(
    examples: Sequence[Example],
    before: Mapping[str, Sequence[Any]] | None = None,
    behind: Mapping[str, Sequence[Any]] | None = None,
) -> tuple[list[str], list[list[Any]]]:
    """`forecast_columns` as a table for people: its column names, and one row for each series and time."""
    columns = forecast_columns(examples, before, behind)
    times = np.concatenate([example.times for example in examples])
    columns["time"] = examples[0].form.write(times)
    values = [column if isinstance(column, list) else column.tolist() for column in columns.values()]
    return list(columns), [list(row) for row in zip(*values, strict=True)]


def example_record(example: Example) -> Mapping[str, Any]:
    """A forecast as JSON values."""
    columns, rows = forecast_table([example])
    return {"series": example.series, "rows": [dict(zip(columns, row, strict=True)) for row in rows]}
