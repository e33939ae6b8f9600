"""Gives a model on TensorFlow the batches of its arrays directly, in the order that Keras's data set would have.

A data set makes a batch on another thread in 90 µs, which is as long as a whole step of a small model takes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
from keras.src import tree
from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter

from cellerate.layers.engine.datasets import BatchReader

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
    flat = tree.flatten(adapter._inputs)
    if keras.config.floatx() == "bfloat16" or not all(map(_is_plain, flat)):
        return
    rows = min(adapter._batch_size, adapter._num_samples)
    if sum(one.nbytes // len(one) * rows for one in flat) <= _LARGEST_BYTES:
        epochs._distributed_dataset = ArrayDataset(own, adapter, on_engine)


def _is_plain(values: Any) -> bool:
    return type(values) is np.ndarray and values.dtype.kind in "fiub" and values.size > 0


class ArrayDataset:
    """Stands in for Keras's data set of arrays; each iterator is an epoch.

    Args:
        own: Keras's data set, which is read unless the engine is known to run the model.
        adapter: Keras's description of the data.
        on_engine: As in `take_over`.
    """

    def __init__(self, own: Any, adapter: ArrayDataAdapter, on_engine: Callable[[], bool | None]) -> None:
        self._own, self._adapter, self._on_engine = own, adapter, on_engine
        self._arrays = tree.lists_to_tuples(adapter._inputs)
        self._orders: Any = None

    def __iter__(self) -> Iterator[Any]:
        on_engine = self._on_engine()
        if on_engine:
            return BatchReader(self._own.element_spec, self.batches().__next__)
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
