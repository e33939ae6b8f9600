"""The batches that a user gets, and the arguments that windows and texts have in common."""

from __future__ import annotations

import random
from typing import Any, Protocol

import numpy as np

from cellerate.data.arrays import unmasked
from cellerate.data.pipeline import KerasBatches
from cellerate.errors import ConfigError, DataError
from cellerate.messages import argument
from cellerate.settings import check_number


class ArrayLike(Protocol):
    """An array of NumPy, or a tensor or a column that becomes one."""

    def __array__(self) -> np.ndarray:
        """The array."""


class Loader(KerasBatches):
    """Batches that `fit`, `evaluate` and `predict` take as they are, on each backend.

    `len()` is the number of batches, `loader[k]` batch `k`, and a loop over it gives all batches of epoch
    `loader.epoch`. Each epoch of `fit` is one of the source, and `fit` counts `epoch` on; a loop does not, so a
    training loop must set it. It may also be set to continue a training. The order is that of the source, whatever
    `fit(shuffle=...)` says.
    """

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one input, as `keras.Input` takes it."""
        shape: tuple[int, ...] = self.source.batch(0, 0)[0].shape[1:]
        return shape

    def __getitem__(self, index: int) -> Any:
        """Batch `index` of the current epoch; while `fit` runs, the batch that is next.

        `fit` asks for each batch once, by default in an order of its own, in which none could be made ahead.
        """
        ahead = self._within and self._next < len(self)
        return super().__getitem__(self._next if ahead else index)


def is_array(data: Any) -> bool:
    """True for an `ArrayLike`; False for tables, although some convert to an array."""
    if isinstance(data, np.ndarray):
        return data.dtype.names is None
    return hasattr(data, "__array__") and not hasattr(data, "columns")


def numbers_of(name: str, data: Any) -> np.ndarray:
    """An array of numbers that the argument `name` holds. Raises an error in words if it holds something else."""
    try:
        values = np.asarray(unmasked(data))
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(f"{argument(name)} is {data!r:.40}; expected an array of numbers.") from error
    if values.ndim == 0 or values.dtype.kind not in "fiub" or not len(values):
        raise DataError(
            f"{argument(name)} has the shape {values.shape} and the type {values.dtype}; expected an array of numbers "
            "with a row for each step of time."
        )
    return values


def drawn_seed(shuffle: bool, seed: int | None) -> int | None:
    """The seed of the shuffle, drawn if none is given; None for no shuffle."""
    if not isinstance(shuffle, bool | np.bool_):
        raise ConfigError(f"{argument('shuffle')} is {shuffle!r}; expected True or False.")
    if seed is not None:
        check_number("seed", seed, at_least=0, whole=True)
    if not shuffle:
        return None
    # `keras.utils.set_random_seed` seeds Python's own generator, too.
    return random.randrange(1 << 31) if seed is None else seed
