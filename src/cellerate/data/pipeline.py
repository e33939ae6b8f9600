"""Feeds a source of batches to Keras, to `tf.data` and to torch, always in the same order.

This is the only part of `data` that knows Keras. Two traps in how Keras asks for batches: it peeks at some
before the first epoch, and it calls `on_epoch_end` more often than epochs end.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Any

import keras

from cellerate.data.arrays import BatchSource, iterate
from cellerate.errors import ConfigError
from cellerate.machine.environment import require

Item = tuple[Any, ...] | BaseException


def without_lists(batch: Any) -> Any:
    """A batch with tuples in place of lists, as Keras makes it from arrays; TensorFlow takes no lists of a dataset."""
    if isinstance(batch, list | tuple):
        return tuple(map(without_lists, batch))
    if isinstance(batch, dict):
        return {name: without_lists(value) for name, value in batch.items()}
    return batch


class KerasBatches(keras.utils.PyDataset):
    """Feeds `fit`, `evaluate` and `predict` with the batches of a source, made ahead by a thread.

    Each epoch of `fit` is one epoch of the source. The first is `epoch`; the next begins once all batches of
    an epoch have been served. The order is the source's, so pass `shuffle=False` to `fit`. To resume an epoch
    that was cut at batch k, call `fit` for one epoch with `start=k`, then again with a new object for the
    remaining epochs: `start` and `stop` apply to every epoch of this object.

    Args:
        source: The batches.
        start: First batch of an epoch.
        stop: Batch after the last; None for all.
        epoch: Epoch of the source to begin with.
        prefetch: Batches the thread keeps ready.

    Raises:
        ConfigError: `start`, `stop`, `epoch` or `prefetch` is out of range.

    Example:
        >>> source = TextBatches(ids, length=100, batch_size=64, seed=0)
        >>> model.fit(KerasBatches(source), epochs=3, shuffle=False)
    """

    def __init__(
        self,
        source: BatchSource,
        *,
        start: int = 0,
        stop: int | None = None,
        epoch: int = 0,
        prefetch: int = 8,
    ) -> None:
        super().__init__(workers=1, use_multiprocessing=False)
        stop = len(source) if stop is None else stop
        if not 0 <= start < stop <= len(source):
            raise ConfigError(
                f"batches {start} to {stop} were asked for; expected start < stop, within 0 to {len(source)}."
            )
        if epoch < 0 or prefetch < 1:
            raise ConfigError(
                f"epoch is {epoch} and prefetch {prefetch}; expected at least 0 and at least 1."
            )
        self.source, self.start, self.stop, self.epoch = source, start, stop, epoch
        self._prefetch = prefetch
        self._lock = threading.Lock()
        self._ahead: _Ahead | None = None
        self._end_ahead: weakref.finalize | None = None
        self._next = 0
        self._within = False
        self._served_last = False
        self._ends = 0
        self._waited_s = 0.0

    @property
    def waited_s(self) -> float:
        """The seconds that the reader has waited for batches that were not ready."""
        return self._waited_s

    def __len__(self) -> int:
        return self.stop - self.start

    @property
    def num_batches(self) -> int:
        """Batches in an epoch of `fit`."""
        return len(self)

    def __getitem__(self, index: int) -> Any:
        """Batch `start + index` of the current epoch: from the thread if it is the next, else made on demand."""
        if not 0 <= index < len(self):
            raise IndexError(f"batch {index} was asked for; there are {len(self)}")
        with self._lock:
            if not self._within:
                return self._peeked(index)
            if index != self._next:
                return self.source.batch(self.epoch, self.start + index)
            if self._ahead is None:
                self._ahead = _Ahead(self.source, self.epoch, self.start, self.stop, self._prefetch)
                self._end_ahead = weakref.finalize(self, self._ahead.close)
            asked = time.perf_counter()
            batch = self._ahead.get()
            self._waited_s += time.perf_counter() - asked
            self._next += 1
            self._served_last = self._next == len(self)
            return batch

    def on_epoch_begin(self) -> None:
        """Keras calls this before the first batch of an epoch."""
        with self._lock:
            self._restart(within=True)

    def on_epoch_end(self) -> None:
        """Keras calls this after an epoch, and also once when `fit` or `evaluate` begins.

        Before the call at the beginning, Keras may have taken a batch only to build the model. So an epoch
        counts as done only if its last batch was taken, and never at the very first call.
        """
        with self._lock:
            if self._within and self._served_last and self._ends:
                self.epoch += 1
            self._ends += 1
            self._restart(within=False)

    def __iter__(self) -> Iterator[Any]:
        """The batches of the current epoch in order; `fit` is not disturbed."""
        return iterate(self.source, self.epoch, self.start, self.stop)

    def as_tf_dataset(self, epoch: int = 0, *, cache: bool = False) -> Any:
        """One epoch of the source as a `tf.data.Dataset`, in the order of the source.

        Args:
            epoch: Which epoch.
            cache: Keep the batches in memory after the first pass.

        Returns:
            A dataset of the batches of the source, as tensors.

        Raises:
            BackendError: TensorFlow is not installed.
        """
        require("tensorflow", "tensorflow", "as_tf_dataset")
        from cellerate.bridges.tensorflow import tf_dataset

        return tf_dataset(self.source, epoch, cache=cache)

    def as_torch_dataset(self, epoch: int = 0) -> Any:
        """One epoch of the source as a `torch.utils.data.IterableDataset`, in the order of the source.

        Use it as `DataLoader(dataset, batch_size=None, num_workers=n)`: the workers share the batches among
        themselves, and the loader hands them out in order.

        Args:
            epoch: Which epoch; set the dataset's attribute `epoch` to move to another.

        Returns:
            A dataset of the batches of the source, as tensors.

        Raises:
            BackendError: torch is not installed.
        """
        require("torch", "torch", "as_torch_dataset")
        from cellerate.bridges.torch import torch_dataset

        return torch_dataset(self.source, epoch)

    def close(self) -> None:
        """Ends the thread, for a `fit` that an exception ended: Keras may keep this object alive after it."""
        with self._lock:
            self._restart(within=False)

    def _peeked(self, index: int) -> Any:
        """The batch that Keras gets before an epoch, when it looks at batches to learn their shapes.

        With TensorFlow, Keras assumes that all batches have the shapes of the first two. So if lengths differ
        between batches, the first two must differ as well. If there is only one batch, Keras gets that batch.
        """
        extremes = getattr(self.source, "extremes", None)
        if extremes is None or index > 1 or len(self) == 1:
            return self.source.batch(self.epoch, self.start + index)
        return self.source.batch(self.epoch, extremes(self.epoch)[index])

    def _restart(self, *, within: bool) -> None:
        if self._end_ahead is not None:
            self._end_ahead()
        self._ahead, self._end_ahead = None, None
        self._next, self._served_last, self._within = 0, False, within


class _Ahead:
    """A thread that makes batches ahead of their reader. It holds no reference to the reader and ends with it."""

    def __init__(self, source: BatchSource, epoch: int, start: int, stop: int, depth: int) -> None:
        self._ready: queue.Queue[Item] = queue.Queue(maxsize=depth)
        self._closed = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(
            target=_fill,
            args=(iterate(source, epoch, start, stop), self._ready, self._closed),
            name="cellerate-batches",
            daemon=True,
        )
        self._thread.start()

    def get(self) -> tuple[Any, ...]:
        """The next batch; an error from making it is raised here, now and at every later call."""
        if self._failure is None:
            item = self._ready.get()
            if not isinstance(item, BaseException):
                return item
            self._failure = item
        raise self._failure

    def close(self) -> None:
        """Ends the thread after the batch it is making."""
        self._closed.set()
        # The thread may be waiting for room.
        with contextlib.suppress(queue.Empty):
            self._ready.get_nowait()


def _fill(batches: Iterator[tuple[Any, ...]], ready: queue.Queue[Item], closed: threading.Event) -> None:
    try:
        for batch in batches:
            if closed.is_set():
                return
            ready.put(batch)
            if closed.is_set():
                return
    except BaseException as error:  # any error is passed to the reader, which raises it
        ready.put(error)
