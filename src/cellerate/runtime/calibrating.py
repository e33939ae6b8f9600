"""Takes conformity scores from a series, and puts intervals around the forecasts of a model, packed or of Keras.

The scores of the validation part are kept with a model. Where newer rows are at hand, so are the truths of newer
forecasts: intervals are then calibrated on the newest of those, so that they follow a series that drifts. Only rows
before a forecast are looked at.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from cellerate.data.series import SeriesData, SeriesPart
from cellerate.errors import ConfigError
from cellerate.runtime.forecasting import Example, ForecastSettings
from cellerate.runtime.intervals import (
    LEVELS,
    Calibration,
    check_level,
    conformal_quantile,
    conformity_scores,
    interval,
    point_of,
    window_scale,
)

ForecastAt = Callable[[np.ndarray], np.ndarray]
"""Forecasts from (B,) origins, the first rows to forecast: (B, horizon, targets[, Q]) in the units of the data."""

# Origins of each series that intervals are calibrated on: a month of hours. More lag behind, fewer are uncertain.
NEWEST = 720
# Windows that are looked at, of however many series.
MOST_WINDOWS = 4096
_ORIGINS = 1 << 20
_BATCH = 256
_ROWS = 16_384


@dataclasses.dataclass(frozen=True)
class Scored:
    """What became of forecasts from some origins.

    Attributes:
        origins: (N,) the first row that each forecast.
        forecast: (N, horizon, targets[, Q]).
        truth: (N, horizon, targets).
        scores: (N, horizon, targets), in the units of the data.
        spread: (N, targets) the `window_scale` of the rows before.
        negative: (N, targets) whether a value below 0 is among those.
    """

    origins: np.ndarray
    forecast: np.ndarray
    truth: np.ndarray
    scores: np.ndarray
    spread: np.ndarray
    negative: np.ndarray


def windows_of(data: SeriesData, origins: np.ndarray, window: int) -> np.ndarray:
    """(B, window, targets) float64: the targets in the rows before origins."""
    return np.asarray(data.values[origins[:, None] + np.arange(-window, 0)])[
        ..., list(data.target_columns)
    ].astype(np.float64)


def score_origins(
    forecast_at: ForecastAt,
    data: SeriesData,
    settings: ForecastSettings,
    origins: np.ndarray,
) -> Scored:
    """Forecasts from origins and compares with the truth.

    Args:
        forecast_at: The model.
        data: The series.
        settings: How the model reads it.
        origins: (N,) at least one, each with `window` rows before and `horizon` rows from it on in one stretch.
    """
    made, truths, spread, negative = [], [], [], []
    for begin in range(0, len(origins), _BATCH):
        some = origins[begin : begin + _BATCH]
        past = windows_of(data, some, settings.window)
        spread.append(window_scale(past))
        negative.append((past < 0).any(axis=1))
        truths.append(windows_of(data, some + settings.horizon, settings.horizon))
        made.append(np.asarray(forecast_at(some), np.float64))
    forecast, truth = np.concatenate(made), np.concatenate(truths)
    scores = conformity_scores(truth, forecast, settings.quantiles)
    return Scored(origins, forecast, truth, scores, np.concatenate(spread), np.concatenate(negative))


def origins_of(part: SeriesPart, window: int, horizon: int) -> np.ndarray:
    """All origins of a part, rising: every row from `origin` to `origin + horizon - 1` is in it."""
    if not part.bounds:
        return np.empty(0, np.int64)
    each = [
        np.arange(first + window, max(first + window, stop - horizon + 1))
        for first, stop in part.spans(window)
    ]
    return np.concatenate(each).astype(np.int64)


def newest_origins(data: SeriesData, settings: ForecastSettings) -> np.ndarray:
    """The newest origins whose truth is known and that the model was not trained on, evenly thinned to 4,096.

    Without times nobody knows which rows those are: there are none then.
    """
    calibration = settings.calibration
    if calibration is None or calibration.until is None or data.times is None:
        return np.empty(0, np.int64)
    dates = data.times.dtype.kind == "M"
    if dates != isinstance(calibration.until, int):
        return np.empty(0, np.int64)
    until = np.datetime64(calibration.until, "us") if dates else float(calibration.until)
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


def thinned(origins: np.ndarray, most: int = MOST_WINDOWS) -> np.ndarray:
    """At most so many of them, spread evenly."""
    if len(origins) <= most:
        return origins
    return origins[np.linspace(0, len(origins) - 1, most).astype(np.int64)]


@dataclasses.dataclass(frozen=True)
class Intervals:
    """Puts intervals around the forecasts of a model for one series or table of series.

    Attributes:
        calibration: What the model keeps.
        reach: By level (horizon, targets), in the units of the data or in scales of the window.
        newest: How many windows of the data they were calibrated on; 0 if on the validation part.
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
    ) -> "Intervals | None":
        """Calibrates on the newest windows of the data, or, if they are too few, takes what the model keeps.

        Args:
            data: The series so far.
            settings: How the model reads it.
            forecast_at: The model.
            levels: The levels; None for 0.8 and 0.95, as far as the model was calibrated for them, and for no
                intervals of a model that was not calibrated. Empty for none.

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
                    "levels were given, but the model was not calibrated for intervals: train it again with "
                    "`cellerate train series` and a validation part, or leave levels out."
                )
            return None
        if levels is None:
            wanted = tuple(level for level in wanted if level <= calibration.grid[-1])
        if not wanted:
            return None
        kept = {level: calibration.reach_at(level) for level in wanted}
        origins = newest_origins(data, settings)
        if len(origins) < min(NEWEST, calibration.windows):
            return cls(calibration, kept, 0)
        found = score_origins(forecast_at, data, settings, origins)
        scores = found.scores / calibration.divisor(found.spread)[:, None]
        reach = {level: conformal_quantile(scores, level) for level in wanted}
        # Of few windows the kept quantile may be finite where that of the newest is not.
        reach = {level: np.where(np.isfinite(one), one, kept[level]) for level, one in reach.items()}
        return cls(calibration, reach, len(origins))

    def around(self, examples: Sequence[Example]) -> tuple[Example, ...]:
        """The examples with their intervals."""
        return tuple(self._around(example) for example in examples)

    def _around(self, example: Example) -> Example:
        past = example.past[None].astype(np.float64)
        clipped = self.calibration.non_negative & ~(past < 0).any(axis=(0, 1))
        scale = self.calibration.divisor(window_scale(past))[0]
        intervals = {
            level: interval(example.forecast, example.quantiles, reach * scale, clipped)
            for level, reach in self.reach.items()
        }
        return dataclasses.replace(example, intervals=intervals)


def row_forecasts(
    forecast_at: ForecastAt,
    data: SeriesData,
    settings: ForecastSettings,
    bounds: Sequence[tuple[int, int, int]],
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """One expected value for each row, from all forecasts that are made for it from rows before it.

    It is their median: a single odd row just before does not move it, as it moves the forecast of one step.

    Args:
        forecast_at: The model.
        data: The series.
        settings: How the model reads it.
        bounds: As of a `SeriesPart`: of each stretch the first row that may be read, and the rows to expect.

    Yields:
        Block by block (R,) rows, rising; (R, targets) expected values; and (R, targets) medians of `window_scale`.
    """
    window, horizon = settings.window, settings.horizon
    pieces: list[tuple[int, int, int]] = []
    count = 0
    for first, begin, stop in bounds:
        begin = max(begin, first + window)
        for row in range(begin, stop, _ROWS):
            end = min(stop, row + _ROWS)
            pieces.append((max(first + window, row - horizon + 1), row, end))
            count += end - row
            if count >= _ROWS:
                yield _row_block(forecast_at, data, settings, pieces)
                pieces, count = [], 0
    if pieces:
        yield _row_block(forecast_at, data, settings, pieces)


def _row_block(
    forecast_at: ForecastAt,
    data: SeriesData,
    settings: ForecastSettings,
    pieces: Sequence[tuple[int, int, int]],
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The rows from the second to before the third number of each piece, forecast from origins from the first on."""
    origins = np.concatenate([np.arange(first, stop, dtype=np.int64) for first, _, stop in pieces])
    rows = np.concatenate([np.arange(begin, stop, dtype=np.int64) for _, begin, stop in pieces])
    shape = (len(rows), settings.horizon, len(data.target_columns))
    table, spreads = np.full(shape, np.nan), np.full(shape, np.nan)
    # Origins rise, and those of one piece follow one another, so the end of the stretch is where a step may go.
    ends = np.concatenate([np.full(stop - first, stop) for first, _, stop in pieces])
    for begin in range(0, len(origins), _BATCH):
        some, end = origins[begin : begin + _BATCH], ends[begin : begin + _BATCH]
        made = point_of(np.asarray(forecast_at(some), np.float64), settings.quantiles)
        spread = window_scale(windows_of(data, some, settings.window))
        for step in range(settings.horizon):
            places = np.searchsorted(rows, some + step)
            fits = (some + step < end) & (places < len(rows))
            fits[fits] = rows[places[fits]] == some[fits] + step
            table[places[fits], step] = made[fits, step]
            spreads[places[fits], step] = spread[fits]
    return rows, np.nanmedian(table, axis=1), np.nanmedian(spreads, axis=1)
