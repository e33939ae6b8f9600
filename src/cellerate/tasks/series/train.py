"""The series task: train a forecaster, and judge it against naive forecasts."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from cellerate.data.arrays import BatchSource
from cellerate.data.series import SeriesData, SeriesPart, SeriesSplit, open_known
from cellerate.data.settings import Reading, TableOptions
from cellerate.data.tables import find_tables, open_tables
from cellerate.data.times import WEEKDAYS, check_holidays
from cellerate.data.windows import Scaler
from cellerate.errors import ConfigError, DataError
from cellerate.machine.needs import check_memory
from cellerate.messages import Message, argument, marked
from cellerate.models.losses import QuantileLoss, middle_place
from cellerate.models.storage import TaskRecord, load_model, save_model
from cellerate.runtime.forecast import Example, Intervals, median_places, row_times
from cellerate.tasks.judging import (
    Baselines,
    JudgedPart,
    SeriesForecaster,
    calibrate,
    forecaster_report,
    judge_intervals,
    judge_windows,
    season_rows,
    series_names,
)
from cellerate.tasks.series.batches import check_series_model, count_windows, held_out_source, series_sources
from cellerate.tasks.series.cuts import lost_to_cuts
from cellerate.tasks.series.linear_start import LinearStart, has_linear_map
from cellerate.tasks.series.network import build_network, covariates_of, identity_of, lost_residual, series_of
from cellerate.tasks.settings import ForecastArchitecture, SeriesOptions
from cellerate.tasks.task import Task, train_task, trained_with
from cellerate.training.divergence import made_worse, reference_loss, why_not_better
from cellerate.training.loop import TrainingResult
from cellerate.training.run import RunOptions, TrainingRun
from cellerate.training.stretches import ErrorByStretch
from cellerate.training.time_limits import TimeLimits

# Forecasting the mean has at most about this loss, because targets are scaled.
_IGNORANT = 1.0
_EXAMPLES = 4


@dataclasses.dataclass(frozen=True)
class SeriesRun:
    """A finished training.

    Attributes:
        training: The result of the training loop.
        test: The figures of `tasks.judging.forecaster_report` for the best model on the test part; None without one.
        examples: Windows of the test part, spread over it, with their forecasts; for a chart.
    """

    training: TrainingResult
    test: dict[str, Any] | None
    examples: tuple[Example, ...]


def train_on_series(
    options: SeriesOptions,
    run: RunOptions,
    *,
    architecture: ForecastArchitecture | None = None,
    model: str | Path | keras.Model | None = None,
    table: TableOptions | None = None,
) -> SeriesRun:
    """Trains a forecaster.

    Args:
        options: The series and how it is cut.
        run: The output file and the settings of the training.
        architecture: The model to build.
        model: Your own model instead: (B, window, features) to (B, horizon, targets), or to (B, horizon) for
            one target.
        table: The format of the tables, if it cannot be detected.

    Raises:
        CellerateError: Anything wrong with the series, the settings, the model or the output.
    """
    return train_task(SeriesTask(options, run, architecture or ForecastArchitecture(), model, table))


class SeriesTask(Task[SeriesRun]):
    """The training of a forecaster; see `train_on_series`."""

    def __init__(
        self,
        options: SeriesOptions,
        run: RunOptions,
        architecture: ForecastArchitecture,
        model: str | Path | keras.Model | None = None,
        table: TableOptions | None = None,
    ) -> None:
        super().__init__(run)
        check_memory(options, architecture if model is None else None)
        self._options, self._architecture, self._given, self._table = options, architecture, model, table
        self._quantiles = tuple(architecture.quantile)

    def open(self) -> None:
        """Reads the tables up to the last known target, and cuts off the validation and the test part."""
        check_holidays(self._options.calendar, self._options.holidays)
        options = self._options
        if not options.target and not options.reading.wide:
            raise ConfigError(
                f"no target is named: give the column to forecast ({argument('target')}), or several."
                f"{_columns_of(options.paths, self._table)}"
            )
        self._data = open_known(
            options.paths,
            options.whole_reading(),
            options.future,
            table=self._table,
            listener=self.run.listener,
        )
        if options.reading.wide:
            self._options = dataclasses.replace(options, target=self._data.target_names)
        _check_packed(self._data, options)
        self._split = self._options.split(self._data)
        self._scaler = Scaler.fit(self._split.train)

    def build(self) -> keras.Model:
        """A new network of the architecture, or the given model."""
        options, data, split = self._options, self._data, self._split
        if isinstance(self._given, str | Path):
            self._model, _ = load_model(self._given)
        elif self._given is not None:
            self._model = self._given
        else:
            self._model = build_network(split.train, options, self._architecture, self.run.training.seed)
        # A model that is not built has none.
        by_id = "series_id" in [tensor.name for tensor in getattr(self._model, "inputs", None) or ()]
        self._covariates = covariates_of(data, split, options, self._scaler, by_id=by_id)
        check_series_model(self._model, data, options, self._quantiles, self._covariates)
        return self._model

    def sources(self) -> tuple[BatchSource, BatchSource | None]:
        """Windows of the training and of the validation part."""
        options, split = self._options, self._split
        lost = lost_to_cuts(self._data, options.window, options.horizon)
        if lost and count_windows(split.train, options):
            self.run.listener.message(lost)
        if self._quantiles and 0.5 not in self._quantiles:
            self.run.listener.message(_stands_in(self._quantiles))
        if self._given is None and (left_out := lost_residual(self._data, self._architecture)):
            self.run.listener.message(left_out)
        seed = self.run.training.seed
        return series_sources(self._model, split, options, self._scaler, seed, self._covariates)

    def held_out(self, batch_size: int) -> tuple[BatchSource | None, BatchSource | None]:
        """The windows of the validation part, and of the test part."""
        options = dataclasses.replace(self._options, batch_size=batch_size)
        validation, test = [
            held_out_source(self._model, part, options, self._scaler, self._covariates)
            for part in (self._split.validation, self._split.test)
        ]
        return validation, test

    def training(self, validation: BatchSource | None) -> TrainingRun:
        """The loss of the options or of the quantiles; training starts at the linear forecast."""
        options, quantiles = self._options, self._quantiles
        own = self._given is not None
        begin = None
        if not own and has_linear_map(self._model):
            begin = LinearStart(self._split.train, options, quantiles, self._scaler, self._covariates)
        self._payload = self._made_of()
        return TrainingRun(
            options=self.run,
            loss=series_loss(options.loss, quantiles),
            record=TaskRecord("series", self._payload),
            metrics=series_metrics(quantiles, validation),
            validation=validation,
            begin=begin,
            identity=({} if own else identity_of(self._architecture)) | _identity(options, quantiles),
            ignorant=_IGNORANT,
        )

    def judge(self, training: TrainingResult) -> SeriesRun:
        """Calibrates the model on the validation part, which its file then keeps, and judges it on the test part."""
        split = self._split
        trained = self._forecaster(training)
        calibrated = calibrate(trained, split, training.judged and training.judged.items)
        if calibrated is not None:
            self._payload["calibration"] = calibrated[0].to_config()
            trained = self._forecaster(training)
            save_model(training.model, training.output, TaskRecord("series", self._payload))
        if not count_windows(split.test, self._options):
            return self.unjudged(training)
        test = _tested(trained, split, self.run.limits)
        reference = reference_loss(training.first_loss, _IGNORANT)
        if not test["verdict"]["beats_baselines"] and made_worse(training.history, reference):
            why = why_not_better(training.history, reference, self.run.training)
            test["verdict"]["sentence"] = Message(f"{marked(test['verdict']['sentence'])} {marked(why)}")
        if calibrated is not None:
            most = test["windows"] if "sampled_from" in test else None
            test["intervals"] = judge_intervals(trained, split.test, *calibrated, most=most)
        return SeriesRun(training, test, _examples(trained, split.test))

    def unjudged(self, training: TrainingResult) -> SeriesRun:
        """The model alone."""
        return SeriesRun(training, None, ())

    def _forecaster(self, training: TrainingResult) -> SeriesForecaster:
        """The trained model, made from its record, as when its file is opened."""
        return SeriesForecaster.of(training.model.predict_on_batch, self._payload, str(training.output))

    def _made_of(self) -> dict[str, Any]:
        """The facts about its series that a saved model keeps."""
        data, covariates = self._data, self._covariates
        return {
            "options": _plain_options(self._options, data),
            "missing_values": _missing_values(data, self._table),
            "quantiles": list(self._quantiles),
            "scaler": self._scaler.to_config(),
            "data": {
                "fingerprint": data.fingerprint,
                "rows": data.rows,
                "series": len(series_of(data)),
                **_frequency_of(data),
            },
            "training": trained_with(self.run),
            **({} if covariates.plain else {"covariates": covariates.to_config()}),
        }


def _frequency_of(data: SeriesData) -> dict[str, Any]:
    """The frequency of the data as JSON values, without its holidays; empty if it has none."""
    if data.frequency is None:
        return {}
    return {"frequency": dataclasses.replace(data.frequency, holidays=()).to_config()}


def _stands_in(quantiles: Sequence[float]) -> Message:
    """The note on the point forecast of quantiles without 0.5."""
    low, high = (f"{quantiles[place]:g}" for place in median_places(quantiles))
    found = low if low == high else f"a value interpolated between {low} and {high}"
    return Message(
        f"{argument('quantile')} has no 0.5: the point forecast, its errors and the verdict are those of {found}."
    )


def _identity(options: SeriesOptions, quantiles: Sequence[float]) -> dict[str, Any]:
    """The facts that a resumed run must share, beside the model's architecture."""
    names = ("window", "horizon", "batch_size")
    return {name: getattr(options, name) for name in names} | {"loss": f"{options.loss} {quantiles}"}


