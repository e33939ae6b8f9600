"""The embed task: train a sequence autoencoder on lines, turn lines into vectors, and write lines back."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from cellerate.data.arrays import BatchSource
from cellerate.data.files import Errors
from cellerate.data.pipeline import KerasBatches
from cellerate.data.text import BOS, EOS, PAD, LineBatches, LineVocabulary, encode_batches, read_lines
from cellerate.data.windows import SampledBatches, spread_within
from cellerate.errors import DataError, ModelError
from cellerate.machine.needs import check_memory
from cellerate.models.autoencoder import build_autoencoder, encoder_and_decoder, stepwise_decoder
from cellerate.models.rewrite import same_layers
from cellerate.models.storage import TaskRecord, load_model
from cellerate.runtime.embedding import line_settings
from cellerate.tasks.settings import AutoencoderArchitecture, LineOptions
from cellerate.tasks.task import Task, train_task, trained_with
from cellerate.training.loop import TrainingResult
from cellerate.training.run import RunOptions, TrainingRun

# The reading options that the record keeps.
_READING = ("column", "field", "encoding")


@dataclasses.dataclass(frozen=True)
class LineModel:
    """A line autoencoder with its vocabulary and settings.

    Attributes:
        model: The autoencoder.
        vocabulary: Its characters.
        max_length: The most characters of a line that are read; the rest is cut.
        padding: The side on which its sources are padded.
        record: The task record of the model file.
    """

    model: keras.Model
    vocabulary: LineVocabulary
    max_length: int
    padding: Any
    record: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class EmbedRun:
    """A finished training.

    Attributes:
        training: The result of the training loop.
        evaluation: `evaluate_lines` of the best model on the held-out lines; None if there are none.
        truncated: The number of training lines that were longer than `max_length`.
    """

    training: TrainingResult
    evaluation: dict[str, Any] | None
    truncated: int


def load_line_model(path: str | Path) -> LineModel:
    """Opens an autoencoder that Cellerate wrote.

    Raises:
        ModelError: The file is damaged, or its model is for another task.
    """
    model, record = load_model(path, need_task="embed")
    assert record is not None  # noqa: S101 (a model without one is refused above)
    return line_model_of(path, model, record)


def line_model_of(path: str | Path, model: keras.Model, record: TaskRecord) -> LineModel:
    """Like `load_line_model`, for a model that is already open and that messages call `path`."""
    settings = line_settings(record.payload, str(path))
    _check_model(model, settings.vocabulary)
    return LineModel(model, settings.vocabulary, settings.max_length, settings.padding, record.payload)


def lines_for(
    record: TaskRecord, path: str | Path, errors: Errors, given: Mapping[str, Any] | None = None
) -> list[str]:
    """Reads lines for a trained model, with the options of its training if the file is of the same kind.

    Args:
        record: The model's record.
        path: The file; see `read_lines`.
        errors: What to do with bytes that are not of the encoding.
        given: The `column`, `field` and `encoding` of this file, if they differ from those of the training.

    Raises:
        ConfigError: Python does not know the encoding.
        DataError: The file cannot be used.
        ModelError: The record is damaged.
    """
    reading = record.payload.get("reading", {})
    if not isinstance(reading, dict):
        raise ModelError("the task record of this model is damaged: train the model again.")
    recorded: dict[str, Any] = {}
    if reading.get("suffix") == Path(path).suffix.lower():
        recorded = {name: str(reading[name]) for name in _READING if reading.get(name)}
    return read_lines(path, errors=errors, **(recorded | dict(given or {})))


def train_on_lines(
    data: LineOptions,
    run: RunOptions,
    *,
    architecture: AutoencoderArchitecture | None = None,
    model: str | Path | keras.Model | None = None,
) -> EmbedRun:
    """Trains a sequence autoencoder on lines.

    Args:
        data: The lines.
        run: The output file and the settings of the training.
        architecture: The model to build.
        model: An autoencoder to train further: one that `train embed` wrote.

    Raises:
        CellerateError: Anything wrong with the lines, the settings, the model or the output.
    """
    return train_task(LineTask(data, run, architecture or AutoencoderArchitecture(), model))


class LineTask(Task[EmbedRun]):
    """The training of a sequence autoencoder; see `train_on_lines`."""

    def __init__(
        self,
        data: LineOptions,
        run: RunOptions,
        architecture: AutoencoderArchitecture,
        model: str | Path | keras.Model | None = None,
    ) -> None:
        super().__init__(run)
        check_memory(data, architecture if model is None else None)
        self._data, self._architecture, self._given = data, architecture, model

    def open(self) -> None:
        """Reads the lines, and holds out a share of them."""
        data = self._data
        lines = read_lines(
            data.path, column=data.column, field=data.field, errors=data.errors, encoding=data.encoding
        )
        if isinstance(self._given, str | Path):
            known = load_line_model(self._given)
            self._given, self._vocabulary = known.model, known.vocabulary
        else:
            self._vocabulary = LineVocabulary.from_lines(lines)
        self._lines, self._held_out = split_lines(lines, data.validation_fraction, self.run.training.seed)

    def build(self) -> keras.Model:
        """A new autoencoder for the characters of the lines, or the given one."""
        self._built = {} if self._given is not None else dataclasses.asdict(self._architecture)
        if self._given is None:
            size, seed = self._vocabulary.size, self.run.training.seed
            self._given = build_autoencoder(size, **self._built, seed=seed)
        _check_model(self._given, self._vocabulary)
        return self._given

    def sources(self) -> tuple[BatchSource, BatchSource | None]:
        """Lines of similar length, filled up to the longest."""
        data, vocabulary = self._data, self._vocabulary
        source = _batches(self._lines, vocabulary, data, self.run.training.seed)
        self._truncated = source.truncated
        return source, _batches(self._held_out, vocabulary, data) if self._held_out else None

    def held_out(self, batch_size: int) -> tuple[BatchSource | None, BatchSource | None]:
        """Every second held-out line, and the others."""
        data = dataclasses.replace(self._data, batch_size=batch_size)
        validation, test = [
            _batches(part, self._vocabulary, data) if part else None
            for part in (self._held_out[::2], self._held_out[1::2])
        ]
        return validation, test

    def training(self, validation: BatchSource | None) -> TrainingRun:
        """Cross-entropy of the characters, shown in bits."""
        data = self._data
        names = ("max_length", "padding", "batch_size", "validation_fraction")
        cut = {name: getattr(data, name) for name in names}
        self._payload = {
            "vocabulary": self._vocabulary.to_config(),
            **cut,
            "reading": {"suffix": Path(data.path).suffix.lower()}
            | {name: getattr(data, name) for name in _READING},
            "training": trained_with(self.run),
        }
        return TrainingRun(
            options=self.run,
            loss=line_loss(),
            record=TaskRecord("embed", self._payload),
            metrics=[keras.metrics.SparseCategoricalAccuracy(name="token_accuracy")],
            validation=validation,
            identity=self._built | cut | {"lines": len(self._lines) + len(self._held_out)},
            bits="bits/character",
            ignorant=math.log(self._vocabulary.size),
        )

    def judge(self, training: TrainingResult) -> EmbedRun:
        """Measures how well held-out lines are reconstructed."""
        if not self._held_out:
            return self.unjudged(training)
        data = self._data
        trained = LineModel(training.model, self._vocabulary, data.max_length, data.padding, self._payload)
        evaluation = evaluate_lines(
            trained, self._held_out, batch_size=data.batch_size, seconds=self.run.limits.pass_s()
        )
        return EmbedRun(training, evaluation, self._truncated)

    def unjudged(self, training: TrainingResult) -> EmbedRun:
        """The model alone."""
        return EmbedRun(training, None, self._truncated)


def _batches(
    lines: Sequence[str], vocabulary: LineVocabulary, data: LineOptions, seed: int | None = None
) -> LineBatches:
    """The batches of a part of the lines, shuffled if there is a seed."""
    return LineBatches(
        lines,
        vocabulary,
        batch_size=min(data.batch_size, len(lines)),
        seed=seed,
        max_length=data.max_length,
        padding=data.padding,
    )


def embed_lines(
    line_model: LineModel,
    lines: Sequence[str],
    *,
    encoder: keras.Model | None = None,
    batch_size: int = 256,
    errors: str = "strict",
    progress: Callable[[int, int], None] | None = None,
) -> np.ndarray:
    """Turns each line into one vector.

    Args:
        line_model: The model.
        lines: N lines; an empty line has a vector too.
        encoder: The model's encoder from an earlier call, which is compiled already; None makes one.
        batch_size: Lines per batch.
        errors: What to do with a character the model never saw: "strict" raises, "replace" reads it as unknown.
        progress: Called after each batch with the number of finished lines and their total.

    Returns:
        (N, latent) float32.

    Raises:
        DataError: There is no line, or a character is unknown.
    """
    encode = encoder or encoder_and_decoder(line_model.model)[0]
    vectors = np.empty((len(lines), encode.output_shape[-1]), np.float32)
    batches = encode_batches(
        lines,
        line_model.vocabulary,
        batch_size,
        line_model.max_length,
        line_model.padding,
        errors=errors,  # type: ignore[arg-type]
    )
    done = 0
    for numbers, source in batches:
        vectors[numbers] = np.asarray(encode.predict_on_batch(source))[: len(numbers)]
        done += len(numbers)
        if progress is not None:
            progress(done, len(lines))
    return vectors


def reconstruct_lines(line_model: LineModel, vectors: np.ndarray, *, length: int | None = None) -> list[str]:
    """Reconstructs lines from their vectors, always taking the likeliest next character.

    Args:
        line_model: The model.
        vectors: (N, latent) float32.
        length: The most characters to write; None for the model's `max_length`.

    Returns:
        N lines.
    """
    _, decode = encoder_and_decoder(line_model.model)
    ids = _greedy(stepwise_decoder(decode), vectors, (length or line_model.max_length) + 1)
    return [line_model.vocabulary.decode(_until_end(row)) for row in ids]


def evaluate_lines(
    line_model: LineModel, lines: Sequence[str], *, batch_size: int = 256, seconds: float | None = None
) -> dict[str, Any]:
    """Measures how well lines are reconstructed from their vectors.

    Args:
        line_model: The model.
        lines: The lines.
        batch_size: Lines per batch.
        seconds: The most seconds it may take, compiling left out: if all lines take longer, a sample is judged.

    Returns:
        `token_accuracy`: the share of characters (and line ends) predicted correctly when the model is given
        all true characters before them; `free_token_accuracy`: the same, compared position by position, when
        the model reads its own output; `exact_lines`: the share of lines reconstructed exactly; `lines`: their
        number, of a sample beside `sampled_from`, the number of all.
    """
    source = LineBatches(
        lines,
        line_model.vocabulary,
        batch_size=min(batch_size, len(lines)),
        max_length=line_model.max_length,
        padding=line_model.padding,
        errors="replace",
    )
    encode, decode = encoder_and_decoder(line_model.model)
    stepper = stepwise_decoder(decode)
    right = total = exact = count = judged = 0
    for index in spread_within(len(source), seconds):
        inputs, target, weight = source.batch(0, index)
        real = weight.any(axis=1)
        vectors = np.asarray(encode.predict_on_batch(inputs["source"]))
        written = _greedy(stepper, vectors, target.shape[1])
        hits = (written == target) * (weight > 0)
        right += int(hits[real].sum())
        total += int(weight[real].sum())
        exact += int((hits.sum(axis=1) == weight.sum(axis=1))[real].sum())
        count += int(real.sum())
        judged += 1
    judge = same_layers(line_model.model)
    judge.compile(
        loss=line_loss(),
        weighted_metrics=[keras.metrics.SparseCategoricalAccuracy(name="token_accuracy")],
    )
    sample = source if judged == len(source) else SampledBatches(source, judged)
    forced = judge.evaluate(KerasBatches(sample), verbose=0, return_dict=True)
    return {
        "token_accuracy": float(forced["token_accuracy"]),
        "free_token_accuracy": right / total,
        "exact_lines": exact / count,
        "lines": count,
        **({} if sample is source else {"sampled_from": len(lines)}),
    }


def line_loss() -> keras.losses.Loss:
    """The loss of a line autoencoder: the cross-entropy of the logits, over the characters that count."""
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="mean_with_sample_weight")


def _greedy(stepper: tuple[keras.Model, keras.Model], vectors: np.ndarray, length: int) -> np.ndarray:
    """(N, length) ids, each the likeliest after the previous ones."""
    start, step = stepper
    state = [np.asarray(part) for part in start.predict_on_batch(vectors)]
    ids = np.full((len(vectors), 1), BOS, np.int32)
    written = np.empty((len(vectors), length), np.int32)
    for place in range(length):
        logits, *state = step.predict_on_batch([ids, *state])
        ids = np.asarray(logits).argmax(axis=-1).astype(np.int32)[:, None]
        written[:, place] = ids[:, 0]
    return written


def _until_end(ids: np.ndarray) -> np.ndarray:
    ends = np.flatnonzero((ids == EOS) | (ids == PAD))
    return ids[: ends[0]] if len(ends) else ids


def _check_model(model: keras.Model, vocabulary: LineVocabulary) -> None:
    """Raises `ModelError` if the model is not a line autoencoder for the vocabulary."""
    encoder_and_decoder(model)
    if model.output_shape[-1] != vocabulary.size:
        raise ModelError(
            f"the model predicts {model.output_shape[-1]} different ids, the lines have {vocabulary.size}: "
            "build it for as many."
        )


def split_lines(lines: list[str], fraction: float, seed: int) -> tuple[list[str], list[str]]:
    """Splits lines at random into those to train on and a share that is held out.

    Raises:
        DataError: No line is left to train on.
    """
    count = int(len(lines) * fraction)
    chosen = np.zeros(len(lines), bool)
    chosen[np.random.default_rng(seed).permutation(len(lines))[:count]] = True
    kept = [line for line, out in zip(lines, chosen, strict=True) if not out]
    held = [line for line, out in zip(lines, chosen, strict=True) if out]
    if not kept:
        raise DataError("no line is left to train on: hold out less.")
    return kept, held
