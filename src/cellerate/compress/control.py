"""The control of a compression: the same model, not compressed, trained as much further and on the same batches.

The training in a compression alone may make a model better than the original. Only a comparison with the control
shows what the compression itself costs.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import keras
import numpy as np

from cellerate.compress.fitting import Course, Data, Judge, Keeper, OnStep, endless, fine_tune
from cellerate.compress.fixed_batch import rows_per_batch
from cellerate.layers.accelerate import restore
from cellerate.models.rewrite import describe, rebuild
from cellerate.settings import check_counts, check_number


@dataclasses.dataclass(frozen=True, kw_only=True)
class FineTuning:
    """The further training of a model in a compression, and its judge.

    Attributes:
        loss: A Keras loss.
        steps: How many batches to train on, at least 1.
        learning_rate: The learning rate at the start of training; it falls to 0.
        judge: Returns how bad a model is, and so decides which stage is kept.
        seed: The seed for the order of the batches.
        batch_size: Rows per batch, if data are arrays.
        on_step: Called after each step with how many are done, how many there are, and the loss.
    """

    loss: Any
    steps: int
    learning_rate: float
    judge: Judge
    seed: int
    batch_size: int = 64
    on_step: OnStep | None = None


def train_further(model: keras.Model, data: Data, tuning: FineTuning, *, parts: int = 1) -> keras.Model:
    """Trains a copy of a model as `prune`, `distill` and `quantize` train theirs.

    With the same settings the copy sees the same batches in the same order, at the same learning rates. As in those
    functions, the best of four stages of its training is kept.

    Args:
        model: A built Functional or Sequential model. It is not changed.
        data: The training data, as `fitting.Data`.
        tuning: How to train.
        parts: The number of stretches, each with its own optimizer: `quantize.STRETCHES` for a control of
            `quantize`; 1 for the others.

    Returns:
        The copy, not compiled.

    Raises:
        DataError: There is no batch.
        ModelError: The model cannot be rebuilt.
        TrainingError: The loss is no longer a finite number.
    """
    batches = endless(data, rows_per_batch(model, tuning.batch_size, data), tuning.seed)
    copy = rebuild(model, describe(model))
    course, keeper = Course(tuning.steps, tuning.on_step), Keeper(copy, tuning.judge)
    for length in stretches(tuning.steps, parts):
        fine_tune(
            copy,
            batches,
            loss=tuning.loss,
            steps=length,
            learning_rate=tuning.learning_rate,
            course=course,
            keeper=keeper if parts == 1 else None,
        )
        if parts > 1:
            keeper.look()
    keeper.restore()
    restore(copy)
    return copy


def stretches(steps: int, parts: int) -> list[int]:
    """Gives the steps of each of at most `parts` stretches of about the same length; none is empty."""
    return [length for length in np.diff(np.linspace(0, steps, parts + 1).astype(int)).tolist() if length]


def pruning_rounds(rounds: int, steps: int) -> Iterator[tuple[float, int, bool]]:
    """Gives for each round of pruning the share removed by its end, its steps, and True for the last.

    The share follows the cubic schedule. Rounds share the steps equally; the last takes the remainder, too.
    """
    for number in range(1, rounds + 1):
        last = number == rounds
        yield 1 - (1 - number / rounds) ** 3, steps // rounds + (steps % rounds if last else 0), last


def check_pruning(settings: Mapping[str, Any]) -> None:
    """Raises `ConfigError` for a setting that `prune` and `sparsify` have in common and that is out of range."""
    check_counts(rounds=settings["rounds"], batch_size=settings["batch_size"])
    for name in ("steps", "seed"):
        check_number(name, settings[name], at_least=0, whole=True)
    check_number("learning_rate", settings["learning_rate"], above=0)


def ahead(
    batches: Iterator[tuple[Any, ...]], count: int
) -> tuple[list[tuple[Any, ...]], Iterator[tuple[Any, ...]]]:
    """Looks at the next batches without taking them: gives them, and an iterator that replaces the given one.

    So the batches that choose units or scales are also trained on, and a control sees the same batches.
    """
    seen = list(itertools.islice(batches, count))
    return seen, itertools.chain(seen, batches)
