"""Batches of one long text: shuffled windows, or parallel streams whose rows continue from batch to batch.

Unlike a series, a text has no horizon and no features: the target is the input one place later, and an
evaluation must predict every id exactly once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from cellerate.data.arrays import (
    CHUNK_BYTES,
    MIXING_BYTES,
    Batch,
    GatheredBatches,
    Permutation,
    WindowFinder,
    WindowIndex,
    at_least,
    derive_seed,
    joined,
    plan_windows,
    source_fingerprint,
    take_windows,
)
from cellerate.errors import ConfigError, DataError
from cellerate.messages import argument

_SEED_PHASE = 4


class TextBatches(GatheredBatches):
    """Windows of one long text as inputs, and the same shifted by one as targets.

    Training (`drop_last=True`): window k starts at `phase + k * stride`. With a shuffle, each epoch draws
    `phase` from 0 to `stride - 1`, so that epochs cut the text at different places. (A text of hardly more
    than one window leaves less room for it.) Each epoch then leaves out up to `2 * stride` ids at the ends,
    different ones each time.

    Evaluation (`drop_last=False`): every id but the first is predicted exactly once. Batches are
    `(x, y, sample_weight)`. The last window and the last batch are filled up with weight 0, so that all
    batches have the same shape.

    Args:
        ids: (N,) integers, an array or a memory map.
        length: Ids per window, T.
        batch_size: Windows per batch, B.
        seed: The seed of the shuffle; None keeps the order.
        stride: Ids between the starts of windows; None for `length`, so that windows do not overlap.
        drop_last: See above.
        item: What displays call the ids.
        data_fingerprint: Content hash of `ids`, if known.

    Batches hold x (B, T) int32, y (B, T) int32 and, in evaluation, sample_weight (B, T) float32.

    Raises:
        ConfigError: A setting is out of range, or a stride is given for evaluation.
        DataError: The text is too short for one window or one batch.
    """

    def __init__(
        self,
        ids: np.ndarray,
        *,
        length: int,
        batch_size: int,
        seed: int | None = None,
        stride: int | None = None,
        drop_last: bool = True,
        item: str = "characters",
        data_fingerprint: str | None = None,
    ) -> None:
        super().__init__()
        stride = length if stride is None else stride
        at_least(1, length=length, batch_size=batch_size, stride=stride)
        if not drop_last and stride != length:
            raise ConfigError(
                f"{argument('stride')} is {stride} and length {length}: with {argument('drop_last', False)} every id "
                f"is predicted once, so leave {argument('stride')} out."
            )
        self.batch_size = batch_size
        self.item = item
        self.items_per_batch = batch_size * length
        self.length, self.stride, self.seed = length, stride, seed
        self._ids = _checked_ids(ids, 2 if not drop_last else length + 1, length)
        self._pad = not drop_last
        self._plan: WindowFinder | None = None
        self._phases = 1
        if drop_last:
            last_start = len(ids) - (length + 1)
            if seed is None:
                count = last_start // stride + 1
            else:
                count = max(1, (last_start - (stride - 1)) // stride + 1)
                self._phases = min(stride, last_start - (count - 1) * stride + 1)
            if count < batch_size:
                raise DataError(
                    f"the text has {len(ids):,} {item}: {count} windows of {length} every {stride}, fewer "
                    f"than one batch of {batch_size}. Lower {argument('batch_size')} or "
                    f"{argument('length')}, or give a longer text."
                )
            stop = (count - 1) * stride + length + 1
            index = WindowIndex(np.array([[0, stop]]), length + 1, stride)
            self._plan = plan_windows(self._ids, index, seed, "auto", MIXING_BYTES)
        else:
            count = -(-(len(ids) - 1) // length)
        self._windows = count
        self._chunk = max(1, CHUNK_BYTES // (8 * length * batch_size))
        self._data_fingerprint = data_fingerprint
        self._settings = (
            f"text/1 {length} {stride} {batch_size} {seed} {drop_last} {type(self._plan).__name__}"
        )

    def fingerprint(self) -> str:
        """See `BatchSource.fingerprint`."""
        return source_fingerprint(self._settings, self._ids, self._data_fingerprint)

    def _read(self, epoch: int, first: int, last: int) -> Batch:
        if self._plan is None:
            return self._read_all(epoch, first, last)
        phase = 0
        if self.seed is not None:
            phase = derive_seed(self.seed, epoch, _SEED_PHASE) % self._phases
        spans = joined(
            [
                take_windows(rows, starts, 0, self.length + 1)[..., 0]
                for rows, starts in self._plan.locate(epoch, first, last, phase)
            ]
        )
        return spans[:, :-1].astype(np.int32), spans[:, 1:].astype(np.int32)

    def _read_all(self, epoch: int, first: int, last: int) -> Batch:
        numbers = np.arange(first, last)
        if self.seed is not None:
            numbers = Permutation(self._windows, derive_seed(self.seed, epoch))(numbers)
        places = numbers[:, None] * self.length + np.arange(self.length + 1)
        weight = (places[:, 1:] < len(self._ids)).astype(np.float32)
        spans = self._ids[np.minimum(places, len(self._ids) - 1)].astype(np.int32)
        return spans[:, :-1].copy(), spans[:, 1:].copy(), weight

    def _gather(self, epoch: int, number: int) -> Batch:
        arrays = super()._gather(epoch, number)
        if not self._pad:
            return arrays
        x, y, inside, rows = arrays
        return x, y, inside * rows[:, None]


class StreamBatches:
    """One long text as B parallel streams: row b of batch k continues where row b of batch k-1 ended.

    It serves stateful training (truncated back-propagation through time), where the state carries over from
    one batch to the next. Stream b is the b-th of B contiguous parts of the text, in order, the same every
    epoch.

    Args:
        ids: (N,) integers, an array or a memory map.
        length: Ids per row of a batch, T.
        batch_size: Streams, B.
        item: What displays call the ids.
        data_fingerprint: Content hash of `ids`, if known.

    Attributes:
        dropped: The number of ids, apart from the first, that are never a target because they do not fill a
            last batch.

    Batches hold x (B, T) int32 and y (B, T) int32.

    Raises:
        ConfigError: A setting is out of range.
        DataError: The text is too short for one batch.
    """

    fixed_shapes: ClassVar[bool] = True

    def __init__(
        self,
        ids: np.ndarray,
        *,
        length: int,
        batch_size: int,
        item: str = "characters",
        data_fingerprint: str | None = None,
    ) -> None:
        at_least(1, length=length, batch_size=batch_size)
        rows = _checked_ids(ids, 2, length)
        self.batch_size = batch_size
        self.item = item
        self.items_per_batch = batch_size * length
        self.length = length
        self._stream = (len(rows) - 1) // batch_size
        self._count = self._stream // length
        if not self._count:
            raise DataError(
                f"the text has {len(rows):,} {item}, but {batch_size} streams of {length} need at least "
                f"{batch_size * length + 1:,}. Lower {argument('batch_size')} or "
                f"{argument('length')}, or give a longer text."
            )
        self.dropped = len(rows) - 1 - self._count * self.items_per_batch
        self._ids = rows
        self._rows = np.arange(batch_size)[:, None] * self._stream + np.arange(length + 1)
        self._data_fingerprint = data_fingerprint

    def __len__(self) -> int:
        return self._count

    def batch(self, epoch: int, index: int) -> Batch:
        """Batch `index`, the same in every epoch. May be called in any order, from any thread."""
        if not 0 <= index < self._count:
            raise IndexError(f"batch {index} was asked for; an epoch has batches 0 to {self._count - 1}")
        spans = self._ids[self._rows + index * self.length].astype(np.int32)
        return spans[:, :-1].copy(), spans[:, 1:].copy()

    def batches(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """All batches of `epoch` from number `start` on, in order."""
        for index in range(start, self._count):
            yield self.batch(epoch, index)

    def fingerprint(self) -> str:
        """See `BatchSource.fingerprint`."""
        settings = f"stream/1 {self.length} {self.batch_size}"
        return source_fingerprint(settings, self._ids, self._data_fingerprint)


def _checked_ids(ids: np.ndarray, needed: int, length: int) -> np.ndarray:
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise DataError(f"ids has shape {ids.shape} and dtype {ids.dtype}; expected (N,) integers.")
    if len(ids) < needed:
        raise DataError(
            f"the text has {len(ids)} ids, but a window of {length} needs at least {needed} "
            f"(inputs and the next one). Give a longer text or lower the length."
        )
    return ids
