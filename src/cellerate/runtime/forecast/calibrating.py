"""Takes conformity scores from a series, and puts intervals around the forecasts of a packed or a Keras model.

A model keeps the scores of its validation part. If the data have newer rows, intervals are calibrated on forecasts of
the newest ones instead, so that the intervals follow a series that drifts. A forecast reads only rows before it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from cellerate.data.series import SeriesData, SeriesPart
from cellerate.errors import ConfigError
from cellerate.messages import argument
from cellerate.runtime.forecast.forecasting import Example, ForecastSettings, Predict, forecast_ends
from cellerate.runtime.forecast.intervals import (
    LEVELS,
    Calibration,
    check_level,
    conformal_quantile,
    conformity_scores,
    interval,
    point_of,
    window_scale,
)
from cellerate.runtime.forecast.origins import forecast_at
from cellerate.runtime.forecast.row_pieces import Piece, laid_out, over_steps, pieces_of

ForecastAt = Callable[[np.ndarray], np.ndarray]
"""Forecasts from (B,) origins, the first rows to forecast: (B, horizon, targets[, Q]) in the units of the data."""

# Origins of each series that intervals are calibrated on: a month of hours. With more, intervals lag behind a drift;
# with fewer, they are uncertain.
NEWEST = 720
# The most windows to score, of all series together.
MOST_WINDOWS = 4096
_ORIGINS = 1 << 20
_BATCH = 256
_ROWS = 16_384
_NUMBERS = 1 << 23
_NONE = np.empty(0, np.int64)


@dataclasses.dataclass(frozen=True)
class Scored:
    """Forecasts from some origins, compared with the truth.

    Attributes:
        origins: (N,) the first row of each forecast.
        forecast: (N, horizon, targets[, Q]).
        truth: (N, horizon, targets).
        scores: (N, horizon, targets), in the units of the data.
        spread: (N, targets) the `window_scale` of the window before each origin.
        negative: (N, targets) whether that window holds a value below 0.
    """

    origins: np.ndarray
    forecast: np.ndarray
    truth: np.ndarray
    scores: np.ndarray
    spread: np.ndarray
    negative: np.ndarray


def windows_of(data: SeriesData, origins: np.ndarray, window: int) -> np.ndarray:
    """Return the targets in the windows before origins, (B, window, targets) float64."""
    places = origins[:, None] + np.arange(-window, 0)
    return np.asarray(data.values[places[..., None], list(data.target_columns)], np.float64)


def score_origins(
    forecast_at: ForecastAt,
    data: SeriesData,
    settings: ForecastSettings,
    origins: np.ndarray,
) -> Scored:
    """Forecast from origins and compare with the truth.

    Args:
        forecast_at: The model.
        data: The series.
        settings: How the model reads it.
        origins: (N,) at least one, each with `window` rows before and `horizon` rows from it on in one stretch.
    """
    return _scored(data, settings, origins, *_forecast(forecast_at, data, settings, origins))


def forecast_with_intervals(
    predict: Predict,
    data: SeriesData,
    settings: ForecastSettings,
    progress: Callable[[int, int], None] | None = None,
    levels: Sequence[float] | None = None,
) -> tuple[Example, ...]:
    """`forecast_ends` with intervals; takes the arguments of `forecast_ends` and of `Intervals.of`."""
    made = Intervals.of(data, settings, lambda origins: forecast_at(predict, data, settings, origins), levels)
    examples = forecast_ends(predict, data, settings, progress)
    return examples if made is None else made.around(examples)


def score_rows(
    forecast_at: ForecastAt,
    data: SeriesData,
    settings: ForecastSettings,
    bounds: Sequence[tuple[int, int, int]],
) -> tuple[Scored | None, np.ndarray, np.ndarray]:
    """Score all origins within bounds, and the distance of every row from its expected value, in one pass.

    Returns:
        The `Scored` origins, or None if no whole horizon fits; (R, targets) distances of the rows from their
        `row_forecasts`; and their (R, targets) `window_scale`.
    """
    pieces = pieces_of(bounds, settings, data, _ROWS)
    if not pieces:
        nothing = np.empty((0, len(data.target_columns)))
        return None, nothing, nothing
    origins, begins, ends, rows = laid_out(pieces)
    forecast, spread, negative = _forecast(forecast_at, data, settings, origins)
    expected, spreads = over_steps(
        rows, origins, ends, point_of(forecast, settings.quantiles), spread, settings.horizon
    )
    whole = (origins >= begins) & (origins + settings.horizon <= ends)
    found = None
    if whole.any():
        found = _scored(data, settings, origins[whole], forecast[whole], spread[whole], negative[whole])
    truth = np.asarray(data.values[rows], np.float64)[:, list(data.target_columns)]
    return found, np.abs(truth - expected), spreads


def origins_of(part: SeriesPart, window: int, horizon: int) -> np.ndarray:
    """All origins of a part, rising: the part holds every row from `origin` to `origin + horizon - 1`."""
    if not part.bounds:
        return np.empty(0, np.int64)
    each = [
        np.arange(first + window, max(first + window, stop - horizon + 1))
        for first, stop in part.spans(window)
    ]
    return np.concatenate(each).astype(np.int64)


def newest_origins(data: SeriesData, settings: ForecastSettings) -> np.ndarray:
    """The newest origins whose truth is known and that the model was not trained on, evenly thinned to 4,096.

    Data without times give none, because only times show which rows the model was trained on.
    """
    until = trained_until(data, settings.calibration)
    if until is None or data.times is None:
        return np.empty(0, np.int64)
    series = {name for _, _, name in data.segments}
    each = max(8, min(NEWEST, _ORIGINS // len(series)))
    left = dict.fromkeys(series, each)
    found = []
    for first, stop, name in reversed(data.segments):
        begin = first + int(np.searchsorted(data.times[first:stop], until, side="right"))
        last = stop - settings.horizon + 1
        begin = max(begin, first + settings.window, last - left[name])
        if begin < last:
            found.append(np.arange(begin, last, dtype=np.int64))
            left[name] -= last - begin
    return thinned(np.concatenate(found[::-1])) if found else np.empty(0, np.int64)


def trained_until(data: SeriesData, calibration: Calibration | None) -> Any:
    """The time of the last training row, in the type of the data's times; None if it is unknown."""
    if calibration is None or calibration.until is None or data.times is None:
        return None
    until: Any = calibration.until
    dates = data.times.dtype.kind == "M"
    if dates != isinstance(until, int):
        return None
    return np.datetime64(until, "us") if dates else until


