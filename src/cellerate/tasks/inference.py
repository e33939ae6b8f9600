"""Using a trained model in any form: `generate`, `forecast`, `embed` and `evaluate`.

Each takes a `.keras` file, a Keras model with its record, a `.cell` file or a packed model. A packed model is used
without Keras, so Keras is imported only where a model needs it.
"""

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, Unpack

import numpy as np

from cellerate.data.files import Errors, check_paths
from cellerate.data.settings import TableOptions
from cellerate.data.tables import Tables
from cellerate.data.text import TextLines, given_lines, read_lines
from cellerate.data.tokenizers import Vocabulary
from cellerate.errors import ConfigError, ModelError
from cellerate.keywords import EvaluateKeywords, ForecastKeywords
from cellerate.listener import Callbacks
from cellerate.messages import argument
from cellerate.runtime.forecast import forecast_with_intervals, left_out, too_short
from cellerate.runtime.packed import PackedModel
from cellerate.runtime.text import sampling_rules
from cellerate.settings import check_counts, one_or_more, record_of, takes_fields_of
from cellerate.tasks.judging import EvaluationOptions, Forecasts, evaluate_forecaster
from cellerate.tasks.opening import Model, embedder_of, forecaster_of, open_model
from cellerate.tasks.settings import ReadingOptions, TextFileReading
from cellerate.tasks.writing import Unknown, WritingSettings, open_writer
from cellerate.training.settings import Implementation

if TYPE_CHECKING:
    from cellerate.models.storage import TaskRecord

# The defaults of the sampling arguments.
_UNDRAWN = (1.0, None, None, 0.0, 1.0, None)


def generate(
    model: Model,
    prompt: str,
    *,
    record: "TaskRecord | None" = None,
    vocabulary: Vocabulary | None = None,
    max_tokens: int = 400,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float = 0.0,
    repetition_penalty: float = 1.0,
    seed: int | None = None,
    beams: int | None = None,
    stop: Sequence[str] = (),
    errors: Unknown = "strict",
    implementation: Implementation = "auto",
    device: str = "cpu",
    precision: str = "float32",
) -> str:
    """Continues `prompt` and returns the whole continuation.

    Every call reads the weights again, so further training of a model takes effect at once. `load` a packed model
    to generate piece by piece, several texts at once, or on a GPU.

    Args:
        model: A text model's `.keras` or `.cell` file, the result of `load`, or a next-token Keras model: from ids
            (B, T), or one-hot vectors (B, T, V), to V logits or probabilities of each step or of the last.
        prompt: The text to continue; at least one character.
        record: The record of a Keras model that is not given as a file, as `load_model` returns it.
        vocabulary: The meaning of the ids (or one-hot positions) of a model without a record: the path of the text
            that it was trained on, for sorted(set(text)), or, if only that fits, sorted(set(text.lower())); a list of
            characters in the order of their ids; a dictionary from characters to ids or back; the path of a JSON file
            with one of these, or of a tokenizer.json; or "bytes".
        max_tokens: The most characters (or bytes, or tokens) to generate.
        temperature: Divides the logits; 0 always takes the likeliest token.
        top_k: Draws from the k likeliest tokens only.
        top_p: Draws from the likeliest tokens that together make up this share of the probability.
        min_p: Draws from tokens at least this share as likely as the likeliest.
        repetition_penalty: Above 1, makes tokens that are already in the text less likely.
        seed: The same seed draws the same text; None draws a different one each time.
        beams: Searches the likeliest continuation with this many candidates, on the native engine; None draws.
        stop: Texts that end the generation; they are not returned.
        errors: For a character of the prompt that the model never saw: "strict" raises, "ignore" leaves it out.
        implementation: What computes the logits. "cellerate-cpu": the native engine; the model is packed in memory,
            which takes milliseconds. "cellerate-cuda": the same on an NVIDIA GPU. "keras": Keras's own layers,
            compiled, one step at a time. "auto": the native engine, or Keras if the engine is not installed or
            cannot run the model. A packed model runs where it was loaded and refuses any other implementation.
        device: Where a `.cell` file is loaded: "cpu", "cuda" or "cuda:N", as for `load`.
        precision: The precision in which the engine keeps and multiplies matrices: "float32", "bfloat16", "int8" or
            "int4". Any but "float32" requires the engine. A packed model has its own.

    Raises:
        ConfigError: The prompt is empty, a setting is out of range, two of them contradict each other, or a model
            without a record has no vocabulary.
        DataError: The prompt has a character that the model never saw, or there is no such file.
        ModelError: The model is for another task, cannot be stepped (by the named implementation, if one is named),
            or predicts another number of ids than its vocabulary has.
        BackendError: A package or a device that is needed is missing; the message says which.

    Example:
        >>> cellerate.generate("book.keras", "Well, Prince,", temperature=0.8, seed=7)
        >>> cellerate.generate(my_model, "Well, Prince,", vocabulary="book.txt")
    """
    if beams is not None and (temperature, top_k, top_p, min_p, repetition_penalty, seed) != _UNDRAWN:
        raise ConfigError(
            f"{argument('beams')} searches the likeliest continuation and draws nothing: leave out either "
            f"{argument('beams')} or {argument('temperature')}, {argument('top_k')}, {argument('top_p')}, "
            f"{argument('min_p')}, {argument('repetition_penalty')} and {argument('seed')}."
        )
    rules = sampling_rules(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        seed=seed,
    )
    settings = WritingSettings(
        max_tokens=max_tokens,
        rules=rules,
        stop=stop,
        beams=beams,
        errors=errors,
        implementation=implementation,
        precision=precision,
    )
    writer = open_writer(model, settings, record=record, vocabulary=vocabulary, device=device)
    return "".join(writer.write(prompt))


