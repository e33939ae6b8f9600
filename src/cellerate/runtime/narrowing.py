"""Arrays in the types of a `.cell` file: bfloat16, int8 with one scale per column, int4 with one scale per group.

Rounding is idempotent: a rounded array rounds to the same numbers and scales again. So the native core, which receives
floats, packs exactly the numbers of the file.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cellerate.runtime.cell_format import BFLOAT16, FLOAT32, INT4, INT8

GROUP = 32
"""Rows of a kernel that share a scale in int4; `kGroup` of `csrc/engine/row_products.h` is the same."""

_LARGEST_BFLOAT16 = 0x7F7F
# The largest bfloat16 scale whose product with 8 is still finite.
_LARGEST_GROUP_SCALE = 0x7DFF
_SMALLEST_NORMAL = np.finfo(np.float32).tiny


def narrow(array: np.ndarray, dtype: np.dtype[Any]) -> tuple[np.ndarray, np.ndarray | None]:
    """Return an array as a file keeps it.

    Args:
        array: float32; (K, N) if the type is int8 or int4.
        dtype: `FLOAT32`, `BFLOAT16`, `INT8` or `INT4`.

    Returns:
        The contiguous values and their scales: float32 (N,) for int8, bfloat16 (groups, N) for int4, else None. A byte
        of int4 holds two neighbouring columns, the first in its lower half: (K, N / 2 rounded up).
    """
    array = np.ascontiguousarray(array)
    if dtype == FLOAT32:
        return array, None
    if dtype == BFLOAT16:
        return _to_bfloat16(array, _LARGEST_BFLOAT16), None
    if dtype == INT4:
        return _to_int4(array)
    scale = _column_scales(array)
    quotient = array / scale
    return np.rint(quotient, out=quotient).astype(INT8), scale


def widen(values: np.ndarray, scale: np.ndarray | None) -> np.ndarray:
    """Return the float32 array for the result of `narrow`, which may come from a file that cannot be trusted.

    Raises:
        ValueError: The scales do not fit the values, or `narrow` never returns such a number.
    """
    if values.dtype == FLOAT32:
        return values
    if values.dtype == BFLOAT16:
        return _from_bfloat16(values)
    if values.dtype == INT4:
        return _from_int4(values, scale)
    if scale is None or scale.dtype != FLOAT32 or scale.shape != values.shape[-1:]:
        raise ValueError("a tensor of int8 has no float32 scale for each of its columns")
    if not (np.isfinite(scale) & (scale >= _SMALLEST_NORMAL)).all():
        raise ValueError("the scale of a column is not a finite normal number above 0")
    least, largest = values.min(axis=0), values.max(axis=0)
    if least.min() < -127:
        raise ValueError("a tensor of int8 holds -128, and weights end at -127")
    # Otherwise the core would find other scales than NumPy and compute other results.
    reached = np.maximum(largest, -least)
    if not ((reached == 127) | ((reached == 0) & (scale == 1))).all():
        raise ValueError("a column of int8 reaches neither 127 nor -127")
    with np.errstate(over="ignore"):  # `Program` refuses infinite weights.
        return values * scale


def rounded(array: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    """An array with its values as a file keeps them.

    Args:
        array: float32; with two axes if the type is int8 or int4, which have scales.
        dtype: The type in which it is kept.

    Returns:
        float32, of the same shape; for float32 the array itself. A second call changes nothing.
    """
    return widen(*narrow(array, dtype))


def kept_bytes_of(array: np.ndarray, dtype: np.dtype[Any]) -> int:
    """The bytes that an array takes in a file, with its scales."""
    if dtype == INT8:
        return array.size + array.shape[1] * FLOAT32.itemsize
    if dtype == INT4:
        rows, columns = array.shape
        return rows * -(-columns // 2) + -(-rows // GROUP) * columns * BFLOAT16.itemsize
    return array.size * dtype.itemsize


def _to_bfloat16(array: np.ndarray, largest: int) -> np.ndarray:
    """The bits of bfloat16, rounded to nearest even; finite numbers end at `largest`, not at infinity."""
    bits = np.ascontiguousarray(array).view(np.uint32)
    found = ((bits + (0x7FFF + (bits >> 16 & 1))) >> 16).astype(BFLOAT16)
    beyond = (found & 0x7FFF) > largest
    found[beyond] = found[beyond] & 0x8000 | largest
    return found


def _from_bfloat16(bits: np.ndarray) -> np.ndarray:
    wide = bits.astype(np.uint32)
    wide <<= 16
    return wide.view(np.float32)


def _column_scales(kernel: np.ndarray) -> np.ndarray:
    """The scale of each column of a kernel (rows, columns): its largest magnitude / 127, and 1 for zeros.

    A dequantised column has the same scale again: no float32 quotient by 127, multiplied by 127, rounds so far away
    that dividing by 127 gives another quotient (the tests try every mantissa).
    """
    scale = np.maximum(kernel.max(axis=0), -kernel.min(axis=0)) / np.float32(127)
    with np.errstate(over="ignore"):
        # The largest float32 / 127 rounds up, so that times 127 it is infinite.
        scale = np.where(np.isinf(scale * 127), np.nextafter(scale, np.float32(0)), scale)
    # Below the normal numbers a scale has too few bits, and some processors take it for 0.
    return np.where(scale < _SMALLEST_NORMAL, np.float32(1), scale)


def _to_int4(kernel: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of numbers from -8 to 7 and their scales.

    The number of largest magnitude in a group becomes -8, so its scale has the other sign. A product of a bfloat16 and
    such a number is exact in float32, so the scale can be read from the result.
    """
    rows, columns = kernel.shape
    groups = -(-rows // GROUP)
    padded = np.zeros((groups * GROUP, columns), np.float32)
    padded[:rows] = kernel
    grouped = padded.reshape(groups, GROUP, columns)
    largest = np.take_along_axis(grouped, np.abs(grouped).argmax(axis=1)[:, np.newaxis], axis=1)[:, 0]
    scale = _to_bfloat16(largest / np.float32(-8), _LARGEST_GROUP_SCALE)
    wide = _from_bfloat16(scale)
    scale[np.abs(wide) < _SMALLEST_NORMAL] = _to_bfloat16(np.ones(1, np.float32), _LARGEST_BFLOAT16)[0]
    quotient = grouped / _from_bfloat16(scale)[:, np.newaxis]
    numbers = np.minimum(np.rint(quotient, out=quotient), 7).astype(INT8).reshape(-1, columns)[:rows]
    halves = np.zeros((rows, -(-columns // 2) * 2), np.uint8)
    halves[:, :columns] = numbers.view(np.uint8) & 15
    return halves[:, ::2] | halves[:, 1::2] << 4, scale


def _from_int4(pairs: np.ndarray, scale: np.ndarray | None) -> np.ndarray:
    if (
        scale is None
        or scale.dtype != BFLOAT16
        or scale.ndim != 2
        or pairs.ndim != 2
        or scale.shape[0] != -(-pairs.shape[0] // GROUP)
        or -(-scale.shape[1] // 2) != pairs.shape[1]
    ):
        raise ValueError(f"a tensor of int4 has no bfloat16 scale for each column of each {GROUP} rows")
    wide = _from_bfloat16(scale)
    if not (np.isfinite(wide) & (np.abs(wide) >= _SMALLEST_NORMAL)).all():
        raise ValueError("the scale of a group is not a finite normal number other than 0")
    columns = scale.shape[1]
    if columns % 2 and (pairs[:, -1] >> 4).any():
        raise ValueError("a tensor of int4 holds a number beyond its last column")
    values = np.empty((len(pairs), columns), np.float32)
    with np.errstate(over="ignore"):  # `Program` refuses infinite weights.
        # One group at a time takes little memory beside the result.
        for first in range(0, len(values), GROUP):
            part, result = pairs[first : first + GROUP], values[first : first + GROUP]
            # The upper half of a signed byte is a number of 4 bits with its sign.
            result[:, ::2] = (part << 4).view(np.int8) >> 4
            result[:, 1::2] = part[:, : columns // 2].view(np.int8) >> 4
            whole = result.min(axis=0) == -8
            if not whole.all() and (result[:, ~whole].any() or (wide[first // GROUP, ~whole] != 1).any()):
                raise ValueError("a group of int4 does not reach -8")
            result *= wide[first // GROUP]
    return values
