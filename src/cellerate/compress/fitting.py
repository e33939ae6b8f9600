"""Training a little and judging, as every way to compress needs it.

A module of its own, apart from `training`, because what is trained here is a step of a search: no file is written,
no epoch ends, and the same batches go on from one stretch to the next.
"""

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np

from cellerate.data.pipeline import KerasBatches
from cellerate.errors import ConfigError, DataError, TrainingError
from cellerate.layers.accelerate import accelerate
from cellerate.models.rewrite import same_layers

Data = Any
"""What `fit` takes and gives (x, y) or (x, y, sample_weight): a tuple of arrays, a PyDataset (such as
`data.pipeline.KerasBatches`), a `tf.data.Dataset`, a torch DataLoader; not a generator, which ends."""

Judge = Callable[[keras.Model], float]
"""Says how bad a model is; less is better."""


def loss_of(model: keras.Model, loss: Any) -> Any:
    """The loss to train with: the one given, or the one that the model was compiled with.

    Raises:
        ConfigError: There is neither.
    """
    found = loss if loss is not None else getattr(model, "loss", None)
    if found is None:
        raise ConfigError(f"model {model.name!r} is not compiled: give `loss`, a Keras loss.")
    return found


def endless(data: Data, batch_size: int, seed: int) -> Iterator[tuple[Any, ...]]:
    """The batches of data over and over; arrays are shuffled anew each time.

    Raises:
        ConfigError: It is a generator, or of a kind that is not known.
        DataError: There is no batch, or arrays are not of like lengths.
    """
    if isinstance(data, tuple):
        return _array_batches(data, batch_size, seed)
    if isinstance(data, keras.utils.PyDataset):
        return _dataset_batches(_own(data))
    if hasattr(data, "__next__") or not hasattr(data, "__iter__"):
        raise ConfigError(
            f"data is a {type(data).__name__}; expected a tuple (x, y) of arrays, a PyDataset, a tf.data.Dataset "
            "or a DataLoader: something that can be walked more than once."
        )
    return _iterable_batches(data)


def fine_tune(
    model: keras.Model, batches: Iterator[tuple[Any, ...]], *, loss: Any, steps: int, learning_rate: float
) -> float:
    """Trains a model in place, on the fastest kernels there are; Adam, gradients clipped to a norm of 1.

    Args:
        model: The model; it stays uncompiled.
        batches: Of `endless`; those that follow the ones taken before.
        loss: A Keras loss.
        steps: How many batches.
        learning_rate: Of Adam, which starts anew.

    Returns:
        The mean loss.

    Raises:
        TrainingError: The loss is no longer a finite number.
    """
    if steps == 0:
        return math.nan
    trainer = same_layers(accelerate(model), f"{model.name}_trainer")
    trainer.compile(optimizer=keras.optimizers.Adam(learning_rate, clipnorm=1.0), loss=loss)
    total = 0.0
    # Not `fit`: it takes batches ahead that the next stretch would miss, and TensorFlow expects all to have the
    # shapes of the first two.
    for x, y, *weight in itertools.islice(batches, steps):
        found = trainer.train_on_batch(x, y, sample_weight=weight[0] if weight else None, return_dict=True)
        total += float(found["loss"])
        if not math.isfinite(total):
            raise TrainingError("the loss is no longer a finite number: give a lower learning_rate.")
    return total / steps


def loss_on(model: keras.Model, data: Data, *, loss: Any, batch_size: int) -> float:
    """The mean loss of a model on data, walked once."""
    judge = same_layers(accelerate(model), f"{model.name}_judge")
    judge.compile(loss=loss)
    # By name: of a model of several outputs Keras would give the loss of each beside it.
    asked: dict[str, Any] = {"verbose": 0, "return_dict": True}
    if isinstance(data, tuple):
        x, y, *weight = data
        asked |= {"sample_weight": weight[0] if weight else None, "batch_size": batch_size}
        return float(judge.evaluate(x, y, **asked)["loss"])
    return float(judge.evaluate(_own(data), **asked)["loss"])


def _own(data: Any) -> Any:
    """Data with a position of its own, where they have one: walking them must not move the caller's."""
    if isinstance(data, KerasBatches):
        return KerasBatches(data.source, start=data.start, stop=data.stop, epoch=data.epoch)
    return data


def _array_batches(arrays: tuple[Any, ...], batch_size: int, seed: int) -> Iterator[tuple[Any, ...]]:
    if len(arrays) not in (2, 3):
        raise ConfigError(f"data is a tuple of {len(arrays)}; expected (x, y) or (x, y, sample_weight).")
    arrays = arrays[:2] if arrays[-1] is None else arrays
    flat = keras.tree.flatten(arrays)
    lengths = {len(array) for array in flat}
    if len(lengths) != 1 or not min(lengths):
        raise DataError(
            f"the arrays of data have {sorted(lengths)} rows; expected as many in each, and some."
        )
    (rows,) = lengths
    rng = np.random.default_rng(seed)

    def walk() -> Iterator[tuple[Any, ...]]:
        while True:
            order = rng.permutation(rows)
            # Whole batches only, where there is one: each shape is compiled anew.
            size = min(batch_size, rows)
            for start in range(0, rows - size + 1, size):
                chosen = np.sort(order[start : start + size])
                yield keras.tree.map_structure(lambda array: array[chosen], arrays)  # noqa: B023 (used at once)

    return walk()


def _dataset_batches(data: keras.utils.PyDataset) -> Iterator[tuple[Any, ...]]:
    count = len(data)
    if count == 0:
        raise DataError("data has no batch.")

    def walk() -> Iterator[tuple[Any, ...]]:
        # In the order in which `fit` calls them: a dataset may rely on it.
        data.on_epoch_end()
        while True:
            data.on_epoch_begin()
            for index in range(count):
                yield data[index]
            data.on_epoch_end()

    return walk()


def _iterable_batches(data: Any) -> Iterator[tuple[Any, ...]]:
    def walk() -> Iterator[tuple[Any, ...]]:
        while True:
            found = False
            for batch in data:
                found = True
                yield tuple(keras.tree.map_structure(_numpy, tuple(batch)))
            if not found:
                raise DataError("data has no batch.")

    return walk()


def _numpy(value: Any) -> np.ndarray:
    return value.numpy() if hasattr(value, "numpy") else np.asarray(value)