@takes_fields_of(ReadingOptions, TableOptions)
def forecast(
    model: Model,
    data: Tables,
    *,
    future: Tables | None = None,
    record: "TaskRecord | None" = None,
    levels: Sequence[float] | None = None,
    progress: Callable[[int, int], None] | None = None,
    notify: Callable[[str], None] | None = None,
    **options: Unpack[ForecastKeywords],
) -> Forecasts:
    """Forecasts the rows after the end of each series in files or frames.

    Args:
        model: A forecaster's `.keras` or `.cell` file, a Keras model, or the result of `load`.
        data: Tables, read as in training: files, or frames of pandas, polars, Arrow or NumPy, whose columns are taken
            by name. The last `window` rows of each series are used.
        future: A table of the columns that are known in advance, with the time of each row and its series; None takes
            them from rows without targets at the end of the files.
        record: The record of a Keras model that is not given as a file, as `load_model` returns it.
        levels: The levels of intervals, such as 0.9; None for 0.8 and 0.95 where the model was calibrated for them
            in training. () for none.
        progress: Called now and then with the number of finished series and their total.
        notify: Called with a sentence for each noteworthy fact about how the files were read, and of the series that
            are too short to forecast.
        options: Options for the format of the tables, and those that differ from the training; listed below.

    Returns:
        `Forecasts`: a tuple with an entry for each series that is long enough, and also a table (`to_pandas()`,
        `to_polars()`, `to_arrow()`). An entry has the name of the series, the rows that were read (`past`, with
        `past_times`) and the `forecast` with its `times`, in the units of the data: (horizon, targets), with quantiles
        (horizon, targets, Q). `intervals` has for each level (horizon, targets, 2): low and high.

    Raises:
        ConfigError: A level is out of range, or the model cannot give it.
        DataError: A file cannot be used, or each series has fewer than `window` rows after its last gap.
        ModelError: The model is not a forecaster, or its record is damaged.
        BackendError: A package that is needed is not installed; the message says which.

    Example:
        >>> cellerate.forecast("ett.keras", "ETTh1.csv")[0].forecast.shape
        (24, 1)
        >>> cellerate.forecast("ett.keras", frame).to_pandas()
    """
    known = forecaster_of(open_model(model, record))
    reading, table = record_of(ReadingOptions, options), record_of(TableOptions, options)
    listener = Callbacks(message=notify)
    series = known.open(data, future, reading, table=table, listener=listener)
    if short := left_out(series, known.settings.window):
        listener.message(short)
    made = forecast_with_intervals(known.predict, series, known.settings, progress, levels)
    return Forecasts(made, too_short(series, known.settings.window))


def embed(
    model: Model,
    lines: str | os.PathLike[str] | TextLines,
    *,
    record: "TaskRecord | None" = None,
    column: str | None = None,
    field: str | None = None,
    encoding: str = "utf-8",
    errors: Errors = "strict",
    batch_size: int = 256,
    progress: Callable[[int, int], None] | None = None,
) -> np.ndarray:
    """Turns each line into one vector.

    Args:
        model: A line model's `.keras` or `.cell` file, a Keras model, or the result of `load`.
        lines: N texts as a list, an array of NumPy or Arrow, or a column of pandas or polars; a table with such a
            column; or the path of a text file with one line each, of JSON lines or of a Parquet file. An empty line has
            a vector too.
        record: The record of a Keras model that is not given as a file, as `load_model` returns it.
        column: The column of a table or a Parquet file; without it, its only text column.
        field: The field of JSON lines that has the text.
        encoding: The encoding of a text file.
        errors: For a character that the model never saw, and bytes that are not of the encoding: "strict" raises,
            "replace" reads them as unknown.
        batch_size: Lines per batch; lines of similar length share one.
        progress: Called after each batch with the number of finished lines and their total.

    Returns:
        (N, latent) float32, in the order of the lines.

    Raises:
        ConfigError: `lines` is not a list, array or table of texts; or an argument does not belong to it.
        DataError: The file or the table cannot be used, there is no line, or a character is unknown.
        ModelError: The model is not a line model, or its record is damaged.
        BackendError: A package that is needed is not installed; the message says which.

    Example:
        >>> cellerate.embed("titles.keras", ["red hat", "blue"]).shape
        (2, 128)
    """
    opened = open_model(model, record)
    if isinstance(lines, str | os.PathLike):
        lines = read_lines(
            os.fspath(lines), column=column, field=field, errors=errors, encoding=encoding, drop_empty=False
        )
    elif field is not None:
        raise ConfigError(
            f"{argument('field')} is for a file of JSON lines, and lines is not a file: leave it out."
        )
    else:
        lines = given_lines(lines, column)
    return embedder_of(opened, batch_size, errors)(lines, progress=progress)


