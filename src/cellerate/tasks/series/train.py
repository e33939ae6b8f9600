"""The series task: train a forecaster, judge it against naive forecasts, and forecast what comes next."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from cellerate.data.arrays import BatchSource
from cellerate.data.series import SeriesData, SeriesPart, SeriesSplit, open_known
from cellerate.data.settings import TableOptions
from cellerate.data.times import WEEKDAYS, check_holidays
from cellerate.data.windows import NO_COVARIATES, Covariates, Scaler
from cellerate.errors import ConfigError
from cellerate.models.losses import QuantileLoss, middle_place
from cellerate.models.storage import TaskRecord, load_model, save_model
from cellerate.runtime.forecast import (
    Calibration,
    Example,
    ForecastSettings,
    Intervals,
    reading_arguments,
    row_times,
)
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
    trained_on,
)
from cellerate.tasks.series.batches import check_series_model, count_windows, series_sources
from cellerate.tasks.series.cuts import lost_to_cuts
from cellerate.tasks.series.linear_start import LinearStart, has_linear_map
from cellerate.tasks.series.network import build_network, covariates_of, identity_of, series_of
from cellerate.tasks.settings import ForecastArchitecture, SeriesOptions
from cellerate.training.divergence import made_worse, reference_loss, why_not_better
from cellerate.training.loop import TrainingResult, TrainingRun, train
from cellerate.training.parallel import apart
from cellerate.training.settings import TrainingSettings
from cellerate.training.start import check_start
from cellerate.training.stretches import ErrorByStretch
from cellerate.training.telemetry import Display
from cellerate.training.time_limits import TimeLimits

# The loss of a forecast of the mean is at most about that, because targets are scaled.
_IGNORANT = 1.0
# Settings of reading, which a packed series has of its own.
_PACKED_SETTINGS = (
    "time_column",
    "series_column",
    "missing",
    "gaps",
    "duplicates",
    "time_zone",
    "frequency",
)


@dataclasses.dataclass(frozen=True)
class SeriesModel:
    """A forecaster with its scaler and settings.

    Attributes:
        model: (B, window, features) scaled → (B, horizon, targets) scaled, or (B, horizon, targets, Q).
        scaler: Converts to and from the units of the data.
        options: The data settings it was trained with.
        quantiles: The Q quantiles, or empty.
        covariates: What it sees beside the features.
        record: What the model file says about how it was made.
        calibration: What intervals are made of, or None.
    """

    model: keras.Model
    scaler: Scaler
    options: SeriesOptions
    quantiles: tuple[float, ...]
    record: dict[str, Any]
    covariates: Covariates = NO_COVARIATES
    calibration: Calibration | None = None

    @property
    def forecaster(self) -> SeriesForecaster:
        """The model as one of those that only forecast."""
        options = self.options
        settings = ForecastSettings(
            {**_reading(options), "missing_values": self.record.get("missing_values", [])},
            options.window,
            options.horizon,
            self.quantiles,
            self.scaler,
            self.covariates,
            self.calibration,
        )
        return SeriesForecaster(self.model.predict_on_batch, settings, options, trained_on(self.record))


@dataclasses.dataclass(frozen=True)
class SeriesRun:
    """A finished training.

    Attributes:
        training: The result of the training loop.
        test: The figures of `series_errors.forecaster_report` for the best model on the test part; None without one.
        examples: Windows of the test part, spread over it, with their forecasts; for a chart.
    """

    training: TrainingResult
    test: dict[str, Any] | None
    examples: tuple[Example, ...]


def load_series_model(path: str | Path) -> SeriesModel:
    """Opens a forecaster that Cellerate wrote.

    Raises:
        ModelError: The file is damaged, or its model is for another task.
    """
    model, record = load_model(path, need_task="series")
    assert record is not None  # noqa: S101 (a model without one is refused above)
    return series_model_of(path, model, record)


def series_model_of(path: str | Path, model: keras.Model, record: TaskRecord) -> SeriesModel:
    """Like `load_series_model`, for a model that is already open and that messages call `path`."""
    known = SeriesForecaster.of(model.predict_on_batch, record.payload, str(path))
    settings = known.settings
    return SeriesModel(
        model,
        settings.scaler,
        known.options,
        settings.quantiles,
        record.payload,
        settings.covariates,
        settings.calibration,
    )


def train_on_series(
    options: SeriesOptions,
    output: str | Path,
    *,
    architecture: ForecastArchitecture | None = None,
    model: str | Path | keras.Model | None = None,
    training: TrainingSettings | None = None,
    resume: bool = False,
    overwrite: bool = False,
    callbacks: Sequence[keras.callbacks.Callback] = (),
    display: Display | None = None,
    reading: Callable[[int, int], None] | None = None,
    table: TableOptions | None = None,
    notify: Callable[[str], None] | None = None,
    began: float | None = None,
) -> SeriesRun:
    """Trains a forecaster.

    Args:
        options: The series and how it is cut.
        output: A `.keras` path for the model.
        architecture: The model to build.
        model: Your own model instead: (B, window, features) to (B, horizon, targets), or to (B, horizon) for
            one target.
        training: How to train.
        resume: Continues from the checkpoint beside `output`.
        overwrite: Replaces a model or an unfinished run of the same name.
        callbacks: Keras callbacks of your own; see `training.loop.train`.
        display: Shows the progress.
        reading: Called while tables are read with the rows read and the rows in all, 0 if that is not known.
        table: How the tables are written, where that is not to be found out.
        notify: Called with a sentence for each thing worth knowing of how the tables were read.
        began: The time of `perf_counter` at which the command began, for `time_budget`; None for now.

    Raises:
        CellerateError: Anything wrong with the series, the settings, the model or the output.
    """
    training = training or TrainingSettings()
    limits = TimeLimits.of(training, began)
    architecture = architecture or ForecastArchitecture()
    check_start(output, resume=resume, overwrite=overwrite, track=training.track)
    check_holidays(options.calendar, options.holidays)
    data = _open(options, reading, table)
    if options.wide:
        options = dataclasses.replace(options, target=data.target_names)
    _check_packed(data, options)
    if notify is not None:
        for told in data.notes:
            notify(told)
    split = options.split(data)
    scaler = Scaler.fit(split.train)
    quantiles = tuple(architecture.quantile)
    if isinstance(model, str | Path):
        network, _ = load_model(model)
    else:
        network = model or build_network(split.train, options, architecture, training.seed)
    # A model that is not built has none.
    by_id = "series_id" in [tensor.name for tensor in getattr(network, "inputs", None) or ()]
    covariates = covariates_of(data, split, options, scaler, by_id=by_id)
    check_series_model(network, data, options, quantiles, covariates)
    if (
        notify is not None
        and count_windows(split.train, options)
        and (lost := lost_to_cuts(data, options.window, options.horizon))
    ):
        notify(lost)
    source, validation = series_sources(network, split, options, scaler, training.seed, covariates)
    payload = {
        "options": _plain_options(options, data),
        "missing_values": _missing_values(data, table),
        "quantiles": list(quantiles),
        "scaler": scaler.to_config(),
        "data": {"fingerprint": data.fingerprint, "rows": data.rows, "series": len(series_of(data))},
        "training": dataclasses.asdict(training) | {"backend": keras.config.backend()},
        **({} if covariates.plain else {"covariates": covariates.to_config()}),
    }
    is_linear = model is None and has_linear_map(network)
    result = train(
        network,
        source,
        TrainingRun(
            output=output,
            begin=LinearStart(split.train, options, quantiles, scaler, covariates) if is_linear else None,
            save=lambda trained, path: save_model(trained, path, TaskRecord("series", payload)),
            loss=series_loss(options.loss, quantiles),
            metrics=series_metrics(quantiles, validation),
            settings=training,
            validation=validation,
            identity=({} if model is not None else identity_of(architecture)) | _identity(options, quantiles),
            resume=resume,
            overwrite=overwrite,
            callbacks=callbacks,
            display=display,
            limits=limits,
            ignorant=_IGNORANT,
        ),
    )
    trained = SeriesModel(result.model, scaler, options, quantiles, payload, covariates)
    return _judged(result, trained, split, training, limits)


def _identity(options: SeriesOptions, quantiles: Sequence[float]) -> dict[str, Any]:
    """The facts that a resumed run must share, beside the model's architecture."""
    names = ("window", "horizon", "batch_size")
    return {name: getattr(options, name) for name in names} | {"loss": f"{options.loss} {quantiles}"}


