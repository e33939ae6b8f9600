"""Arrays in the precisions and the order that the kernels read."""

from __future__ import annotations

from typing import Any

import numpy as np


def in_precision(array: np.ndarray, precision: str) -> np.ndarray:
    """A float32 array in one of the kernels' precisions; bfloat16 as its bits, in uint16."""
    if precision in ("float32", "tf32"):
        return np.ascontiguousarray(array, np.float32)
    if precision == "float16":
        limit = float(np.finfo(np.float16).max)
        return np.clip(array, -limit, limit).astype(np.float16)
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
    rounded = ((bits + (0x7FFF + (bits >> 16 & 1))) >> 16).astype(np.uint16)
    # Weights are finite: those above the largest bfloat16 become the largest, not infinity.
    rounded[rounded & 0x7FFF == 0x7F80] -= 1
    return rounded


def by_unit(weights: Any, units: int) -> Any:
    """Reorders (…, 4H), one gate after the other, to (…, H, 4), the four gates of a unit side by side.

    The weights may be of any framework, as in the next two functions.
    """
    return weights.reshape(*weights.shape[:-1], 4, units).swapaxes(-1, -2)


def gates_last(weights: Any, units: int) -> Any:
    """The same as (…, 4H)."""
    return by_unit(weights, units).reshape(weights.shape)


def gates_first(weights: Any, units: int) -> Any:
    """The inverse of `gates_last`."""
    return weights.reshape(*weights.shape[:-1], units, 4).swapaxes(-1, -2).reshape(weights.shape)
