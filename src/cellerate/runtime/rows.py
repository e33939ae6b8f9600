"""Numbers of rows that callers choose, of streams and of sequences."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cellerate.errors import ConfigError
from cellerate.kernels.decoder.arguments import check_whole


def chosen_rows(rows: Sequence[int] | np.ndarray, count: int) -> np.ndarray:
    """Numbers of rows as an index.

    Args:
        rows: (N,) which rows, each in [0, count).
        count: How many there are.

    Raises:
        ConfigError: A row is outside this range.
    """
    found = np.asarray(rows)
    if found.size and (found.dtype.kind not in "iu" or found.min() < 0 or found.max() >= count):
        for row in rows:
            check_whole("rows", row, 0, count - 1)
    return found.astype(np.intp).reshape(-1)


def distinct_rows(rows: Sequence[int] | np.ndarray, count: int, kind: str) -> np.ndarray:
    """As `chosen_rows`, but refuses repeated rows; the message calls a row a `kind`."""
    chosen = chosen_rows(rows, count)
    if len(np.unique(chosen)) != len(chosen):
        raise ConfigError(f"rows is {chosen.tolist()}; expected each {kind} once.")
    return chosen