def _judged(
    result: TrainingResult,
    trained: SeriesModel,
    split: SeriesSplit,
    training: TrainingSettings,
    limits: TimeLimits,
) -> SeriesRun:
    """A training with its calibration, which the model file then keeps, and its figures on the test part."""
    options, payload = trained.options, trained.record
    if not result.here or result.status == "interrupted":
        return SeriesRun(result, None, ())
    with apart():
        calibrated = calibrate(trained.forecaster, split, result.judged and result.judged.items)
    if calibrated is not None:
        payload["calibration"] = calibrated[0].to_config()
        trained = dataclasses.replace(trained, calibration=calibrated[0])
        save_model(result.model, result.output, TaskRecord("series", payload))
    if not count_windows(split.test, options):
        return SeriesRun(result, None, ())
    with apart():
        test = _tested(trained.forecaster, split, limits)
        reference = reference_loss(result.first_loss, _IGNORANT)
        if not test["verdict"]["beats_baselines"] and made_worse(result.history, reference):
            test["verdict"]["sentence"] += f" {why_not_better(result.history, reference, training)}"
        if calibrated is not None:
            most = test["windows"] if "sampled_from" in test else None
            test["intervals"] = judge_intervals(trained.forecaster, split.test, *calibrated, most=most)
        return SeriesRun(result, test, _examples(trained, split.test))


