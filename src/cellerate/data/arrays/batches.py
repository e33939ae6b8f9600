"""Sources of batches, and the part that all sources over one long array share.

Training, evaluation, checkpoints and all three input pipelines see data only as a source: the number of
batches, and batch number i of epoch e, which is a pure function of i and e.
"""

from __future__ import annotations

import copy
import hashlib
import itertools
import threading
from collections.abc import Iterator
from typing import Any, ClassVar, Protocol, Self, runtime_checkable

import numpy as np

from cellerate.errors import ConfigError
from cellerate.messages import argument

Batch = tuple[np.ndarray, ...]

# Windows are gathered about this many bytes at a time: enough to keep Python's share of the time small, and
# little enough to stay in the second-level cache until they are handed out.
CHUNK_BYTES = 1 << 20


@runtime_checkable
class BatchSource(Protocol):
    """The interface of the data for training and evaluation.

    Attributes:
        batch_size: Rows of every batch.
        item: What displays call the items: "windows", "characters", "lines".
        items_per_batch: Items in a full batch (text: batch size times length).
    """

    batch_size: int
    item: str
    items_per_batch: int

    def __len__(self) -> int:
        """Batches in an epoch; the same for every epoch."""
        ...

    def batch(self, epoch: int, index: int) -> tuple[Any, ...]:
        """Batch `index` of `epoch`: `(x, y)` or `(x, y, sample_weight)`, the same at every call."""
        ...

    def fingerprint(self) -> str:
        """Identifies data and settings; a checkpoint from a source with another fingerprint is refused."""
        ...