def _tested(model: SeriesForecaster, split: SeriesSplit, limits: TimeLimits) -> dict[str, Any]:
    """The figures of the test part; the baselines are fitted on the training part.

    If a time limit leaves no time for all windows, `sampled_from` is their number.
    """
    options = model.options
    judged = JudgedPart(split.test, "held-out", 0, "the test part, which training held out")
    baselines = Baselines.fit(split.train, options.window, options.horizon, options.season)
    errors = judge_windows(model, split.test, baselines, seconds=limits.pass_s())
    report = forecaster_report(model, judged, baselines, errors)
    every = count_windows(split.test, options)
    return report if report["windows"] == every else report | {"sampled_from": every}


def series_loss(name: str, quantiles: Sequence[float]) -> keras.losses.Loss:
    """The loss of a forecaster: the quantile loss if it has quantiles, else "mse", "mae" or "huber"."""
    if quantiles:
        return QuantileLoss(tuple(quantiles))
    losses = {
        "mse": keras.losses.MeanSquaredError,
        "mae": keras.losses.MeanAbsoluteError,
        "huber": keras.losses.Huber,
    }
    return losses[name]()


def series_metrics(quantiles: Sequence[float], validation: BatchSource | None) -> list[keras.metrics.Metric]:
    """The mean absolute error of a forecaster; with quantiles, that of the middle quantile."""
    place = middle_place(quantiles) if quantiles else None
    return [ErrorByStretch(1 if validation is None else len(validation), place)]


