"""Gives a model on TensorFlow the batches of its arrays directly, in the order that Keras's data set would have.

A data set makes a batch on another thread in 90 µs, which is as long as a whole step of a small model takes.
"""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
from keras.src import tree
from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter

from cellerate.layers.engine.datasets import knows_rows

# Larger batches are better copied by the threads of a data set.
_LARGEST_BYTES = 1 << 20


def take_over(epochs: Any, on_engine: Callable[[], bool | None]) -> None:
    """Lets the epochs of `fit` or `evaluate` read arrays, if their data are dense arrays.

    Args:
        epochs: Keras's iterator over epochs of batches, which changes.
        on_engine: Whether the engine runs the model's steps, None before the first; asked as each epoch begins.
    """
    own = getattr(epochs, "_distributed_dataset", None)
    adapter: Any = getattr(epochs, "data_adapter", None)
    if type(adapter) is not ArrayDataAdapter or isinstance(own, ArrayDataset) or epochs.steps_per_epoch:
        return
    if not hasattr(own, "element_spec") or adapter._shuffle not in (True, False):
        return
    arrays = tree.map_structure(_dense, tree.lists_to_tuples(adapter._inputs))
    flat = tree.flatten(arrays)
    if any(one is None for one in flat):
        return
    rows = min(adapter._batch_size, adapter._num_samples)
    if sum(one.nbytes // len(one) * rows for one in flat) <= _LARGEST_BYTES:
        epochs._distributed_dataset = ArrayDataset(own, adapter, arrays, on_engine)


def _dense(values: Any) -> np.ndarray | None:
    """The array that is read; None for what is left to the data set."""
    fits = type(values) is np.ndarray and values.dtype.kind in "fiub" and values.size > 0
    return values if fits and keras.config.floatx() != "bfloat16" else None


class ArrayDataset:
    """Stands in for Keras's data set of arrays; each iterator is an epoch.

    Args:
        own: Keras's data set, which is read unless the engine is known to run the model.
        adapter: Keras's description of the data.
        arrays: The values of all rows, in the structure of a batch.
        on_engine: As in `take_over`.
    """

    def __init__(
        self, own: Any, adapter: ArrayDataAdapter, arrays: Any, on_engine: Callable[[], bool | None]
    ) -> None:
        self.element_spec = own.element_spec
        self._own, self._adapter, self._arrays, self._on_engine = own, adapter, arrays, on_engine
        self._orders: Any = None

    def __iter__(self) -> Iterator[Any]:
        on_engine = self._on_engine()
        if on_engine:
            return ArrayBatches(self)
        if on_engine is None:
            # Later epochs may be read here, and begin with the second order.
            self.next_order()
        epoch: Iterator[Any] = iter(self._own)
        return epoch

    def next_order(self) -> np.ndarray | None:
        """The rows of the next epoch in the order of Keras's data set; None for the order of the arrays.

        TensorFlow draws it for the same data set with all rows in one batch, and from the same seed.
        """
        rows = self._adapter._num_samples
        if not self._adapter._shuffle:
            return None
        if self._orders is None:
            numbers = ArrayDataAdapter(np.arange(rows), batch_size=rows, shuffle=True)
            self._orders = numbers.get_tf_dataset()
        return np.asarray(tree.flatten(next(iter(self._orders)))[0])

    def batches(self) -> Iterator[Any]:
        """Yields the batches of an epoch."""
        order, size = self.next_order(), self._adapter._batch_size
        for begin in range(0, self._adapter._num_samples, size):
            yield tree.map_structure(
                functools.partial(_rows, order, slice(begin, begin + size)), self._arrays
            )


def _rows(order: np.ndarray | None, which: slice, values: np.ndarray) -> np.ndarray:
    """Some rows of an array, in Keras's float type if they are floats."""
    found = values[which] if order is None else values.take(order[which], axis=0)
    return found.astype(keras.config.floatx(), copy=False) if found.dtype.kind == "f" else found


class ArrayBatches(Iterator[Any]):
    """The batches of one epoch, with the attributes of a `BatchReader`."""

    def __init__(self, dataset: ArrayDataset) -> None:
        self.spec, self.knows_rows = dataset.element_spec, knows_rows(dataset.element_spec)
        self._batches = dataset.batches()

    def __next__(self) -> Any:
        return next(self._batches)