@takes_fields_of(ReadingOptions, TableOptions)
def evaluate(
    model: Model,
    data: Tables,
    *,
    record: "TaskRecord | None" = None,
    part: Literal["all", "held-out"] | None = None,
    column: str | None = None,
    field: str | None = None,
    errors: Errors = "strict",
    batch_size: int = 128,
    by_step: bool = False,
    statistical: Sequence[str] = (),
    notify: Callable[[str], None] | None = None,
    **options: Unpack[EvaluateKeywords],
) -> dict[str, Any]:
    """Judges a model on data of its task.

    Args:
        model: A `.keras` file that Cellerate wrote, a Keras model, the `.cell` file of a text model or a forecaster,
            or the result of `load`.
        data: Text files; tables of series, in files or frames; or one file of lines.
        record: The record of a Keras model that is not given as a file, as `load_model` returns it.
        part: "all" of the data, or "held-out", the part that training on the same data held out (text and series
            only). None is "held-out" for a forecaster and the data that it was trained on, and otherwise "all". The
            result says which part was judged.
        column: The column of a Parquet file of lines; without it, the one that the model was trained on.
        field: The field of JSON lines that has the text; without it, the one that the model was trained on.
        errors: For text and lines: what to do with bytes that are not of the encoding and with a line's unknown
            characters.
        batch_size: Rows per batch, for Keras models.
        by_step: Series: adds the errors of each step ahead to the result.
        statistical: Series: models of StatsForecast to judge beside it: "ets", "theta", "arima" (AutoETS, AutoTheta,
            AutoARIMA). They see the rows before each window; AutoARIMA takes seconds to minutes for each series.
        notify: Called with a sentence for each noteworthy fact about how tables of series were read.
        options: Options for the format of tables of series, and those that differ from the training; listed below.

    Returns:
        `task`, and its figures. Text: `bits_per_character`, `perplexity` and others. Series: the errors of the
        model and of the baselines, and whether it beats them; see `tasks.judging.evaluate_forecaster`. Lines: how
        well they are reconstructed from their vectors.

    Raises:
        CellerateError: Anything wrong with the model or the data.

    Example:
        >>> cellerate.evaluate("book.keras", "other.txt")["bits_per_character"]
    """
    check_counts(batch_size=batch_size)
    opened = open_model(model, record)
    table, reading = record_of(TableOptions, options), record_of(ReadingOptions, options)
    asked = EvaluationOptions(
        part=part,
        reading=reading,
        table=table,
        by_step=by_step,
        statistical=one_or_more(statistical),
        listener=Callbacks(message=notify),
    )
    texts = TextFileReading(column=column, field=field, encoding=table.encoding, errors=errors)
    if isinstance(opened, PackedModel):
        name = "this" if isinstance(model, PackedModel) else os.fspath(model)
        return _evaluate_packed(opened, data, texts, name, asked)
    from cellerate.tasks.evaluation import evaluate_model

    network, found, name = opened
    if found is None:
        raise ModelError(
            f"{name} is a plain Keras model: its task is not known. Train it with `cellerate train ... --model`."
        )
    return evaluate_model(
        network,
        found,
        data,
        name=name,
        texts=texts,
        batch_size=batch_size,
        asked=asked,
    )


def _evaluate_packed(
    model: PackedModel,
    data: Any,
    texts: TextFileReading,
    name: str,
    series: EvaluationOptions,
) -> dict[str, Any]:
    """The figures of a packed model; a text model reads the text from end to end and not in windows."""
    if model.task == "series":
        texts.check_used("series")
        return {"task": "series", **evaluate_forecaster(forecaster_of(model, name), data, **vars(series))}
    series.check_unused()
    if model.task not in ("text", None):
        raise ModelError(
            f"{name} is a packed model of the task {model.task!r:.40}, and evaluate judges packed models of text "
            "and of series only: give the .keras file that it was packed from."
        )
    texts.check_used("text")
    reading: dict[str, Any] = texts.given("field", "encoding", "errors")
    score = vars(model.score_files(check_paths(data), part=series.part or "all", **reading))
    return {"task": "text"} | {name: value for name, value in score.items() if name != "log_probabilities"}
