"""The steps of every training: open the data, build a model, cut batches, train, judge."""

from __future__ import annotations

import abc
import dataclasses
from typing import Any, Generic, TypeVar

import keras

from cellerate.data.arrays import BatchSource
from cellerate.training.checkpoint_folder import judging
from cellerate.training.loop import TrainingResult, train
from cellerate.training.parallel import apart
from cellerate.training.run import RunOptions, TrainingRun
from cellerate.training.start import check_start

Result = TypeVar("Result")


class Task(abc.ABC, Generic[Result]):
    """A training of one kind. `train_task` calls its methods in the order below.

    Args:
        run: The output and the settings of the training.
    """

    def __init__(self, run: RunOptions) -> None:
        self.run = run

    @abc.abstractmethod
    def open(self) -> None:
        """Opens the data and splits them into parts.

        Raises:
            CellerateError: The data or their settings cannot be used.
        """

    @abc.abstractmethod
    def build(self) -> keras.Model:
        """The model to train: a new one, or the user's own.

        Raises:
            CellerateError: The model does not fit the data.
        """

    @abc.abstractmethod
    def sources(self) -> tuple[BatchSource, BatchSource | None]:
        """The batches to train on, and those that decide which epoch is best, or None.

        Raises:
            DataError: There are too few data.
        """

    @abc.abstractmethod
    def held_out(self, batch_size: int) -> tuple[BatchSource | None, BatchSource | None]:
        """The batches to choose a model by, and those to judge the choice on: two parts that training does not see.

        They do not depend on the training batches. Call `build` first.

        Args:
            batch_size: Rows of a batch.

        Returns:
            The validation part and the test part; None for an empty part.
        """

    @abc.abstractmethod
    def training(self, validation: BatchSource | None) -> TrainingRun:
        """The facts about the task that the training loop needs."""

    @abc.abstractmethod
    def judge(self, training: TrainingResult) -> Result:
        """The trained model with its figures on held-out data."""

    @abc.abstractmethod
    def unjudged(self, training: TrainingResult) -> Result:
        """The trained model without figures: after an interruption, or in a process that is not the first."""


def train_task(task: Task[Result]) -> Result:
    """Trains a model for a task.

    Raises:
        CellerateError: Anything wrong with the data, the settings, the model or the output.
    """
    check_start(task.run)
    task.open()
    model = task.build()
    source, validation = task.sources()
    result = train(model, source, task.training(validation))
    if not result.can_be_judged:
        return task.unjudged(result)
    with apart(), judging(result.folder):
        return task.judge(result)


def trained_with(run: RunOptions) -> dict[str, Any]:
    """The settings of training that a model's file keeps."""
    return dataclasses.asdict(run.training) | {"backend": keras.config.backend()}
