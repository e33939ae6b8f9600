"""The windows of a backtest: where each fold begins in each series, and the rows that are known there."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cellerate.data.series import SeriesData, SeriesPart
from cellerate.errors import DataError
from cellerate.messages import argument
from cellerate.runtime.forecast import Intervals, interval_coverage
from cellerate.tasks.judging import SeriesForecaster


@dataclasses.dataclass(frozen=True)
class FoldWindows:
    """The windows of all folds: (B,) the fold of each, its first row to forecast, and the series."""

    folds: np.ndarray
    origins: np.ndarray
    series: tuple[str, ...]


def fold_windows(
    data: SeriesData, forecaster: SeriesForecaster, folds: int, step: int
) -> tuple[FoldWindows, tuple[str, ...]]:
    """The windows of all folds, fold by fold, and the series that are too short for any.

    Raises:
        DataError: No series is long enough for the first fold.
    """
    window, horizon = forecaster.settings.window, forecaster.settings.horizon
    # The last stretch of each series.
    ends = {name: (first, stop) for first, stop, name in data.segments}
    found: list[tuple[int, int, str]] = []
    left_out = []
    for name, (first, stop) in ends.items():
        count = min(folds, max(0, (stop - first - window - horizon) // step + 1))
        fits = [
            (fold, stop - horizon - (folds - 1 - fold) * step, name) for fold in range(folds - count, folds)
        ]
        found += fits
        if not fits:
            left_out.append(name)
    found.sort(key=lambda one: one[0])
    if not found or found[0][0] > 0:
        longest = max(stop - first for first, stop in ends.values())
        needed = window + horizon + (folds - 1) * step
        most = (longest - window - horizon) // step + 1
        which = "the series ends" if len(ends) == 1 else "the longest series ends"
        raise DataError(
            f"{which} with {longest:,} rows without a gap, but {folds} folds of horizon {horizon} every {step} rows "
            f"need {needed:,} with a window of {window}: "
            + (
                f"{argument('folds', most)} is the most, or take a smaller step."
                if most > 0
                else "give more rows."
            )
        )
    numbers, origins, names = zip(*found, strict=True)
    return FoldWindows(np.array(numbers), np.array(origins, np.int64), names), tuple(left_out)


def rows_before(data: SeriesData, windows: FoldWindows, fold: int) -> SeriesPart:
    """The rows that are known at a fold; of a series that begins at a later fold, the rows before that one."""
    stops: dict[str, int] = {}
    for number, origin, name in zip(windows.folds, windows.origins, windows.series, strict=True):
        if number <= fold or name not in stops:
            stops[name] = int(origin)
    segments = tuple(
        (first, min(stop, stops[name]), name)
        for first, stop, name in data.segments
        if name in stops and first < stops[name]
    )
    return dataclasses.replace(data, segments=segments).whole()


def rows_around(data: SeriesData, origins: np.ndarray, begin: int, end: int) -> np.ndarray:
    """(B, end - begin, targets) rows around origins, in the units of the data."""
    places = origins[:, None] + np.arange(begin, end)
    return np.asarray(data.values[places[..., None], list(data.target_columns)], np.float64)


@dataclasses.dataclass(frozen=True, eq=False)
class FoldRows:
    """The rows around each origin, the forecasts, and their intervals.

    Attributes:
        past: (N, window, targets).
        truth: (N, horizon, targets).
        made: The forecasts (N, horizon, targets), or (N, horizon, targets, Q).
        bounds: For each level (N, horizon, targets, 2): low and high.
    """

    past: np.ndarray
    truth: np.ndarray
    made: np.ndarray
    bounds: Mapping[float, np.ndarray]

    @classmethod
    def of(
        cls,
        forecaster: SeriesForecaster,
        data: SeriesData,
        windows: FoldWindows,
        made: np.ndarray,
        around: Sequence[Intervals | None],
    ) -> FoldRows:
        """Collect the rows, the forecasts and the intervals of all folds.

        Args:
            forecaster: The forecaster.
            data: The series.
            windows: The origins, in the order of the folds.
            made: The forecasts.
            around: For each fold the intervals for its forecasts, or None.
        """
        settings = forecaster.settings
        past = rows_around(data, windows.origins, -settings.window, 0)
        truth = rows_around(data, windows.origins, 0, settings.horizon)
        # The folds that share a model share its intervals.
        parts = []
        for _, shared in itertools.groupby(enumerate(around), key=lambda one: id(one[1])):
            folds = [number for number, _ in shared]
            chosen = (windows.folds >= folds[0]) & (windows.folds <= folds[-1])
            intervals = around[folds[0]]
            if intervals is not None:
                parts.append(intervals.bounds(past[chosen], made[chosen], settings.quantiles))
        bounds = {level: np.concatenate([part[level] for part in parts]) for level in (parts or [{}])[0]}
        return cls(past, truth, made, bounds)

    def held(self, chosen: np.ndarray | slice) -> dict[str, Any]:
        """`intervals`: the share of the truth within them, by level; empty without intervals."""
        if not self.bounds:
            return {}
        both = {level: one[chosen] for level, one in self.bounds.items()}
        return {"intervals": interval_coverage(self.truth[chosen], both)}
