"""Sources that change the batches of another source.

The data stay the same, but Keras and custom models sometimes need a batch in a slightly different form.
"""

from __future__ import annotations

import copy
from typing import Any, Self

import numpy as np

from cellerate.data.arrays import BatchSource
from cellerate.data.windows.shares import share_of


class ChangedBatches:
    """The batches of another source, changed. Subclasses implement `_change`.

    Args:
        source: The other source.
    """

    def __init__(self, source: BatchSource) -> None:
        self.batch_size = source.batch_size
        self.item = source.item
        self.items_per_batch = source.items_per_batch
        self._source = source

    def __len__(self) -> int:
        return len(self._source)

    def batch(self, epoch: int, index: int) -> tuple[Any, ...]:
        """The source's batch, changed."""
        return self._change(*self._source.batch(epoch, index))

    def fingerprint(self) -> str:
        """The fingerprint of the other source."""
        return self._source.fingerprint()

    def share(self, number: int, count: int) -> Self:
        """These batches, each with only the rows that process `number` of `count` computes."""
        own = copy.copy(self)
        own._source = share_of(self._source, number, count)
        own.batch_size = own._source.batch_size
        own.items_per_batch = self.items_per_batch // count
        return own

    def _change(self, x: Any, y: Any, *weight: Any) -> tuple[Any, ...]:
        raise NotImplementedError


class MeanOverItems(ChangedBatches):
    """Scales the weights of an evaluation source, so that Keras's mean of batch means is the mean over items.

    Keras divides each batch's weighted loss by the number of its elements, filler included, and averages the
    batches. Multiplying the weights by elements / items turns that into exactly the mean over the real items.

    Args:
        source: Batches with weights.
        items: The number of its real items.
    """

    def __init__(self, source: BatchSource, items: int) -> None:
        super().__init__(source)
        self._factor = np.float32(len(source) * source.items_per_batch / items)

    def _change(self, x: Any, y: Any, *weight: Any) -> tuple[Any, ...]:
        (weights,) = weight
        # (B,) becomes (B, 1): Keras's losses take both, but its sequence metrics take only (B, 1).
        return x, y, weights.reshape(len(weights), -1) * self._factor
