"""Training a little and judging, as every way to compress needs it.

A module of its own, apart from `training`, because what is trained here is a step of a search: no file is written,
no epoch ends, and the same batches go on from one stretch to the next.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np

from cellerate.data.pipeline import KerasBatches
from cellerate.errors import ConfigError, DataError, TrainingError
from cellerate.keras_graph.graph import find_over_time, forget_states
from cellerate.layers.accelerate import accelerate
from cellerate.models.rewrite import same_layers
from cellerate.training.optimizers import loss_scaled

Data = Any
"""What `fit` takes and gives (x, y) or (x, y, sample_weight): a tuple of arrays, a PyDataset (such as
`data.pipeline.KerasBatches`), a `tf.data.Dataset`, a torch DataLoader; not a generator, which ends."""

Judge = Callable[[keras.Model], float]
"""Says how bad a model is; less is better."""

OnStep = Callable[[int, int, float], None]
"""Told of each step of a training: how many are done, of how many in all, and its loss. It may raise, to end it."""

_MOST_LOSSES = 200
_LOOKS = 4


class Course:
    """How far a training has come: it may go on in several stretches, between which the model is changed.

    Args:
        steps: How many there are in all, at least 1.
        on_step: Told of each.

    Attributes:
        steps: How many there are in all.
        losses: Of those that are done.
    """

    def __init__(self, steps: int, on_step: OnStep | None = None) -> None:
        self.steps = steps
        self.losses: list[float] = []
        self._on_step = on_step

    @property
    def rate(self) -> float:
        """What the next step has of the learning rate: all at first, and in a straight line down to nothing."""
        return max(0.0, 1.0 - len(self.losses) / self.steps)

    def note(self, loss: float) -> None:
        """A step is done."""
        self.losses.append(loss)
        if self._on_step is not None:
            self._on_step(len(self.losses), self.steps, loss)

    def curve(self) -> list[float]:
        """`curve` of its losses."""
        return curve(self.losses)


def curve(losses: Sequence[float]) -> list[float]:
    """The losses of steps; where there are more than 200, the means of as many stretches."""
    if len(losses) <= _MOST_LOSSES:
        return list(losses)
    return [float(part.mean()) for part in np.array_split(losses, _MOST_LOSSES)]


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


class Keeper:
    """Keeps the best weights that a model has while it is trained: on few data it may soon become worse again.

    Args:
        model: It.
        judge: Says how bad it is.

    Attributes:
        quality: The best so far; infinite before the first look.
    """

    def __init__(self, model: keras.Model, judge: Judge) -> None:
        self._model, self._judge = model, judge
        self.quality = math.inf
        self._best: list[np.ndarray] | None = None

    def look(self) -> None:
        """Judges the model as it is."""
        quality = float(self._judge(self._model))
        # What is no number is never better; of two that are alike the later has learnt more.
        if self._best is None or quality <= self.quality or math.isnan(self.quality):
            self.quality = quality
            self._best = [np.array(weight) for weight in self._model.get_weights()]

    def restore(self) -> float:
        """Gives the model its best weights back; their quality. One that was never looked at is judged now."""
        if self._best is None:
            self.look()
        assert self._best is not None  # noqa: S101 (looked at just before)
        self._model.set_weights(self._best)
        return self.quality


def fine_tune(
    model: keras.Model,
    batches: Iterator[tuple[Any, ...]],
    *,
    loss: Any,
    steps: int,
    learning_rate: float,
    course: Course | None = None,
    keeper: Keeper | None = None,
) -> float:
    """Trains a model in place, on the fastest kernels there are; Adam, gradients clipped to a norm of 1.

    The learning rate falls in a straight line to 0: without it a model that is trained briefly keeps the noise of
    its last batches, which costs more than all else here, and with it the rate may begin several times as high.

    Args:
        model: The model; it stays uncompiled.
        batches: Of `endless`; those that follow the ones taken before.
        loss: A Keras loss.
        steps: How many batches.
        learning_rate: Of Adam, where the course begins. Adam's moments start anew.
        course: Of which this is a stretch; None for one of its own.
        keeper: Of the same model; it looks at the end of each quarter. None keeps what comes out in the end.

    Returns:
        The mean loss.

    Raises:
        TrainingError: The loss is no longer a finite number.
    """
    if steps == 0:
        return math.nan
    course = Course(steps) if course is None else course
    trainer = same_layers(accelerate(model), f"{model.name}_trainer")
    trainer.compile(optimizer=_optimizer(model, learning_rate), loss=loss)
    forget_states(model)
    total = 0.0
    looks = {-(-steps * part // _LOOKS) for part in range(1, _LOOKS + 1)}
    # Not `fit`: it takes batches ahead that the next stretch would miss, and TensorFlow expects all to have the
    # shapes of the first two.
    for number, (x, y, *weight) in enumerate(itertools.islice(batches, steps), start=1):
        # Not a schedule of Keras's: it would count this stretch alone.
        trainer.optimizer.learning_rate = learning_rate * course.rate
        found = trainer.train_on_batch(x, y, sample_weight=weight[0] if weight else None, return_dict=True)
        value = float(found["loss"])
        if not math.isfinite(value):
            raise TrainingError("the loss is no longer a finite number: give a lower learning_rate.")
        total += value
        course.note(value)
        if keeper is not None and number in looks:
            keeper.look()
    forget_states(model)
    return total / steps


def _optimizer(model: keras.Model, learning_rate: float) -> keras.optimizers.Optimizer:
    optimizer = keras.optimizers.Adam(learning_rate, clipnorm=1.0)
    return loss_scaled(optimizer, {found.layer.dtype_policy.name for found in find_over_time(model)})


def loss_on(model: keras.Model, data: Data, *, loss: Any, batch_size: int) -> float:
    """The mean loss of a model on data, walked once; stateful layers begin with zeros, and end with them."""
    judge = same_layers(accelerate(model), f"{model.name}_judge")
    judge.compile(loss=loss)
    forget_states(model)
    try:
        return _evaluated(judge, data, batch_size)
    finally:
        forget_states(model)


def _evaluated(judge: keras.Model, data: Data, batch_size: int) -> float:
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
