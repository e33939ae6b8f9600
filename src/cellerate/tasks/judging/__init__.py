"""Judging forecasts, without Keras: errors of model and baselines, intervals, the verdict, and their report.

`evaluate_forecaster` judges a forecaster on every window of the data.
"""

from cellerate.tasks.judging.baselines import LABELS, Baselines, season_rows
from cellerate.tasks.judging.errors import (
    JudgedPart,
    Progress,
    SeriesForecaster,
    add_errors,
    baselines_for,
    count_in,
    forecaster_report,
    judge_windows,
    judging_of,
    part_of,
    raw_windows,
    series_names,
)
from cellerate.tasks.judging.evaluation import (
    EvaluationOptions,
    check_unused,
    evaluate_forecaster,
    judged_intervals,
)
from cellerate.tasks.judging.forecast_frame import Forecasts
from cellerate.tasks.judging.forecasts import example_record, forecast_columns, forecast_table
from cellerate.tasks.judging.intervals import calibrate, judge_intervals
from cellerate.tasks.judging.linear import NLinear, TargetWindows, fit_linear, shares_map, too_large
from cellerate.tasks.judging.metrics import ERRORS, in_sample_errors
from cellerate.tasks.judging.report import Judging, SeriesErrors
from cellerate.tasks.judging.statistical import Statistical, check_statistical

__all__ = [
    "ERRORS",
    "LABELS",
    "Baselines",
    "EvaluationOptions",
    "Forecasts",
    "JudgedPart",
    "Judging",
    "NLinear",
    "Progress",
    "SeriesErrors",
    "SeriesForecaster",
    "Statistical",
    "TargetWindows",
    "add_errors",
    "baselines_for",
    "calibrate",
    "check_statistical",
    "check_unused",
    "count_in",
    "evaluate_forecaster",
    "example_record",
    "fit_linear",
    "forecast_columns",
    "forecast_table",
    "forecaster_report",
    "in_sample_errors",
    "judge_intervals",
    "judge_windows",
    "judged_intervals",
    "judging_of",
    "part_of",
    "raw_windows",
    "season_rows",
    "series_names",
    "shares_map",
    "too_large",
]
