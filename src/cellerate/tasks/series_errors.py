"""Judges a forecaster, packed or of Keras, on every window of a series: its errors beside those of naive forecasts.

Errors are summed for each stretch of rows without a gap. So a long series can be judged in pieces, by several
processes, and the pieces added up.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from cellerate.data.frequency import season_of
from cellerate.data.series import SeriesData, SeriesPart, open_series
from cellerate.data.table_options import TableOptions
from cellerate.data.windows import WindowSource
from cellerate.errors import ConfigError, ModelError
from cellerate.runtime.forecasting import ForecastSettings, Predict, forecast_settings, forecast_windows
from cellerate.settings import check_choice
from cellerate.tasks.forecasts import ERRORS, Naive, window_errors
from cellerate.tasks.settings import SeriesOptions

Progress = Callable[[int, int], None]

_BATCH = 256


@dataclasses.dataclass(frozen=True)
class SeriesForecaster:
    """A forecaster and how it reads a series.

    Attributes:
        predict: The model.
        settings: Its columns, its window and its scaler.
        options: The settings it was trained with.
    """

    predict: Predict
    settings: ForecastSettings
    options: SeriesOptions

    @classmethod
    def of(cls, predict: Predict, payload: Any, name: str) -> "SeriesForecaster":
        """Makes it of a model's task record.

        Raises:
            ModelError: The record of the model, which messages call `name`, is damaged.
        """
        settings = forecast_settings(payload, name)
        try:
            options = SeriesOptions(**payload["options"])
        except (TypeError, ValueError) as error:
            raise ModelError(
                f"the task record of {name} is damaged: {error}. Train the model again."
            ) from error
        return cls(predict, settings, options)

    def open(self, paths: Any, table: TableOptions | None = None, **changes: Any) -> SeriesData:
        """Opens files as in training, but for some arguments of `open_series`; `table` says how they are written.

        Raises:
            ConfigError: A packed series was packed otherwise.
            DataError: They cannot be used.
            ModelError: They have other columns than the model reads.
        """
        data = open_series(paths, **{**self.settings.reading, **changes}, table=table)
        for name, value in changes.items():
            if data.packed_with is not None and data.packed_with.get(name) != value:
                raise ConfigError(
                    f"{name} is {value!r}, but a packed series is read as it was packed, with "
                    f"{data.packed_with.get(name)!r}. Leave it out, or pack the series again."
                )
        self.check(data)
        return data

    def check(self, data: SeriesData) -> None:
        """Raises `ModelError` if the data have other columns than the model reads."""
        if self.settings.scaler.columns != data.columns:
            raise ModelError(
                f"the model was trained on the columns {', '.join(self.settings.scaler.columns)}, the data have "
                f"{', '.join(data.columns)}."
            )

    def forecast(self, data: SeriesData, rows: np.ndarray) -> np.ndarray:
        """Forecasts from raw rows (B, window, columns): (B, horizon, targets[, Q]) in the units of the data."""
        columns = list(data.feature_columns)
        return forecast_windows(
            self.predict,
            rows[..., columns],
            self.settings.scaler,
            columns,
            data.target_columns,
            quantiles=bool(self.settings.quantiles),
        )


@dataclasses.dataclass(frozen=True)
class SeriesErrors:
    """Sums over the windows of each of S stretches.

    Attributes:
        windows: (S,) how many there are.
        sums: Of the model and of each naive forecast (S, 4): the `ERRORS` of all windows.
        below: (S, Q) how often the truth was at most each quantile, summed over windows as a share of the horizon.
    """

    windows: np.ndarray
    sums: Mapping[str, np.ndarray]
    below: np.ndarray

    def report(self, targets: Sequence[str], quantiles: Sequence[float]) -> dict[str, Any]:
        """The figures of all stretches together, as `evaluate_forecaster` gives them."""
        windows = int(self.windows.sum())
        report: dict[str, Any] = {"windows": windows, "targets": list(targets)}
        for name, sums in self.sums.items():
            report[name] = dict(zip(ERRORS, (sums.sum(axis=0) / windows).tolist(), strict=True))
        if quantiles:
            shares = (self.below.sum(axis=0) / windows).tolist()
            report["coverage"] = {f"q{q:g}": share for q, share in zip(quantiles, shares, strict=True)}
        return report


def evaluate_forecaster(
    model: SeriesForecaster,
    paths: Any,
    *,
    part: str = "all",
    table: TableOptions | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Judges a forecaster against naive forecasts, on every window of the data.

    Args:
        model: The forecaster.
        paths: The data; columns and options for missing values and gaps are those of the training.
        part: "all", or "held-out" for the part after training and validation, if the data are the same.
        table: How tables are written, where that is not to be found out.
        progress: See `judge_windows`.

    Returns:
        `windows`, then `model`, `last_value` and, if a season is known, `seasonal_naive`. Each of these has
        `mae` and `mse` in the units of the data, and `scaled_mae` and `scaled_mse` in standard deviations of
        the training part. With quantiles there is also `coverage`: how often the truth was at most each
        quantile.
    """
    judged = part_of(model, model.open(paths, table=table), part)
    return judge_windows(model, judged, progress).report(judged.data.target_names, model.settings.quantiles)


