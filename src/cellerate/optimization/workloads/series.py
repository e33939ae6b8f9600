"""The workload of the series task: the mean absolute error of forecasts, and forecasts per second."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from cellerate.data.batches import BatchSource
from cellerate.data.series import SeriesData, SeriesPart, open_series
from cellerate.errors import DataError, ModelError
from cellerate.models.storage import TaskRecord
from cellerate.optimization.clocks import Use, predict_uses
from cellerate.optimization.judging import Judged, judged
from cellerate.optimization.workloads.base import SEEN_BY_TRAINING, Part, Predictor, Workload
from cellerate.report.quality import Metric
from cellerate.report.record import ForecastSample, Sample
from cellerate.runtime.forecasting import forecast_windows, reading_arguments
from cellerate.runtime.packed import PackedModel
from cellerate.tasks.series import series_loss, series_model_of
from cellerate.tasks.series_batches import check_series_model, count_windows, series_sources
from cellerate.tasks.series_errors import raw_windows
from cellerate.tasks.settings import SeriesOptions

_ROWS = 256
_MOST_BATCHES = 16
_SAMPLES = 3
_PAST_HORIZONS = 4  # how much of the past to show, in forecast lengths


class SeriesWorkload(Workload):
    """See `Workload`; forecasts are made for one window at a time, or for 256 at a time.

    Args:
        path: The model's file, for messages.
        model: (B, window, features) → (B, horizon, targets), (B, horizon) or (B, horizon, targets, Q).
        record: Its record.
        data: CSV, Parquet or .npy files.
        seed: The seed of everything random.

    Raises:
        DataError: The series have other columns, or no window fits into the held-out part.
        ModelError: The model's record is damaged or belongs to another series.
    """

    item = "forecasts"
    verb = "forecasting"

    def __init__(
        self, path: Path, model: keras.Model, record: TaskRecord, data: Sequence[str | Path], seed: int
    ) -> None:
        super().__init__(model, record, seed)
        known = series_model_of(path, model, record)
        self._scaler, self._quantiles = known.scaler, known.quantiles
        self._options = dataclasses.replace(known.options, paths=tuple(data))
        self._data = open_series(data, **reading_arguments(dataclasses.asdict(self._options)))
        if self._data.columns != self._scaler.columns:
            raise ModelError(
                f"{path} was trained on the columns {', '.join(self._scaler.columns)}, the data have "
                f"{', '.join(self._data.columns)}."
            )
        check_series_model(model, self._data, self._options, self._quantiles)
        self._split = self._data.split(self._options.train_fraction, self._options.validation_fraction)
        self.batch_size = self._options.batch_size
        self.fingerprint = self._data.fingerprint
        self.data = f"{self._data.rows:,} rows of a series, {', '.join(self._data.target_names)} to forecast"
        self._judged: dict[Part, list[Any]] = {}
        sources: dict[Part, str] = {}
        for name, (part, words) in judged_parts(self._data, self._options).items():
            rows = min(_ROWS, count_windows(part, self._options))
            windows = raw_windows(part, self._options.window, self._options.horizon, rows)
            chosen = np.unique(np.linspace(0, len(windows) - 1, min(len(windows), _MOST_BATCHES)).astype(int))
            self._judged[name] = [windows.batch(0, int(index)) for index in chosen]
            count = int(sum((weight > 0).sum() for _, _, weight in self._judged[name]))
            sources[name] = f"{count:,} windows of the {name} part{words}"
        self.metric = Metric(
            name="mean absolute error",
            unit="standard deviations",
            higher_is_better=False,
            source=sources["validation"],
            test_source=sources["test"],
        )

    def source(self, model: keras.Model, batch_size: int, length: int | None = None) -> BatchSource:
        """See `Workload.source`; `length` has no effect, because the window belongs to the model."""
        return self._sources(model, batch_size)[0]

    def validation(self, model: keras.Model, batch_size: int) -> BatchSource | None:
        """See `Workload.validation`."""
        return self._sources(model, batch_size)[1]

    def _sources(self, model: keras.Model, batch_size: int) -> tuple[BatchSource, BatchSource | None]:
        options = dataclasses.replace(self._options, batch_size=batch_size)
        return series_sources(model, self._split, options, self._scaler, self.seed)

    def loss(self, model: keras.Model) -> keras.losses.Loss:
        """Gives the loss the model was trained with."""
        return series_loss(self._options.loss, self._quantiles)

    def judge(self, model: keras.Model | Predictor, part: Part) -> Judged:
        """The mean absolute error of each window, in standard deviations of the training part.

        If quantiles are forecast, it is the error of the median.
        """
        targets = list(self._data.target_columns)
        scale = self._scaler.scale[targets]
        predict = _predict(model)
        found = []
        for past, future, weight in self._judged[part]:
            made = self._forecast(predict, past)
            point = made[..., self._middle()] if self._quantiles else made
            error = np.abs(point - future[..., targets]) / scale
            found.append(error.mean(axis=(1, 2))[weight > 0])
        return judged(np.concatenate(found))

    def _middle(self) -> int:
        return int(np.argmin(np.abs(np.array(self._quantiles) - 0.5)))

    def _forecast(self, predict: Callable[[np.ndarray], Any], past: np.ndarray) -> np.ndarray:
        """(B, window, columns) → (B, horizon, targets[, Q]), both in the units of the data."""
        columns = list(self._data.feature_columns)
        return forecast_windows(
            predict,
            past[..., columns],
            self._scaler,
            columns,
            list(self._data.target_columns),
            quantiles=bool(self._quantiles),
        )

    def keras_uses(self, model: keras.Model) -> tuple[Use, ...]:
        """`predict` and `predict_on_batch`, with one window and with 256."""
        return predict_uses(model, self._inputs(1), self._inputs(_ROWS), _ROWS)

    def packed_use(self, model: PackedModel) -> Use:
        """`PackedModel.predict` with the same windows."""
        one, many = self._inputs(1), self._inputs(_ROWS)
        return Use("packed", lambda: model.predict(one), lambda: model.predict(many), _ROWS)

    def _inputs(self, rows: int) -> np.ndarray:
        columns = list(self._data.feature_columns)
        past = self._judged["validation"][0][0][..., columns]
        return self._scaler.transform(np.resize(past, (rows, *past.shape[1:])), columns)

    def sample(self, model: keras.Model, packed: PackedModel | None) -> Sample:
        """Forecasts for windows spread over the validation part."""
        batches = self._judged["validation"]
        past, future, weight = batches[len(batches) // 2]
        rows = np.linspace(0, int((weight > 0).sum()) - 1, _SAMPLES).astype(int)
        made = self._forecast(_predict(packed or model), past)
        target = self._data.target_columns[0]
        shown = min(past.shape[1], _PAST_HORIZONS * self._options.horizon)
        samples = []
        for number, row in enumerate(rows.tolist(), start=1):
            forecast = made[row, :, 0]
            band = (forecast[:, 0], forecast[:, -1]) if len(self._quantiles) > 1 else ((), ())
            point = forecast[:, self._middle()] if self._quantiles else forecast
            samples.append(
                ForecastSample(
                    title=f"{self._data.target_names[0]}, window {number}",
                    past=_floats(past[row, -shown:, target]),
                    truth=_floats(future[row, :, target]),
                    forecast=_floats(point),
                    low=_floats(band[0]),
                    high=_floats(band[1]),
                )
            )
        return Sample(forecasts=tuple(samples))


def judged_parts(data: SeriesData, options: SeriesOptions) -> dict[Part, tuple[SeriesPart, str]]:
    """Gives the parts to judge on, each with words on what its rows are to the original.

    These are the validation and the test part of training. If one of them fits no window, the other is split
    in time; between the halves lie as many rows as a window and its horizon have, and no row is in both.

    Raises:
        DataError: No window fits into one of them.
    """
    train, validation = options.train_fraction, options.validation_fraction
    split, known = data.split(train, validation), SEEN_BY_TRAINING[True]
    fits = [count_windows(part, options) > 0 for part in (split.validation, split.test)]
    if all(fits):
        return {"validation": (split.validation, known), "test": (split.test, "")}
    if fits[0]:
        halves, words = data.split(train, validation / 2), f" of training's validation part{known}"
    else:
        begin = min(1.0, train + validation)
        halves, words = data.split(begin, (1 - begin) / 2), " of the rows that training never saw"
    later = _apart(halves.test, options)
    if not (count_windows(halves.validation, options) and count_windows(later, options)):
        raise DataError(
            f"no two windows of {options.window} rows and a horizon of {options.horizon} that share no row fit into "
            "what training held out: give a longer series."
        )
    return {
        "validation": (halves.validation, f": the first half{words}"),
        "test": (later, f": the second half{words}"),
    }


def _apart(part: SeriesPart, options: SeriesOptions) -> SeriesPart:
    """Gives a part without what its windows share with the rows before it, and as many rows more as a horizon has."""
    bounds = []
    for floor, begin, stop in part.bounds:
        # A stretch behind a gap in the series has no row before it.
        first = begin + options.horizon if floor < begin else begin
        start = first + options.window if floor < begin else begin
        if start < stop:
            bounds.append((max(floor, first), start, stop))
    return dataclasses.replace(part, bounds=tuple(bounds))


def _predict(model: keras.Model | Predictor) -> Callable[[np.ndarray], Any]:
    return model.predict_on_batch if isinstance(model, keras.Model) else model.predict


def _floats(values: Any) -> tuple[float, ...]:
    return tuple(float(value) for value in values)
