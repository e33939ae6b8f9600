"""The batches that train and judge a forecaster, and the check that a model can be one.

A custom model may forecast (B, horizon) instead of (B, horizon, targets); only here do its batches differ.
"""

from __future__ import annotations

from typing import Any

import keras

from cellerate.data.arrays import BatchSource
from cellerate.data.series import SeriesData, SeriesPart, SeriesSplit
from cellerate.data.windows import (
    ChangedBatches,
    CovariateBatches,
    Covariates,
    MeanOverItems,
    Scaler,
    SeriesBatches,
    WindowSettings,
)
from cellerate.errors import DataError, ModelError
from cellerate.keras_graph.graph import functional_graph
from cellerate.messages import argument, marked
from cellerate.tasks.judging import count_in, series_names
from cellerate.tasks.series.cuts import lost_to_cuts
from cellerate.tasks.settings import SeriesOptions


def series_sources(
    model: keras.Model,
    split: SeriesSplit,
    options: SeriesOptions,
    scaler: Scaler,
    seed: int,
    covariates: Covariates,
) -> tuple[BatchSource, BatchSource | None]:
    """The training batches, and the validation batches or None if no validation window fits."""
    count = count_windows(split.train, options, options.stride)
    if not count and (lost := lost_to_cuts(split.train.data, options.window, options.horizon)):
        raise DataError(
            f"no window fits into the training part: {marked(lost)} Or give a smaller window or horizon "
            f"({argument('window')}, {argument('horizon')})."
        )
    if not count and len(split.train.data.segments) == 1:
        raise DataError(
            f"no window fits into the training part: {split.train.rows:,} of the {len(split.train.data.values):,} rows "
            f"are trained on, but a window of {options.window} and a horizon of {options.horizon} need "
            f"{options.window + options.horizon}. Give a longer series, or a smaller window or horizon "
            f"({argument('window')}, {argument('horizon')})."
        )
    size = max(1, min(options.batch_size, count))
    settings = {"batch_size": size, "stride": options.stride, "seed": seed}
    source = _batches(split.train, options, scaler, covariates, **settings)
    if len(model.output_shape) == 2:
        source = _OneTarget(source)
    return source, held_out_source(model, split.validation, options, scaler, covariates)


def held_out_source(
    model: keras.Model, part: SeriesPart, options: SeriesOptions, scaler: Scaler, covariates: Covariates
) -> BatchSource | None:
    """The batches that judge a model on a part, each window once; None if no window fits."""
    held = count_windows(part, options)
    if not held:
        return None
    settings = {"batch_size": options.batch_size, "drop_last": False}
    plain = _batches(part, options, scaler, covariates, **settings)
    judging: BatchSource = MeanOverItems(plain, held)
    return _OneTarget(judging) if len(model.output_shape) == 2 else judging


def _batches(
    part: SeriesPart, options: SeriesOptions, scaler: Scaler, covariates: Covariates, **settings: Any
) -> BatchSource:
    """The windows of a part; `settings` are those of `WindowSettings` that differ between parts."""
    form = WindowSettings(window=options.window, horizon=options.horizon, **settings)
    if covariates.plain:
        return SeriesBatches(part, form, scaler)
    return CovariateBatches(part, form, scaler, covariates)


def count_windows(part: SeriesPart, options: SeriesOptions, stride: int = 1) -> int:
    """The number of windows of inputs and targets that fit into a part."""
    if not part.rows:
        return 0
    span = options.window + options.horizon
    return sum(-(-count_in(one, span) // stride) for one in part.spans(options.window))


def known_series(part: SeriesPart, options: SeriesOptions) -> tuple[str, ...]:
    """The series with windows in a training part, in their order: nothing can be learned of others."""
    if not part.bounds:
        return ()
    names = series_names(part.data, [begin for _, begin, _ in part.bounds])
    spans = part.spans(options.window)
    found = [
        name
        for name, one in zip(names, spans, strict=True)
        if count_in(one, options.window + options.horizon)
    ]
    return tuple(dict.fromkeys(found))


def check_series_model(
    model: keras.Model,
    data: SeriesData,
    options: SeriesOptions,
    quantiles: tuple[float, ...],
    covariates: Covariates,
) -> None:
    """Raises `ModelError` if the model does not map windows of the series to forecasts."""
    targets = len(data.target_columns)
    expected = covariates.input_shapes(len(data.feature_columns), options.window, options.horizon)
    if functional_graph(model) is None:
        raise ModelError(
            f"the model {model.name!r} has no graph to read. Build it as a Functional or Sequential model that "
            f"begins with keras.Input({expected['series']})."
        )
    wanted: list[tuple[int, ...]] = (
        [(options.horizon, targets, len(quantiles))] if quantiles else [(options.horizon, targets)]
    )
    if targets == 1 and not quantiles:
        wanted.append((options.horizon,))
    given = [tuple(tensor.shape) for tensor in model.inputs]
    # The only input may have any name.
    names = [tensor.name for tensor in model.inputs] if len(expected) > 1 else list(expected)
    made = model.output_shape
    fits = (
        sorted(names) == sorted(expected)
        and len(given) == len(names)
        and all(_shape_fits(shape, expected[name]) for name, shape in zip(names, given, strict=True))
        and isinstance(made, tuple)
        and tuple(made[1:]) in wanted
    )
    if not fits:
        shapes = [
            f"{name + ' ' if len(expected) > 1 else ''}(None, {', '.join(map(str, shape))})"
            for name, shape in expected.items()
        ]
        inputs = f"one input {shapes[0]}" if len(shapes) == 1 else f"the inputs {', '.join(shapes)}"
        raise ModelError(
            f"the model does not fit the series: expected {inputs} and one "
            f"output (None, {', '.join(map(str, wanted[0]))}); it has inputs {given} and output {made}. Change "
            "window, horizon, target or feature, or the model."
        )


def _shape_fits(shape: tuple[int | None, ...], row: tuple[int, ...]) -> bool:
    """True if the shape of an input fits rows; the number of steps may be free."""
    return (
        len(shape) == len(row) + 1
        and shape[0] is None
        and all(
            found == wanted or (axis == 0 and found is None)
            for axis, (found, wanted) in enumerate(zip(shape[1:], row, strict=True))
        )
    )


class _OneTarget(ChangedBatches):
    """Drops the last axis of the targets, for a model that returns (B, horizon)."""

    def _change(self, x: Any, y: Any, *weight: Any) -> tuple[Any, ...]:
        return x, y[..., 0], *weight
