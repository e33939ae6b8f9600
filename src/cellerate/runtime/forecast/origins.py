"""Forecasts from any row of a series, with all inputs of the model: the window, the known future, the series."""

from __future__ import annotations

import warnings
import weakref

import numpy as np

from cellerate.data.arrays import windows_at
from cellerate.data.series import SeriesData
from cellerate.data.windows import Framing, ModelUnits, held_by
from cellerate.errors import DataError
from cellerate.format import listed
from cellerate.runtime.forecast.settings import ForecastSettings, Predict

_NAMED = 3

_FRAMINGS: weakref.WeakKeyDictionary[SeriesData, tuple[ForecastSettings, Framing]] = (
    weakref.WeakKeyDictionary()
)


def forecast_at(
    predict: Predict, data: SeriesData, settings: ForecastSettings, origins: np.ndarray
) -> np.ndarray:
    """Forecast the rows from each origin on, from the `window` rows before it.

    Args:
        predict: The model; with a single target it may leave the last axis out.
        data: The series.
        settings: How the model was trained to read it.
        origins: (B,) int64, the first row of each forecast: a row of the data, or the row after a stretch.

    Returns:
        (B, horizon, targets), or (B, horizon, targets, Q) with quantiles, float64 in the units of the data.

    Raises:
        DataError: Too few rows without a gap lie before an origin, or the known future is missing.
    """
    framing = _framing(data, settings)
    origins = np.asarray(origins, np.int64)
    framing.check(origins, settings.window)
    past = windows_at(data.values, origins - settings.window, settings.window)
    units = framing.units(past, origins)
    inputs = framing.inputs(
        past,
        origins,
        units,
        _ahead(data, settings, framing, origins),
        _times(data, settings, framing, origins),
    )
    made = np.asarray(predict(inputs), np.float32)
    if made.ndim == 2:
        made = made[..., None]
    return units.of_data(made, data.target_columns, quantiles=bool(settings.quantiles))


def units_at(data: SeriesData, settings: ForecastSettings, origins: np.ndarray) -> ModelUnits:
    """Return the mean and the scale of each origin's series, (B, C), or (C,) if the model has one scale for all."""
    framing = _framing(data, settings)
    if settings.covariates.scaling is None:
        return framing.units(np.empty(0), origins)
    return framing.units(windows_at(data.values, origins - settings.window, settings.window), origins)


def _framing(data: SeriesData, settings: ForecastSettings) -> Framing:
    """The framing of these data; a series that the model does not know is reported the first time."""
    found = _FRAMINGS.get(data)
    if found is not None and found[0] is settings:
        return found[1]
    framing = Framing(data, settings.scaler, settings.covariates)
    if strangers := framing.strangers(settings.window):
        named = listed(list(map(repr, strangers)), _NAMED)
        warnings.warn(
            f"the model was not trained on the series {named}: they are forecast as unknown series.",
            stacklevel=4,
        )
    _FRAMINGS[data] = settings, framing
    return framing


def _ahead(
    data: SeriesData, settings: ForecastSettings, framing: Framing, origins: np.ndarray
) -> np.ndarray | None:
    """Return the known future of the rows to forecast, (B, horizon, future columns); None if the model has none."""
    columns, horizon = framing.future_columns, settings.horizon
    if not columns:
        return None
    known = np.empty((len(origins), horizon, len(columns)), held_by(data.values.dtype))
    inside = framing.inside(origins, horizon)
    if inside.any():
        known[inside] = windows_at(data.values, origins[inside], horizon)[..., columns]
    if not inside.all() and data.ahead is None:
        raise DataError(
            f"the model needs {', '.join(settings.covariates.future)} of the {horizon} rows to forecast, but the data "
            "do not hold them: open the data with the model's own `open`."
        )
    names = framing.names(origins)
    for place in np.flatnonzero(~inside).tolist():
        times = data.times_after(int(origins[place]), horizon)
        known[place] = data.ahead.rows(names[place], times)
    return known


def _times(
    data: SeriesData, settings: ForecastSettings, framing: Framing, origins: np.ndarray
) -> np.ndarray | int:
    """Return the (B, horizon) times of the rows to forecast, or just `horizon` if the series has their times."""
    inside = framing.inside(origins, settings.horizon)
    if settings.covariates.calendar is None or inside.all() or data.times is None:
        return settings.horizon
    times = np.empty((len(origins), settings.horizon), "M8[us]")
    for place, origin in enumerate(origins.tolist()):
        if inside[place]:
            times[place] = data.times[origin : origin + settings.horizon]
        else:
            times[place] = data.times_after(origin, settings.horizon)
    return times
