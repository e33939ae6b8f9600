"""The network of a forecaster that `train series` builds, and its inputs beside the features."""

from __future__ import annotations

import dataclasses
from typing import Any

import keras

from cellerate.data.series import SeriesData, SeriesPart, SeriesSplit
from cellerate.data.times import make_calendar
from cellerate.data.windows import Covariates, Scaler, SeriesScaler
from cellerate.errors import ConfigError
from cellerate.messages import Message, argument
from cellerate.models.forecast import build_forecast_model
from cellerate.tasks.judging import shares_map
from cellerate.tasks.series.batches import known_series
from cellerate.tasks.settings import ForecastArchitecture, SeriesOptions


def build_network(
    part: SeriesPart, options: SeriesOptions, architecture: ForecastArchitecture, seed: int
) -> keras.Model:
    """The network of an architecture, for a training part."""
    data, settings = part.data, dataclasses.asdict(architecture)
    quantiles = settings.pop("quantile")
    calendar = make_calendar(options.calendar, options.holidays, data.times, data.form.zone)
    width = 0 if calendar is None else calendar.width
    if architecture.series_embedding and len(series_of(data)) < 2:
        raise ConfigError(
            f"{argument('series_embedding')} is for several series, and the data hold one: name the column that "
            f"tells series apart ({argument('series_column')}), or leave {argument('series_embedding')} out."
        )
    inside = not _unseen(data)
    # The model cannot continue a target that it does not see.
    settings["residual"] = settings["residual"] and inside
    seen = data.feature_columns
    places = [seen.index(column) for column in data.target_columns] if inside else []
    known = [data.feature_names.index(name) for name in options.future]
    return build_forecast_model(
        options.window,
        len(data.feature_columns) + width,
        options.horizon,
        len(data.target_columns),
        target_columns=places,
        quantiles=list(quantiles) or None,
        absolute=[*known, *range(len(data.feature_columns), len(data.feature_columns) + width)],
        future=len(options.future) + width,
        series=max(1, len(known_series(part, options))),
        shared_linear=shares_map(len(data.target_columns), options.window, options.horizon),
        seed=seed,
        **settings,
    )


def lost_residual(data: SeriesData, architecture: ForecastArchitecture) -> str:
    """Say that targets among the features lose the last value and the linear map to others; "" if none does."""
    unseen = _unseen(data)
    if not architecture.residual or len(unseen) in (0, len(data.target_names)):
        return ""
    return Message(
        f"not among the features ({argument('feature')}): {', '.join(unseen)}. So the model continues the last value "
        "of none of the targets and has no linear map. Add them to the features, or train a model of their own for "
        "them."
    )


def _unseen(data: SeriesData) -> list[str]:
    """The targets that are not among the features."""
    names = zip(data.target_names, data.target_columns, strict=True)
    return [name for name, column in names if column not in data.feature_columns]


def covariates_of(
    data: SeriesData, split: SeriesSplit, options: SeriesOptions, scaler: Scaler, *, by_id: bool
) -> Covariates:
    """The inputs of the model beside the features; `by_id` if it has one for the id of the series."""
    return Covariates(
        tuple(options.future),
        make_calendar(options.calendar, options.holidays, data.times, data.form.zone),
        known_series(split.train, options) if by_id else None,
        SeriesScaler.fit(split.train, scaler) if options.scaling == "series" else None,
    )


def identity_of(architecture: ForecastArchitecture) -> dict[str, Any]:
    """The settings that identify an architecture; no `series_embedding` if unset, so that older runs can resume."""
    settings = dataclasses.asdict(architecture)
    if not settings["series_embedding"]:
        del settings["series_embedding"]
    return settings


def series_of(data: SeriesData) -> list[str]:
    """The names of the series, each once."""
    return list(dict.fromkeys(series for _, _, series in data.segments))
