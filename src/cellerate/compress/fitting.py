"""Short training and judging, shared by all ways to compress.

Unlike `training`, this trains as one step of a search: it writes no file, no epoch ends, and the same
sequence of batches continues from one stretch to the next.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np

from cellerate.compress.packed_outputs import PackedOutputs
from cellerate.data.pipeline import KerasBatches
from cellerate.errors import CellerateError, ConfigError, DataError, ModelError, TrainingError, in_a_line
from cellerate.keras_graph.compiling import loss_weights_of
from cellerate.keras_graph.graph import find_over_time, forget_states
from cellerate.keras_graph.to_program import no_graph
from cellerate.layers.accelerate import accelerate
from cellerate.messages import argument
from cellerate.models.rewrite import same_layers
from cellerate.training.optimizers import loss_scaled

Data = Any
"""Whatever `fit` accepts that gives (x, y) or (x, y, sample_weight): a tuple of arrays, a PyDataset (such as
`data.pipeline.KerasBatches`), a `tf.data.Dataset`, a torch DataLoader; but not a generator, as it ends."""

_EXPECTED = (
    "expected a tuple (x, y) of arrays, a PyDataset, a tf.data.Dataset or a DataLoader: something that can be "
    "walked more than once."
)

Judge = Callable[[keras.Model], float]
"""Returns how bad a model is; less is better."""

OnStep = Callable[[int, int, float], None]
"""Called after each training step with the steps done, the steps in all, and the loss. It may raise to end training."""

_MOST_LOSSES = 200
_LOOKS = 4


class Course:
    """The progress of a training that may go on in several stretches, with changes to the model in between.

    Args:
        steps: The number of steps in all, at least 1.
        on_step: Called after each step.

    Attributes:
        steps: The number of steps in all.
        losses: The losses of the steps done so far.
    """

    def __init__(self, steps: int, on_step: OnStep | None = None) -> None:
        self.steps = steps
        self.losses: list[float] = []
        self._on_step = on_step

    @property
    def rate(self) -> float:
        """The share of the learning rate for the next step: 1 at first, falling in a straight line to 0."""
        return max(0.0, 1.0 - len(self.losses) / self.steps)

    def note(self, loss: float) -> None:
        """Records a finished step."""
        self.losses.append(loss)
        if self._on_step is not None:
            self._on_step(len(self.losses), self.steps, loss)

    def curve(self) -> list[float]:
        """Gives the `curve` of its losses."""
        return curve(self.losses)


def curve(losses: Sequence[float]) -> list[float]:
    """Gives the losses of steps; if there are more than 200, the means of 200 equal stretches."""
    if len(losses) <= _MOST_LOSSES:
        return list(losses)
    return [float(part.mean()) for part in np.array_split(losses, _MOST_LOSSES)]


@dataclasses.dataclass(frozen=True)
class WeightedLoss:
    """The losses of a model with several outputs, which count differently.

    Attributes:
        loss: What Keras's `compile` takes as `loss`.
        weights: What it takes as `loss_weights`.
    """

    loss: Any
    weights: Any


def loss_of(model: keras.Model, loss: Any) -> Any:
    """Gives the loss to train with: `loss`, or the one that the model was compiled with, weighted as there.

    Raises:
        ConfigError: There is neither, or Keras does not know it.
        ModelError: The model is not one of Keras.
    """
    if not isinstance(model, keras.Model):
        raise ModelError(no_graph(model))
    found = loss if loss is not None else getattr(model, "loss", None)
    if found is None:
        raise ConfigError(f"model {model.name!r} is not compiled: give `loss`, a Keras loss.")
    try:
        keras.tree.map_structure(keras.losses.get, found)
    except ValueError as error:
        raise ConfigError(f"{argument('loss')} is {found!r}; expected a loss that Keras knows.") from error
    weights = loss_weights_of(model) if loss is None else None
    return found if weights is None else WeightedLoss(found, weights)


def compile_with(model: keras.Model, loss: Any, optimizer: Any = "rmsprop") -> None:
    """Compiles a model with a loss from `loss_of`."""
    weighted = loss if isinstance(loss, WeightedLoss) else WeightedLoss(loss, None)
    model.compile(optimizer=optimizer, loss=weighted.loss, loss_weights=weighted.weights)


def checked_data(name: str, data: Data | None) -> Data | None:
    """Gives data in which rows can be chosen: data frames and tensors become arrays, all else stays as it is.

    Args:
        name: The argument that the data come from.
        data: The data; None stays None.

    Raises:
        ConfigError: The data are of a kind that cannot be walked again and again.
        DataError: The arrays have no rows, or differ in length.
    """
    if data is None:
        return None
    if isinstance(data, tuple):
        return _checked_arrays(name, data)
    if isinstance(data, keras.utils.PyDataset):
        if _count(data) is None:
            raise ConfigError(f"{argument(name)} never ends: give the PyDataset a __len__ or num_batches.")
        return data
    # A list or one array can be walked, too, but what it gives are not batches.
    walks = hasattr(data, "__iter__") and not hasattr(data, "__next__") and not hasattr(data, "shape")
    if not walks or isinstance(data, list | dict | set | str | bytes):
        raise ConfigError(f"{argument(name)} is a {type(data).__name__}; {_EXPECTED}")
    return data


def _checked_arrays(name: str, arrays: tuple[Any, ...]) -> tuple[Any, ...]:
    if len(arrays) not in (2, 3):
        raise ConfigError(
            f"{argument(name)} is a tuple of {len(arrays)}; expected (x, y) or (x, y, sample_weight)."
        )
    arrays = arrays[:2] if arrays[-1] is None else arrays
    for value in keras.tree.flatten(arrays):
        if not len(getattr(value, "shape", ())):
            raise ConfigError(
                f"{argument(name)} has {value!r:.40} where an array is expected: give NumPy arrays, "
                "such as numpy.asarray(x)."
            )
    found: tuple[Any, ...] = keras.tree.map_structure(_sliceable, arrays)
    lengths = {len(array) for array in keras.tree.flatten(found)}
    if len(lengths) != 1 or not min(lengths):
        raise DataError(
            f"the arrays of {argument(name)} have {sorted(lengths)} rows; expected as many in each, and some."
        )
    return found


def endless(data: Data, batch_size: int, seed: int) -> Iterator[tuple[Any, ...]]:
    """Gives the batches of data over and over; arrays are reshuffled each time.

    Raises:
        ConfigError: The data are a generator, or of an unknown kind.
        DataError: There is no batch, or the arrays differ in length.
    """
    if data is None:
        raise ConfigError(f"{argument('data')} is None; {_EXPECTED}")
    data = checked_data("data", data)
    if isinstance(data, tuple):
        return _array_batches(data, batch_size, seed)
    if isinstance(data, keras.utils.PyDataset):
        return _dataset_batches(_own(data))
    return _iterable_batches(data)


class Keeper:
    """Keeps the best weights a model has had during training: with little data it may soon get worse again.

    Args:
        model: The model in training.
        judge: Returns how bad it is.

    Attributes:
        quality: The best so far; infinite before the first look.
    """

    def __init__(self, model: keras.Model, judge: Judge) -> None:
        self._model, self._judge = model, judge
        self.quality = math.inf
        self._best: list[np.ndarray] | None = None

    def look(self) -> None:
        """Judges the model as it is now."""
        quality = float(self._judge(self._model))
        # A NaN is never better; of two equal models the later one has learnt more.
        if self._best is None or quality <= self.quality or math.isnan(self.quality):
            self.quality = quality
            self._best = [np.array(weight) for weight in self._model.get_weights()]

    def restore(self) -> float:
        """Restores the model's best weights and gives their quality. A model never looked at is judged now."""
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
    """Trains a model in place on the fastest kernels available, with Adam and gradients clipped to a norm of 1.

    The learning rate falls in a straight line to 0. Otherwise a briefly trained model keeps the noise of its
    last batches, which costs more than anything else here; and with the fall, training can start at a rate
    several times as high.

    Args:
        model: The model; it stays uncompiled.
        batches: Batches from `endless`; training takes the next ones.
        loss: A Keras loss.
        steps: How many batches to train on.
        learning_rate: Adam's learning rate at the start of the course. Adam's moments start afresh.
        course: The course that this training is a stretch of; None for a course of its own.
        keeper: A keeper of the same model; it looks at the end of each quarter. None keeps the final weights.

    Returns:
        The mean loss.

    Raises:
        TrainingError: The loss is no longer a finite number.
    """
    if steps == 0:
        return math.nan
    course = Course(steps) if course is None else course
    trainer = same_layers(accelerate(model), f"{model.name}_trainer")
    compile_with(trainer, loss, _optimizer(model, learning_rate))
    forget_states(model)
    total = 0.0
    looks = {-(-steps * part // _LOOKS) for part in range(1, _LOOKS + 1)}
    # Not `fit`: it fetches batches ahead, which the next stretch would then miss, and with TensorFlow it
    # expects all batches to have the shapes of the first two.
    for number, (x, y, *weight) in enumerate(itertools.islice(batches, steps), start=1):
        # Not a Keras schedule: it would count this stretch alone.
        trainer.optimizer.learning_rate = learning_rate * course.rate
        found = trainer.train_on_batch(x, y, sample_weight=weight[0] if weight else None, return_dict=True)
        value = float(found["loss"])
        if not math.isfinite(value):
            raise _not_finite((x, y, weight), course)
        total += value
        course.note(value)
        if keeper is not None and number in looks:
            keeper.look()
    forget_states(model)
    return total / steps


def _not_finite(batch: Any, course: Course) -> TrainingError:
    """Says why the loss of a batch may not be a finite number."""
    numbers = (np.asarray(keras.ops.convert_to_numpy(value)) for value in keras.tree.flatten(batch))
    if not all(np.isfinite(found).all() for found in numbers if found.dtype.kind in "fV"):
        return TrainingError(
            f"{argument('data')} has NaN or infinity in a batch: fill such values, or leave their rows out."
        )
    if not course.losses:
        return TrainingError(
            "the loss is not a finite number before any training: look for NaN in the weights of the model."
        )
    return TrainingError(f"the loss became NaN or infinite: give a lower {argument('learning_rate')}.")


def _optimizer(model: keras.Model, learning_rate: float) -> keras.optimizers.Optimizer:
    optimizer = keras.optimizers.Adam(learning_rate, clipnorm=1.0)
    return loss_scaled(optimizer, {found.layer.dtype_policy.name for found in find_over_time(model)})


def loss_on(
    model: keras.Model, data: Data, *, loss: Any, batch_size: int, precision: str | None = None
) -> float:
    """The mean loss of a model over one pass through data; states of stateful layers are zeroed before and after.

    Args:
        model: The model; it stays uncompiled.
        data: What to judge it on.
        loss: A loss from `loss_of`.
        batch_size: Rows per batch, if data are arrays.
        precision: The precision of the packed file whose outputs are judged; None for those of Keras.

    Raises:
        DataError: The data do not fit the model.
    """
    _check_ends(data)
    judge = same_layers(accelerate(model), f"{model.name}_judge")
    compile_with(judge, loss)
    callbacks: list[keras.callbacks.Callback] = []
    # Keras carries the states of stateful layers from batch to batch; a packed file begins each call with zeros.
    if precision is not None and not any(
        getattr(one.layer, "stateful", False) for one in find_over_time(model)
    ):
        callbacks, judge.run_eagerly = [PackedOutputs(precision)], True
    forget_states(model)
    try:
        return _evaluated(judge, data, batch_size, callbacks)
    except (CellerateError, MemoryError):
        raise
    except Exception as error:  # each backend has its own for shapes that do not fit
        raise DataError(
            f"the model cannot be judged on {argument('data')} by its loss: {in_a_line(error)}. Give inputs and "
            "targets of the model's shapes."
        ) from error
    finally:
        forget_states(model)


def _check_ends(data: Data) -> None:
    """Raises `ConfigError` for a `tf.data.Dataset` that repeats forever: Keras would judge on it forever, too."""
    # TensorFlow's number for infinitely many.
    if hasattr(data, "cardinality") and int(data.cardinality()) == -1:
        raise ConfigError(
            f"a model cannot be judged on a dataset that never ends: leave out repeat(), or give "
            f"{argument('validation')}."
        )


def _evaluated(
    judge: keras.Model, data: Data, batch_size: int, callbacks: list[keras.callbacks.Callback]
) -> float:
    # By name, because for a model with several outputs Keras gives the loss of each as well.
    asked: dict[str, Any] = {"verbose": 0, "return_dict": True, "callbacks": callbacks}
    if isinstance(data, tuple):
        x, y, *weight = data
        asked |= {"sample_weight": weight[0] if weight else None, "batch_size": batch_size}
        return float(judge.evaluate(x, y, **asked)["loss"])
    return float(judge.evaluate(_own(data), **asked)["loss"])


def _own(data: Any) -> Any:
    """Gives data with a separate position, if they have one: reading them must not move the caller's."""
    if isinstance(data, KerasBatches):
        return KerasBatches(data.source, start=data.start, stop=data.stop, epoch=data.epoch)
    return data


def _array_batches(arrays: tuple[Any, ...], batch_size: int, seed: int) -> Iterator[tuple[Any, ...]]:
    rows = len(keras.tree.flatten(arrays)[0])
    rng = np.random.default_rng(seed)

    def walk() -> Iterator[tuple[Any, ...]]:
        while True:
            order = rng.permutation(rows)
            # Only whole batches, if there is at least one: each new shape is compiled again.
            size = min(batch_size, rows)
            for start in range(0, rows - size + 1, size):
                chosen = np.sort(order[start : start + size])
                yield keras.tree.map_structure(lambda array: array[chosen], arrays)  # noqa: B023 (used at once)

    return walk()


def _count(data: keras.utils.PyDataset) -> int | None:
    """The number of batches; None if it has no end."""
    try:
        return data.num_batches
    except NotImplementedError:
        return None


def _dataset_batches(data: keras.utils.PyDataset) -> Iterator[tuple[Any, ...]]:
    count = _count(data)
    if not count:
        raise DataError("data has no batch.")

    def walk() -> Iterator[tuple[Any, ...]]:
        # The callbacks run in the order of `fit`, because a dataset may rely on it.
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


def _sliceable(value: Any) -> Any:
    """An array whose rows can be chosen by number; an array on disk stays there."""
    if hasattr(value, "to_numpy"):
        return value.to_numpy()
    return _numpy(value) if hasattr(value, "numpy") else value


def _numpy(value: Any) -> np.ndarray:
    # A tensor of PyTorch may have a gradient, or be on the GPU.
    value = value.detach().cpu() if hasattr(value, "detach") else value
    return value.numpy() if hasattr(value, "numpy") else np.asarray(value)
