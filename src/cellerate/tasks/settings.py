"""The settings of each task's data and model, as frozen records.

The command line makes its options of the fields, with the Attributes sections as their help. So this module must
import nothing heavy.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from cellerate.data.files import READ_AS, Errors, check_codec
from cellerate.data.settings import (
    CalendarPart as Calendar,
    Duplicates,
    Gaps,
    Missing,
    Padding,
    Reading,
    TableOptions,
    check_calendar,
)
from cellerate.errors import ConfigError, ModelError
from cellerate.messages import argument
from cellerate.models.cells import Cell
from cellerate.models.quantiles import check_quantiles
from cellerate.settings import changed_fields, check_choice, check_counts, check_number
from cellerate.training.settings import TrainingSettings

if TYPE_CHECKING:
    from cellerate.data.series import SeriesData, SeriesSplit

Loss = Literal["mse", "mae", "huber"]
Scaling = Literal["global", "series"]
_TRAIN_FRACTION = 0.7


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextOptions:
    """The text to use, and how to cut it.

    Attributes:
        paths: Files, folders or glob patterns.
        tokenizer: "characters", "bytes" or the path of a tokenizer.json.
        encoding: The encoding of the files: utf-8, utf-16, windows-1252 or any other that Python knows.
        errors: What to do with bytes that are not of that encoding: "strict" refuses, "replace" reads U+FFFD.
        field: The field of JSON lines (*.jsonl) that has the text. Each record is a document; an empty line stands
            between two.
        strip_gutenberg: Leave out the licence that Project Gutenberg puts around a book.
        include: Glob patterns for the files to read from folders; without any, every text file.
        exclude: Glob patterns for files and folders to leave out.
        length: Characters (or bytes, or tokens) per window, T.
        batch_size: Windows per batch, B.
        validation_fraction: The share at the end that is held out, 0 to 1.
        carry_states: Train on contiguous streams whose states carry over from batch to batch (truncated
            backpropagation through time) instead of shuffled windows.
    """

    paths: Sequence[str | Path] = ()
    tokenizer: str = "characters"
    encoding: str = "utf-8"
    errors: Errors = "strict"
    field: str | None = None
    strip_gutenberg: bool = False
    include: Sequence[str] = ()
    exclude: Sequence[str] = ()
    length: int = 100
    batch_size: int = 128
    validation_fraction: float = 0.05
    carry_states: bool = False

    def __post_init__(self) -> None:
        """Checks every field.

        Raises:
            ConfigError: A field cannot be used.
        """
        check_codec(self.encoding)
        check_choice("errors", self.errors, get_args(Errors))
        check_counts(length=self.length, batch_size=self.batch_size)
        check_number("validation_fraction", self.validation_fraction, at_least=0, below=1)

    @classmethod
    def of_record(cls, options: Mapping[str, Any], model: str, **others: Any) -> TextOptions:
        """The options in the record of a model, which messages call `model`, and others beside them.

        Raises:
            ConfigError: One of the others cannot be used.
            ModelError: The record is damaged.
        """
        names = ["length", "validation_fraction", "include", "exclude"]
        names += [name for name in READ_AS if name in options]
        try:
            found = cls(**{name: options[name] for name in names})
        except (KeyError, TypeError, ValueError) as error:
            raise ModelError(
                f"the task record of {model} is damaged: {str(error).rstrip('.')}. Train the model again."
            ) from error
        return dataclasses.replace(found, **others)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextArchitecture:
    """The next-character model to build.

    Attributes:
        embedding: Size of the embedding, D.
        units: Units of each recurrent layer, H.
        layers: Number of recurrent layers, L.
        cell: The kind of the recurrent layers: "lstm", "gru" or "simple_rnn". Only "lstm" has kernels.
        dropout: Dropout on the outputs of each layer.
        recurrent_dropout: Dropout on the recurrent states, as Keras draws it. With it, a step of 256 units takes about
            a tenth longer on Cellerate's kernels.
        layer_norm: Whether to put LayerNormalization between the layers.
        tie_weights: Whether the output projection uses the embedding's own matrix.
    """

    embedding: int = 256
    units: int = 256
    layers: int = 1
    cell: Cell = "lstm"
    dropout: float = 0.0
    recurrent_dropout: float = 0.0
    layer_norm: bool = False
    tie_weights: bool = False

    def __post_init__(self) -> None:
        """Checks every field.

        Raises:
            ConfigError: A field cannot be used.
        """
        check_choice("cell", self.cell, get_args(Cell))
        check_counts(embedding=self.embedding, units=self.units, layers=self.layers)
        _check_shares(dropout=self.dropout, recurrent_dropout=self.recurrent_dropout)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SeriesOptions:
    """The series to use, and how to cut it into windows.

    Attributes:
        paths: Tables (CSV, Parquet, Arrow, Excel, JSON lines, .npy), or one packed series.
        target: Columns to forecast.
        feature: Columns the model sees; without any, all numeric columns.
        reading: How tables are read.
        window: Rows the model sees.
        horizon: Rows it forecasts.
        stride: Rows between the starts of training windows.
        batch_size: Windows per batch.
        train_fraction: The share of rows to train on, from the start.
        validation_fraction: The share of rows after those, which decides which epoch is best.
        test_size: Rows at the end of each series to test on, in place of a share; all rows before the validation part
            are then for training.
        season: Rows per season, for the seasonal naive forecast; without it, found from the frequency.
        loss: What training minimises: "mse", "mae" or "huber"; quantiles have their own loss.
        future: Columns whose values are known in advance, such as a price or the weather forecast; the model sees
            them of the rows to forecast, too.
        calendar: What the model sees of the times, before and after: "hour", "weekday", "day", "month", "holiday".
        holidays: The country whose holidays count, such as "DE" or "US", or a part of one, such as "DE-BY".
        scaling: Whether values are scaled as in all series together, "global", or as in each "series" by itself.
    """

    paths: Sequence[str | Path] = ()
    target: Sequence[str] = ()
    feature: Sequence[str] = ()
    reading: Reading = Reading()  # noqa: RUF009 (frozen)
    window: int = 96
    horizon: int = 24
    stride: int = 1
    batch_size: int = 64
    train_fraction: float = _TRAIN_FRACTION
    validation_fraction: float = 0.1
    test_size: int | None = None
    season: int | None = None
    loss: Loss = "mse"
    future: Sequence[str] = ()
    calendar: Sequence[Calendar] = ()
    holidays: str | None = None
    scaling: Scaling = "global"

    def __post_init__(self) -> None:
        """Checks every field.

        Raises:
            ConfigError: A field cannot be used.
        """
        check_choice("loss", self.loss, get_args(Loss))
        check_choice("scaling", self.scaling, get_args(Scaling))
        check_calendar(self.calendar, self.holidays)
        for name in self.future:
            if name in self.target:
                raise ConfigError(
                    f"{argument('future')} names {name!r}, which is a target: its values are not known in advance. "
                    "Leave it out."
                )
        check_counts(window=self.window, horizon=self.horizon, stride=self.stride, batch_size=self.batch_size)
        check_number("train_fraction", self.train_fraction, above=0, at_most=1)
        check_number("validation_fraction", self.validation_fraction, at_least=0, below=1)
        check_number("season", self.season, at_least=1, whole=True, optional=True)
        check_number("test_size", self.test_size, at_least=1, whole=True, optional=True)
        if self.test_size is not None and self.train_fraction != _TRAIN_FRACTION:
            raise ConfigError(
                f"{argument('test_size', self.test_size)} and {argument('train_fraction', self.train_fraction)} both "
                f"say what is tested on: leave one of them out. With {argument('test_size')}, all rows before the "
                "validation part are for training."
            )
        if self.test_size is not None and self.test_size < self.horizon:
            raise ConfigError(
                f"{argument('test_size')} must be at least {argument('horizon', self.horizon)}, or no forecast can "
                f"be tested, not {self.test_size}."
            )

    @classmethod
    def of_record(cls, options: Mapping[str, Any]) -> SeriesOptions:
        """The options in the record of a model, as `record` gives them.

        Raises:
            ConfigError: A value cannot be used.
            TypeError: A name is unknown.
        """
        names = Reading().settings().keys()
        reading = {name: value for name, value in options.items() if name in names}
        others = {name: value for name, value in options.items() if name not in names}
        return cls(**others, reading=Reading(**reading))

    def record(self) -> dict[str, Any]:
        """All options side by side, without the paths, for the record of a model."""
        own = {name: value for name, value in vars(self).items() if name not in ("paths", "reading")}
        return own | self.reading.settings()

    def whole_reading(self) -> Reading:
        """The reading of tables, with the columns that are to be forecast and seen."""
        features = list(dict.fromkeys([*self.feature, *self.future])) if self.feature else None
        return dataclasses.replace(self.reading, targets=self.target, features=features)

    def split(self, data: SeriesData) -> SeriesSplit:
        """Cuts a series into training, validation and test part, as these settings say; see `SeriesData.split`."""
        return data.split(self.train_fraction, self.validation_fraction, test_size=self.test_size)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReadingOptions:
    """Options of reading tables that differ from those of the model's training.

    Attributes:
        time_column: The column of times; without it, as in training.
        series_column: The columns that tell several series apart; without any, as in training.
        missing: What to do with missing values: "error", "drop" rows, "ffill" or "interpolate"; without it, as in
            training.
        gaps: What to do where a row does not follow by the frequency: "split" the series, "error" or "ignore"; without
            it, as in training.
        duplicates: What to do with rows of the same time: "error", keep the "first" or "last", or their "mean"; without
            it, as in training.
        time_zone: The zone of times that name none, such as Europe/Berlin; without it, as in training.
        frequency: How often there is a row: 15min, hour, day, business-day, trading-day, week, month, quarter, year;
            without it, as in training.
    """

    time_column: str | None = None
    series_column: Sequence[str] = ()
    missing: Missing | None = None
    gaps: Gaps | None = None
    duplicates: Duplicates | None = None
    time_zone: str | None = None
    frequency: str | None = None

    @property
    def given(self) -> dict[str, Any]:
        """The settings that are not left out, by their names in `Reading`."""
        found = {name: value for name, value in vars(self).items() if value is not None}
        if not self.series_column:
            found.pop("series_column", None)
        return found


@dataclasses.dataclass(frozen=True)
class SeriesFiles:
    """Files of series for a model that is trained already.

    Attributes:
        paths: Tables, or a packed series.
        future: A table of the columns that are known in advance; None for rows of the series without targets.
        reading: Options of reading that differ from the training.
        table: The format of the tables, if it cannot be detected.
    """

    paths: Sequence[str | os.PathLike[str]] | str | os.PathLike[str]
    future: Sequence[str | os.PathLike[str]] | str | os.PathLike[str] | None = None
    reading: ReadingOptions = ReadingOptions()
    table: TableOptions | None = None

    def all_paths(self) -> list[str | os.PathLike[str]]:
        """The paths of the series and of what is known in advance."""
        both = [self.paths, self.future or []]
        return [path for one in both for path in ([one] if isinstance(one, str | os.PathLike) else one)]


@dataclasses.dataclass(frozen=True)
class LineFiles:
    """Files of lines for a model that is trained already.

    Attributes:
        paths: Text, JSON-lines or Parquet files, folders of them, or globs.
        column: The column of Parquet files; without it, their only text column.
        field: The field of JSON lines that has the text.
        errors: Characters the model never saw, and bytes that are not UTF-8: "strict" raises, "replace" reads them as
            unknown.
        encoding: The encoding of text files.
    """

    paths: Sequence[str | os.PathLike[str]] | str | os.PathLike[str]
    column: str | None = None
    field: str | None = None
    errors: Errors = "strict"
    encoding: str = "utf-8"


# What a message calls a model of a task, and the options of reading texts and lines that it does not use.
_UNUSED = {
    "series": ("a forecaster", ("column", "field", "errors")),
    "text": ("a text model", ("column",)),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextFileReading:
    """Options of reading texts and lines that differ from those of the model's training.

    Attributes:
        column: The column of a Parquet file of lines.
        field: The field of JSON lines that has the text.
        encoding: The encoding of text files.
        errors: Bytes that are not of the encoding, and a line's unknown characters: "strict" raises, "replace" reads
            them as unknown.
    """

    column: str | None = None
    field: str | None = None
    encoding: str | None = None
    errors: Errors = "strict"

    def given(self, *names: str) -> dict[str, str]:
        """Those of these fields that are given; the others are as in training."""
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}

    def check_used(self, task: str) -> None:
        """Raises `ConfigError` for a given field that models of the task do not use."""
        kind, names = _UNUSED.get(task, ("", ()))
        given = {name: value for name, value in changed_fields(self).items() if name in names}
        if given:
            named = ", ".join(argument(name, value) for name, value in given.items())
            raise ConfigError(f"leave out {named}, which {kind} does not use.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ForecastArchitecture:
    """The forecasting model to build.

    Attributes:
        units: Units of each recurrent layer.
        layers: Number of recurrent layers.
        cell: The kind of the recurrent layers: "lstm", "gru" or "simple_rnn". Only "lstm" has kernels.
        bidirectional: Whether the encoder reads the window in both directions.
        dropout: Dropout on the outputs of each layer.
        quantile: Quantiles to forecast instead of one value, each above 0 and below 1.
        residual: Whether the model reads and forecasts changes from the last observed values.
        linear: Whether a linear map of each target's window, which begins and stays as NLinear's, is added to what the
            network forecasts; with residual only.
        series_embedding: Size of the vector that stands for each series, from which the model learns what is its own;
            without it, all series are alike to the model.
    """

    units: int = 64
    layers: int = 1
    cell: Cell = "lstm"
    bidirectional: bool = False
    dropout: float = 0.1
    quantile: Sequence[float] = ()
    residual: bool = True
    linear: bool = True
    series_embedding: int = 0

    def __post_init__(self) -> None:
        """Checks every field.

        Raises:
            ConfigError: A field cannot be used.
        """
        check_choice("cell", self.cell, get_args(Cell))
        check_counts(units=self.units, layers=self.layers)
        _check_shares(dropout=self.dropout)
        check_number("series_embedding", self.series_embedding, at_least=0, whole=True)
        if len(self.quantile):
            check_quantiles(self.quantile, "quantile")


@dataclasses.dataclass(frozen=True, kw_only=True)
class LineOptions:
    """The lines to use, and how to batch them.

    Attributes:
        path: A text file with one entry per line, one of JSON lines (*.jsonl), or a Parquet file.
        column: The column of a Parquet file; without it, its only text column.
        field: The field of JSON lines that has the text; each record is a line.
        encoding: The encoding of a text file: utf-8, utf-16, windows-1252 or any other that Python knows.
        errors: What to do with bytes that are not of that encoding: "strict" refuses, "replace" reads U+FFFD.
        max_length: Characters of a line that count; the rest is cut.
        padding: Where short lines are filled up: "right" or "left".
        batch_size: Lines per batch.
        validation_fraction: The share of lines, drawn at random, that is held out.
    """

    path: str | Path = ""
    column: str | None = None
    field: str | None = None
    encoding: str = "utf-8"
    errors: Errors = "strict"
    max_length: int = 64
    padding: Padding = "right"
    batch_size: int = 64
    validation_fraction: float = 0.05

    def __post_init__(self) -> None:
        """Checks every field.

        Raises:
            ConfigError: A field cannot be used.
        """
        check_codec(self.encoding)
        check_choice("errors", self.errors, get_args(Errors))
        check_choice("padding", self.padding, get_args(Padding))
        check_counts(max_length=self.max_length, batch_size=self.batch_size)
        check_number("validation_fraction", self.validation_fraction, at_least=0, below=1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class AutoencoderArchitecture:
    """The sequence autoencoder to build.

    Attributes:
        embedding: Size of the character embedding.
        units: Units of the encoder (each direction) and of the decoder.
        latent: Size of a line's vector.
        dropout: Dropout on the outputs of the encoder and of the decoder.
        decoder_dropout: The share of characters hidden from the decoder, which makes it rely on the vector.
    """

    embedding: int = 64
    units: int = 256
    latent: int = 128
    dropout: float = 0.0
    decoder_dropout: float = 0.0

    def __post_init__(self) -> None:
        """Checks every field.

        Raises:
            ConfigError: A field cannot be used.
        """
        check_counts(embedding=self.embedding, units=self.units, latent=self.latent)
        _check_shares(dropout=self.dropout, decoder_dropout=self.decoder_dropout)


def _check_shares(**shares: float) -> None:
    """Raises `ConfigError` unless each value is a number from 0 up to, not including, 1."""
    for name, value in shares.items():
        check_number(name, value, at_least=0, below=1)


RECORDS: Mapping[str, Mapping[str, type]] = {
    "text": {"data": TextOptions, "architecture": TextArchitecture, "training": TrainingSettings},
    "series": {
        "data": SeriesOptions,
        "reading": Reading,
        "table": TableOptions,
        "architecture": ForecastArchitecture,
        "training": TrainingSettings,
    },
    "embed": {"data": LineOptions, "architecture": AutoencoderArchitecture, "training": TrainingSettings},
}
"""The records of each task's settings, by what they are of."""


def recorded_kinds(task: str) -> tuple[type, ...]:
    """The records whose settings the file of a task's model keeps as those of its data."""
    return tuple(RECORDS[task][part] for part in ("data", "reading") if part in RECORDS[task])
