"""The rows of each batch that one of several processes computes.

A batch does not depend on the number of processes: process k of n has rows B·k/n to B·(k+1)/n. So a run may continue
with more or fewer processes, and every row still counts once an epoch.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cellerate.data.arrays import BatchSource


def share_of(source: BatchSource, number: int, count: int) -> BatchSource:
    """The share of one process.

    If the batch size is not a multiple of the number of processes, each batch is padded with copies of its last row,
    and gets weights that keep the mean over the batch.

    Args:
        source: The whole batches.
        number: The index of the process, from 0.
        count: The number of processes.

    Returns:
        Batches of equal size for all processes; their batch `i` is a part of batch `i` of `source`.
    """
    if count == 1:
        return source
    divide = getattr(source, "share", None)
    if divide is not None and source.batch_size % count == 0:
        return divide(number, count)
    return _Share(source, number, count)


class _Share:
    """Takes the rows of one process from whole batches."""

    def __init__(self, source: BatchSource, number: int, count: int) -> None:
        self.batch_size = -(-source.batch_size // count)
        self.item = source.item
        self.items_per_batch = -(-source.items_per_batch // count)
        self._source = source
        self._number, self._count = number, count
        # The number of a batch is all that it knows of the other source, which finds its extremes by itself.
        if hasattr(source, "extremes"):
            self.extremes = source.extremes

    def __len__(self) -> int:
        return len(self._source)

    def batch(self, epoch: int, index: int) -> tuple[Any, ...]:
        """The rows of this process of the source's batch."""
        x, y, *weight = self._source.batch(epoch, index)
        rows = len(y)
        share = -(-rows // self._count)
        filled = share * self._count
        mine = np.arange(self._number * share, (self._number + 1) * share)
        chosen = np.minimum(mine, rows - 1)
        if filled == rows:
            return _rows(x, chosen), _rows(y, chosen), *(_rows(array, chosen) for array in weight)
        # Keras divides by all rows of the batch, including padding.
        weights = weight[0][chosen] if weight else np.ones((share, 1), np.float32)
        counted = (mine < rows).reshape(-1, *[1] * (weights.ndim - 1))
        return _rows(x, chosen), _rows(y, chosen), weights * np.where(counted, np.float32(filled / rows), 0)

    def fingerprint(self) -> str:
        """The fingerprint of the whole batches, the same for every process."""
        return self._source.fingerprint()


def _rows(tree: Any, chosen: np.ndarray) -> Any:
    """Rows of an array, or of each array in a dictionary or a tuple."""
    if isinstance(tree, dict):
        return {name: _rows(array, chosen) for name, array in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(_rows(array, chosen) for array in tree)
    return tree[chosen]
