"""The settings that public functions take as keyword arguments, as types.

`make keywords` writes this module from the records of settings: type checkers and editors cannot see what
`settings.takes_fields_of` adds when a function is defined.
"""

from collections.abc import Sequence
from typing import Any, Literal, Required, TypedDict


class AutoencoderArchitectureFields(TypedDict, total=False):
    """The fields of `cellerate.tasks.settings.AutoencoderArchitecture` that are keyword arguments."""

    embedding: int
    units: int
    latent: int
    dropout: float
    decoder_dropout: float


class ForecastArchitectureFields(TypedDict, total=False):
    """The fields of `cellerate.tasks.settings.ForecastArchitecture` that are keyword arguments."""

    units: int
    layers: int
    cell: Literal["lstm", "gru", "simple_rnn"]
    bidirectional: bool
    dropout: float
    quantile: float | Sequence[float]
    residual: bool
    linear: bool
    series_embedding: int


class ForecastNetworkFields(TypedDict, total=False):
    """The fields of `cellerate.models.forecast.ForecastNetwork` that are keyword arguments."""

    target_columns: Required[int | Sequence[int]]
    units: int | Sequence[int]
    layers: int
    cell: Literal["lstm", "gru", "simple_rnn"]
    bidirectional: bool
    dropout: float
    recurrent_dropout: float
    quantiles: Sequence[float] | None
    residual: bool
    linear: bool
    shared_linear: bool
    absolute: int | Sequence[int]
    future: int
    series: int
    series_embedding: int
    dtype_policy: Any
    seed: int | None


class LineOptionsFields(TypedDict, total=False):
    """The fields of `cellerate.tasks.settings.LineOptions` that are keyword arguments."""

    column: str | None
    field: str | None
    encoding: str
    errors: Literal["strict", "replace"]
    max_length: int
    padding: Literal["right", "left"]
    batch_size: int
    validation_fraction: float


class OptimizeSettingsFields(TypedDict, total=False):
    """The fields of `cellerate.optimization.settings.OptimizeSettings` that are keyword arguments."""

    objective: Literal["latency", "throughput", "size", "training"]
    max_quality_loss: float
    time_budget: float
    only: str | Sequence[str]
    skip: str | Sequence[str]
    batch_size: int | None
    keep: float | Sequence[float]
    latency_goal_ms: float | None
    steps: int
    seed: int


class ReadingFields(TypedDict, total=False):
    """The fields of `cellerate.data.settings.reading.Reading` that are keyword arguments."""

    time_column: str | None
    series_column: str | Sequence[str]
    wide: bool
    missing: Literal["error", "drop", "ffill", "interpolate"]
    gaps: Literal["split", "error", "ignore"]
    duplicates: Literal["error", "first", "last", "mean"]
    time_zone: str | None
    frequency: str | None
    storage: Literal["float32", "float16"]


class ReadingOptionsFields(TypedDict, total=False):
    """The fields of `cellerate.tasks.settings.ReadingOptions` that are keyword arguments."""

    time_column: str | None
    series_column: str | Sequence[str]
    missing: Literal["error", "drop", "ffill", "interpolate"] | None
    gaps: Literal["split", "error", "ignore"] | None
    duplicates: Literal["error", "first", "last", "mean"] | None
    time_zone: str | None
    frequency: str | None


class SeriesOptionsFields(TypedDict, total=False):
    """The fields of `cellerate.tasks.settings.SeriesOptions` that are keyword arguments."""

    target: str | Sequence[str]
    feature: str | Sequence[str]
    window: int
    horizon: int
    stride: int
    batch_size: int
    train_fraction: float
    validation_fraction: float
    test_size: int | None
    season: int | None
    loss: Literal["mse", "mae", "huber"]
    future: str | Sequence[str]
    calendar: (
        Literal["hour", "weekday", "day", "month", "holiday"]
        | Sequence[Literal["hour", "weekday", "day", "month", "holiday"]]
    )
    holidays: str | None
    scaling: Literal["global", "series"]


class TableOptionsFields(TypedDict, total=False):
    """The fields of `cellerate.data.settings.tables.TableOptions` that are keyword arguments."""

    separator: str | None
    decimal: str | None
    thousands: str | None
    date_order: Literal["auto", "ymd", "mdy", "dmy"]
    encoding: str | None
    header: Literal["auto", "yes", "no"] | bool | None
    skip_lines: int
    sheet: str | None
    missing_values: str | float | Sequence[str | float]


