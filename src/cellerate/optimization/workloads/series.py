"""The workload of the series task: the mean absolute error of forecasts, and forecasts per second."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from cellerate.data.arrays import BatchSource
from cellerate.data.series import SeriesData, SeriesPart
from cellerate.data.settings import TableOptions
from cellerate.data.windows import Inputs, spread
from cellerate.errors import DataError
from cellerate.models.storage import TaskRecord, load_model, save_model
from cellerate.optimization.clocks import Use, predict_uses
from cellerate.optimization.judging import Judged, judged
from cellerate.optimization.workloads.base import SEEN_BY_TRAINING, Part, Predictor, Workload
from cellerate.report.quality import Metric
from cellerate.report.record import ForecastSample, SampleOutput
from cellerate.runtime.cell import read_cell, write_cell
from cellerate.runtime.packed import PackedModel, load
from cellerate.tasks.judging import SeriesForecaster, calibrate, raw_windows
from cellerate.tasks.series import check_series_model, count_windows, series_loss, series_sources
from cellerate.tasks.settings import ReadingOptions, SeriesOptions

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
        reading: Options of reading tables that differ from the training.
        table: The format of tables, where it cannot be detected.

    Raises:
        DataError: The series have other columns, or no window fits into the held-out part.
        ModelError: The model's record is damaged or belongs to another series.
    """

    item = "forecasts"
    verb = "forecasting"

    def __init__(
        self,
        path: Path,
        model: keras.Model,
        record: TaskRecord,
        data: Sequence[str | Path],
        seed: int,
        *,
        reading: ReadingOptions = ReadingOptions(),  # noqa: B008 (frozen)
        table: TableOptions = TableOptions(),  # noqa: B008 (frozen)
    ) -> None:
        super().__init__(model, record, seed)
        self._forecaster = SeriesForecaster.of(model.predict_on_batch, record.payload, str(path))
        settings = self._forecaster.settings
        self._scaler, self._quantiles = settings.scaler, settings.quantiles
        self._covariates = settings.covariates
        self._options = dataclasses.replace(self._forecaster.options, paths=tuple(data))
        self._data = self._forecaster.open(data, None, reading, table=table)
        check_series_model(model, self._data, self._options, self._quantiles, self._covariates)
        self._split = self._options.split(self._data)
        self.batch_size = self._options.batch_size
        self.fingerprint = self._data.fingerprint
        self.data = f"{self._data.rows:,} rows of a series, {', '.join(self._data.target_names)} to forecast"
        batches: dict[Part, list[Any]] = {}
        self._parts: dict[Part, str] = {}
        for name, (part, words) in judged_parts(self._data, self._options).items():
            rows = min(_ROWS, count_windows(part, self._options))
            windows = raw_windows(part, self._options.window, self._options.horizon, rows)
            chosen = spread(len(windows), _MOST_BATCHES)
            batches[name] = [(*windows.batch(0, index), windows.origins(0, index)) for index in chosen]
            self._parts[name] = words
        self.hold_out(batches)

    def measure(self) -> Metric:
        """See `Workload.measure`."""

        def source(part: Part) -> str:
            count = int(sum((weight > 0).sum() for _, _, weight, _ in self.held_out[part]))
            return f"{count:,} windows of the {part} part{self._parts[part]}"

        return Metric(
            name="mean absolute error",
            unit="standard deviations",
            higher_is_better=False,
            source=source("validation"),
            test_source=source("test"),
        )

    def source(self, model: keras.Model, batch_size: int, length: int | None = None) -> BatchSource:
        """See `Workload.source`; `length` has no effect, because the window belongs to the model."""
        return self._sources(model, batch_size)[0]

    def validation(self, model: keras.Model, batch_size: int) -> BatchSource | None:
        """See `Workload.validation`."""
        return self._sources(model, batch_size)[1]

    def _sources(self, model: keras.Model, batch_size: int) -> tuple[BatchSource, BatchSource | None]:
        options = dataclasses.replace(self._options, batch_size=batch_size)
        return series_sources(model, self._split, options, self._scaler, self.seed, self._covariates)

    def loss(self, model: keras.Model) -> keras.losses.Loss:
        """Return the loss the model was trained with."""
        return series_loss(self._options.loss, self._quantiles)

    def judge(self, model: keras.Model | Predictor, part: Part, *, brief: bool = False) -> Judged:
        """The mean absolute error of each window, in standard deviations of the training part.

        If quantiles are forecast, it is the error of the median.
        """
        targets = list(self._data.target_columns)
        found = []
        for _, future, weight, origins in self.held_out[part][: 1 if brief else None]:
            made = self._forecast(_predict(model), origins)
            point = made[..., self._middle()] if self._quantiles else made
            scale = self._forecaster.target_scale(self._data, origins)
            error = np.abs(point - future[..., targets]) / scale
            found.append(error.mean(axis=(1, 2))[weight > 0])
        return judged(np.concatenate(found))

    def finish(self, model: Path, packed: Path | None) -> bool:
        """Calibrate the intervals of the chosen model again: those of the original only hold for its own errors."""
        if "calibration" not in self.record.payload:
            return False
        chosen, _ = load_model(model)
        record = self._calibrated(chosen.predict_on_batch)
        if record is None:
            return False
        save_model(chosen, model, record)
        if packed is not None and (record := self._calibrated(load(packed).predict)) is not None:
            cell = read_cell(packed)
            header = {**cell.header, "payload": record.payload}
            write_cell(packed, cell.program, precision=cell.precision, header=header)
        return True

    def _calibrated(self, predict: Callable[[Inputs], Any]) -> TaskRecord | None:
        """The record with the calibration of a model; None if the validation part is too short for one."""
        made = calibrate(dataclasses.replace(self._forecaster, predict=predict), self._split)
        if made is None:
            return None
        return dataclasses.replace(
            self.record, payload={**self.record.payload, "calibration": made[0].to_config()}
        )

    def _middle(self) -> int:
        return int(np.argmin(np.abs(np.array(self._quantiles) - 0.5)))

    def _forecast(self, predict: Callable[[Inputs], Any], origins: np.ndarray) -> np.ndarray:
        """(B,) first rows to forecast → (B, horizon, targets[, Q]) in the units of the data."""
        return dataclasses.replace(self._forecaster, predict=predict).forecast_at(self._data, origins)

    def keras_uses(self, model: keras.Model) -> tuple[Use, ...]:
        """`predict` and `predict_on_batch`, with one window and with 256."""
        return predict_uses(model, self._inputs(1), self._inputs(_ROWS), _ROWS)

    def packed_use(self, model: PackedModel) -> Use:
        """`PackedModel.predict` with the same windows."""
        one, many = self._inputs(1), self._inputs(_ROWS)
        return Use("packed", lambda: model.predict(one), lambda: model.predict(many), _ROWS)

    def _inputs(self, rows: int) -> Inputs:
        origins = self.held_out["validation"][0][3]
        given: list[Inputs] = []

        def read(inputs: Inputs) -> np.ndarray:
            given.append(inputs)
            row = (self._options.horizon, len(self._data.target_columns))
            return np.zeros((len(origins), *row, *([len(self._quantiles)] if self._quantiles else [])))

        # The inputs that a forecast gives to the model.
        self._forecast(read, origins)

        def resized(part: np.ndarray) -> np.ndarray:
            return np.resize(part, (rows, *part.shape[1:]))

        (inputs,) = given
        if isinstance(inputs, dict):
            return {name: resized(part) for name, part in inputs.items()}
        return resized(inputs)

    def sample(self, model: keras.Model, packed: PackedModel | None) -> SampleOutput:
        """Forecasts for windows spread over the validation part."""
        batches = self.held_out["validation"]
        past, future, weight, origins = batches[len(batches) // 2]
        rows = np.linspace(0, int((weight > 0).sum()) - 1, _SAMPLES).astype(int)
        made = self._forecast(_predict(packed or model), origins)
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
        return SampleOutput(forecasts=tuple(samples))


def judged_parts(data: SeriesData, options: SeriesOptions) -> dict[Part, tuple[SeriesPart, str]]:
    """Return the parts to judge on, each with words on the relation of its rows to the original's training.

    These are the validation and the test part of training. If one of them is too short for a window, the other is
    split in time; a window and its horizon lie between the halves, so no row is in both.

    Raises:
        DataError: No window fits into one of them.
    """
    train, validation = options.train_fraction, options.validation_fraction
    split, known = options.split(data), SEEN_BY_TRAINING[True]
    fits = [count_windows(part, options) > 0 for part in (split.validation, split.test)]
    if all(fits):
        return {"validation": (split.validation, known), "test": (split.test, "")}
    if options.test_size is not None and fits[1]:
        half = options.test_size // 2
        halves = data.split(test_size=half, validation_size=options.test_size - half)
        words = " of the rows that training never saw"
    elif fits[0]:
        halves, words = data.split(train, validation / 2), f" of training's validation part{known}"
    else:
        begin = min(1.0, train + validation)
        halves, words = data.split(begin, (1 - begin) / 2), " of the rows that training never saw"
    later = _apart(halves.test, options)
    if not (count_windows(halves.validation, options) and count_windows(later, options)):
        raise DataError(
            f"the rows that training held out are too few for two separate windows of {options.window} rows with "
            f"horizons of {options.horizon}: give a longer series."
        )
    return {
        "validation": (halves.validation, f": the first half{words}"),
        "test": (later, f": the second half{words}"),
    }


def _apart(part: SeriesPart, options: SeriesOptions) -> SeriesPart:
    """Return a part without the rows that its windows share with the rows before it, and without one more horizon."""
    bounds = []
    for floor, begin, stop in part.bounds:
        # A stretch after a gap in the series has no row before it.
        first = begin + options.horizon if floor < begin else begin
        start = first + options.window if floor < begin else begin
        if start < stop:
            bounds.append((max(floor, first), start, stop))
    return dataclasses.replace(part, bounds=tuple(bounds))


def _predict(model: keras.Model | Predictor) -> Callable[[Any], Any]:
    return model.predict_on_batch if isinstance(model, keras.Model) else model.predict


def _floats(values: Any) -> tuple[float, ...]:
    return tuple(float(value) for value in values)
