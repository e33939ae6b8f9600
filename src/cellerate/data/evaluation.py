"""Evaluation by Keras that comes out as the exact mean over the data.

A module of its own because it corrects one habit of Keras's, whatever the task: batches count alike there,
however many of their items are real.
"""

from typing import Any

import numpy as np

from cellerate.data.batches import BatchSource


class MeanOverItems:
    """Scales the weights of an evaluation source, so that Keras's mean of batch means is the mean over items.

    Keras divides each batch's weighted loss by the number of its elements, filler included, and averages the
    batches. With the weights multiplied by elements / items that is exactly the mean over the real items.
    """

    def __init__(self, source: BatchSource, items: int) -> None:
        self.batch_size = source.batch_size
        self.item = source.item
        self.items_per_batch = source.items_per_batch
        self._source = source
        self._factor = np.float32(len(source) * source.items_per_batch / items)

    def __len__(self) -> int:
        return len(self._source)

    def batch(self, epoch: int, index: int) -> tuple[Any, ...]:
        """The source's batch, with its weights scaled."""
        x, y, weight = self._source.batch(epoch, index)
        # (B,) becomes (B, 1): Keras's losses take both, its metrics of sequences only the latter.
        return x, y, weight.reshape(len(weight), -1) * self._factor

    def fingerprint(self) -> str:
        """The source's own."""
        return self._source.fingerprint()
