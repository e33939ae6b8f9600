"""The three trainings as Python functions, with every setting as a keyword argument.

`tasks.text`, `tasks.series` and `tasks.embed` implement them; the command line calls those modules.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias, Unpack

import keras

from cellerate.data.files import check_paths
from cellerate.data.settings import FILLED_IN, Reading, TableOptions
from cellerate.data.tables import Tables, as_sources
from cellerate.errors import ConfigError
from cellerate.keywords import TrainEmbedKeywords, TrainSeriesKeywords, TrainTextKeywords
from cellerate.messages import argument
from cellerate.settings import record_of, takes_fields_of
from cellerate.tasks.embed import EmbedRun, train_on_lines
from cellerate.tasks.presets import preset_options, preset_sentence
from cellerate.tasks.series import SeriesRun, train_on_series
from cellerate.tasks.settings import (
    AutoencoderArchitecture,
    ForecastArchitecture,
    LineOptions,
    SeriesOptions,
    TextArchitecture,
    TextOptions,
)
from cellerate.tasks.text import TextRun, train_on_text
from cellerate.training.run import RunOptions
from cellerate.training.settings import TrainingSettings
from cellerate.training.telemetry import Display, Notebook, TerminalProgress

_Path: TypeAlias = str | os.PathLike[str]
_Model: TypeAlias = _Path | keras.Model


@takes_fields_of(TextOptions, TextArchitecture, TrainingSettings, leave_out=["paths"])
def train_text(
    data: _Path | Sequence[_Path],
    output: _Path,
    *,
    model: _Model | None = None,
    preset: Literal["small", "medium", "large"] | None = None,
    sample_every: int | None = None,
    resume: bool = False,
    overwrite: bool = False,
    callbacks: Sequence[keras.callbacks.Callback] = (),
    verbose: bool | None = None,
    **options: Unpack[TrainTextKeywords],
) -> TextRun:
    """Trains a next-character model on text, and keeps the best model on disk.

    Args:
        data: Files, folders or glob patterns; one or several.
        output: A `.keras` path for the model.
        model: Your own model instead of a new one, or its file: (B, T) ids to (B, T, V) or (B, V) logits or
            probabilities.
        preset: A size of model with the settings to train it: "small", "medium" or "large". Options given beside it
            win.
        sample_every: Shows a text by the model every this many steps, and after each epoch, where progress is shown.
        resume: Continues from the checkpoint beside `output`.
        overwrite: Replaces a model or an unfinished run of the same name, such as one that stopped at `max_seconds`.
        callbacks: Keras callbacks of your own.
        verbose: Shows progress on stderr; None does so in a notebook only, in the cell's output.
        options: The settings of the text, the model and the training, listed below.

    Returns:
        The run: `training` has the best model and the history, `evaluation` the bits per character of the held-out
        part.

    Raises:
        CellerateError: Anything wrong with the text, the settings, the model or the output.

    Example:
        >>> run = cellerate.train_text("book.txt", "book.keras", units=512, epochs=3, clipnorm=1.0)
        >>> run.evaluation["bits_per_character"]
    """
    display = _display(verbose)
    settings: Mapping[str, Any] = options
    if preset is not None:
        chosen = preset_options(preset, options, model=model)
        display.message(preset_sentence(preset, chosen))
        settings = {**chosen, **options}
    run = _run_options(output, settings, resume, overwrite, callbacks, display, sample_every)
    return train_on_text(
        record_of(TextOptions, settings, paths=check_paths(data)),
        run,
        architecture=record_of(TextArchitecture, settings),
        model=_model(model),
    )


@takes_fields_of(
    SeriesOptions,
    Reading,
    TableOptions,
    ForecastArchitecture,
    TrainingSettings,
    leave_out=["paths", "reading", *FILLED_IN],
)
def train_series(
    data: Tables,
    output: _Path,
    *,
    model: _Model | None = None,
    resume: bool = False,
    overwrite: bool = False,
    callbacks: Sequence[keras.callbacks.Callback] = (),
    verbose: bool | None = None,
    **options: Unpack[TrainSeriesKeywords],
) -> SeriesRun:
    """Trains a forecaster on time series, and judges it beside naive forecasts and a linear one.

    Args:
        data: Tables, one or several: files, or frames of pandas, polars, Arrow or NumPy.
        output: A `.keras` path for the model.
        model: Your own model instead of a new one, or its file: (B, window, features) to (B, horizon, targets), or
            to (B, horizon) for one target.
        resume: Continues from the checkpoint beside `output`.
        overwrite: Replaces a model or an unfinished run of the same name, such as one that stopped at `max_seconds`.
        callbacks: Keras callbacks of your own.
        verbose: Shows progress on stderr; None does so in a notebook only, in the cell's output.
        options: The settings of the series, the model and the training, listed below.

    Returns:
        The run: `training` has the best model and the history, `test` the figures of the test part and a verdict
        (`tasks.judging.forecaster_report` lists them).

    Raises:
        CellerateError: Anything wrong with the series, the settings, the model or the output.

    Example:
        >>> run = cellerate.train_series("ETTh1.csv", "ett.keras", target="OT", window=96, horizon=24)
        >>> run.test["model"]["mae"]
    """
    table = record_of(TableOptions, options)
    reading = record_of(Reading, options)
    series = record_of(SeriesOptions, options, paths=tuple(as_sources(data)), reading=reading)
    run = _run_options(output, options, resume, overwrite, callbacks, _display(verbose))
    return train_on_series(
        series,
        run,
        architecture=record_of(ForecastArchitecture, options),
        model=_model(model),
        table=table,
    )


@takes_fields_of(LineOptions, AutoencoderArchitecture, TrainingSettings, leave_out=["path"])
def train_embed(
    data: _Path,
    output: _Path,
    *,
    model: _Model | None = None,
    resume: bool = False,
    overwrite: bool = False,
    callbacks: Sequence[keras.callbacks.Callback] = (),
    verbose: bool | None = None,
    **options: Unpack[TrainEmbedKeywords],
) -> EmbedRun:
    """Trains a sequence autoencoder on lines; its encoder turns lines into vectors.

    Args:
        data: A text file with one entry per line, or a Parquet file.
        output: A `.keras` path for the model.
        model: An autoencoder to train further, or its file: one that this function wrote.
        resume: Continues from the checkpoint beside `output`.
        overwrite: Replaces a model or an unfinished run of the same name, such as one that stopped at `max_seconds`.
        callbacks: Keras callbacks of your own.
        verbose: Shows progress on stderr; None does so in a notebook only, in the cell's output.
        options: The settings of the lines, the model and the training, listed below.

    Returns:
        The run: `training` has the best model and the history, `evaluation` how well held-out lines come back.

    Raises:
        CellerateError: Anything wrong with the lines, the settings, the model or the output.

    Example:
        >>> cellerate.train_embed("titles.txt", "titles.keras", latent=64)
        >>> cellerate.embed("titles.keras", ["red hat", "blue"]).shape
        (2, 64)
    """
    run = _run_options(output, options, resume, overwrite, callbacks, _display(verbose))
    return train_on_lines(
        record_of(LineOptions, options, path=_one_path(data)),
        run,
        architecture=record_of(AutoencoderArchitecture, options),
        model=_model(model),
    )


def _run_options(
    output: _Path,
    options: Mapping[str, Any],
    resume: bool,
    overwrite: bool,
    callbacks: Sequence[keras.callbacks.Callback],
    display: Display,
    sample_every: int | None = None,
) -> RunOptions:
    if not isinstance(output, str | os.PathLike):
        raise ConfigError(
            f"{argument('output')} must be the path of a .keras file, not a {type(output).__name__}."
        )
    return RunOptions(
        output=os.fspath(output),
        training=record_of(TrainingSettings, options),
        resume=resume,
        overwrite=overwrite,
        callbacks=callbacks,
        sample_every=sample_every,
        display=display,
    )


def _model(model: _Model | None) -> str | keras.Model | None:
    return os.fspath(model) if isinstance(model, str | os.PathLike) else model


def _one_path(data: _Path) -> str:
    (path, *others) = check_paths(data, "a file of lines") or [""]
    if others:
        raise ConfigError(f"the data must be the path of one file of lines, not {1 + len(others)} of them.")
    return os.fspath(path)


def _display(verbose: bool | None) -> Display:
    if _in_notebook():
        return Display() if verbose is False else Notebook()
    return TerminalProgress() if verbose else Display()


def _in_notebook() -> bool:
    """True if this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    # Only a shell that a notebook talks to has a kernel; that of a terminal has none.
    return ipython is not None and getattr(ipython.get_ipython(), "kernel", None) is not None