def part_of(model: SeriesForecaster, data: SeriesData, part: str) -> SeriesPart:
    """All of the data, or the part that training on the same data held out."""
    options = model.options
    check_choice("part", part, ("all", "held-out"))
    if part == "all":
        return data.whole()
    return data.split(options.train_fraction, options.validation_fraction).test


def raw_windows(part: SeriesPart, window: int, horizon: int, batch_size: int) -> WindowSource:
    """All windows of a part, with all columns, in the units of the data."""
    return WindowSource(
        part.data.values,
        window=window,
        horizon=horizon,
        batch_size=batch_size,
        segments=part.spans(window),
        drop_last=False,
        data_fingerprint=part.data.fingerprint,
    )


def judge_windows(
    model: SeriesForecaster, part: SeriesPart, progress: Progress | None = None
) -> SeriesErrors:
    """Judges a forecaster on every window of a part.

    Args:
        model: The forecaster.
        part: The rows to forecast; each of its bounds is a stretch.
        progress: Called after each batch with how many windows are done, and of how many.

    Raises:
        DataError: No window fits.
        ModelError: The data have other columns than the model reads.
    """
    data, settings, options = part.data, model.settings, model.options
    model.check(data)
    targets, quantiles = list(data.target_columns), settings.quantiles
    scale = settings.scaler.scale[targets]
    naive = Naive(settings.horizon, options.season or season_of(data.frequency))
    names = naive.names(settings.window)
    windows = np.array(
        [count_in(span, settings.window + settings.horizon) for span in part.spans(settings.window)]
    )
    ends = windows.cumsum()
    sums = {name: np.zeros((len(windows), 4)) for name in ("model", *names)}
    below = np.zeros((len(windows), len(quantiles)))
    source = raw_windows(part, settings.window, settings.horizon, _BATCH)
    done = 0
    for index in range(len(source)):
        past, future, weight = source.batch(0, index)
        real = weight > 0
        truth = future[real][..., targets].astype(np.float64)
        made = model.forecast(data, past)[real]
        stretch = np.searchsorted(ends, np.arange(done, done + len(truth)), side="right")
        point = made
        if quantiles:
            point = made[..., int(np.argmin(np.abs(np.array(quantiles) - 0.5)))]
            np.add.at(below, stretch, (truth[..., None] <= made).mean(axis=(1, 2)))
        np.add.at(sums["model"], stretch, window_errors(point, truth, scale))
        known = past[real][..., targets].astype(np.float64)
        for name in names:
            np.add.at(sums[name], stretch, window_errors(naive.forecast(name, known), truth, scale))
        done += len(truth)
        if progress is not None:
            progress(done, int(ends[-1]))
    return SeriesErrors(windows, sums, below)


def count_in(span: tuple[int, int], rows: int) -> int:
    """How many windows of so many rows begin in a stretch, given by its first row and the one after its last."""
    return max(0, span[1] - span[0] - rows + 1)
