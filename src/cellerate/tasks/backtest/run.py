"""Backtests: the forecasts that a model would have made at many times of the past, compared with the true values.

The origin rolls: each fold forecasts the rows from its origin on, from rows before it only, and the last fold ends with
the data. One model forecasts all folds and series in one pass. With `refit`, each fold has its own model, trained on
the rows before the fold.

Source: Hyndman & Athanasopoulos, "Forecasting: Principles and Practice", 3rd ed., section 5.10.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from cellerate.data.series import SeriesData, SeriesPart
from cellerate.data.settings import TableOptions
from cellerate.data.tables import Tables
from cellerate.errors import ConfigError
from cellerate.keywords import BacktestKeywords
from cellerate.listener import Callbacks
from cellerate.messages import Message, argument
from cellerate.runtime.forecast import Example, Intervals, row_times
from cellerate.runtime.packed import PackedModel
from cellerate.settings import check_counts, check_number, one_or_more, record_of, takes_fields_of
from cellerate.tasks.backtest.baselines import baselines_before, fitted_again
from cellerate.tasks.backtest.folds import FoldRows, FoldWindows, fold_windows, rows_around, rows_before
from cellerate.tasks.judging import (
    Baselines,
    Judging,
    SeriesErrors,
    SeriesForecaster,
    add_errors,
    check_statistical,
    forecast_columns,
    forecast_table,
    judging_of,
    series_names,
)
from cellerate.tasks.opening import Model, Opened, forecaster_of, open_model
from cellerate.tasks.settings import ReadingOptions

if TYPE_CHECKING:
    from cellerate.models.storage import TaskRecord

# The most windows of a pass: a Keras model holds all their results in memory.
_AT_ONCE = 4096
_SECONDS_A_FOLD = 60.0


@dataclasses.dataclass(frozen=True, eq=False)
class Fold:
    """One origin and its forecasts, which are computed on request, because there may be thousands of folds.

    Attributes:
        number: From 1, in the order of time.
        origin_time: The time (or the number) of the first row that is forecast, of the first series.
    """

    number: int
    origin_time: Any
    _forecasts: Callable[[], tuple[Example, ...]] = dataclasses.field(repr=False)
    _judged: Callable[[], Mapping[str, Any]] = dataclasses.field(repr=False)

    @functools.cached_property
    def examples(self) -> tuple[Example, ...]:
        """One example for each series, with the truth."""
        return self._forecasts()

    @functools.cached_property
    def figures(self) -> Mapping[str, Any]:
        """The figures of `Backtest.figures`, for this fold alone."""
        return self._judged()

    @property
    def origin(self) -> Any:
        """`origin_time` as the data write it."""
        return _written(self.examples[0])


@dataclasses.dataclass(frozen=True)
class Backtest:
    """The result of a backtest.

    Attributes:
        folds: The folds, in the order of time.
        figures: The figures of all folds together: `model`, `last_value`, `seasonal_naive`, `nlinear`, `by_target`,
            `by_series`, `verdict` and more, as `tasks.judging.forecaster_report` describes them; and `intervals`, the
            share of the truth within each.
        horizon: Rows that each fold forecasts.
        step: Rows from one origin to the next.
        refit: Whether each fold has its own model.
        left_out: Names of the series that are too short for any fold.
        told: A sentence on the folds that the model was trained on.
    """

    folds: tuple[Fold, ...]
    figures: Mapping[str, Any]
    horizon: int
    step: int
    refit: bool
    left_out: tuple[str, ...]
    told: str

    def record(self) -> dict[str, Any]:
        """All figures as JSON values; `columns` has the forecasts."""
        folds = [{"fold": fold.number, "origin": fold.origin, **fold.figures} for fold in self.folds]
        settings = {"horizon": self.horizon, "step": self.step, "refit": self.refit, "told": self.told}
        return {**settings, "left_out_series": list(self.left_out), **self.figures, "folds": folds}

    def columns(self) -> dict[str, Any]:
        """All forecasts as columns, with a row for each fold, series and time.

        The columns are `fold`, `origin`, `series` (if they have names), `time`, the columns of a table of forecasts,
        and for each target such as OT its true value, `OT_true`.
        """
        return forecast_columns(*self._parts())

    def table(self) -> tuple[list[str], list[list[Any]]]:
        """`columns` as a table for people: its column names, and its rows."""
        return forecast_table(*self._parts())

    def _parts(self) -> tuple[list[Example], dict[str, list[Any]], dict[str, list[Any]]]:
        """The forecasts, the columns before them, and those behind them."""
        pairs = [(fold, example) for fold in self.folds for example in fold.examples]
        before = {
            "fold": [fold.number for fold, example in pairs for _ in example.times],
            "origin": [origin for _, example in pairs for origin in [_written(example)] * len(example.times)],
        }
        truth = np.concatenate([example.truth for _, example in pairs if example.truth is not None])
        behind = {f"{name}_true": truth[:, n].tolist() for n, name in enumerate(pairs[0][1].targets)}
        return [example for _, example in pairs], before, behind


@takes_fields_of(ReadingOptions, TableOptions)
def backtest(
    model: Model,
    data: Tables,
    *,
    record: "TaskRecord | None" = None,
    folds: int = 20,
    step: int | None = None,
    refit: bool = False,
    epochs: int | None = None,
    max_seconds: float | None = None,
    baselines: bool = True,
    statistical: Sequence[str] = (),
    levels: Sequence[float] | None = None,
    progress: Callable[[int, int], None] | None = None,
    notify: Callable[[str], None] | None = None,
    **options: Unpack[BacktestKeywords],
) -> Backtest:
    """Judge a forecaster at a rolling origin: each fold forecasts `horizon` rows, and the last one ends with the data.

    Args:
        model: A forecaster's `.keras` or `.cell` file, a Keras model with its record, or the result of `load`.
        data: The series: tables, in files or frames, or one packed series.
        record: The record of a Keras model that is not given as a file, as `load_model` returns it.
        folds: The number of origins.
        step: Rows from one origin to the next; None for `horizon`, so that no row is forecast twice.
        refit: Trains a new model for each fold, from fresh weights, on the rows before its origin. Training the given
            weights further would be faster, but they have seen later rows. Not for packed models.
        epochs: With `refit`, the most epochs a fold; None for as many as the model was trained for.
        max_seconds: With `refit`, the most seconds of training a fold; None for 60.
        baselines: Whether to judge a linear forecast, too. The naive ones cost nothing.
        statistical: Models of StatsForecast to judge beside it: "ets", "theta", "arima" (AutoETS, AutoTheta,
            AutoARIMA). They are fitted on at most 10,000 rows before the first fold, or with `refit` before each
            fold, and see the rows before each origin.
        levels: The levels of intervals; see `forecast`. Intervals are calibrated on rows before the first fold or, if
            those are too few, taken from the model's own calibration; with `refit`, on the validation part of each
            fold.
        progress: Called with the number of finished folds and their total.
        notify: Called with a sentence for each noteworthy fact about how the tables were read.
        options: Options for the format of the tables, and those that differ from the training; listed below.

    Returns:
        The folds, and the figures of the model and of the baselines. The linear baseline is fitted on the rows before
        the first fold, with `refit` on the rows before each. MASE is scaled by the rows before the first fold.

    Raises:
        CellerateError: Anything wrong with the model or the data; or the series have too few rows.

    Example:
        >>> found = cellerate.backtest("ett.keras", "ETTh1.csv", folds=20)
        >>> found.figures["verdict"]["sentence"]
    """
    check_counts(folds=folds)
    check_number("step", step, at_least=1, whole=True, optional=True)
    _check_limits(refit, epochs, max_seconds)
    statistical = one_or_more(statistical)
    check_statistical(statistical)
    opened = open_model(model, record)
    if refit and isinstance(opened, PackedModel):
        raise ConfigError(
            f"{argument('refit', True)} trains a model for each fold, which a packed one cannot be: give the .keras "
            f"file it was packed from, or leave {argument('refit')} out."
        )
    forecaster = forecaster_of(opened)
    reading, table = record_of(ReadingOptions, options), record_of(TableOptions, options)
    series = forecaster.open(data, None, reading, table=table, listener=Callbacks(message=notify))
    step = step or forecaster.settings.horizon
    windows, left_out = fold_windows(series, forecaster, folds, step)
    about = judging_of(forecaster, series)
    before = rows_before(series, windows, 0)
    fitted = baselines_before(forecaster, before, windows, linear=baselines, statistical=statistical)
    names = ["model", *fitted.names(forecaster.settings.window)]
    scales = fitted.scales_of(windows.series, len(about.targets))
    errors = SeriesErrors.zeros(windows.series, np.ones(len(windows.origins), int), names, about, scales)
    made: list[np.ndarray] = []
    around: list[Intervals | None] = []
    if refit:
        trainer = _trainer(opened, forecaster, epochs, max_seconds)
        for fold in range(folds):
            chosen = np.flatnonzero(windows.folds == fold)
            known = rows_before(series, windows, fold)
            trained = trainer(known, fold)
            own = fitted_again(fitted, known, forecaster, windows.origins[chosen])
            made.append(_judge(trained, series, windows, chosen, own, errors))
            around.append(_intervals(trained, series, known, levels, newest=False))
            # All folds get the levels of the first one, which has the fewest rows to calibrate on.
            levels = () if around[0] is None else tuple(around[0].reach)
            if progress is not None:
                progress(fold + 1, folds)
        sentence = "each fold has a model of its own, which was trained on the rows before its origin only"
    else:
        around = [_intervals(forecaster, series, before, levels)] * folds
        for begin in range(0, len(windows.origins), _AT_ONCE):
            chosen = np.arange(begin, min(begin + _AT_ONCE, len(windows.origins)))
            made.append(_judge(forecaster, series, windows, chosen, fitted, errors))
            if progress is not None:
                progress(int(windows.folds[chosen[-1]]) + 1, folds)
        sentence = _seen(forecaster, series, windows, folds)
    rows = FoldRows.of(forecaster, series, windows, np.concatenate(made), around)
    every = _folds(forecaster, series, windows, rows, errors, about)
    figures = errors.report(about) | rows.held(slice(None))
    if fitted.left_out:
        figures["left_out"] = fitted.left_out
    if len(set(windows.series)) > 1:
        figures["by_series"] = errors.ranking(about)
    return Backtest(every, figures, forecaster.settings.horizon, step, refit, left_out, sentence)


def _judge(
    forecaster: SeriesForecaster,
    data: SeriesData,
    windows: FoldWindows,
    chosen: np.ndarray,
    baselines: Baselines,
    errors: SeriesErrors,
) -> np.ndarray:
    """Forecast some windows, add their errors to `errors`, and return the forecasts."""
    origins, settings = windows.origins[chosen], forecaster.settings
    made = forecaster.forecast_at(data, origins)
    past = rows_around(data, origins, -settings.window, 0)
    truth = rows_around(data, origins, 0, settings.horizon)
    others = baselines.forecasts(data, origins, past, errors.scales[chosen])
    add_errors(errors, chosen, made, truth, others, settings.quantiles)
    return made


def _folds(
    forecaster: SeriesForecaster,
    data: SeriesData,
    windows: FoldWindows,
    rows: FoldRows,
    errors: SeriesErrors,
    about: Judging,
) -> tuple[Fold, ...]:
    window, horizon = forecaster.settings.window, forecaster.settings.horizon

    def examples(chosen: np.ndarray) -> tuple[Example, ...]:
        return tuple(
            Example(
                targets=data.target_names,
                past_times=row_times(data, origin - window, origin),
                past=rows.past[place],
                times=row_times(data, origin, origin + horizon),
                truth=rows.truth[place],
                forecast=rows.made[place],
                quantiles=forecaster.settings.quantiles,
                series=windows.series[place],
                intervals={level: both[place] for level, both in rows.bounds.items()},
                form=data.form,
            )
            for place, origin in zip(chosen.tolist(), windows.origins[chosen].tolist(), strict=True)
        )

    def judged(chosen: np.ndarray) -> dict[str, Any]:
        return errors.only(chosen).report(about) | rows.held(chosen)

    edges = np.searchsorted(windows.folds, np.arange(int(windows.folds[-1]) + 2))
    found = []
    for number, (first, stop) in enumerate(itertools.pairwise(edges.tolist())):
        chosen, begin = np.arange(first, stop), int(windows.origins[first])
        time = row_times(data, begin, begin + 1)[0]
        found.append(
            Fold(
                number + 1,
                time,
                functools.partial(examples, chosen),
                functools.partial(judged, chosen),
            )
        )
    return tuple(found)


def _intervals(
    forecaster: SeriesForecaster,
    data: SeriesData,
    before: SeriesPart,
    levels: Sequence[float] | None,
    *,
    newest: bool = True,
) -> Intervals | None:
    """The intervals around forecasts, from the rows before them or from the model's own calibration."""
    forecast = functools.partial(forecaster.forecast_at, data)
    return Intervals.of(before.data, forecaster.settings, forecast, levels, newest=newest)


