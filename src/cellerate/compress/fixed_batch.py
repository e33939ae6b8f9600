"""Models that only take batches of a fixed number of rows, as stateful models do."""

from __future__ import annotations

import keras

from cellerate.compress.fitting import Data
from cellerate.errors import DataError
from cellerate.keras_graph.graph import functional_graph


def rows_per_batch(model: keras.Model, batch_size: int, *data: Data | None) -> int:
    """The rows of a batch of arrays: the model's own number if it is fixed, else `batch_size`.

    Args:
        model: The model that reads the batches.
        batch_size: The requested rows.
        data: All data that it reads; only tuples of arrays are checked, because other data come in batches.

    Raises:
        DataError: The arrays do not divide into batches that the model takes.
    """
    graph = functional_graph(model)
    fixed: int | None = None if graph is None else graph.inputs[0].shape[0]
    if fixed is None:
        return batch_size
    for arrays in data:
        rows = {len(array) for array in keras.tree.flatten(arrays)} if isinstance(arrays, tuple) else set()
        if uneven := sorted(count for count in rows if count % fixed):
            raise DataError(
                f"model {model.name!r} takes batches of {fixed:,} rows, and data has {uneven[0]:,}: give a multiple of "
                f"{fixed:,} rows, or a copy of the model without a batch size (keras.Input in place of batch_shape)."
            )
    return fixed
