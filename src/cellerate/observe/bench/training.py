"""Training steps of Keras, on its own code or on Cellerate's kernels: the time of `fit` for a batch."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np

from cellerate.models.text import build_text_model
from cellerate.observe.bench.jobs import Job
from cellerate.observe.bench.model import (
    CHECKED_STEPS,
    EPSILON,
    LEARNING_RATE,
    Batches,
    Sizes,
    error_of_losses,
    read_truth,
    weights_of,
)


class Clock(keras.callbacks.Callback):
    """The times and the losses of the batches of one `fit`, which begins when the clock is made."""

    def __init__(self) -> None:
        super().__init__()
        self.means: list[float] = []
        self._ends = [time.perf_counter()]

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Store the time and Keras's mean loss of the epoch so far."""
        self.means.append(float(logs["loss"]))
        self._ends.append(time.perf_counter())

    def seconds(self) -> list[float]:
        """The time of each batch; the first includes the start of `fit`."""
        return np.diff(self._ends).tolist()

    def losses(self) -> list[float]:
        """The loss of each batch."""
        sums = np.array(self.means) * np.arange(1, len(self.means) + 1)
        return np.diff(sums, prepend=0.0).tolist()


def fit_jobs(folder: Path, sizes: Sizes, accelerated: bool) -> list[Job]:
    """The job of training with `fit`, one batch a step, with Adam.

    Args:
        folder: The folder with the truth.
        sizes: The sizes of the model.
        accelerated: True for Cellerate's kernels; False for Keras's own code.
    """
    truth = read_truth(folder)
    sparse = keras.backend.backend() == "tensorflow"
    batches = Batches(truth["text"], sizes)
    model = keras_model(truth, sizes)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(LEARNING_RATE, epsilon=EPSILON), loss)
    if accelerated:
        from cellerate.layers.accelerate import accelerate

        # By name: a model that cannot run there must fail, not be timed on other code.
        accelerate(model, "cellerate-cpu")

    def steps(count: int) -> tuple[list[float], list[float]]:
        inputs, targets = zip(*(batches.next() for _ in range(count)), strict=True)
        clock = Clock()
        model.fit(
            np.concatenate(inputs),
            np.concatenate(targets),
            batch_size=sizes.batch,
            epochs=1,
            shuffle=False,
            verbose=0,
            callbacks=[clock],
        )
        return clock.seconds(), clock.losses()

    # The first step includes the start of `fit`.
    run: Callable[[int], list[float]] = lambda count: steps(count + 1)[0][1:]  # noqa: E731
    way = "fit"
    return [
        Job(
            "training",
            "a batch of fit",
            "float32",
            {way: run},
            lambda _: error_of_losses(steps(CHECKED_STEPS)[1], truth, sparse=sparse),
            sizes.batch * sizes.steps,
        )
    ]


def keras_model(truth: dict[str, np.ndarray], sizes: Sizes) -> keras.Model:
    """The model in plain Keras, with the weights of all contestants."""
    made = build_text_model(sizes.vocabulary, embedding=sizes.embedding, units=sizes.units)
    made.set_weights(weights_of(truth))
    return made
