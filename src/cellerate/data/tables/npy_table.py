"""Tables of numbers: `.npy` files and arrays in memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from cellerate.data.tables.series_keys import JOINED_BY
from cellerate.data.tables.table import Block, Kind, TableFile
from cellerate.errors import DataError

_BLOCK_BYTES = 4 << 20


class NpyTable(TableFile):
    """A two-dimensional `.npy` file (or a one-dimensional one, as one column), through a memory map.

    Its columns are named "0", "1", ...

    Args:
        path: The file, or the name of `values` in messages.
        values: The array, if it is not in a file.

    Raises:
        DataError: The file is damaged, or does not hold numbers of one or two dimensions.
    """

    def __init__(self, path: Path, values: np.ndarray | None = None) -> None:
        self.path = path
        if values is None:
            try:
                values = np.load(path, mmap_mode="r", allow_pickle=False)
            except (ValueError, OSError, EOFError) as error:
                raise DataError(f"{path} is not a usable .npy file: {error}") from error
        if values.dtype.kind not in "fiub" or values.ndim not in (1, 2) or not values.size:
            raise DataError(
                f"{path} holds an array of shape {values.shape} and dtype {values.dtype}; expected numbers "
                f"of shape (rows,) or (rows, columns)."
            )
        self.values = values.reshape(len(values), -1)
        self.columns = tuple(map(str, range(self.values.shape[1])))
        self.kinds: dict[str, Kind] = dict.fromkeys(self.columns, "number")
        self.rows: int | None = len(self.values)
        self.parts = 1

    def blocks(
        self, numbers: Sequence[str], time: str | None, series: Sequence[str], part: int
    ) -> Iterator[Block]:
        """See `Table.blocks`. Here a time or series column always holds numbers."""
        places = [self.columns.index(name) for name in numbers]
        keys = [self.columns.index(name) for name in series]
        rows = max(1, _BLOCK_BYTES // (8 * self.values.shape[1]))
        for first in range(0, len(self.values), rows):
            block = self.values[first : first + rows]
            times = None if time is None else block[:, self.columns.index(time)].astype(np.float64)
            found = Block(block[:, places].astype(np.float64), times, None)
            if keys:
                ids, codes = np.unique(block[:, keys], axis=0, return_inverse=True)
                names = [JOINED_BY.join(_id_of(float(value)) for value in row) for row in ids]
                found = dataclasses.replace(found, series=codes.ravel(), ids=names)
            yield found


def _id_of(value: float) -> str:
    return str(int(value)) if value.is_integer() else repr(value)
