"""Arrays as the kernels have them."""

import numpy as np


def numbers(array: np.ndarray, number: str) -> np.ndarray:
    """A float32 array in a type of the kernel's; of bfloat16 the bits."""
    if number in ("float32", "tf32"):
        return np.ascontiguousarray(array, np.float32)
    if number == "float16":
        limit = float(np.finfo(np.float16).max)
        return np.clip(array, -limit, limit).astype(np.float16)
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
    rounded = ((bits + (0x7FFF + (bits >> 16 & 1))) >> 16).astype(np.uint16)
    # Weights are finite: those above the largest bfloat16 become it, not infinity.
    rounded[rounded & 0x7FFF == 0x7F80] -= 1
    return rounded


def by_unit(weights: np.ndarray, units: int) -> np.ndarray:
    """(…, 4H), one gate after the other → (…, H, 4), the gates of a unit side by side."""
    return weights.reshape(*weights.shape[:-1], 4, units).swapaxes(-1, -2)