def _columns_of(paths: Any, table: TableOptions | None) -> str:
    """A sentence with the columns of the first table; "" for a packed series, which has none."""
    with contextlib.suppress(DataError):
        [first] = open_tables(find_tables(paths)[:1], table)
        return f" {first.path} has: {', '.join(first.columns)}."
    return ""


def _check_packed(data: SeriesData, options: SeriesOptions) -> None:
    """Raise `ConfigError` for a setting that is neither the default nor that of the packed series."""
    usual = Reading().settings()
    for name, value in _packed_with(data).items():
        if name == "series_column":
            value = tuple(value)
        asked = getattr(options.reading, name)
        if asked not in (usual[name], value or ""):
            raise ConfigError(
                f"{argument(name)} is {asked!r}, but {options.paths[0]} was packed with {value!r}. Leave the "
                "setting out, or pack the series again."
            )


def _packed_with(data: SeriesData) -> dict[str, Any]:
    """The reading settings of a packed series; empty for other series."""
    names = Reading().settings()
    return {name: value for name, value in (data.packed_with or {}).items() if name in names}


def _missing_values(data: SeriesData, table: TableOptions | None) -> list[str]:
    """The marks of missing values: the only option of tables that belongs to the data, not to a file."""
    packed = (data.packed_with or {}).get("missing_values", ())
    return list(packed if table is None else table.missing_values or packed)


def _plain_options(options: SeriesOptions, data: SeriesData) -> dict[str, Any]:
    """The options with which a saved model opens other files, as JSON values, with the detected columns."""
    plain = options.record()
    # Other tables are read as the packed series was.
    plain |= _packed_with(data)
    season = season_rows(options.season, data)
    if plain["frequency"] is None and data.frequency is not None and data.frequency.unit in WEEKDAYS:
        # Kept, because a few rows of another file may not show a weekend, or years of holidays.
        plain["frequency"] = data.frequency.unit
    return plain | {
        "paths": [],
        "target": list(options.target),
        "feature": list(data.feature_names),
        "season": season,
    }


def _examples(forecaster: SeriesForecaster, part: SeriesPart) -> tuple[Example, ...]:
    options, data = forecaster.options, part.data
    span = options.window + options.horizon
    firsts, stops = np.array(part.spans(options.window)).T
    ends = np.maximum(0, stops - firsts - span + 1).cumsum()  # windows in each stretch and all before it
    targets = list(data.target_columns)
    found = []
    for number in np.linspace(0, ends[-1] - 1, min(_EXAMPLES, int(ends[-1]))).astype(int):
        stretch = int(np.searchsorted(ends, number, side="right"))
        before = ends[stretch - 1] if stretch else 0
        start = int(firsts[stretch] + number - before)
        middle, stop = start + options.window, start + span
        rows = np.asarray(data.values[start:stop], np.float64)
        found.append(
            Example(
                targets=data.target_names,
                past_times=row_times(data, start, middle),
                past=rows[: options.window, targets],
                times=row_times(data, middle, stop),
                form=data.form,
                truth=rows[options.window :, targets],
                forecast=forecaster.forecast_at(data, np.array([middle]))[0],
                quantiles=forecaster.settings.quantiles,
                series=series_names(data, [start])[0],
            )
        )
    # From the validation part, because all these rows come later.
    around = Intervals.of(
        data, forecaster.settings, lambda some: forecaster.forecast_at(data, some), newest=False
    )
    return tuple(found) if around is None else around.around(found)
