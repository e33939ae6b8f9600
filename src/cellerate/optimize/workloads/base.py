"""What a task is to the optimizer: batches to train on, a quality, and a way to be used whose speed is measured.

Passes know nothing of texts, series or lines: they know this, and each task is one class beside it.
"""

import abc

import keras

from cellerate.data.batches import BatchSource
from cellerate.models.storage import TaskRecord
from cellerate.optimize.judging import Judged
from cellerate.report.record import Metric, Sample, Speed
from cellerate.runtime.packed import PackedModel


class Workload(abc.ABC):
    """A trained model, its data, and what both are for.

    Args:
        model: As it was loaded: in Keras's own layers.
        record: What belongs to it.
        seed: Of everything that is drawn.

    Attributes:
        model: The same; `copy` gives another.
        record: The same.
        item: What is made in use: "characters", "forecasts", "lines".
        verb: What making it is called: "generation".
        data: What the data are, in words.
        fingerprint: Tells data apart.
        metric: What the quality is.
        batch_size: Rows of a training batch that the task has by default.
        length: Time steps of a training row; None where it is not chosen.
    """

    item: str
    verb: str
    data: str
    fingerprint: str
    metric: Metric
    batch_size: int
    length: int | None = None

    def __init__(self, model: keras.Model, record: TaskRecord, seed: int) -> None:
        self.model, self.record, self.seed = model, record, seed

    @abc.abstractmethod
    def source(self, model: keras.Model, batch_size: int, length: int | None = None) -> BatchSource:
        """Training batches.

        Args:
            model: Who is trained.
            batch_size: Rows of a batch.
            length: Time steps of a row; None for those of the model's training.

        Raises:
            DataError: There are not enough data for one batch.
        """

    @abc.abstractmethod
    def loss(self, model: keras.Model) -> keras.losses.Loss:
        """What training minimises."""

    @abc.abstractmethod
    def judge(self, model: keras.Model | PackedModel) -> Judged:
        """How good a model is on the held-out data: always the same ones."""

    @abc.abstractmethod
    def keras_speeds(self, model: keras.Model) -> tuple[Speed, ...]:
        """How fast it is for someone who has Keras alone: "predict", and "predict_on_batch"."""

    @abc.abstractmethod
    def packed_speed(self, model: PackedModel) -> Speed:
        """How fast it is packed."""

    @abc.abstractmethod
    def sample(self, model: keras.Model, packed: PackedModel | None) -> Sample:
        """What it makes of an input that is always the same.

        Args:
            model: The model.
            packed: The same, packed, if it could be.
        """
