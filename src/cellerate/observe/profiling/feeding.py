"""The batches of a training, for `fit`: from the user's data, or kept in memory, to show the cost of making them."""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from cellerate.data.pipeline import KerasBatches, without_lists
from cellerate.errors import ConfigError

_KERAS_ROWS = 32
_LONG_EPOCH = 1000
_MOST_KEPT = 12
_MOST_KEPT_BYTES = 256 << 20


@dataclasses.dataclass(frozen=True)
class Feed:
    """The data for `fit`.

    Attributes:
        x: Arrays, a `PyDataset`, a `tf.data.Dataset`, a `DataLoader`, or any other iterable of batches.
        y: Targets, if x is arrays.
        batch_size: Rows a batch, if x is arrays; Keras takes 32 if it is not given.
        shuffle: True if `fit` shuffles them, if it can.
    """

    x: Any
    y: Any = None
    batch_size: int | None = None
    shuffle: bool = True

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of `fit`."""
        if is_arrays(self.x):
            return {"x": self.x, "y": self.y, "batch_size": self.batch_size, "shuffle": self.shuffle}
        # Other data have their own order, and Keras warns if `shuffle` is set for them.
        return {"x": self.x, "shuffle": self.shuffle and isinstance(self.x, keras.utils.PyDataset)}

    def close(self) -> None:
        """End threads that make batches ahead."""
        if isinstance(self.x, KerasBatches):
            self.x.close()

    @property
    def batches(self) -> int | None:
        """The number of batches of an epoch; None if the data do not say."""
        if isinstance(self.x, keras.utils.PyDataset) and self.x.num_batches is not None:
            return int(self.x.num_batches)
        if is_arrays(self.x):
            return -(-rows_of(self.x) // (self.batch_size or _KERAS_ROWS))
        if hasattr(self.x, "cardinality"):
            count = int(self.x.cardinality())
            return count if count > 0 else None
        try:
            return len(self.x)
        except (TypeError, NotImplementedError):
            return None


class KeptBatches(keras.utils.PyDataset):
    """Batches in memory, repeated without end.

    Args:
        batches: The batches.
    """

    def __init__(self, batches: Sequence[Any]) -> None:
        super().__init__(workers=1, use_multiprocessing=False)
        self._batches = [without_lists(batch) for batch in batches]

    def __len__(self) -> int:
        return _LONG_EPOCH

    def __getitem__(self, index: int) -> Any:
        return self._batches[index % len(self._batches)]


def keep(feed: Feed) -> tuple[list[Any], float]:
    """Return the first batches as arrays in memory, and the seconds that making one took.

    Raises:
        ConfigError: There are no batches.
    """
    found: list[Any] = []
    held = 0
    began = time.perf_counter()
    for batch in itertools.islice(_batches(feed), _MOST_KEPT):
        found.append(keras.tree.map_structure(_as_array, batch))
        held += sum(array.nbytes for array in keras.tree.flatten(found[-1]) if array is not None)
        if held > _MOST_KEPT_BYTES:
            break
    if not found:
        raise too_few_batches()
    return found, (time.perf_counter() - began) / len(found)


def inputs_of(batch: Any) -> Any:
    """The model inputs of a batch for `fit`."""
    return keras.utils.unpack_x_y_sample_weight(batch)[0]


def first_batch(feed: Feed) -> Any:
    """Return the first batch as arrays; data that can be read only once lose it."""
    for batch in _batches(feed):
        return keras.tree.map_structure(_as_array, batch)
    raise too_few_batches()


def too_few_batches() -> ConfigError:
    """The error for data that end before anything could be measured."""
    return ConfigError(
        "there are too few batches to profile with: give some hundred of them, or data that can be gone through again "
        "(arrays, a PyDataset, a tf.data.Dataset, a DataLoader)."
    )


def rows_of(batch: Any) -> int:
    """The number of rows of a batch."""
    return len(keras.tree.flatten(batch)[0])


def is_arrays(x: Any) -> bool:
    """True if these are arrays or tensors, from which `fit` itself makes batches."""
    flat = keras.tree.flatten(x)
    return bool(flat) and all(hasattr(array, "shape") and hasattr(array, "dtype") for array in flat)


def widened(batches: Sequence[Any], rows: int) -> list[Any]:
    """A batch of `rows` rows, made from all batches of the most common length."""
    shapes = [
        tuple(None if a is None else a.shape[1:] for a in keras.tree.flatten(batch)) for batch in batches
    ]
    usual = Counter(shapes).most_common(1)[0][0]
    alike = [
        keras.tree.flatten(batch) for batch, shape in zip(batches, shapes, strict=True) if shape == usual
    ]
    wide = []
    for arrays in zip(*alike, strict=True):
        together = None if arrays[0] is None else np.concatenate(arrays)
        wide.append(together if together is None else np.resize(together, (rows, *together.shape[1:])))
    return [keras.tree.pack_sequence_as(batches[0], wide)]


def read_from_disk_bytes() -> int | None:
    """The bytes that this process has read from storage so far; None if the system does not report it.

    Source: proc(5), "read_bytes" of /proc/self/io.
    """
    try:
        counters = Path("/proc/self/io").read_text()
    except OSError:
        return None
    return next(
        (int(line.split()[1]) for line in counters.splitlines() if line.startswith("read_bytes")), None
    )


def _batches(feed: Feed) -> Iterator[Any]:
    x = feed.x
    if isinstance(x, keras.utils.PyDataset):
        numbers = itertools.count() if feed.batches is None else range(feed.batches)
        yield from (x[index] for index in numbers)
    elif hasattr(x, "as_numpy_iterator"):
        yield from x.as_numpy_iterator()
    elif is_arrays(x):
        arrays, size = (x, feed.y) if feed.y is not None else (x,), feed.batch_size or _KERAS_ROWS
        for first in range(0, rows_of(x), size):
            yield keras.tree.map_structure(lambda array, first=first: array[first : first + size], arrays)
    else:
        # Not `yield from`, which would close the user's generator.
        for batch in x:  # noqa: UP028
            yield batch


def _as_array(value: Any) -> Any:
    return value if value is None else np.asarray(keras.ops.convert_to_numpy(value))