class TextArchitectureFields(TypedDict, total=False):
    """The fields of `cellerate.tasks.settings.TextArchitecture` that are keyword arguments."""

    embedding: int
    units: int
    layers: int
    cell: Literal["lstm", "gru", "simple_rnn"]
    dropout: float
    recurrent_dropout: float
    layer_norm: bool
    tie_weights: bool


class TextNetworkFields(TypedDict, total=False):
    """The fields of `cellerate.models.text.TextNetwork` that are keyword arguments."""

    embedding: int
    units: int | Sequence[int]
    layers: int
    cell: Literal["lstm", "gru", "simple_rnn"]
    dropout: float
    recurrent_dropout: float
    layer_norm: bool
    tie_weights: bool
    dtype_policy: Any
    seed: int | None


class TextOptionsFields(TypedDict, total=False):
    """The fields of `cellerate.tasks.settings.TextOptions` that are keyword arguments."""

    tokenizer: str
    encoding: str
    errors: Literal["strict", "replace"]
    field: str | None
    strip_gutenberg: bool
    include: str | Sequence[str]
    exclude: str | Sequence[str]
    length: int
    batch_size: int
    validation_fraction: float
    carry_states: bool


class TextReadingFields(TypedDict, total=False):
    """The fields of `cellerate.data.text.text.TextReading` that are keyword arguments."""

    errors: Literal["strict", "replace"]
    encoding: str
    field: str | None
    strip_gutenberg: bool


class TrainingSettingsFields(TypedDict, total=False):
    """The fields of `cellerate.training.settings.TrainingSettings` that are keyword arguments."""

    epochs: int
    optimizer: Literal["adam", "adamw", "nadam", "sgd", "lion"]
    learning_rate: float
    weight_decay: float | None
    momentum: float
    schedule: Literal["constant", "cosine", "linear", "exponential"]
    warmup_steps: int
    final_rate: float
    plateau_patience: int | None
    plateau_factor: float
    clipnorm: float | None
    clipvalue: float | None
    global_clipnorm: float | None
    accumulate: int
    precision: Literal["auto", "float32", "mixed_bfloat16", "mixed_float16"]
    implementation: Literal["auto", "cellerate-cpu", "cellerate-cuda", "keras"]
    jit_compile: bool | Literal["auto"]
    patience: int | None
    max_seconds: float | None
    time_budget: float | None
    checkpoint_every_s: float
    keep_checkpoints: int
    log_every: int
    track: str | Sequence[str]
    seed: int


class BacktestKeywords(ReadingOptionsFields, TableOptionsFields, total=False):
    """Keyword arguments of `cellerate.backtest`, beside those in its definition."""


class BuildForecastModelKeywords(ForecastNetworkFields, total=False):
    """Keyword arguments of `cellerate.models.forecast.build_forecast_model`, beside those in its definition."""


class BuildTextModelKeywords(TextNetworkFields, total=False):
    """Keyword arguments of `cellerate.models.text.build_text_model`, beside those in its definition."""


class DetectKeywords(ReadingOptionsFields, TableOptionsFields, total=False):
    """Keyword arguments of `cellerate.detect`, beside those in its definition."""


class EvaluateKeywords(ReadingOptionsFields, TableOptionsFields, total=False):
    """Keyword arguments of `cellerate.evaluate`, beside those in its definition."""


class ForecastKeywords(ReadingOptionsFields, TableOptionsFields, total=False):
    """Keyword arguments of `cellerate.forecast`, beside those in its definition."""


class OptimizeKeywords(OptimizeSettingsFields, ReadingOptionsFields, TableOptionsFields, total=False):
    """Keyword arguments of `cellerate.optimize`, beside those in its definition."""


class TextBatchesKeywords(TextReadingFields, total=False):
    """Keyword arguments of `cellerate.text_batches`, beside those in its definition."""


class TrainEmbedKeywords(
    LineOptionsFields, AutoencoderArchitectureFields, TrainingSettingsFields, total=False
):
    """Keyword arguments of `cellerate.train_embed`, beside those in its definition."""


class TrainSeriesKeywords(
    SeriesOptionsFields,
    ReadingFields,
    TableOptionsFields,
    ForecastArchitectureFields,
    TrainingSettingsFields,
    total=False,
):
    """Keyword arguments of `cellerate.train_series`, beside those in its definition."""


class TrainTextKeywords(TextOptionsFields, TextArchitectureFields, TrainingSettingsFields, total=False):
    """Keyword arguments of `cellerate.train_text`, beside those in its definition."""


class WindowsKeywords(ReadingFields, TableOptionsFields, total=False):
    """Keyword arguments of `cellerate.windows`, beside those in its definition."""
