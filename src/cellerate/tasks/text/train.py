"""The text task: train a next-character model on files, and judge it in bits per character.

Each function only combines data, model and training loop; how those work is in their own modules.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import keras
import numpy as np

from cellerate.data.arrays import BatchSource
from cellerate.data.files import READ_AS
from cellerate.data.pipeline import KerasBatches
from cellerate.data.text import EncodedText, open_text
from cellerate.data.tokenizers import (
    HAS_OWN_VOCABULARY,
    Tokenizer,
    Vocabulary,
    open_vocabulary,
    tokenizer_from_config,
)
from cellerate.data.windows import SampledBatches
from cellerate.errors import BackendError, ConfigError, DataError, ModelError
from cellerate.keras_graph.step_graph import gives_probabilities
from cellerate.machine.needs import check_memory
from cellerate.messages import Message, argument
from cellerate.models.rewrite import same_layers
from cellerate.models.storage import TaskRecord, check_task, load_model
from cellerate.models.text import build_text_model
from cellerate.tasks.packing import packed
from cellerate.tasks.settings import TextArchitecture, TextOptions
from cellerate.tasks.task import Task, train_task, trained_with
from cellerate.tasks.text.batches import (
    check_looks_back,
    check_text_model,
    every_window,
    predicts_every_step,
    text_sources,
)
from cellerate.tasks.text.split import count_split, counting_verdict
from cellerate.training.divergence import reference_loss, why_not_better
from cellerate.training.loop import TrainingResult
from cellerate.training.run import RunOptions, TrainingRun
from cellerate.training.telemetry import Display, Sample
from cellerate.training.time_limits import SampleSize

_NATS_PER_BIT = math.log(2)
# A sample: the tokens of its prompt, its new tokens, and its temperature.
_PROMPT, _SAMPLE, _TEMPERATURE = 60, 200, 0.8


@dataclasses.dataclass(frozen=True)
class TextRun:
    """A finished training of a text model.

    Attributes:
        training: The result of the training loop.
        tokenizer: The model's tokenizer.
        evaluation: `evaluate_text` of the best model on the held-out part, and beside it
            `unigram_bits_per_character`, of a model that knows only how often each character (or byte, or token)
            occurs, and the `verdict` of `counting_verdict`. Where a time limit left no time to judge on all
            of the part, `tokens` is the number of judged tokens and `sampled_from` the number of all. None without a
            held-out part.
    """

    training: TrainingResult
    tokenizer: Tokenizer
    evaluation: dict[str, Any] | None


@dataclasses.dataclass(frozen=True)
class TextModel:
    """A model and the tokenizer that belongs to it."""

    model: keras.Model
    tokenizer: Tokenizer
    record: dict[str, Any]


def load_text_model(path: str | Path) -> TextModel:
    """Opens a text model that Cellerate wrote.

    Raises:
        ModelError: The file is damaged, its model is for another task, or it holds no tokenizer.
    """
    model, record = load_model(path, need_task="text")
    return text_model_of(model, record, str(path))


def text_model_of(
    model: keras.Model, record: TaskRecord | None, name: str, vocabulary: Vocabulary | None = None
) -> TextModel:
    """A text model that is already open.

    Args:
        model: The model.
        record: Its record; None for a model that Cellerate did not train.
        name: Its name in messages.
        vocabulary: The meaning of the ids of a model without a record, as for `cellerate.generate`.

    Raises:
        ConfigError: There is neither a record nor a vocabulary, or there are both.
        DataError: The vocabulary cannot be used.
        ModelError: The model is for another task, its record holds no tokenizer, or it predicts another number of ids
            than the vocabulary has.
    """
    if record is not None:
        check_task(name, record, "text")
        if vocabulary is not None:
            raise ConfigError(HAS_OWN_VOCABULARY)
        return TextModel(model, _tokenizer(record), record.payload)
    if vocabulary is None:
        raise ConfigError(
            f"{name} does not say which characters its ids mean: give it the text that it was trained on, such as "
            f"{argument('vocabulary', 'book.txt')}, or a list of the characters in the order of their ids."
        )
    outputs: Any = model.outputs or ()
    size = outputs[0].shape[-1] if len(outputs) == 1 else None
    if size is None:
        raise ModelError(
            f"{name} is not a next-token model, which has one output of as many values as there are different ids."
        )
    tokenizer = open_vocabulary(vocabulary, size)
    return TextModel(model, tokenizer, {"tokenizer": tokenizer.to_config()})


def train_on_text(
    data: TextOptions,
    run: RunOptions,
    *,
    architecture: TextArchitecture | None = None,
    model: str | Path | keras.Model | None = None,
    prompt: str | None = None,
    on_ready: Callable[[TextModel], None] = lambda untrained: None,
) -> TextRun:
    """Trains a next-character model.

    Args:
        data: The text.
        run: The output file and the settings of the training.
        architecture: The model to build.
        model: Your own model instead: (B, T) ids to (B, T, V) or (B, V) logits or probabilities.
        prompt: The text that a sample continues; None for the beginning of the held-out part.
        on_ready: Called with the untrained model and its tokenizer just before training.

    Raises:
        CellerateError: Anything wrong with the text, the settings, the model or the output.
    """
    return train_task(TextTask(data, run, architecture or TextArchitecture(), model, prompt, on_ready))


class TextTask(Task[TextRun]):
    """The training of a next-character model; see `train_on_text`."""

    def __init__(
        self,
        data: TextOptions,
        run: RunOptions,
        architecture: TextArchitecture,
        model: str | Path | keras.Model | None = None,
        prompt: str | None = None,
        on_ready: Callable[[TextModel], None] = lambda untrained: None,
    ) -> None:
        super().__init__(run)
        check_memory(data, architecture if model is None else None)
        self._data, self._architecture, self._given = data, architecture, model
        self._prompt, self._on_ready = prompt, on_ready

    def open(self) -> None:
        """Encode the text, with the tokenizer of the model to train further, if it has one."""
        tokenizer: Tokenizer | None = None
        if isinstance(self._given, str | Path):
            self._given, tokenizer = _model_to_go_on_with(self._given, self._data)
        self._text = _open_to_learn(self._data, tokenizer, self.run.listener.progress)
        _tell_licence(self._text, self._data, self.run.listener)
        self._head, self._tail = self._text.split(self._data.validation_fraction)

    def build(self) -> keras.Model:
        """A new model of the architecture, or the given one."""
        text, tokenizer = self._text, self._text.tokenizer
        self._built = {} if self._given is not None else dataclasses.asdict(self._architecture)
        if self._given is None:
            self._model = build_text_model(
                tokenizer.vocabulary_size, **self._built, seed=self.run.training.seed
            )
        else:
            self._model = self._given
        check_text_model(self._model, tokenizer, self._data)
        if self._given is not None:
            check_looks_back(self._model, tokenizer)
        self._payload = _payload(text, self._data) | {"training": trained_with(self.run)}
        return self._model

    def sources(self) -> tuple[BatchSource, BatchSource | None]:
        """Windows of the text, or streams of it."""
        data, text = self._data, self._text
        sources = text_sources(self._model, data, text, self._head, self._tail, self.run.training.seed)
        asked = data.validation_fraction > 0
        self._split = count_split(text.tokenizer, self._head, self._tail, asked=asked)
        for remark in self._split.remarks():
            self.run.listener.message(remark)
        return sources

    def held_out(self, batch_size: int) -> tuple[BatchSource | None, BatchSource | None]:
        """The first half of the held-out part, and the second."""
        data, every_step = self._data, predicts_every_step(self._model)
        least = 2 if every_step else data.length + 1
        half = len(self._tail) // 2
        parts = [part if len(part) >= least else None for part in (self._tail[:half], self._tail[half:])]
        common: dict[str, Any] = {
            "length": data.length,
            "batch_size": batch_size,
            "item": self._text.tokenizer.unit,
        }
        validation, test = [
            None if part is None else every_window(part, every_step, **common)[0] for part in parts
        ]
        return validation, test

    def training(self, validation: BatchSource | None) -> TrainingRun:
        """Cross-entropy, shown in bits, with samples of what the model writes."""
        data, tokenizer = self._data, self._text.tokenizer
        self._held_out = validation is not None
        begin = self._tail if len(self._tail) else self._head
        sample = _sampler(self._model, tokenizer, begin, self._prompt)
        if sample is None and self.run.sample_every is not None:
            raise ConfigError(
                f"{argument('sample_every')} needs a model that can be run a step at a time: leave it out for this one."
            )
        self._on_ready(TextModel(self._model, tokenizer, self._payload))
        self._ignorant = math.log(tokenizer.vocabulary_size)
        return TrainingRun(
            options=self.run,
            loss=text_loss(self._model),
            record=TaskRecord("text", self._payload),
            validation=validation,
            identity=self._built | _identity(self._text, data),
            carry_states=data.carry_states,
            bits=f"bits/{tokenizer.unit.removesuffix('s')}",
            sample=sample,
            ignorant=self._ignorant,
        )

    def judge(self, training: TrainingResult) -> TextRun:
        """Bits per character of the held-out part, beside those of counting."""
        if not self._held_out:
            return self.unjudged(training)
        data, tokenizer = self._data, self._text.tokenizer
        trained = TextModel(training.model, tokenizer, self._payload)
        evaluation = _evaluate(trained, self._tail, data.length, data.batch_size, training.judged)
        unigram = self._split.unigram_bits() * len(self._tail) / max(1, evaluation["characters"])
        evaluation["unigram_bits_per_character"] = unigram
        evaluation["verdict"] = counting_verdict(
            evaluation["bits_per_character"],
            unigram,
            why_not_better(
                training.history, reference_loss(training.first_loss, self._ignorant), self.run.training
            ),
        )
        return TextRun(training, tokenizer, evaluation)

    def unjudged(self, training: TrainingResult) -> TextRun:
        """The model and its tokenizer."""
        return TextRun(training, self._text.tokenizer, None)


def _model_to_go_on_with(path: str | Path, data: TextOptions) -> tuple[keras.Model, Tokenizer | None]:
    """The model to train further, and its tokenizer if it keeps one."""
    model, record = load_model(path)
    if record is not None and record.task != "text":
        raise ModelError(f"the model to go on with is of the task {record.task!r}, not 'text'.")
    tokenizer = _tokenizer(record) if record else None
    if tokenizer is not None and data.tokenizer not in ("characters", tokenizer.kind):
        raise ConfigError(
            f"{argument('tokenizer')} is {data.tokenizer!r}, but the model to go on with keeps its own "
            f"({tokenizer.kind}): leave {argument('tokenizer')} out."
        )
    return model, tokenizer


def _open_to_learn(
    data: TextOptions, tokenizer: Tokenizer | None, reading: Callable[[int, int], None]
) -> EncodedText:
    """Open the text of a training. Raises `ConfigError` or `DataError` if nothing can be learned from it."""
    text = encoded_text(data, tokenizer, reading)
    if data.field is not None and not text.records:
        raise ConfigError(
            f"{argument('field')} is {data.field!r}, and no file has JSON lines (*.jsonl, *.ndjson): leave "
            f"{argument('field')} out."
        )
    if text.tokenizer.vocabulary_size < 2:
        raise DataError(
            f"the text has one distinct {text.tokenizer.unit.removesuffix('s')} only, so there is nothing to predict. "
            "Give a text of at least two."
        )
    return text


def _identity(text: EncodedText, data: TextOptions) -> dict[str, Any]:
    """The facts that a resumed run must share, by names for the message on a difference."""
    names = ("length", "batch_size", "validation_fraction", *READ_AS)
    own = {"tokenizer": text.tokenizer.kind, "characters of the text": text.characters}
    return {name: getattr(data, name) for name in names} | own


def _payload(text: EncodedText, data: TextOptions) -> dict[str, Any]:
    """The facts about its text that a saved model keeps."""
    return {
        "tokenizer": text.tokenizer.to_config(),
        "length": data.length,
        "batch_size": data.batch_size,
        "validation_fraction": data.validation_fraction,
        "include": list(data.include),
        "exclude": list(data.exclude),
        **{name: getattr(data, name) for name in READ_AS},
        "data": {"fingerprint": text.fingerprint, "characters": text.characters, "bytes": text.bytes},
    }


def evaluate_text(
    text_model: TextModel, data: TextOptions, *, part: Literal["all", "held-out"] = "all"
) -> dict[str, Any]:
    """Judge a model on a text: every character but the first is predicted once, in windows of `length`.

    Args:
        text_model: The model.
        data: The text; its `tokenizer` is ignored, because the model has its own.
        part: "all" of the text, or the "held-out" share at its end.

    Returns:
        `bits_per_character`, `nats_per_token`, `perplexity` (per token), `tokens`, `characters`, `length`.
    """
    text = encoded_text(data, text_model.tokenizer)
    ids = text.split(data.validation_fraction)[1] if part == "held-out" else text.ids
    if not len(ids):
        raise ConfigError(f"the held-out part is empty: {argument('validation_fraction')} must be above 0.")
    return _evaluate(text_model, ids, data.length, data.batch_size)


def text_loss(model: keras.Model) -> keras.losses.Loss:
    """The loss of a next-token model: the cross-entropy, of logits or of probabilities."""
    return keras.losses.SparseCategoricalCrossentropy(from_logits=not gives_probabilities(model))


def _tokenizer(record: TaskRecord) -> Tokenizer:
    return tokenizer_from_config(record.payload.get("tokenizer", {}))


def encoded_text(
    data: TextOptions, tokenizer: Tokenizer | None, progress: Callable[[int, int], None] | None = None
) -> EncodedText:
    """The encoded text; `tokenizer` is the one that a model already has, if any."""
    return open_text(
        data.paths,
        tokenizer=tokenizer or data.tokenizer,
        errors=data.errors,
        include=data.include,
        exclude=data.exclude,
        progress=progress,
        **{name: getattr(data, name) for name in READ_AS},
    )


def _tell_licence(text: EncodedText, data: TextOptions, display: Display) -> None:
    """Notify of a licence in the text, which the model would learn, or that it was left out."""
    files = f"{text.licensed:,} of {text.files:,} files" if text.files > 1 else "the text"
    has = "has" if text.licensed == 1 else "have"
    if text.licensed and data.strip_gutenberg:
        display.message(f"the licence of Project Gutenberg was left out of {files}")
    elif text.licensed:
        display.message(
            Message(
                f"{files} {has} the licence of Project Gutenberg in it, which the model will learn, too: leave it out "
                f"with {argument('strip_gutenberg', True)}"
            )
        )
    elif data.strip_gutenberg:
        display.message("the licence of Project Gutenberg was not found, and nothing is left out")


def _sampler(
    model: keras.Model, tokenizer: Tokenizer, ids: np.ndarray, prompt: str | None
) -> Callable[[keras.Model], Sample] | None:
    """The function that continues a prompt, else the beginning of some ids.

    None if the model cannot be run a step at a time.
    """
    if prompt is not None:
        # Raises if the prompt has a character that the model will never see.
        tokenizer.encode_prompt(prompt)
    given = tokenizer.decode(ids[:_PROMPT]) if prompt is None else prompt

    def sample(trained: keras.Model) -> Sample:
        engine = packed(trained)
        engine.tokenizer = tokenizer
        made = engine.generate(given, max_tokens=_SAMPLE, temperature=_TEMPERATURE, seed=1, errors="ignore")
        return Sample(given, made)

    try:
        return sample if packed(model).steps.outputs == tokenizer.vocabulary_size else None
    except (BackendError, ModelError):
        return None


def _evaluate(
    text_model: TextModel, ids: np.ndarray, length: int, batch_size: int, judged: SampleSize | None = None
) -> dict[str, Any]:
    """The figures of a model on ids, or on as many as training was `judged` on."""
    tokenizer, model = text_model.tokenizer, text_model.model
    every_step = predicts_every_step(model)
    needed = 2 if every_step else length + 1
    if len(ids) < needed:
        raise DataError(f"the text to judge has {len(ids)} {tokenizer.unit}: at least {needed} are needed.")
    windows = -(-(len(ids) - 1) // length)
    source, predicted = every_window(
        ids,
        every_step,
        length=length,
        # A batch is padded to its size.
        batch_size=model.inputs[0].shape[0] or min(batch_size, windows),
        item=tokenizer.unit,
    )
    sampled: dict[str, int] = {}
    if judged is not None and (some := judged.items // source.items_per_batch) < len(source):
        sampled = {"sampled_from": predicted}
        source = SampledBatches(source, max(1, some))
        predicted = len(source) * source.items_per_batch
    judge = same_layers(model)
    judge.compile(loss=text_loss(model))
    nats = float(judge.evaluate(KerasBatches(source), verbose=0))
    characters = len(tokenizer.decode(ids)) if tokenizer.unit != "characters" else len(ids)
    tokens_per_character = len(ids) / characters
    return {
        "bits_per_character": nats / _NATS_PER_BIT * tokens_per_character,
        "nats_per_token": nats,
        "perplexity": math.exp(min(nats, 700.0)),
        "tokens": predicted,
        "characters": characters,
        "length": length,
        **sampled,
    }
