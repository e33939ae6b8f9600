"""Training a forecaster on series: its data, network and start from the linear model. It needs Keras.

`train_on_series` trains; `tasks.opening.forecaster_of` opens what it saved.
"""

from cellerate.tasks.series.batches import check_series_model, count_windows, series_sources
from cellerate.tasks.series.linear_start import LinearStart, has_linear_map
from cellerate.tasks.series.train import SeriesRun, SeriesTask, series_loss, series_metrics, train_on_series

__all__ = [
    "LinearStart",
    "SeriesRun",
    "SeriesTask",
    "check_series_model",
    "count_windows",
    "has_linear_map",
    "series_loss",
    "series_metrics",
    "series_sources",
    "train_on_series",
]