def _tested(model: SeriesForecaster, split: SeriesSplit, limits: TimeLimits) -> dict[str, Any]:
    """The figures of the test part; the baselines are fitted on the training part.

    Where a time limit leaves no time for all windows, `sampled_from` says how many there are.
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
    """The mean absolute error of a forecaster: that of the middle one of its quantiles, if it has any."""
    place = middle_place(quantiles) if quantiles else None
    return [ErrorByStretch(1 if validation is None else len(validation), place)]


def _open(
    options: SeriesOptions,
    reading: Callable[[int, int], None] | None = None,
    table: TableOptions | None = None,
) -> SeriesData:
    if not options.target and not options.wide:
        raise ConfigError("no target is named: give the column to forecast (target), or several.")
    how = {**_reading(options), "table": table, "progress": reading}
    return open_known(options.paths, how, options.future)


def _reading(options: SeriesOptions) -> dict[str, Any]:
    # A frame among the paths is no setting, and is not to be copied.
    return reading_arguments(dataclasses.asdict(dataclasses.replace(options, paths=())))


def _check_packed(data: SeriesData, options: SeriesOptions) -> None:
    """Raises `ConfigError` for a setting, other than the default, that a packed series was not packed with."""
    for name, value in (data.packed_with or {}).items():
        if name == "series_column":
            value = tuple(value if isinstance(value, list) else filter(None, [value]))
        if name in _PACKED_SETTINGS and getattr(options, name) not in (
            getattr(SeriesOptions(), name),
            value or "",
        ):
            raise ConfigError(
                f"{name} is {getattr(options, name)!r}, but {options.paths[0]} was packed with {value!r}. Leave the "
                "setting out, or pack the series again."
            )


def _missing_values(data: SeriesData, table: TableOptions | None) -> list[str]:
    """The marks of missing values: the one option of tables that is of the data and not of a file."""
    packed = (data.packed_with or {}).get("missing_values", ())
    return list(packed if table is None else table.missing_values or packed)


def _plain_options(options: SeriesOptions, data: SeriesData) -> dict[str, Any]:
    """The options with which a saved model opens other files: JSON values, with the columns that were found."""
    plain = dataclasses.asdict(dataclasses.replace(options, paths=()))
    # A packed series was read with settings of its own, and other tables are to be read as it was.
    plain |= {name: value for name, value in (data.packed_with or {}).items() if name in _PACKED_SETTINGS}
    season = season_rows(options.season, data)
    if plain["frequency"] is None and data.frequency is not None and data.frequency.unit in WEEKDAYS:
        # A few rows of another file may not reach over a weekend, or over years of holidays.
        plain["frequency"] = data.frequency.unit
    return plain | {
        "paths": [],
        "target": list(options.target),
        "feature": list(data.feature_names),
        "season": season,
    }


def _examples(series_model: SeriesModel, part: SeriesPart, count: int = 4) -> tuple[Example, ...]:
    options, data = series_model.options, part.data
    forecaster = series_model.forecaster
    span = options.window + options.horizon
    firsts, stops = np.array(part.spans(options.window)).T
    ends = np.maximum(0, stops - firsts - span + 1).cumsum()  # windows in each stretch and all before it
    targets = list(data.target_columns)
    found = []
    for number in np.linspace(0, ends[-1] - 1, min(count, int(ends[-1]))).astype(int):
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
                quantiles=series_model.quantiles,
                series=series_names(data, [start])[0],
            )
        )
    # As kept of the validation part, for all of these come later.
    around = Intervals.of(
        data, forecaster.settings, lambda some: forecaster.forecast_at(data, some), newest=False
    )
    return tuple(found) if around is None else around.around(found)
