"""Calibrates a trained forecaster on its validation part, and judges its intervals on the test part.

The test part is judged as forecasts are made: at each origin, intervals are calibrated on the rows before it.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from cellerate.data.series import SeriesData, SeriesPart, SeriesSplit
from cellerate.runtime.calibrating import (
    MOST_WINDOWS,
    NEWEST,
    Scored,
    origins_of,
    row_forecasts,
    score_origins,
    thinned,
)
from cellerate.runtime.intervals import (
    LEVELS,
    Calibration,
    conformal_quantile,
    interval,
    interval_coverage,
    scale_floor,
)
from cellerate.tasks.series_errors import SeriesForecaster

# Windows of the validation and of the test part; of longer parts, so many are taken, spread evenly.
_CALIBRATED = 32_768
_JUDGED = 16_384


def calibrate(model: SeriesForecaster, split: SeriesSplit) -> Calibration | None:
    """Takes the scores of the validation part.

    With several series, scores are in scales of the window: one reach cannot be right for a series that sells two a
    week and for one that sells two hundred a day.

    Args:
        model: The trained forecaster.
        split: Of the data that it was trained on.

    Returns:
        What to keep with the model; None if the part has too few windows for any interval.
    """
    data, settings = split.train.data, model.settings
    origins = thinned(origins_of(split.validation, settings.window, settings.horizon), _CALIBRATED)
    if not len(origins):
        return None
    found = _score(model, data, origins)
    several = len({name for _, _, name in data.segments}) > 1
    floor = scale_floor(found.spread) if several else None
    scores = found.scores if floor is None else found.scores / (found.spread + floor)[:, None]
    off = []
    bounds = _cut(split.validation.bounds, _CALIBRATED)
    for rows, expected, spread in row_forecasts(
        lambda some: model.forecast_at(data, some), data, settings, bounds
    ):
        score = np.abs(_targets(data.values[rows], data) - expected)
        off.append(score if floor is None else score / (spread + floor))
    return Calibration.of(
        scores,
        np.concatenate(off),
        floor=floor,
        non_negative=~(_negative(split.train) | _negative(split.validation)),
        until=_until(split.train),
    )


def judge_intervals(
    model: SeriesForecaster, split: SeriesSplit, calibration: Calibration, levels: Sequence[float] = LEVELS
) -> dict[str, dict[str, Any]]:
    """The coverage of intervals on the test part, each calibrated on rows before its origin as `forecast` does it.

    Intervals of a block as long as the horizon share one calibration, of what was known at the first of them.

    Args:
        model: The forecaster.
        split: Of the data that it was trained on.
        calibration: Of that model.
        levels: Those that the calibration has no scores for are left out.

    Returns:
        See `interval_coverage`; empty if no window fits.
    """
    data, settings = split.test.data, model.settings
    levels = [level for level in levels if level <= calibration.grid[-1]]
    window, horizon = settings.window, settings.horizon
    judged = origins_of(split.test, window, horizon)
    if not len(judged) or not levels:
        return {}
    earlier = origins_of(split.validation, window, horizon)
    share = min(1.0, _JUDGED / max(len(judged), len(earlier), 1))
    judged, earlier = (thinned(each, max(1, round(share * len(each)))) for each in (judged, earlier))
    found = _score(model, data, np.concatenate([earlier, judged]))
    scores = found.scores / calibration.divisor(found.spread)[:, None]
    series = len({name for _, _, name in data.segments})
    reach = _reach_of_test(data, calibration, found, scores, levels, len(earlier), horizon, series, share)
    test = slice(len(earlier), None)
    scale = calibration.divisor(found.spread[test])[:, None]
    clipped = calibration.non_negative & ~found.negative[test]
    intervals = {
        level: interval(found.forecast[test], settings.quantiles, one * scale, clipped)
        for level, one in reach.items()
    }
    return interval_coverage(found.truth[test], intervals)


def _reach_of_test(
    data: SeriesData,
    calibration: Calibration,
    found: Scored,
    scores: np.ndarray,
    levels: Sequence[float],
    earlier: int,
    horizon: int,
    series: int,
    share: float,
) -> dict[float, np.ndarray]:
    """By level (N, horizon, targets) for the test origins, which are those after the first `earlier`."""
    judged = found.origins[earlier:]
    kept = {level: calibration.reach_at(level) for level in levels}
    reach = {level: np.repeat(one[None], len(judged), axis=0) for level, one in kept.items()}
    if data.times is None or calibration.until is None:
        return reach
    known = np.asarray(data.times[judged - 1])
    complete = np.asarray(data.times[found.origins + horizon - 1])
    order = np.argsort(complete, kind="stable")
    moments = np.unique(known)
    newest = max(1, round(share * NEWEST * series))
    least = max(1, round(share * min(NEWEST, calibration.windows)))
    for begin in range(0, len(moments), horizon):
        first = moments[begin]
        last = moments[min(begin + horizon, len(moments)) - 1]
        ready = order[: np.searchsorted(complete[order], first, side="right")][-newest:]
        if len(ready) < least:
            continue
        some = scores[thinned(np.sort(ready), MOST_WINDOWS)]
        block = (known >= first) & (known <= last)
        for level in levels:
            made = conformal_quantile(some, level)
            reach[level][block] = np.where(np.isfinite(made), made, kept[level])
    return reach


def _score(model: SeriesForecaster, data: SeriesData, origins: np.ndarray) -> Scored:
    return score_origins(lambda some: model.forecast_at(data, some), data, model.settings, origins)


def _targets(rows: np.ndarray, data: SeriesData) -> np.ndarray:
    return np.asarray(rows[..., list(data.target_columns)], np.float64)


def _negative(part: SeriesPart) -> np.ndarray:
    """(targets,) whether a part has values below 0."""
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


def _cut(bounds: Sequence[tuple[int, int, int]], most: int) -> list[tuple[int, int, int]]:
    """Bounds with about so many rows at most: of stretches spread evenly, as many of the newest rows as there may be."""
    kept = [bounds[place] for place in thinned(np.arange(len(bounds)), max(1, most // 64))]
    each = max(64, most // len(kept))
    return [(first, max(begin, stop - each), stop) for first, begin, stop in kept]
