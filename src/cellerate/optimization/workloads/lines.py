"""The workload of the embed task: the share of characters reconstructed, and lines per second."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from cellerate.data.arrays import BatchSource
from cellerate.data.text import BOUND_MULTIPLE, LineBatches, encode_batches
from cellerate.errors import ConfigError, DataError
from cellerate.models.autoencoder import encoder_and_decoder
from cellerate.models.storage import TaskRecord
from cellerate.optimization.clocks import Use, predict_uses
from cellerate.optimization.judging import Judged, judged
from cellerate.optimization.training import batch_size_of, settings_of
from cellerate.optimization.workloads.base import SEEN_BY_TRAINING, Part, Predictor, Workload
from cellerate.report.quality import Metric
from cellerate.report.record import SampleOutput
from cellerate.runtime.packed import PackedModel
from cellerate.tasks.embed import (
    embed_lines,
    line_loss,
    line_model_of,
    lines_for,
    reconstruct_lines,
    split_lines,
)
from cellerate.tasks.settings import LineOptions

_ROWS = 256
_MOST_LINES = 4096
_SAMPLES = 6


class LineWorkload(Workload):
    """See `Workload`; lines are turned into vectors one at a time, or 256 at a time.

    Args:
        path: The model's file, for messages.
        model: The autoencoder.
        record: Its record.
        data: One file of lines.
        seed: The seed of everything random.

    Raises:
        ConfigError: There are several files.
        DataError: The file cannot be used, or too few lines are held out.
        ModelError: The model is not a line autoencoder.
    """

    item = "lines"
    verb = "embedding"

    def __init__(
        self, path: Path, model: keras.Model, record: TaskRecord, data: Sequence[str | Path], seed: int
    ) -> None:
        super().__init__(model, record, seed)
        self.batch_size = batch_size_of(record, LineOptions.batch_size)
        if len(data) != 1:
            raise ConfigError(f"a line model takes one file of lines; {len(data)} are given.")
        self._model = line_model_of(path, model, record)
        lines = lines_for(record, data[0], "replace")
        recorded = record.payload.get("validation_fraction", LineOptions.validation_fraction)
        fraction = recorded or LineOptions.validation_fraction
        self._train, held_out = split_lines(lines, fraction, settings_of(record).seed)
        self._validation = held_out
        middle = len(held_out) // 2
        if not middle:
            raise DataError(
                f"of {len(lines):,} lines {len(held_out)} are held out to judge the model on, but two are needed: give "
                "more lines."
            )
        self._held_out_lines: dict[Part, list[str]] = {
            "validation": held_out[:middle][:_MOST_LINES],
            "test": held_out[middle:][:_MOST_LINES],
        }
        self._common: dict[str, Any] = {
            "max_length": self._model.max_length,
            "padding": self._model.padding,
            "errors": "replace",
        }
        batches_of: dict[Part, list[Any]] = {}
        fingerprints = []
        for part, some in self._held_out_lines.items():
            rows = min(_ROWS, len(some))
            batches = LineBatches(some, self._model.vocabulary, batch_size=rows, **self._common)
            fingerprints.append(batches.fingerprint())
            batches_of[part] = [batches.batch(0, index) for index in range(len(batches))]
        self.fingerprint = " ".join(fingerprints)
        self.data = f"{len(lines):,} lines"
        self.shapes = len(self._source(self._train, min(self.batch_size, len(self._train))).bounds)
        self._seen = SEEN_BY_TRAINING[bool(recorded)]
        self.hold_out(batches_of)

    def measure(self) -> Metric:
        """See `Workload.measure`."""

        def source(part: Part, half: str) -> str:
            count = sum(int(weight.any(axis=1).sum()) for _, _, weight in self.held_out[part])
            return (
                f"{count:,} lines of the {part} part, each character predicted from those before it: the {half} half "
                f"of the lines that are held out{self._seen}"
            )

        return Metric(
            name="token accuracy",
            unit="",
            higher_is_better=True,
            source=source("validation", "first"),
            test_source=source("test", "second"),
        )

    def source(self, model: keras.Model, batch_size: int, length: int | None = None) -> BatchSource:
        """See `Workload.source`; `length` has no effect."""
        return self._source(self._train, min(batch_size, len(self._train)))

    def timed_source(self, model: keras.Model, batch_size: int, length: int | None = None) -> BatchSource:
        """See `Workload.timed_source`: lines of the median length, repeated if they do not fill a batch."""
        steps = -(-np.maximum(1, list(map(len, self._train))) // BOUND_MULTIPLE)
        middle = np.sort(steps)[len(steps) // 2]
        lines = [line for line, bound in zip(self._train, steps, strict=True) if bound == middle]
        size = min(batch_size, len(self._train))
        return self._source(lines * -(-size // len(lines)), size)

    def _source(self, lines: list[str], batch_size: int) -> LineBatches:
        return LineBatches(
            lines, self._model.vocabulary, batch_size=batch_size, seed=self.seed, **self._common
        )

    def validation(self, model: keras.Model, batch_size: int) -> BatchSource | None:
        """See `Workload.validation`."""
        if not self.record.payload.get("validation_fraction", LineOptions.validation_fraction):
            return None
        return LineBatches(self._validation, self._model.vocabulary, batch_size=batch_size, **self._common)

    def loss(self, model: keras.Model) -> keras.losses.Loss:
        """The cross-entropy of the characters, line ends among them."""
        return line_loss()

    def judge(self, model: keras.Model | Predictor, part: Part, *, brief: bool = False) -> Judged:
        """The share of characters in each line that are predicted correctly, given all characters before them."""
        shares, weights = [], []
        for inputs, target, weight in self.held_out[part][: 1 if brief else None]:
            if isinstance(model, keras.Model):
                logits: Any = model.predict_on_batch(inputs)
            else:
                (name,) = set(model.outputs) - {"vector"}
                logits = model.predict(inputs, [name])
            right = (np.asarray(logits).argmax(axis=-1) == target) * weight
            total = weight.sum(axis=1)
            shares.append(right.sum(axis=1) / np.maximum(total, 1))
            weights.append(total)
        return judged(np.concatenate(shares), np.concatenate(weights))

    def keras_uses(self, model: keras.Model) -> tuple[Use, ...]:
        """`predict` and `predict_on_batch` of the encoder, with one line and with 256."""
        encode, _ = encoder_and_decoder(model)
        return predict_uses(encode, self._inputs(1), self._inputs(_ROWS), _ROWS)

    def packed_use(self, model: PackedModel) -> Use:
        """`PackedModel.predict` of the vectors of the same lines."""
        one, many = {"source": self._inputs(1)}, {"source": self._inputs(_ROWS)}
        return Use(
            "packed", lambda: model.predict(one, ["vector"]), lambda: model.predict(many, ["vector"]), _ROWS
        )

    def _inputs(self, rows: int) -> np.ndarray:
        """(rows, S) ids of lines of similar length: the first bucket that is neither the shortest nor the longest."""
        batches = encode_batches(
            self._held_out_lines["validation"],
            self._model.vocabulary,
            _ROWS,
            self._model.max_length,
            self._model.padding,
            errors="replace",
        )
        found = [source for _, source in batches]
        found.sort(key=lambda source: source.shape[1])
        chosen = found[len(found) // 2]
        return np.resize(chosen, (rows, chosen.shape[1]))

    def sample(self, model: keras.Model, packed: PackedModel | None) -> SampleOutput:
        """Lines reconstructed from their vectors; for a packed model, from the vectors it makes."""
        lines = self._held_out_lines["validation"][:_SAMPLES]
        known = line_model_of("the model", model, self.record)
        vectors = (
            packed.embed(lines, errors="replace")
            if packed is not None
            else embed_lines(known, lines, errors="replace")
        )
        return SampleOutput(prompt="\n".join(lines), text="\n".join(reconstruct_lines(known, vectors)))
