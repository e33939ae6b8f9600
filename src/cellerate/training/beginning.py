"""The start of a run: weights from elsewhere, such as a solution in closed form, or a checkpoint."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import keras
import numpy as np

from cellerate.errors import CheckpointError, ConfigError
from cellerate.format import counted
from cellerate.messages import argument
from cellerate.training.callbacks import Progress
from cellerate.training.checkpoint import Checkpoint, check_identity
from cellerate.training.checkpoint_folder import CheckpointFolder
from cellerate.training.parallel import Processes
from cellerate.training.settings import TrainingSettings
from cellerate.training.telemetry import Display


@dataclasses.dataclass(frozen=True)
class Beginning:
    """The start of a model.

    Attributes:
        words: A description of the start that follows the word "begins".
        weights: The weights of layers, by layer name, in the form of `set_weights`.
        fixed: The names of layers that are already solved. Training does not change them; in the model's file they
            are trainable like all others.
    """

    words: str
    weights: Mapping[str, Sequence[np.ndarray]]
    fixed: tuple[str, ...] = ()


Begin: TypeAlias = Callable[[keras.Model], Beginning | None]
"""Finds better weights for a new model than random ones; None if there are none. It does not change the model."""


def begun(begin: Begin | None, model: keras.Model, progress: Progress, processes: Processes) -> str:
    """Begins a new run. Returns a message about it; "" if the model does not change."""
    if begin is None:
        return ""
    clock = time.perf_counter()
    found = begin(model)
    if found is None:
        return ""
    for name, arrays in found.weights.items():
        model.get_layer(name).set_weights([processes.array_of_first(one) for one in arrays])
    progress.seconds = time.perf_counter() - clock
    progress.fixed = [*found.fixed]
    return f"; begins {found.words}"


@contextlib.contextmanager
def layers_held(model: keras.Model, names: Sequence[str], *, fixed: bool) -> Iterator[None]:
    """Fixes (or frees) some layers of a model within a `with`, and frees (or fixes) them afterwards."""
    layers = [model.get_layer(name) for name in names]
    for layer in layers:
        layer.trainable = not fixed
    try:
        yield
    finally:
        for layer in layers:
            layer.trainable = fixed


def checkpoint_to_resume(
    checkpoints: CheckpointFolder, identity: Mapping[str, Any], settings: TrainingSettings, display: Display
) -> Checkpoint | None:
    """The newest checkpoint of a run; None if all are damaged.

    Raises:
        CheckpointError: The checkpoint belongs to another run.
        ConfigError: The run has ended, or has trained more epochs than that.
    """
    checkpoint = checkpoints.newest(display.message)
    if checkpoint is None:
        return None
    check_identity(checkpoint.identity, identity)
    done = checkpoint.position.epoch
    # A run that was interrupted at the end of its last epoch has yet to end.
    if done > settings.epochs or (
        done == settings.epochs and (checkpoint.position.batch or checkpoint.progress.get("finished"))
    ):
        raise ConfigError(
            f"this run has already trained {counted(done, 'epoch')}: ask for more than that "
            f"({argument('epochs')} is {settings.epochs}) to go on."
        )
    return checkpoint


def progress_of(checkpoint: Checkpoint | None) -> Progress:
    """The progress of a run.

    Raises:
        CheckpointError: The checkpoint does not hold it.
    """
    if checkpoint is None:
        return Progress()
    try:
        return Progress(**checkpoint.progress)
    except TypeError as error:
        raise CheckpointError(
            f"the checkpoint is damaged ({error}). Leave {argument('resume', True)} out."
        ) from error