class GatheredBatches:
    """Cuts large gathers into batches. Subclasses implement `_read`, which reads windows `first` to `last - 1`."""

    # Every batch has the same shapes, but for the rows of a short last one: one compiled program serves all.
    fixed_shapes: ClassVar[bool] = True
    batch_size: int
    item: str
    items_per_batch: int
    _windows: int  # windows per epoch, all of them full
    _chunk: int  # batches per gather
    _pad: bool  # fill the last batch up with rows of weight 0
    _short: bool = False  # let the last batch have fewer rows
    _whole_batch: int  # rows of a batch of which this source has only a share; 0 if it has all of them
    _first_row: int  # where in such a batch the share begins

    def __init__(self) -> None:
        self._whole_batch = self._first_row = 0
        self._forget()

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._recent: tuple[tuple[tuple[int, int], Batch], ...] = ()

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k not in ("_lock", "_recent")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()

    def share(self, number: int, count: int) -> Self:
        """These batches, each with only the rows that process `number` of `count` computes.

        Only those rows are read. `count` must be a divisor of `batch_size`, and the last batch not a short one.
        """
        own = copy.copy(self)
        own._forget()
        own._whole_batch = self.batch_size
        own.batch_size = self.batch_size // count
        own.items_per_batch = self.items_per_batch // count
        own._first_row = number * own.batch_size
        own._chunk = self._chunk * count
        return own

    def __len__(self) -> int:
        size = self._whole_batch or self.batch_size
        return -(-self._windows // size) if self._pad or self._short else self._windows // size

    def batch(self, epoch: int, index: int) -> Batch:
        """Batch `index` of `epoch`, copied into new arrays. May be called in any order, from any thread.

        Raises:
            IndexError: `index` is not one of the batches of an epoch.
        """
        if not 0 <= index < len(self):
            raise IndexError(f"batch {index} was asked for; an epoch has batches 0 to {len(self) - 1}")
        place = index % self._chunk * self.batch_size
        key = (epoch, index // self._chunk)
        with self._lock:
            arrays = next((found for known, found in self._recent if known == key), None)
            if arrays is None:
                arrays = self._gather(*key)
                # Two gathers are kept, for parallel readers on both sides of a border.
                self._recent = ((key, arrays), *self._recent[:1])
        return tuple([array[place : place + self.batch_size].copy() for array in arrays])

    def batches(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """All batches of `epoch` from number `start` on, in order; the same as from `batch`, but faster.

        The arrays are views of one larger gather that nothing else uses, so they may be written to. But
        keeping one batch alive keeps its neighbours (about a megabyte) alive too.
        """
        for number in range(start // self._chunk, -(-len(self) // self._chunk)):
            arrays = self._gather(epoch, number)
            rows, size = len(arrays[0]), self.batch_size
            begin = max(0, start - number * self._chunk) * size
            for place in range(begin, rows, size):
                yield tuple([array[place : place + size] for array in arrays])

    def _gather(self, epoch: int, number: int) -> Batch:
        """The batches of chunk `number`, one after the other."""
        begin = number * self._chunk
        end = min(begin + self._chunk, len(self))
        if not self._whole_batch:
            return self._rows(epoch, begin * self.batch_size, end * self.batch_size)
        firsts = range(
            begin * self._whole_batch + self._first_row, end * self._whole_batch, self._whole_batch
        )
        parts = [self._rows(epoch, first, first + self.batch_size) for first in firsts]
        return tuple([joined(list(arrays)) for arrays in zip(*parts, strict=True)])

    def _rows(self, epoch: int, first: int, last: int) -> Batch:
        """Windows `first` to `last - 1`; with `_pad`, weights too, and copies of the last window after the end."""
        if not self._pad:
            return self._read(epoch, first, min(last, self._windows))
        full = min(last, self._windows)
        # A share may consist of copies only.
        arrays = self._read(epoch, min(first, full - 1), full)
        weight = np.ones(last - first, np.float32)
        weight[max(0, full - first) :] = 0
        if full < last:
            rows = np.minimum(np.arange(last - first), len(arrays[0]) - 1)
            arrays = tuple([array[rows] for array in arrays])
        return *arrays, weight

    def _read(self, epoch: int, first: int, last: int) -> Batch:
        raise NotImplementedError


def iterate(source: BatchSource, epoch: int, start: int, stop: int) -> Iterator[tuple[Any, ...]]:
    """Batches `start` to `stop - 1` of `epoch`, from the source's own `batches` if it has one."""
    faster = getattr(source, "batches", None)
    if faster is not None:
        return itertools.islice(faster(epoch, start), stop - start)
    return (source.batch(epoch, index) for index in range(start, stop))


def source_fingerprint(settings: str, values: np.ndarray, known: str | None) -> str:
    """The value of `BatchSource.fingerprint`: a hash of the settings and the values.

    Args:
        settings: The source's settings, as text.
        values: The array behind the source.
        known: The hash of `values`, or None to compute it.
    """
    return digest(f"{settings} {known or array_fingerprint(values)}".encode())


def array_fingerprint(values: np.ndarray) -> str:
    """A hash of an array's shape, type and content: all of it up to 4 MiB, else 64 stretches of it."""
    found = hashlib.blake2b(f"{values.shape} {values.dtype.str}".encode(), digest_size=16)
    row_bytes = max(1, values.nbytes // max(1, len(values)))
    if values.nbytes <= 4 << 20:
        found.update(np.ascontiguousarray(values).tobytes())
    else:
        rows = max(1, (64 << 10) // row_bytes)
        for first in np.linspace(0, len(values) - rows, 64).astype(np.int64):
            found.update(np.ascontiguousarray(values[first : first + rows]).tobytes())
    return found.hexdigest()


def at_least(least: int, **settings: int) -> None:
    """Raises `ConfigError` naming the first setting that is not a whole number of at least `least`."""
    for name, value in settings.items():
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
            raise ConfigError(f"{argument(name)} is {value!r}; expected a whole number of at least {least}.")


def joined(parts: list[np.ndarray]) -> np.ndarray:
    """The parts one after another; a single part is not copied."""
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def digest(content: bytes) -> str:
    """A short content hash, as hexadecimal digits."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()
