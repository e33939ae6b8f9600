"""Calibrates a trained forecaster on its validation part, and judges its intervals on the test part.

The test part is judged as forecasts are made: at each origin, intervals are calibrated on the rows before it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cellerate.data.series import SeriesData, SeriesPart, SeriesSplit
from cellerate.runtime.forecast import (
    LEVELS,
    MOST_WINDOWS,
    NEWEST,
    Calibration,
    Scored,
    conformal_quantile,
    interval,
    interval_coverage,
    origins_of,
    scale_floor,
    score_origins,
    score_rows,
    thinned,
)
from cellerate.tasks.judging.errors import SeriesForecaster

# The most windows of the validation and of the test part that are used.
_MOST = 8_192
# The most numbers in their forecasts.
_MOST_NUMBERS = 1 << 25


def calibrate(
    model: SeriesForecaster, split: SeriesSplit, most: int | None = None
) -> tuple[Calibration, Scored] | None:
    """Calibrate a forecaster by its scores on the validation part.

    With several series, scores are relative to the scale of the window: no single width suits both a series that sells
    two a week and one that sells two hundred a day.

    Args:
        model: The trained forecaster.
        split: The split of the training data.
        most: The most windows to use, if fewer than usual.

    Returns:
        The calibration for the model, and the forecasts behind it; None if the part has too few windows for any
        interval.
    """
    data, settings = split.train.data, model.settings
    bounds = _cut(split.validation.bounds, _most(model, most), settings.horizon)
    usable = [one for one in bounds if max(one[1], one[0] + settings.window) < one[2]]
    if not usable:
        return None
    found, off, spread = score_rows(lambda some: model.forecast_at(data, some), data, settings, usable)
    if found is None:
        return None
    several = len({name for _, _, name in data.segments}) > 1
    floor = scale_floor(found.spread) if several else None
    made = Calibration.of(
        found.scores if floor is None else found.scores / (found.spread + floor)[:, None],
        off if floor is None else off / (spread + floor),
        floor=floor,
        non_negative=~(_negative(split.train) | _negative(split.validation)),
        until=_until(split.train),
    )
    return None if made is None else (made, found)


def judge_intervals(
    model: SeriesForecaster,
    part: SeriesPart,
    calibration: Calibration,
    earlier: Scored | None = None,
    levels: Sequence[float] = LEVELS,
    most: int | None = None,
) -> dict[str, dict[str, float]]:
    """The coverage of intervals on a part, each calibrated on rows before its origin, as in `forecast`.

    The intervals of a block as long as the horizon share the calibration of its first origin.

    Args:
        model: The forecaster.
        part: The rows to forecast.
        calibration: The calibration of the model.
        earlier: Scores of rows before the part, which also serve for calibration.
        levels: The levels; those without scores in the calibration are left out.
        most: The most windows to use, if fewer than usual.

    Returns:
        See `interval_coverage`; empty if no window fits.
    """
    data, settings = part.data, model.settings
    levels = [level for level in levels if level <= calibration.grid[-1]]
    every = origins_of(part, settings.window, settings.horizon)
    if not len(every) or not levels:
        return {}
    judged = thinned(every, _most(model, most))
    found = score_origins(lambda some: model.forecast_at(data, some), data, settings, judged)
    reach = _reach_at(data, settings.horizon, calibration, found, earlier, levels, len(judged) / len(every))
    scale = calibration.divisor(found.spread)[:, None]
    clipped = calibration.non_negative & ~found.negative
    intervals = {
        level: interval(found.forecast, settings.quantiles, one * scale, clipped)
        for level, one in reach.items()
    }
    return interval_coverage(found.truth, intervals)


def _reach_at(
    data: SeriesData,
    horizon: int,
    calibration: Calibration,
    found: Scored,
    earlier: Scored | None,
    levels: Sequence[float],
    share: float,
) -> dict[float, np.ndarray]:
    """For each level, the reach (N, horizon, targets) of intervals at the origins of `found`, a share of all."""
    kept = {level: calibration.reach_at(level) for level in levels}
    reach = {level: np.repeat(one[None], len(found.origins), axis=0) for level, one in kept.items()}
    if data.times is None or calibration.until is None or data.step is None:
        return reach
    both = [found] if earlier is None else [earlier, found]
    scores = np.concatenate([one.scores / calibration.divisor(one.spread)[:, None] for one in both])
    complete = np.asarray(data.times[np.concatenate([one.origins for one in both]) + horizon - 1])
    order = np.argsort(complete, kind="stable")
    complete = complete[order]
    known = np.asarray(data.times[found.origins - 1])
    moments = np.unique(known)
    # Windows that would cross from one part into the next are missing, so fewer scores must be enough.
    least = max(1, share * (min(NEWEST, calibration.windows) - horizon))
    for begin in range(0, len(moments), horizon):
        first, last = moments[begin], moments[min(begin + horizon, len(moments)) - 1]
        low, high = np.searchsorted(complete, [first - NEWEST * data.step, first], side="right")
        if high - low < least:
            continue
        some = scores[thinned(order[low:high], MOST_WINDOWS)]
        block = (known >= first) & (known <= last)
        for level in levels:
            made = conformal_quantile(some, level)
            reach[level][block] = np.where(np.isfinite(made), made, kept[level])
    return reach


def _targets(rows: np.ndarray, data: SeriesData) -> np.ndarray:
    return np.asarray(rows[..., list(data.target_columns)], np.float64)


def _negative(part: SeriesPart) -> np.ndarray:
    """(targets,) bool: True if the part has values below 0."""
    found = np.zeros(len(part.data.target_columns), bool)
    for chunk in part.chunks(1 << 16):
        found |= (_targets(chunk, part.data) < 0).any(axis=0)
    return found


def _until(part: SeriesPart) -> int | float | None:
    """The time of the last row of a part."""
    times = part.data.times
    if times is None:
        return None
    last = max(times[stop - 1] for _, _, stop in part.bounds)
    return int(last.astype("datetime64[us]").astype(np.int64)) if times.dtype.kind == "M" else float(last)


def _most(model: SeriesForecaster, most: int | None) -> int:
    settings = model.settings
    numbers = settings.horizon * len(settings.reading.targets) * max(1, len(settings.quantiles))
    return max(1, min(_MOST if most is None else most, _MOST, _MOST_NUMBERS // numbers))


def _cut(bounds: Sequence[tuple[int, int, int]], most: int, horizon: int) -> list[tuple[int, int, int]]:
    """Bounds with about `most` rows: the newest rows of evenly spread stretches."""
    if not bounds:
        return []
    least = 2 * horizon
    kept = [bounds[place] for place in thinned(np.arange(len(bounds)), max(1, most // least))]
    each = max(least, most // len(kept))
    return [(first, max(begin, stop - each), stop) for first, begin, stop in kept]