def thinned(origins: np.ndarray, most: int = MOST_WINDOWS) -> np.ndarray:
    """Return at most `most` of the origins, spread evenly."""
    if len(origins) <= most:
        return origins
    return origins[np.linspace(0, len(origins) - 1, most).astype(np.int64)]


@dataclasses.dataclass(frozen=True)
class Intervals:
    """Intervals around the forecasts of a model for one series or table of series.

    Attributes:
        calibration: The calibration that the model keeps.
        reach: By level (horizon, targets), in the units of the data or in scales of the window.
        newest: The number of windows of the data used for calibration; 0 if the validation part was used.
    """

    calibration: Calibration
    reach: Mapping[float, np.ndarray]
    newest: int

    @classmethod
    def of(
        cls,
        data: SeriesData,
        settings: ForecastSettings,
        forecast_at: ForecastAt,
        levels: Sequence[float] | None = None,
        *,
        newest: bool = True,
    ) -> Intervals | None:
        """Calibrate on the newest windows of the data; if they are too few, use the calibration of the model.

        Args:
            data: The series so far.
            settings: How the model reads it.
            forecast_at: The model.
            levels: The levels. None takes those of 0.8 and 0.95 that the model was calibrated for; a model that was
                not calibrated gets no intervals. Empty for none.
            newest: Whether to use newer windows.

        Raises:
            ConfigError: A level is out of range, or the model cannot give it.
        """
        calibration = settings.calibration
        wanted = LEVELS if levels is None else tuple(levels)
        for level in wanted:
            check_level(level)
        if calibration is None:
            if levels:
                raise ConfigError(
                    f"{argument('levels')} were given, but the model was not calibrated for intervals: train it "
                    f"again with `cellerate train series` and a validation part, or leave {argument('levels')} out."
                )
            return None
        if levels is None:
            wanted = tuple(level for level in wanted if level <= calibration.grid[-1])
        if not wanted:
            return None
        kept = {level: calibration.reach_at(level) for level in wanted}
        origins = newest_origins(data, settings) if newest else _NONE
        if len(origins) < min(NEWEST, calibration.windows):
            return cls(calibration, kept, 0)
        found = score_origins(forecast_at, data, settings, origins)
        scores = found.scores / calibration.divisor(found.spread)[:, None]
        reach = {level: conformal_quantile(scores, level) for level in wanted}
        # The quantile of too few new windows is infinite; the stored one may still be finite.
        reach = {level: np.where(np.isfinite(one), one, kept[level]) for level, one in reach.items()}
        return cls(calibration, reach, len(origins))

    def around(self, examples: Sequence[Example]) -> tuple[Example, ...]:
        """The examples with their intervals."""
        return tuple(self._around(example) for example in examples)

    def bounds(
        self, past: np.ndarray, forecast: np.ndarray, quantiles: Sequence[float]
    ) -> dict[float, np.ndarray]:
        """The intervals around forecasts.

        Args:
            past: (B, window, targets) the rows before each forecast.
            forecast: (B, horizon, targets), or (B, horizon, targets, Q).
            quantiles: The Q quantiles, or empty.

        Returns:
            By level (B, horizon, targets, 2): low and high.
        """
        past = np.asarray(past, np.float64)
        clipped = self.calibration.non_negative & ~(past < 0).any(axis=1)
        scale = self.calibration.divisor(window_scale(past))[:, None]
        return {
            level: interval(forecast, quantiles, reach * scale, clipped)
            for level, reach in self.reach.items()
        }

    def _around(self, example: Example) -> Example:
        found = self.bounds(example.past[None], example.forecast[None], example.quantiles)
        return dataclasses.replace(example, intervals={level: both[0] for level, both in found.items()})


