"""The batches that train and judge a forecaster, and the check that a model can be one.

A custom model may forecast (B, horizon) instead of (B, horizon, targets); only here do its batches differ.
"""

from typing import Any

import keras

from cellerate.data.batches import BatchSource
from cellerate.data.changed import ChangedBatches, MeanOverItems
from cellerate.data.scaler import Scaler
from cellerate.data.series import SeriesData, SeriesPart, SeriesSplit
from cellerate.data.windows import SeriesBatches
from cellerate.errors import ModelError
from cellerate.keras_graph.graph import functional_graph
from cellerate.tasks.series_errors import count_in
from cellerate.tasks.settings import SeriesOptions


def series_sources(
    model: keras.Model, split: SeriesSplit, options: SeriesOptions, scaler: Scaler, seed: int
) -> tuple[BatchSource, BatchSource | None]:
    """The training batches, and the validation batches or None if no validation window fits."""
    common: dict[str, Any] = {"window": options.window, "horizon": options.horizon, "scaler": scaler}
    count = count_windows(split.train, options, options.stride)
    source: BatchSource = SeriesBatches(
        split.train,
        batch_size=max(1, min(options.batch_size, count)),
        stride=options.stride,
        seed=seed,
        **common,
    )
    held = count_windows(split.validation, options)
    if len(model.output_shape) == 2:
        source = _OneTarget(source)
    if not held:
        return source, None
    plain = SeriesBatches(split.validation, batch_size=options.batch_size, drop_last=False, **common)
    judging: BatchSource = MeanOverItems(plain, held)
    return source, _OneTarget(judging) if len(model.output_shape) == 2 else judging


def count_windows(part: SeriesPart, options: SeriesOptions, stride: int = 1) -> int:
    """The number of windows of inputs and targets that fit into a part."""
    if not part.rows:
        return 0
    span = options.window + options.horizon
    return sum(-(-count_in(one, span) // stride) for one in part.spans(options.window))


def check_series_model(
    model: keras.Model, data: SeriesData, options: SeriesOptions, quantiles: tuple[float, ...]
) -> None:
    """Raises `ModelError` if the model does not map windows of the series to forecasts."""
    features, targets = len(data.feature_columns), len(data.target_columns)
    if functional_graph(model) is None:
        raise ModelError(
            f"the model {model.name!r} has no graph to read. Build it as a Functional or Sequential model that "
            f"begins with keras.Input(({options.window}, {features}))."
        )
    wanted: list[tuple[int, ...]] = (
        [(options.horizon, targets, len(quantiles))] if quantiles else [(options.horizon, targets)]
    )
    if targets == 1 and not quantiles:
        wanted.append((options.horizon,))
    given = [tuple(tensor.shape) for tensor in model.inputs]
    made = model.output_shape
    fits = (
        len(given) == 1
        and len(given[0]) == 3
        and given[0][0] is None
        and given[0][1] in (None, options.window)
        and given[0][2] == features
        and isinstance(made, tuple)
        and tuple(made[1:]) in wanted
    )
    if not fits:
        raise ModelError(
            f"the model does not fit the series: expected one input (None, {options.window}, {features}) and one "
            f"output (None, {', '.join(map(str, wanted[0]))}); it has inputs {given} and output {made}. Change "
            "window, horizon, target or feature, or the model."
        )


class _OneTarget(ChangedBatches):
    """Drops the last axis of the targets, for a model that gives (B, horizon)."""

    def _change(self, x: Any, y: Any, *weight: Any) -> tuple[Any, ...]:
        return x, y[..., 0], *weight
