"""Training a forecaster on series: its data, network and start from the linear model. It needs Keras.

`train_on_series` trains; `series_model_of` opens what it saved.
"""

from cellerate.tasks.series.batches import check_series_model, count_windows, series_sources
from cellerate.tasks.series.linear_start import LinearStart, has_linear_map
from cellerate.tasks.series.train import (
    SeriesRun,
    SeriesTask,
    load_series_model,
    series_loss,
    series_metrics,
    series_model_of,
    train_on_series,
)

__all__ = [
    "LinearStart",
    "SeriesRun",
    "SeriesTask",
    "check_series_model",
    "count_windows",
    "has_linear_map",
    "load_series_model",
    "series_loss",
    "series_metrics",
    "series_model_of",
    "series_sources",
    "train_on_series",
]
