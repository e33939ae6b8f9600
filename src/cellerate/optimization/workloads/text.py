"""The workload of the text task: bits per character, and characters per second."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from cellerate.data.arrays import BatchSource
from cellerate.data.tokenizers import tokenizer_from_config
from cellerate.data.windows import spread
from cellerate.errors import BackendError, DataError, ModelError
from cellerate.format import percent
from cellerate.keras_graph.graph import forget_states
from cellerate.keras_graph.step_graph import StepGraph, gives_probabilities, step_model
from cellerate.kernels.decoder.sampling import SamplingRules
from cellerate.models.storage import TaskRecord
from cellerate.optimization.clocks import Use
from cellerate.optimization.judging import Judged, judged
from cellerate.optimization.training import batch_size_of
from cellerate.optimization.workloads.base import SEEN_BY_TRAINING, Part, Predictor, Workload
from cellerate.report.quality import Metric
from cellerate.report.record import SampleOutput
from cellerate.runtime.packed import PackedModel
from cellerate.runtime.text import score_ids
from cellerate.tasks.settings import TextOptions
from cellerate.tasks.text import (
    TextModel,
    check_text_model,
    encoded_text,
    generate_text,
    predicts_every_step,
    text_loss,
    text_sources,
)

_MOST_WINDOWS = 1600
_ROWS = 64
_HELD_OUT = 0.05  # of a text, if training held nothing out
_PROMPT, _SAMPLE = 60, 300  # characters
_TEMPERATURE = 0.8


class TextWorkload(Workload):
    """See `Workload`; texts are generated one at a time, or 64 side by side.

    Args:
        model: (B, T) ids → (B, T, V) or (B, V).
        record: Its record.
        data: Files, folders or glob patterns.
        seed: The seed of everything random.

    Raises:
        DataError: The text is too short, or has characters that the model does not know.
        ModelError: The model is not a next-token model, or its record is damaged.
    """

    item = "characters"
    verb = "generation"
    alone = "one text"

    def __init__(self, model: keras.Model, record: TaskRecord, data: Sequence[str | Path], seed: int) -> None:
        super().__init__(model, record, seed)
        self.batch_size = model.inputs[0].shape[0] or batch_size_of(record, TextOptions.batch_size)
        payload = record.payload
        self.tokenizer = tokenizer_from_config(payload.get("tokenizer", {}))
        self._options = TextOptions.of_record(
            payload, "the model", paths=data, errors="replace", batch_size=self.batch_size
        )
        check_text_model(model, self.tokenizer, self._options)
        # Raises at once, with the reason, if the model cannot generate.
        StepGraph(model)
        self._text = encoded_text(self._options, self.tokenizer)
        fraction = self._options.validation_fraction or _HELD_OUT
        self._head, tail = self._text.split(fraction)
        middle = len(tail) // 2
        self._tails: dict[Part, np.ndarray] = {"validation": tail[:middle], "test": tail[middle:]}
        self.length = model.inputs[0].shape[1] or self._options.length
        self.fingerprint = self._text.fingerprint
        self.data = f"{self._text.characters:,} characters of text"
        texts = {part: self.tokenizer.decode(ids) for part, ids in self._tails.items()}
        self._tokens_per_character = {
            part: len(ids) / max(1, len(texts[part])) for part, ids in self._tails.items()
        }
        self._held_out_share = fraction
        self.hold_out(self._held_out_windows())
        text = texts["validation"]
        start = text.find("\n") + 1
        self._prompt = text[start : start + _PROMPT].strip() or text[:_PROMPT]

    def measure(self) -> Metric:
        """See `Workload.measure`."""
        seen = SEEN_BY_TRAINING[self._options.validation_fraction > 0]

        def source(part: Part, half: str) -> str:
            batches = self.held_out[part]
            steps = len(batches[0][0]) - 1
            tokens = sum(map(len, batches)) * (steps if predicts_every_step(self.model) else 1)
            return (
                f"{tokens:,} {self.tokenizer.unit} of the {part} part, in windows of {steps}: the {half} half of the "
                f"last {percent(self._held_out_share)} of the text{seen}"
            )

        return Metric(
            name="bits per character",
            unit="bits",
            higher_is_better=False,
            source=source("validation", "first"),
            test_source=source("test", "second"),
        )

    def _held_out_windows(self) -> dict[Part, list[list[np.ndarray]]]:
        """Return batches of ids to judge on: windows spread over each part, predicted from their first id on."""
        assert self.length is not None  # noqa: S101 (set just before)
        whole = self.model.inputs[0].shape[1] is not None or not predicts_every_step(self.model)
        shortest = min(map(len, self._tails.values()))
        if shortest < 2 or (whole and shortest <= self.length):
            raise DataError(
                f"each half of the held-out text has only {shortest:,} {self.tokenizer.unit}: too few to judge a model "
                "on. Give a longer text."
            )
        length = min(self.length, shortest - 1)
        found: dict[Part, list[list[np.ndarray]]] = {}
        for part, ids in self._tails.items():
            count = (len(ids) - 1) // length
            chosen = spread(count, _MOST_WINDOWS)
            windows = [np.asarray(ids[k * length : (k + 1) * length + 1], np.int32) for k in chosen]
            found[part] = [windows[start : start + _ROWS] for start in range(0, len(windows), _ROWS)]
        return found

    def source(self, model: keras.Model, batch_size: int, length: int | None = None) -> BatchSource:
        """See `Workload.source`; a text too short for the batch gives the largest batch it fills."""
        return self._sources(model, batch_size, length, self._head[:0])[0]

    def validation(self, model: keras.Model, batch_size: int) -> BatchSource | None:
        """See `Workload.validation`."""
        if not self._options.validation_fraction:
            return None
        return self._sources(model, batch_size, None, np.concatenate(list(self._tails.values())))[1]

    def _sources(
        self, model: keras.Model, batch_size: int, length: int | None, tail: np.ndarray
    ) -> tuple[BatchSource, BatchSource | None]:
        options = TextOptions(
            length=length or self.length or self._options.length, batch_size=batch_size, validation_fraction=0
        )
        return text_sources(model, options, self._text, self._head, tail, self.seed)

    def loss(self, model: keras.Model) -> keras.losses.Loss:
        """The cross-entropy, in nats."""
        return text_loss(model)

    def judge(self, model: keras.Model | Predictor, part: Part, *, brief: bool = False) -> Judged:
        """Bits per character of each window, read from a state of zeros.

        A packed model is judged step by step, as it generates, if it can generate.
        """
        batches = self.held_out[part][: 1 if brief else None]
        windows = [window for batch in batches for window in batch]
        nats = (
            self._nats_packed(model, windows)
            if isinstance(model, PackedModel)
            else self._nats(model, windows)
        )
        return judged(nats / math.log(2) * self._tokens_per_character[part])

    def _nats(self, model: Any, all_windows: list[np.ndarray]) -> np.ndarray:
        """(windows,) nats from the outputs of a model for whole windows."""
        every_step = predicts_every_step(self.model)
        probabilities = gives_probabilities(self.model)
        rows = self.model.inputs[0].shape[0] or _ROWS
        in_keras = isinstance(model, keras.Model)
        predict = model.predict_on_batch if in_keras else model.predict
        found = []
        for start in range(0, len(all_windows), rows):
            if in_keras:
                forget_states(model)
            windows = np.stack(all_windows[start : start + rows])
            # All batches get the same shape, because each new shape is compiled.
            filled = np.concatenate([windows, np.repeat(windows[-1:], rows - len(windows), axis=0)])
            outputs = np.asarray(predict(filled[:, :-1]), np.float32)[: len(windows)]
            targets = windows[:, 1:] if every_step else windows[:, -1]
            each = _nats_of(outputs, targets, probabilities=probabilities)
            found.append(each.reshape(len(windows), -1).mean(axis=1))
        if in_keras:
            forget_states(model)
        return np.concatenate(found)

    def _nats_packed(self, model: PackedModel, windows: list[np.ndarray]) -> np.ndarray:
        if predicts_every_step(self.model):
            try:
                steps = model.steps
            except ModelError:
                return self._nats(model, windows)
            scores = score_ids(steps, windows, [len(w) for w in windows], context=None)
            return np.array([score.nats_per_token for score in scores])
        return self._nats(model, windows)

    def keras_uses(self, model: keras.Model) -> tuple[Use, ...]:
        """One call of `predict`, or of `predict_on_batch`, per character, with the state going in and out.

        Predicting from all the text so far, as many do, is slower in proportion to the length of the text; a loop
        over many characters that the backend compiles as a whole is faster, and is not measured here.
        """
        single, several = step_model(model, 1), step_model(model, _ROWS)
        return (
            Use("predict", self._drawing(single, "predict", 1), None, 1),
            Use(
                "predict_on_batch",
                self._drawing(single, "predict_on_batch", 1),
                self._drawing(several, "predict_on_batch", _ROWS),
                _ROWS,
            ),
        )

    def _drawing(self, steps: keras.Model, method: str, rows: int) -> Any:
        """Return a call that draws the next character of each of `rows` rows."""
        random = np.random.default_rng(self.seed)
        state = [np.zeros([rows, *tensor.shape[1:]], np.float32) for tensor in steps.inputs[1:]]
        held: list[Any] = [np.zeros((rows, 1), np.int32), state]
        options = {"verbose": 0} if method == "predict" else {}

        def draw() -> None:
            logits, *held[1] = getattr(steps, method)([held[0], *held[1]], **options)
            scaled = np.asarray(logits, np.float32).reshape(rows, -1) / _TEMPERATURE
            scaled += random.gumbel(size=scaled.shape)
            held[0] = scaled.argmax(axis=1)[:, None].astype(np.int32)

        return draw

    def packed_use(self, model: PackedModel) -> Use:
        """A call for one character, calls that draw many characters of one text, and `generate` of 64.

        The first is the latency, the wait of a caller for the next character. The second is the speed of a text, which
        does not need a call for each character.
        """
        first = self.held_out["validation"][0][0][None]
        try:
            stepper = model.stepper()
        except (BackendError, ModelError):
            return Use("packed predict", lambda: model.predict(first[:, :-1]), None, 1)
        stepper.read(first[:, :_PROMPT])
        rules = SamplingRules(temperature=_TEMPERATURE, seed=1)

        def draw(count: int) -> None:
            stepper.draw(count, rules)

        def many() -> None:
            prompts = [self._prompt] * _ROWS
            model.generate(prompts, max_tokens=_SAMPLE, temperature=_TEMPERATURE, seed=1, errors="ignore")

        return Use("packed", lambda: draw(1), many, _ROWS, several=draw, steps=_SAMPLE)

    def sample(self, model: keras.Model, packed: PackedModel | None) -> SampleOutput:
        """A continuation of a held-out line."""
        if packed is not None:
            text = packed.generate(
                self._prompt, max_tokens=_SAMPLE, temperature=_TEMPERATURE, seed=1, errors="ignore"
            )
            return SampleOutput(prompt=self._prompt, text=text)
        rules = SamplingRules(temperature=_TEMPERATURE, seed=1)
        text_model = TextModel(model, self.tokenizer, self.record.payload)
        prompt = self.tokenizer.known(self._prompt)
        pieces = generate_text(text_model, prompt, max_tokens=_SAMPLE, rules=rules, implementation="keras")
        return SampleOutput(prompt=prompt, text="".join(pieces))


def _nats_of(outputs: np.ndarray, targets: np.ndarray, *, probabilities: bool) -> np.ndarray:
    """Return -ln p of each target (...) from outputs (..., V)."""
    chosen = np.take_along_axis(outputs, targets[..., None], axis=-1)[..., 0].astype(np.float64)
    if probabilities:
        return -np.log(np.maximum(chosen, np.finfo(np.float32).tiny))
    largest = outputs.max(axis=-1)
    total = np.log(np.exp(outputs - largest[..., None]).sum(axis=-1, dtype=np.float64))
    return np.asarray(total + largest - chosen)
