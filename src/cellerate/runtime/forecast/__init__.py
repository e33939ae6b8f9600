"""Forecasts of packed models and of Keras models: where a forecast begins, its intervals and their calibration.

The caller passes `predict`, so this package knows neither Keras nor the program.
"""

from cellerate.runtime.forecast.calibrating import (
    MOST_WINDOWS,
    NEWEST,
    Intervals,
    Scored,
    forecast_with_intervals,
    origins_of,
    row_forecasts,
    score_origins,
    score_rows,
    thinned,
    trained_until,
)
from cellerate.runtime.forecast.ends import left_out, row_times, series_ends, too_short
from cellerate.runtime.forecast.forecasting import (
    Example,
    Forecaster,
    ForecastSettings,
    Predict,
    forecast_ends,
    forecast_settings,
)
from cellerate.runtime.forecast.intervals import (
    LEVELS,
    Calibration,
    check_level,
    conformal_quantile,
    interval,
    interval_coverage,
    median_places,
    point_of,
    scale_floor,
)
from cellerate.runtime.forecast.origins import forecast_at, units_at

__all__ = [
    "LEVELS",
    "MOST_WINDOWS",
    "NEWEST",
    "Calibration",
    "Example",
    "ForecastSettings",
    "Forecaster",
    "Intervals",
    "Predict",
    "Scored",
    "check_level",
    "conformal_quantile",
    "forecast_at",
    "forecast_ends",
    "forecast_settings",
    "forecast_with_intervals",
    "interval",
    "interval_coverage",
    "left_out",
    "median_places",
    "origins_of",
    "point_of",
    "row_forecasts",
    "row_times",
    "scale_floor",
    "score_origins",
    "score_rows",
    "series_ends",
    "thinned",
    "too_short",
    "trained_until",
    "units_at",
]