def row_forecasts(
    forecast_at: ForecastAt,
    data: SeriesData,
    settings: ForecastSettings,
    bounds: Sequence[tuple[int, int, int]],
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Return one expected value for each row: the median of all forecasts of that row.

    A single odd row moves the one-step forecast of the next row, but hardly moves this median.

    Args:
        forecast_at: The model.
        data: The series.
        settings: How the model reads it.
        bounds: As in a `SeriesPart`: for each stretch, the first row that may be read and the rows to expect.

    Yields:
        For each block (R,) rows, rising; (R, targets) expected values; and (R, targets) medians of `window_scale`.
        Rows that no forecast reaches are left out.
    """
    pieces: list[Piece] = []
    most, count = min(_ROWS, max(_BATCH, _NUMBERS // (settings.horizon * len(data.target_columns)))), 0
    for piece in pieces_of(bounds, settings, data, most):
        pieces.append(piece)
        count += piece.stop - piece.first_origin
        if count >= most:
            yield _row_block(forecast_at, data, settings, pieces)
            pieces, count = [], 0
    if pieces:
        yield _row_block(forecast_at, data, settings, pieces)


def _row_block(
    forecast_at: ForecastAt,
    data: SeriesData,
    settings: ForecastSettings,
    pieces: Sequence[Piece],
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    origins, _, ends, rows = laid_out(pieces)
    forecast, spread, _ = _forecast(forecast_at, data, settings, origins)
    point = point_of(forecast, settings.quantiles)
    return rows, *over_steps(rows, origins, ends, point, spread, settings.horizon)


def _forecast(
    forecast_at: ForecastAt, data: SeriesData, settings: ForecastSettings, origins: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the forecasts from origins, the scale of each window, and whether a window holds a value below 0."""
    made, spread, negative = [], [], []
    for begin in range(0, len(origins), _BATCH):
        some = origins[begin : begin + _BATCH]
        past = windows_of(data, some, settings.window)
        spread.append(window_scale(past))
        negative.append((past < 0).any(axis=1))
        # Several batches all have the same size, because Keras compiles a model for each size.
        short = _BATCH - len(some) if len(origins) > _BATCH else 0
        full = np.concatenate([some, np.repeat(some[-1:], short)])
        made.append(np.asarray(forecast_at(full), np.float64)[: len(some)])
    return np.concatenate(made), np.concatenate(spread), np.concatenate(negative)


def _scored(
    data: SeriesData,
    settings: ForecastSettings,
    origins: np.ndarray,
    forecast: np.ndarray,
    spread: np.ndarray,
    negative: np.ndarray,
) -> Scored:
    truth = windows_of(data, origins + settings.horizon, settings.horizon)
    scores = conformity_scores(truth, forecast, settings.quantiles)
    return Scored(origins, forecast, truth, scores, spread, negative)
