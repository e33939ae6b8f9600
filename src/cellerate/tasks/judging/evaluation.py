"""Judges a forecaster on series: its errors beside those of the baselines, its intervals, its errors step by step."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from cellerate.data.series import SeriesPart
from cellerate.data.settings import TableOptions
from cellerate.errors import ConfigError
from cellerate.listener import SILENT, Listener
from cellerate.messages import argument
from cellerate.runtime.forecast import trained_until
from cellerate.settings import changed_fields
from cellerate.tasks.judging.errors import (
    JudgedPart,
    SeriesForecaster,
    baselines_for,
    forecaster_report,
    judge_windows,
    judging_of,
    part_of,
)
from cellerate.tasks.judging.intervals import calibrate, judge_intervals
from cellerate.tasks.judging.statistical import check_statistical
from cellerate.tasks.judging.step_errors import StepErrors
from cellerate.tasks.settings import ReadingOptions


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluationOptions:
    """The request of `evaluate_forecaster`; see its arguments."""

    part: Literal["all", "held-out"] | None = None
    reading: ReadingOptions = ReadingOptions()  # noqa: RUF009 (frozen)
    table: TableOptions | None = None
    by_step: bool = False
    statistical: Sequence[str] = ()
    listener: Listener = SILENT

    def check_unused(self) -> None:
        """Raises `ConfigError` for options that only apply to a forecaster."""
        given = dict(self.reading.given)
        given |= {"by_step": True} if self.by_step else {}
        given |= {"statistical": tuple(self.statistical)} if self.statistical else {}
        # `encoding` is also an option for texts.
        given |= {} if self.table is None else changed_fields(dataclasses.replace(self.table, encoding=None))
        check_unused(given)


def check_unused(given: Mapping[str, Any]) -> None:
    """Raises `ConfigError` for options that only apply to a forecaster, if any is given."""
    if given:
        named = ", ".join(argument(name, value) for name, value in given.items())
        raise ConfigError(
            f"this model is not a forecaster, and only forecasters read tables of series: leave out {named}."
        )


def evaluate_forecaster(
    model: SeriesForecaster,
    paths: Any,
    *,
    part: str | None = None,
    reading: ReadingOptions = ReadingOptions(),  # noqa: B008 (frozen)
    table: TableOptions | None = None,
    by_step: bool = False,
    statistical: Sequence[str] = (),
    listener: Listener = SILENT,
) -> dict[str, Any]:
    """Judges a forecaster against the baselines, on every window of the data.

    Args:
        model: The forecaster.
        paths: The data; columns and options for missing values and gaps are those of the training.
        part: "all", or "held-out" for the part after training and validation. None takes the held-out part of the
            training data, and all of other data.
        reading: Options of reading that differ from the training.
        table: The format of the tables, if it cannot be detected.
        by_step: Whether to return the errors of each step ahead.
        statistical: Models of StatsForecast to judge beside it: "ets", "theta", "arima".
        listener: Receives notes on the tables.

    Returns:
        The figures of `forecaster_report`; for a calibrated model also `intervals`, see `judged_intervals`; and with
        `by_step`, under that key, the mean absolute error of each step for the model and each baseline, in the unit of
        the target or, with several, in standard deviations.
    """
    check_statistical(statistical)
    data = model.open(paths, None, reading, table=table, listener=listener)
    judged = part_of(model, data, part)
    baselines = baselines_for(model, judged, statistical)
    steps = StepErrors(judging_of(model, data).deviations) if by_step else None
    errors = judge_windows(model, judged.part, baselines, steps=steps)
    report = forecaster_report(model, judged, baselines, errors) | judged_intervals(model, judged)
    return report if steps is None else report | {"by_step": steps.means()}


def judged_intervals(model: SeriesForecaster, judged: JudgedPart) -> dict[str, Any]:
    """The share of rows, outside the training, that lie within the calibrated intervals of a model.

    If the data may be those of the training, only rows after the training's last row count.

    Returns:
        `intervals`, as `judge_intervals` returns them; empty if the model was not calibrated, or if for no row it is
        known that the model was not trained on it.
    """
    calibration = model.settings.calibration
    if calibration is None or judged.seen:
        return {}
    if judged.seen == 0:
        # As at the end of training: scores of the validation part are known in the test part.
        known = calibrate(model, model.options.split(judged.part.data))
        found = judge_intervals(model, judged.part, calibration, None if known is None else known[1])
    else:
        found = judge_intervals(model, _after_training(model, judged.part), calibration)
    return {"intervals": found} if found else {}


def _after_training(model: SeriesForecaster, part: SeriesPart) -> SeriesPart:
    """The rows of a part that are newer than the training's; none if the data have no times."""
    data, until = part.data, trained_until(part.data, model.settings.calibration)
    if until is None or data.times is None:
        return dataclasses.replace(part, bounds=())
    bounds = []
    for first, begin, stop in part.bounds:
        newer = begin + int(np.searchsorted(data.times[begin:stop], until, side="right"))
        if newer < stop:
            bounds.append((first, newer, stop))
    return dataclasses.replace(part, bounds=tuple(bounds))
