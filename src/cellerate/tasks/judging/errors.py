"""Judges a forecaster, packed or in Keras, on every window of a series: its errors beside those of the baselines.

Errors are summed for each stretch of rows without a gap. So a long series can be judged in pieces, by several
processes, and the pieces added up.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from cellerate.data.arrays import WindowIndex
from cellerate.data.series import SeriesData, SeriesPart
from cellerate.data.settings import TableOptions
from cellerate.data.windows import WindowSettings, WindowSource, held_by, spread_within
from cellerate.errors import ConfigError, DataError, ModelError
from cellerate.listener import SILENT, Listener
from cellerate.messages import Message, argument
from cellerate.runtime.forecast import (
    ForecastSettings,
    Predict,
    forecast_at,
    forecast_settings,
    point_of,
    units_at,
)
from cellerate.settings import check_choice
from cellerate.tasks.judging.baselines import Baselines, season_rows
from cellerate.tasks.judging.metrics import covered, pinball_losses, window_errors
from cellerate.tasks.judging.report import Judging, SeriesErrors
from cellerate.tasks.judging.statistical import Statistical
from cellerate.tasks.judging.step_errors import StepErrors
from cellerate.tasks.judging.verdict import hints_for
from cellerate.tasks.settings import ReadingOptions, SeriesOptions

Progress = Callable[[int, int], None]

_BATCH = 256


@dataclasses.dataclass(frozen=True)
class SeriesForecaster:
    """A forecaster and its way to read a series.

    Attributes:
        predict: Runs the model on a batch.
        settings: The columns, the window and the scaler.
        options: The settings of the training.
        trained_on: The fingerprint of the training data, if the record has it.
    """

    predict: Predict
    settings: ForecastSettings
    options: SeriesOptions
    trained_on: str | None = None

    @classmethod
    def of(cls, predict: Predict, payload: Any, name: str) -> SeriesForecaster:
        """Make the forecaster from a model's task record.

        Raises:
            ModelError: The record of the model, which messages call `name`, is damaged.
        """
        settings = forecast_settings(payload, name)
        try:
            options = SeriesOptions.of_record(payload["options"])
        except (TypeError, ValueError) as error:
            raise ModelError(
                f"the task record of {name} is damaged: {str(error).rstrip('.')}. Train the model again."
            ) from error
        return cls(predict, settings, options, trained_on(payload))

    def open(
        self,
        paths: Any,
        future: Any = None,
        changes: ReadingOptions = ReadingOptions(),  # noqa: B008 (frozen)
        *,
        table: TableOptions | None = None,
        listener: Listener = SILENT,
    ) -> SeriesData:
        """Open tables as in training, except for some settings.

        Args:
            paths: The tables.
            future: A table of the columns that are known in advance; None for rows of the tables without targets.
            changes: The settings that differ.
            table: The format of the tables, if it cannot be detected.
            listener: Receives notes on them.

        Raises:
            ConfigError: A packed series was packed with other settings.
            DataError: The tables cannot be used.
            ModelError: The columns are not those that the model reads.
        """
        data = self.settings.open(paths, future, changes.given, table=table, listener=listener)
        for name, value in changes.given.items():
            if data.packed_with is not None and data.packed_with.get(name) != value:
                raise ConfigError(
                    f"{argument(name)} is {value!r}, but a packed series is read as it was packed, with "
                    f"{data.packed_with.get(name)!r}. Leave it out, or pack the series again."
                )
        self.check(data)
        return data

    def check(self, data: SeriesData) -> None:
        """Raise `ModelError` if the columns of the data are not those that the model reads."""
        if self.settings.scaler.columns != data.columns:
            raise ModelError(
                f"the model was trained on the columns {', '.join(self.settings.scaler.columns)}, the data have "
                f"{', '.join(data.columns)}."
            )

    def forecast_at(self, data: SeriesData, origins: np.ndarray) -> np.ndarray:
        """Forecasts the rows from each origin on; see `runtime.forecast.forecast_at`.

        Args:
            data: The series.
            origins: (B,) int64, the first row of each forecast.

        Returns:
            (B, horizon, targets), or (B, horizon, targets, Q) with quantiles, in the units of the data.
        """
        return forecast_at(self.predict, data, self.settings, origins)

    def target_scale(self, data: SeriesData, origins: np.ndarray) -> np.ndarray:
        """The scale of the targets for each origin, (B, 1, targets); with one scale for all series, (targets,)."""
        scale = units_at(data, self.settings, origins).scale[..., list(data.target_columns)]
        return scale if scale.ndim == 1 else scale[:, None]


@dataclasses.dataclass(frozen=True)
class JudgedPart:
    """The part of the data that a forecaster is judged on.

    Attributes:
        part: The rows.
        name: "all" or "held-out".
        seen: The number of windows that contain rows used in training or validation; None if the data are not those
            of the training.
        sentence: The part in words.
    """

    part: SeriesPart
    name: str
    seen: int | None
    sentence: str


def trained_on(payload: Any) -> str | None:
    """The fingerprint of the training data, from a task record."""
    data = payload.get("data")
    return data.get("fingerprint") if isinstance(data, dict) else None


def forecaster_report(
    model: SeriesForecaster, judged: JudgedPart, baselines: Baselines, errors: SeriesErrors
) -> dict[str, Any]:
    """All figures of a forecaster as JSON values.

    Returns:
        `part`, `judged` (a sentence on it) and `seen_by_training`; `windows`, `targets`; then `model`, `last_value`
        and, if available, `seasonal_naive`, `nlinear` and statistical ones. Each of these has `mase`, `smape`
        (percent), and `scaled_mae` and `scaled_mse`, in standard deviations of the training part; and with one target
        `mae`, `mse` and `rmse` in its unit. With quantiles there are also `crps`, `pinball`, `coverage` (how often the
        truth was at most each quantile) and `interval_coverage` (how often it was within each central interval).
        `by_target` has all of that for each target, `by_series` the figures of each series, the worst first; `verdict`
        says whether the model beats the baselines; `left_out` which of them is missing and why.
    """
    about = judging_of(model, judged.part.data)
    report = {
        "part": judged.name,
        "judged": judged.sentence,
        "seen_by_training": judged.seen,
        **errors.report(about),
    }
    if judged.seen:
        report["verdict"]["sentence"] += " It was trained on some of these rows."
    if baselines.left_out:
        report["left_out"] = baselines.left_out
    if len(set(errors.series)) > 1:
        report["by_series"] = errors.ranking(about)
    return report


def judging_of(model: SeriesForecaster, data: SeriesData) -> Judging:
    """The units of the figures of a forecaster."""
    scale = model.settings.scaler.scale[list(data.target_columns)]
    return Judging(data.target_names, model.settings.quantiles, scale, hints_for(model.options, data))


def part_of(model: SeriesForecaster, data: SeriesData, part: str | None) -> JudgedPart:
    """The part of the data to judge, which is "all" or "held-out"; None as in `evaluate_forecaster`.

    Raises:
        DataError: The held-out part is requested, and the data are too short to have one.
    """
    options, span = model.options, model.settings.window
    own = model.trained_on is not None and data.fingerprint == model.trained_on
    if part is not None:
        check_choice("part", part, ("all", "held-out"))

    def windows(judged: SeriesPart) -> int:
        if not judged.bounds:
            return 0
        return sum(count_in(one, span + model.settings.horizon) for one in judged.spans(span))

    if part == "held-out" or (part is None and own):
        test = options.split(data).test
        if part is not None or windows(test):
            sentence = (
                "the test part, as training would cut these data, which are not those it was trained on"
            )
            if own:
                sentence = "the test part, which training on these very data held out"
            return JudgedPart(test, "held-out", 0 if own else None, sentence)
    whole = data.whole()
    if not own:
        sentence = "all data; they are not those of the training, so which of them it has seen is not known"
        return JudgedPart(whole, "all", None, sentence)
    seen = windows(whole) - windows(options.split(data).test)
    sentence = Message(
        f"all data, the part that the model was trained on included: {seen:,} of {windows(whole):,} windows lie in "
        f"rows that training or validation used. For what it never saw, {argument('part', 'held-out')}"
    )
    return JudgedPart(whole, "all", seen, sentence)


def baselines_for(model: SeriesForecaster, judged: JudgedPart, statistical: Sequence[str] = ()) -> Baselines:
    """The baselines to judge a forecaster by.

    They are fitted on the training part of the data; statistical ones on the rows before the first forecast row.

    Args:
        model: The forecaster.
        judged: The part to judge on.
        statistical: Keys of `statistical.STATISTICAL`.
    """
    options, data = model.options, judged.part.data
    why = None
    if judged.name == "all":
        held = argument("part", "held-out")
        why = Message(f"it would be fitted on a part of what it is judged on ({held} has it)")
    try:
        train = options.split(data).train
    except DataError:
        # The data are too short to split. Only the scale of MASE comes from here, and any rows give it.
        train = data.whole()
    settings = model.settings
    found = Baselines.fit(train, settings.window, settings.horizon, options.season, why_not_linear=why)
    if not statistical:
        return found
    starts: dict[int, int] = {}
    for (first, _, _), (begin, stop) in zip(
        judged.part.bounds, judged.part.spans(settings.window), strict=True
    ):
        if count_in((begin, stop), settings.window + settings.horizon):
            starts.setdefault(first, begin + settings.window)
    fitted = Statistical.fit(statistical, data, starts.items(), season_rows(options.season, data))
    return dataclasses.replace(found, statistical=fitted)


class _RawWindows(WindowSource):
    def _inputs(self, rows: np.ndarray) -> np.ndarray:
        return rows.astype(held_by(rows.dtype), copy=False)

    _targets = _inputs


def raw_windows(part: SeriesPart, window: int, horizon: int, batch_size: int) -> WindowSource:
    """All windows of a part, with all columns, in the units of the data, as exact as they are stored."""
    return _RawWindows(
        part.data.values,
        WindowSettings(window=window, horizon=horizon, batch_size=batch_size, drop_last=False),
        segments=part.spans(window),
        data_fingerprint=part.data.fingerprint,
    )


def judge_windows(
    model: SeriesForecaster,
    part: SeriesPart,
    baselines: Baselines,
    progress: Progress | None = None,
    steps: StepErrors | None = None,
    seconds: float | None = None,
) -> SeriesErrors:
    """Judges a forecaster and the baselines on the windows of a part.

    Args:
        model: The forecaster.
        part: The rows to forecast; each of its bounds is a stretch.
        baselines: The forecasts to judge beside the model.
        progress: Called after each batch with the number of finished windows and their total.
        steps: Receives the errors of each step, too.
        seconds: The most seconds for judging, without compiling: if all windows take longer, a sample is judged,
            spread evenly over the part. None judges every window.

    Raises:
        DataError: No window fits.
        ModelError: The columns of the data are not those that the model reads.
    """
    data, settings = part.data, model.settings
    model.check(data)
    targets = list(data.target_columns)
    spans = part.spans(settings.window)
    rows = settings.window + settings.horizon
    ends = np.array([count_in(span, rows) for span in spans]).cumsum()
    series = series_names(data, [begin for _, begin, _ in part.bounds])
    found = SeriesErrors.zeros(
        series,
        np.zeros(len(spans), np.int64),
        ["model", *baselines.names(settings.window)],
        judging_of(model, data),
        baselines.scales_of(series, len(targets)),
    )
    source = raw_windows(part, settings.window, settings.horizon, _BATCH)
    places = WindowIndex(np.array(spans), rows, 1)
    done, count = 0, int(ends[-1])
    for index in spread_within(len(source), seconds):
        past, future, weight = source.batch(0, index)
        real = weight > 0
        numbers = index * _BATCH + np.arange(int(real.sum()))
        # Equal batches, so that nothing is compiled for a second shape.
        origins = places.starts(np.resize(numbers, len(weight))) + settings.window
        made = model.forecast_at(data, origins)[: len(numbers)]
        truth = future[real][..., targets].astype(np.float64)
        stretch = np.searchsorted(ends, numbers, side="right")
        np.add.at(found.windows, stretch, 1)
        known = past[real][..., targets].astype(np.float64)
        others = baselines.forecasts(data, origins[: len(numbers)], known, found.scales[stretch])
        add_errors(found, stretch, made, truth, others, settings.quantiles)
        if steps is not None:
            steps.add({"model": point_of(made, settings.quantiles), **others}, truth)
        done += len(numbers)
        if progress is not None:
            progress(done, count)
    return found


def add_errors(
    found: SeriesErrors,
    stretch: np.ndarray,
    made: np.ndarray,
    truth: np.ndarray,
    others: Mapping[str, np.ndarray],
    quantiles: Sequence[float],
) -> None:
    """Add the errors of windows to sums.

    Args:
        found: The sums.
        stretch: (B,) the number of each window's stretch.
        made: (B, horizon, targets[, Q]) the model's forecasts.
        truth: (B, horizon, targets) the true values.
        others: (B, horizon, targets) the forecasts of each baseline.
        quantiles: The Q quantiles, or empty.
    """
    point = point_of(made, quantiles)
    if quantiles:
        np.add.at(found.pinball, stretch, pinball_losses(made, truth, quantiles))
        np.add.at(found.covered, stretch, covered(made, truth, quantiles))
    np.add.at(found.sums["model"], stretch, window_errors(point, truth))
    for name, forecast in others.items():
        np.add.at(found.sums[name], stretch, window_errors(forecast, truth))


def series_names(data: SeriesData, rows: Sequence[int]) -> list[str]:
    """The name of each row's series."""
    places = np.searchsorted([first for first, _, _ in data.segments], rows, side="right") - 1
    return [data.segments[place][2] for place in places]


def count_in(span: tuple[int, int], rows: int) -> int:
    """The number of windows in a stretch, given by its first row and the row after its end."""
    return max(0, span[1] - span[0] - rows + 1)
