"""A training run: the user's options, and the needs of its task."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras

from cellerate.data.arrays import BatchSource
from cellerate.models.storage import TaskRecord
from cellerate.settings import check_number
from cellerate.training.beginning import Begin
from cellerate.training.parallel import Processes
from cellerate.training.settings import TrainingSettings
from cellerate.training.telemetry import Display, Sample
from cellerate.training.time_limits import TimeLimits


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The user's options of a run, the same for every task.

    Attributes:
        output: A `.keras` path for the best model; the run folder lies beside it.
        training: How to train.
        resume: Continues from the checkpoint in the run folder.
        overwrite: Replaces a model or an unfinished run of the same name.
        callbacks: Keras callbacks of your own, called as `fit` calls them. Their model is the compiled one, which has
            the layers of the model. A run that resumes in the middle of an epoch begins `fit` twice.
        sample_every: Shows a sample after so many steps, and after each epoch; None shows none.
        display: Listens to the run; None shows nothing. Of several processes, only the first shows.
        began: The time of `perf_counter` at which the run began, for `time_budget`.
    """

    output: str | Path
    training: TrainingSettings = TrainingSettings()  # noqa: RUF009 (frozen, and so safely shared)
    resume: bool = False
    overwrite: bool = False
    callbacks: Sequence[keras.callbacks.Callback] = ()
    sample_every: int | None = None
    display: Display | None = None
    began: float = dataclasses.field(default_factory=time.perf_counter)

    def __post_init__(self) -> None:
        """Checks the number.

        Raises:
            ConfigError: It cannot be used.
        """
        check_number("sample_every", self.sample_every, at_least=1, whole=True, optional=True)

    @functools.cached_property
    def limits(self) -> TimeLimits:
        """The time limits, counted from the beginning of the run."""
        return TimeLimits.of(self.training, self.began)

    @functools.cached_property
    def listener(self) -> Display:
        """The display in the first process; one that shows nothing in the others."""
        return self.display if self.display is not None and Processes().first else Display()


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingRun:
    """A training run: the user's options, and the needs of its task.

    Attributes:
        options: The user's options.
        loss: A Keras loss.
        record: The task's record in the model's file; None writes a plain Keras model.
        metrics: Keras metrics, weighted if the source gives weights.
        validation: Batches whose loss decides which epoch is best; with None, the last epoch is.
        begin: Gives the model of a new run better weights than random ones, such as a solution in closed form. That
            model is judged on the validation data, too, and stays the best one unless an epoch is clearly better:
            see `stretches.clearly_better`. The time counts as training.
        identity: Further settings that a resumed run must share with this one.
        carry_states: Truncated backpropagation through time: the states of recurrent layers carry over from
            batch to batch, and start from zero each epoch. Needs a source whose rows continue in the same way.
        bits: The name under which to show the loss in bits, if it is a cross-entropy in nats.
        sample: Returns a sample of the model's output to show; from its weights alone, as only one process calls it.
        ignorant: The loss of a model that has learned nothing, such as one that finds all characters equally likely. An
            epoch has diverged if its loss is far above this loss and that of the first step.
    """

    options: RunOptions
    loss: Any
    record: TaskRecord | None = None
    metrics: Sequence[Any] = ()
    validation: BatchSource | None = None
    begin: Begin | None = None
    identity: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    carry_states: bool = False
    bits: str | None = None
    sample: Callable[[keras.Model], Sample] | None = None
    ignorant: float | None = None