def _seen(forecaster: SeriesForecaster, data: SeriesData, windows: FoldWindows, folds: int) -> str:
    """A sentence on the folds whose rows the model saw in training."""
    if forecaster.trained_on is None or data.fingerprint != forecaster.trained_on:
        return (
            "the data are not those of the training, so which of these rows the model has seen is not known"
        )
    begins = {name: len(data.values) for _, _, name in data.segments}
    held = [begin for _, begin, _ in forecaster.options.split(data).test.bounds]
    for begin, name in zip(held, series_names(data, held), strict=True):
        begins[name] = min(begins[name], begin)
    early = windows.origins < np.array([begins[name] for name in windows.series])
    seen = len(np.unique(windows.folds[early]))
    if not seen:
        return "all folds lie in the part that training held out"
    return Message(
        f"{seen} of {folds} folds lie, wholly or partly, in rows that training or validation used, so the model looks "
        f"better than it is: take fewer folds, a smaller step, or {argument('refit', True)}"
    )


def _check_limits(refit: bool, epochs: int | None, max_seconds: float | None) -> None:
    """Refuse limits of a training that are out of range, or that come without one."""
    check_number("epochs", epochs, at_least=1, whole=True, optional=True)
    check_number("max_seconds", max_seconds, above=0, optional=True)
    for name, value in {"epochs": epochs, "max_seconds": max_seconds}.items():
        if value is not None and not refit:
            raise ConfigError(
                f"{argument(name)} is for models that are trained for each fold: add {argument('refit', True)}, or "
                f"leave {argument(name)} out."
            )


def _trainer(
    opened: Opened, forecaster: SeriesForecaster, epochs: int | None, max_seconds: float | None
) -> Callable[[SeriesPart, int], SeriesForecaster]:
    """The function that trains the model of a fold on the rows before it."""
    from cellerate.tasks.backtest.refit import Refit

    assert not isinstance(opened, PackedModel)  # noqa: S101 (those were refused)
    network, record, _ = opened
    assert record is not None  # noqa: S101 (it is a forecaster)
    return Refit(network, record.payload, forecaster, epochs, max_seconds or _SECONDS_A_FOLD)


def _written(example: Example) -> Any:
    """The first time of a forecast as the data write it, or the number of its row."""
    return example.form.write(example.times[:1])[0]
