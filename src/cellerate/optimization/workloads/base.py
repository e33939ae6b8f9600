"""The optimizer's view of a task: training batches, a quality, and a way of use whose speed is measured.

Stages know nothing of texts, series or lines; they know only this class, and each task has a subclass.
"""

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
"""The two parts of the data that nothing here trains on. Every choice looks at "validation"; "test" is for the
verdict alone, which looks at it once everything is chosen."""

SEEN_BY_TRAINING = {
    True: ", by which its training may have chosen the best epoch",
    False: ", which the model may have been trained on",
}
"""The names of what an original may know: data held out of its training, and data that were not."""


class Predictor(Protocol):
    """A model outside Keras: packed, or exported and in another runtime."""

    @property
    def outputs(self) -> Iterable[str]:
        """The names of its outputs."""

    def predict(self, inputs: Any, outputs: Sequence[str] | None = None) -> Any:
        """As `PackedModel.predict`."""


class Workload(abc.ABC):
    """A trained model, its data, and what both are for.

    Args:
        model: The model as it was loaded, in Keras's own layers.
        record: The model's record.
        seed: The seed of everything random.

    Attributes:
        model: The given model.
        record: The given record.
        item: What the model makes in use: "characters", "forecasts", "lines".
        verb: What making it is called: "generation".
        alone: How much of it is made at a time, when not many: "one text".
        data: The data, in words.
        fingerprint: A text that tells data apart.
        metric: The measure of quality.
        held_out: The batches of each part that models are judged on.
        batch_size: Rows per training batch by default in this task.
        length: Time steps per training row; None if the task has no choice of length.
        shapes: How many shapes training batches have: each is compiled.
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
        """Sets the batches to judge on, all of them."""
        self._all_held_out = batches
        self.judge_on(1.0)

    def judge_on(self, share: float) -> None:
        """Judges on a share of the batches from now on, spread over each part; on one batch at least."""
        self.held_out = {}
        for part, batches in self._all_held_out.items():
            chosen = spread(len(batches), max(1, int(share * len(batches))))
            self.held_out[part] = [batches[index] for index in chosen]
        self.metric = self.measure()

    @abc.abstractmethod
    def measure(self) -> Metric:
        """Return the measure of quality, with words on the batches it is taken on."""

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
        """Return training batches of one shape, to time steps: another shape is compiled anew in the middle of them.

        Arguments and errors are those of `source`.
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
            brief: Whether to judge on the first batch of the part alone, to compare two ways to compute one model.
        """

    def finish(self, model: Path, packed: Path | None) -> bool:
        """Brings up to date what the files of the chosen model say of its results.

        Args:
            model: The `.keras` file.
            packed: The packed file; None without one.

        Returns:
            Whether they were changed: for most tasks they say nothing.
        """
        return False

    @abc.abstractmethod
    def keras_uses(self, model: keras.Model) -> tuple[Use, ...]:
        """Return the ways to use it of somebody who has only Keras: "predict" and "predict_on_batch"."""

    @abc.abstractmethod
    def packed_use(self, model: PackedModel) -> Use:
        """Return the way to use it when it is packed."""

    @abc.abstractmethod
    def sample(self, model: keras.Model, packed: PackedModel | None) -> SampleOutput:
        """Return what the model makes of the sample input, which is always the same.

        Args:
            model: The model.
            packed: The same model packed, or None if it cannot be packed.
        """
