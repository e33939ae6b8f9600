"""The forecasting model: a window of a multivariate series in, the next `horizon` steps of its targets out.

It is a plain `keras.Model` of Keras's own layers and operations.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, Unpack

import keras
from keras import ops

from cellerate.errors import ConfigError
from cellerate.keras_graph.initial_weights import at_once
from cellerate.keywords import BuildForecastModelKeywords
from cellerate.models.cells import Cell
from cellerate.models.losses import middle_place
from cellerate.models.quantiles import check_quantiles
from cellerate.models.text import (
    check_fraction,
    check_policy,
    check_positive,
    layer_seeds,
    layer_widths,
    seeded_bidirectional,
    seeded_dense,
    seeded_recurrent,
)
from cellerate.settings import record_of, takes_fields_of

_STEP_UNITS = 32  # of the small head that sees what is known of a step in advance


_SIZES = ("window", "features", "horizon", "targets")


@dataclasses.dataclass(frozen=True)
class ForecastNetwork:
    """The sizes and the parts of a forecasting model.

    Attributes:
        window: The number of past steps the model sees.
        features: F, the number of input columns.
        horizon: The number of steps it predicts.
        targets: The number of columns it predicts.
        target_columns: With `residual`, the positions of the targets among the input columns, in the order they are
            predicted.
        units: H, for all layers; or one number per layer.
        layers: The number of recurrent layers.
        cell: Their kind: "lstm", "gru" or "simple_rnn".
        bidirectional: Whether the layers also read the window backwards.
        dropout: The fraction of each layer's outputs to drop while training.
        recurrent_dropout: The fraction of the recurrent state to drop. Keras's own fused kernels do not
            have it; Cellerate's do.
        quantiles: None for a point forecast, or Q ascending numbers in (0, 1).
        residual: Whether to read and predict the difference from the last observed values.
        linear: With `residual`, whether to add a linear map of each target's differences in the window. Alone it is
            NLinear (Zeng et al. 2023, "Are Transformers Effective for Time Series Forecasting?"), which no LSTM should
            lose to. It starts at zero; `tasks.series.linear_start` gives it the least squares solution.
        shared_linear: Whether all targets have the same linear map; otherwise each has its own.
        absolute: The positions of input columns that are read unchanged even with `residual`, because their level
            means something: the hour, a price that is known in advance.
        future: K, the number of values that are known in advance of each step to predict; the model then has an
            input "future" (B, horizon, K) beside "series". A small head sees a step's values and a summary of the
            window; its output is added to each step.
        series: The number of series that the model tells apart, if it has a `series_embedding`.
        series_embedding: E, the size of the vector that stands for a series; the LSTM reads it with every step. The
            model then has an input "series_id" (B, 1) int32, from 1 on; 0 stands for an unknown series.
        dtype_policy: A Keras dtype policy or its name, for the encoder; None is Keras's global one. The head,
            which is small, and the output are always float32.
        seed: Makes the initial weights and the dropout reproducible.
    """

    window: int
    features: int
    horizon: int
    targets: int
    _: dataclasses.KW_ONLY
    target_columns: Sequence[int]
    units: int | Sequence[int] = 128
    layers: int = 1
    cell: Cell = "lstm"
    bidirectional: bool = False
    dropout: float = 0.0
    recurrent_dropout: float = 0.0
    quantiles: Sequence[float] | None = None
    residual: bool = True
    linear: bool = True
    shared_linear: bool = False
    absolute: Sequence[int] = ()
    future: int = 0
    series: int = 0
    series_embedding: int = 0
    dtype_policy: Any = None
    seed: int | None = None

    def __post_init__(self) -> None:
        """Checks every field.

        Raises:
            ConfigError: A field is out of range.
        """
        for name in _SIZES:
            check_positive(name, getattr(self, name))
        if self.residual:
            _check_columns(self.target_columns, self.targets, self.features)
        layer_widths(self.units, self.layers)
        check_fraction("dropout", self.dropout)
        check_fraction("recurrent_dropout", self.recurrent_dropout)
        if self.quantiles is not None:
            check_quantiles(self.quantiles)
        check_policy(self.dtype_policy)
        if self.series_embedding:
            check_positive("series", self.series)
            check_positive("series_embedding", self.series_embedding)
        if self.future:
            check_positive("future", self.future)

    @property
    def picked(self) -> list[int] | None:
        """The positions of the targets among the input columns; None if they are all of them, in that order."""
        columns = list(self.target_columns)
        return None if columns == list(range(self.features)) else columns


@at_once
@takes_fields_of(ForecastNetwork, leave_out=_SIZES)
def build_forecast_model(
    window: int, features: int, horizon: int, targets: int, **options: Unpack[BuildForecastModelKeywords]
) -> keras.Model:
    """Builds a recurrent encoder with a head that predicts all `horizon` steps at once.

    With `residual`, the model reads and predicts differences from the last observed values, so that it does not
    depend on a level that drifts. The head starts at zero: before training the model repeats the last value of each
    target, the baseline that every forecast is judged against. With `quantiles`, the one nearest to 0.5 is predicted
    directly, and each other one by its distance (a softplus, never negative) from its neighbour, so the quantiles of
    a prediction cannot cross.

    Args:
        window: The number of past steps the model sees.
        features: F, the number of input columns.
        horizon: The number of steps it predicts.
        targets: The number of columns it predicts.
        options: The other fields of a `ForecastNetwork`.

    Returns:
        A model named "forecast": (B, window, F) float32 → (B, horizon, targets) float32, or
        (B, horizon, targets, Q) with quantiles. If it has several inputs, it takes a dictionary of them.

    Raises:
        ConfigError: An argument is out of range.
    """
    sizes = {"window": window, "features": features, "horizon": horizon, "targets": targets}
    network = record_of(ForecastNetwork, options, **sizes)
    seeds = layer_seeds(network.seed)
    inputs = {"series": keras.Input((window, features), dtype="float32", name="series")}
    past = x = inputs["series"]
    if network.residual:
        last = keras.layers.Cropping1D((window - 1, 0), dtype="float32", name="last_step")(past)
        x = _less_last(past, last, [column not in network.absolute for column in range(features)])
    if network.series_embedding:
        inputs["series_id"] = keras.Input((1,), dtype="int32", name="series_id")
        x = _with_series(x, inputs["series_id"], network, seeds)
    x = _encoded(x, network, seeds)
    steps = None
    if network.future:
        inputs["future"] = keras.Input((horizon, network.future), dtype="float32", name="future")
        steps = _steps(x, inputs["future"], horizon, seeds)
    kernel = "zeros" if network.residual else None
    output = _head(x, network, 1, seeds, steps, name="center", kernel=kernel)
    if network.residual:
        if network.linear:
            linearly = _linear(past, last, network, seeds)
            output = keras.layers.Add(dtype="float32", name="with_linear")([output, linearly])
        if network.picked is not None:
            last = ops.take(last, network.picked, axis=-1)
        last = keras.layers.Reshape((1, targets, 1), dtype="float32", name="last_value")(last)
        output = keras.layers.Add(dtype="float32", name="from_last_value")([output, last])
    if network.quantiles is None:
        output = keras.layers.Reshape((horizon, targets), dtype="float32", name="forecast")(output)
    else:
        output = _spread(x, output, network, seeds, steps)
    return keras.Model(inputs if len(inputs) > 1 else past, output, name="forecast")


def _encoded(x: Any, network: ForecastNetwork, seeds: Iterator[int | None]) -> Any:
    """(B, window, ...) → (B, H), the last output of the last recurrent layer, or (B, 2H) in both directions."""
    layer = seeded_bidirectional if network.bidirectional else seeded_recurrent
    widths, dtype = layer_widths(network.units, network.layers), check_policy(network.dtype_policy)
    for number, width in enumerate(widths, start=1):
        x = layer(
            width,
            seeds,
            name=f"{network.cell}_{number}",
            cell=network.cell,
            return_sequences=number < len(widths),
            recurrent_dropout=network.recurrent_dropout,
            dtype=dtype,
        )(x)
        if network.dropout:
            x = keras.layers.Dropout(
                network.dropout, seed=next(seeds), dtype=dtype, name=f"dropout_{number}"
            )(x)
    return x


def _check_columns(columns: Sequence[int], targets: int, features: int) -> None:
    found = list(columns)
    whole = all(isinstance(c, int) and not isinstance(c, bool) and 0 <= c < features for c in found)
    if len(found) != targets or len(set(found)) != targets or not whole:
        raise ConfigError(
            f"target_columns must be {targets} different column numbers from 0 to {features - 1}, one for "
            f"each target, not {columns!r}."
        )


def _less_last(past: Any, last: Any, chosen: Sequence[bool]) -> Any:
    """(B, window, F) and its last step (B, 1, F) → the first less the second in the chosen columns."""
    if not any(chosen):
        return past
    if not all(chosen):
        last = keras.layers.Rescaling([float(one) for one in chosen], dtype="float32", name="last_level")(
            last
        )
    return keras.layers.Subtract(dtype="float32", name="less_last_value")([past, last])


def _linear(past: Any, last: Any, network: ForecastNetwork, seeds: Iterator[int | None]) -> Any:
    """(B, window, F) and its last step (B, 1, F) → (B, horizon, targets, 1) in a linear map of each target."""
    horizon, targets = network.horizon, network.targets
    change = keras.layers.Subtract(dtype="float32", name="change")([past, last])
    if network.picked is not None:
        change = ops.take(change, network.picked, axis=-1)
    by_target = keras.layers.Permute((2, 1), dtype="float32", name="change_by_target")(change)
    settings: dict[str, Any] = {"name": "linear", "kernel_initializer": "zeros", "dtype": "float32"}
    if network.shared_linear or targets == 1:
        layer = seeded_dense(horizon, seeds, **settings)
    else:
        layer = keras.layers.EinsumDense("btw,twh->bth", (targets, horizon), bias_axes="th", **settings)
    ahead = keras.layers.Permute((2, 1), dtype="float32", name="linear_steps")(layer(by_target))
    return keras.layers.Reshape((horizon, targets, 1), dtype="float32", name="linear_forecast")(ahead)


def _with_series(x: Any, ids: Any, network: ForecastNetwork, seeds: Iterator[int | None]) -> Any:
    """(B, window, F) and (B, 1) ids → (B, window, F + E), the vector of the series at each step."""
    size = network.series_embedding
    uniform = keras.initializers.RandomUniform(-0.05, 0.05, seed=next(seeds))
    table = keras.layers.Embedding(
        network.series + 1, size, embeddings_initializer=uniform, dtype="float32", name="series_embedding"
    )
    vector = keras.layers.Reshape((size,), dtype="float32", name="series_vector")(table(ids))
    every = keras.layers.RepeatVector(network.window, dtype="float32", name="series_steps")(vector)
    return keras.layers.Concatenate(axis=-1, dtype="float32", name="with_series")([x, every])


def _steps(x: Any, future: Any, horizon: int, seeds: Iterator[int | None]) -> Any:
    """The state (B, H) and what is known of each step (B, horizon, K) → (B, horizon, _STEP_UNITS), float32."""
    summary = seeded_dense(_STEP_UNITS, seeds, name="summary", dtype="float32")(x)
    every = keras.layers.RepeatVector(horizon, dtype="float32", name="summary_steps")(summary)
    seen = keras.layers.Concatenate(axis=-1, dtype="float32", name="with_future")([every, future])
    return seeded_dense(_STEP_UNITS, seeds, name="future_steps", activation="tanh", dtype="float32")(seen)


def _head(
    x: Any,
    network: ForecastNetwork,
    depth: int,
    seeds: Iterator[int | None],
    steps: Any = None,
    *,
    name: str,
    kernel: str | None = None,
    activation: str | None = None,
    **arguments: Any,
) -> Any:
    """(B, H), and (B, horizon, S) where something is known in advance, → (B, horizon, targets, depth), float32."""
    if kernel is not None:
        arguments["kernel_initializer"] = kernel
    horizon, targets = network.horizon, network.targets
    shape = (horizon, targets, depth)
    inside = activation if steps is None else None
    flat = seeded_dense(
        horizon * targets * depth, seeds, name=name, dtype="float32", activation=inside, **arguments
    )(x)
    made = keras.layers.Reshape(shape, dtype="float32", name=f"{name}_steps")(flat)
    if steps is None:
        return made
    # It starts at zero, so that an untrained model predicts as it would without the future.
    more = seeded_dense(
        targets * depth, seeds, name=f"{name}_of_future", kernel_initializer="zeros", dtype="float32"
    )(steps)
    more = keras.layers.Reshape(shape, dtype="float32", name=f"{name}_of_future_steps")(more)
    made = keras.layers.Add(dtype="float32", name=f"{name}_with_future")([made, more])
    if activation is None:
        return made
    return keras.layers.Activation(activation, dtype="float32", name=f"{name}_{activation}")(made)


def _spread(
    x: Any,
    center: Any,
    network: ForecastNetwork,
    seeds: Iterator[int | None],
    steps: Any = None,
) -> Any:
    """Adds the other quantiles below and above `center` (B, horizon, targets, 1), the one nearest to 0.5."""
    levels = check_quantiles(network.quantiles or ())
    middle = middle_place(levels)
    parts = [center]
    below, above = middle, len(levels) - 1 - middle
    # softplus(-1) is 0.3, about the gap between the quantiles of a standardised series.
    gap: dict[str, Any] = {"activation": "softplus", "bias_initializer": keras.initializers.Constant(-1.0)}
    if below:
        gaps = _head(x, network, below, seeds, steps, name="gaps_below", **gap)
        distance = ops.flip(ops.cumsum(gaps, axis=-1), axis=-1)
        parts.insert(0, keras.layers.Subtract(dtype="float32", name="below")([center, distance]))
    if above:
        gaps = _head(x, network, above, seeds, steps, name="gaps_above", **gap)
        distance = ops.cumsum(gaps, axis=-1)
        parts.append(keras.layers.Add(dtype="float32", name="above")([center, distance]))
    if len(parts) == 1:
        return keras.layers.Activation("linear", dtype="float32", name="forecast")(center)
    return keras.layers.Concatenate(axis=-1, dtype="float32", name="forecast")(parts)
