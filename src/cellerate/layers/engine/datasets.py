"""The batches of an iterator of TensorFlow, without what `next` does for values that are not dense tensors.

That takes 30 of its 40 µs, where a whole step of a small model takes 100.
"""

import functools
import weakref
from collections.abc import Iterator
from typing import Any

import keras


def batches(iterator: Iterator[Any]) -> Iterator[Any]:
    """The same batches; an optional of TensorFlow that is empty becomes None."""
    if is_dataset(iterator):
        if iterator not in _dense_batches:
            _dense_batches[iterator] = _DenseBatches(iterator) if _is_dense(iterator) else None
        if (dense := _dense_batches[iterator]) is not None:
            return dense
    return map(functools.partial(keras.tree.map_structure, _present), iterator)


def is_dataset(iterator: Iterator[Any]) -> bool:
    """Whether it is the iterator of a dataset, not of a single batch."""
    return hasattr(iterator, "get_next")


def _is_dense(iterator: Any) -> bool:
    import tensorflow as tf

    # Elsewhere the end of a dataset is no error of the read itself.
    synchronous = tf.config.experimental.get_synchronous_execution()
    specs = keras.tree.flatten(iterator.element_spec)
    return synchronous and all(type(spec) is tf.TensorSpec for spec in specs) and hasattr(iterator, _RESOURCE)


_RESOURCE = "_iterator_resource"


class _DenseBatches:
    """Reads a dataset's batches of dense tensors, without holding its iterator."""

    def __init__(self, iterator: Any) -> None:
        import tensorflow as tf

        self._structure = iterator.element_spec
        specs = keras.tree.flatten(self._structure)
        self._read = functools.partial(
            tf.raw_ops.IteratorGetNext,
            iterator=getattr(iterator, _RESOURCE),
            output_types=[spec.dtype for spec in specs],
            output_shapes=[spec.shape for spec in specs],
        )
        self._end = tf.errors.OutOfRangeError

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        try:
            tensors = self._read()
        except self._end:
            raise StopIteration from None
        return keras.tree.pack_sequence_as(self._structure, tensors)


# For each iterator at work, what reads it; None for one with other values.
_dense_batches: weakref.WeakKeyDictionary[Iterator[Any], _DenseBatches | None] = weakref.WeakKeyDictionary()


def _present(value: Any) -> Any:
    return None if hasattr(value, "has_value") else value
