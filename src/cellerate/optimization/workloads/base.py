"""A task as `optimize` sees it: training batches, a measure of quality, and uses whose speed is measured.

Stages know only this class, not texts, series or lines; each task has a subclass.
"""

from __future__ import annotations

import abc
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

import keras

from cellerate.data.arrays import BatchSource
from cellerate.data.windows import spread
from cellerate.models.storage import TaskRecord
from cellerate.optimization.clocks import Use
from cellerate.optimization.judging import Judged
from cellerate.report.quality import Metric
from cellerate.report.record import SampleOutput
from cellerate.runtime.packed import PackedModel

Part = Literal["validation", "test"]
"""The two parts of the data that `optimize` does not train on. Choices read "validation"; only the verdict reads
"test", after everything is chosen."""

SEEN_BY_TRAINING = {
    True: ", by which its training may have chosen the best epoch",
    False: ", which the model may have been trained on",
}
"""Words on the held-out data by whether the original's training held them out, too."""


class Predictor(Protocol):
    """A model outside Keras: packed, or exported to another runtime."""

    @property
    def outputs(self) -> Iterable[str]:
        """The names of its outputs."""

    def predict(self, inputs: Any, outputs: Sequence[str] | None = None) -> Any:
        """As `PackedModel.predict`."""


class Workload(abc.ABC):
    """A trained model, its data and their task.

    Args:
        model: The model as it was loaded, in Keras's own layers.
        record: The model's record.
        seed: The seed of everything random.

    Attributes:
        model: The given model.
        record: The given record.
        item: The unit of the model's results in use: "characters", "forecasts", "lines".
        verb: The name of the use, such as "generation".
        alone: The words for one at a time, such as "one text".
        data: The data, in words.
        fingerprint: A text that differs for different data.
        metric: The measure of quality.
        held_out: The batches of each part that models are judged on.
        batch_size: Rows per training batch by default in this task.
        length: Time steps per training row; None if the task has no choice of length.
        shapes: The number of shapes of training batches; each is compiled.
    """

    item: str
    verb: str
    alone: str = "one at a time"
    data: str
    fingerprint: str
    metric: Metric
    held_out: dict[Part, list[Any]]
    batch_size: int
    length: int | None = None
    shapes: int = 1

    def __init__(self, model: keras.Model, record: TaskRecord, seed: int) -> None:
        self.model, self.record, self.seed = model, record, seed

    def hold_out(self, batches: dict[Part, list[Any]]) -> None:
        """Set all batches to judge on."""
        self._all_held_out = batches
        self.judge_on(1.0)

    def judge_on(self, share: float) -> None:
        """Judge on a share of the batches from now on, spread over each part; on one batch at least."""
        self.held_out = {}
        for part, batches in self._all_held_out.items():
            chosen = spread(len(batches), max(1, int(share * len(batches))))
            self.held_out[part] = [batches[index] for index in chosen]
        self.metric = self.measure()

    @abc.abstractmethod
    def measure(self) -> Metric:
        """Return the measure of quality, with a description of the batches."""

    @abc.abstractmethod
    def source(self, model: keras.Model, batch_size: int, length: int | None = None) -> BatchSource:
        """Return training batches.

        Args:
            model: The model to train.
            batch_size: Rows per batch.
            length: Time steps per row; None for the length the model was trained with.

        Raises:
            DataError: The data do not fill one batch.
        """

    def timed_source(self, model: keras.Model, batch_size: int, length: int | None = None) -> BatchSource:
        """Return training batches of one shape, for timing: another shape would be compiled between timed steps.

        Takes the arguments and raises the errors of `source`.
        """
        return self.source(model, batch_size, length)

    @abc.abstractmethod
    def validation(self, model: keras.Model, batch_size: int) -> BatchSource | None:
        """Return the batches that each epoch of the model's training was validated on; None if there were none."""

    @abc.abstractmethod
    def loss(self, model: keras.Model) -> keras.losses.Loss:
        """Return the loss that training minimises."""

    @abc.abstractmethod
    def judge(self, model: keras.Model | Predictor, part: Part, *, brief: bool = False) -> Judged:
        """Judges a model on a part of the data, which is always the same.

        Args:
            model: The model.
            part: The part; only the verdict asks for "test".
            brief: Judges only on the first batch of the part, to compare two implementations of one model.
        """

    def finish(self, model: Path, packed: Path | None) -> bool:
        """Update the facts about the model's results in the files of the chosen model.

        Args:
            model: The `.keras` file.
            packed: The packed file; None without one.

        Returns:
            True if the files were changed; most tasks keep no such facts.
        """
        return False

    @abc.abstractmethod
    def keras_uses(self, model: keras.Model) -> tuple[Use, ...]:
        """Return the ways to use the model with Keras alone: "predict" and "predict_on_batch"."""

    @abc.abstractmethod
    def packed_use(self, model: PackedModel) -> Use:
        """Return the way to use the packed model."""

    @abc.abstractmethod
    def sample(self, model: keras.Model, packed: PackedModel | None) -> SampleOutput:
        """Return the model's results for the sample input, which is always the same.

        Args:
            model: The model.
            packed: The same model packed, or None if it cannot be packed.
        """
