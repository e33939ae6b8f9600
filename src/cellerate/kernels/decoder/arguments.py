"""Checks of what a caller passes to a step model or to `sample`.

Each error names the argument, what came and what was expected.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from cellerate.errors import ConfigError, DataError
from cellerate.messages import argument

MOST_STEPS = 2**31 - 1
"""The native core counts steps and rows in 32 bits."""


def float_array(name: str, value: Any, shape: tuple[int | None, ...]) -> np.ndarray:
    """A float32 array of the shape, contiguous; None stands for any size. Raises `ConfigError`."""
    array = np.asarray(value)
    if array.dtype != np.float32:
        raise ConfigError(f"{name} has dtype {array.dtype}; expected float32.")
    check_shape(name, array, shape)
    return np.ascontiguousarray(array)


def whole_array(name: str, value: Any, shape: tuple[int | None, ...], kind: type[Exception]) -> np.ndarray:
    """An array of whole numbers of the shape. Raises `kind` for another dtype, `ConfigError` for another shape."""
    array = np.asarray(value)
    if array.size == 0 and not isinstance(value, np.ndarray):
        array = array.astype(np.int64)  # an empty list is float64 to NumPy
    if not np.issubdtype(array.dtype, np.integer):
        raise kind(f"{name} has dtype {array.dtype}; expected whole numbers.")
    check_shape(name, array, shape)
    return array


def ids_array(name: str, value: Any, shape: tuple[int | None, ...], vocabulary_size: int) -> np.ndarray:
    """Ids of a vocabulary, int32 and contiguous. Raises `DataError`, and `ConfigError` for another shape."""
    array = whole_array(name, value, shape, DataError)
    # Only minimum and maximum: two passes over the ids, and no array of their size.
    if array.size and (array.min() < 0 or array.max() >= vocabulary_size):
        flat = array.ravel()
        place = int(np.flatnonzero((flat < 0) | (flat >= vocabulary_size))[0])
        raise DataError(
            f"{name} holds {int(flat[place])}, but this model's ids run from 0 to {vocabulary_size - 1}. "
            "Encode the text with the tokenizer the model was trained with."
        )
    return np.ascontiguousarray(array, dtype=np.int32)


def check_shape(name: str, array: np.ndarray, shape: tuple[int | None, ...]) -> None:
    """Raises `ConfigError` unless an array has the shape; None stands for any size."""
    if array.ndim != len(shape) or any(
        want is not None and want != size for want, size in zip(shape, array.shape, strict=True)
    ):
        wanted = ", ".join("any" if size is None else str(size) for size in shape)
        raise ConfigError(
            f"{name} has shape {array.shape}; expected ({wanted}{',' if len(shape) == 1 else ''})."
        )


def check_real(name: str, value: Any, fits: Any, range_text: str) -> None:
    """Raises `ConfigError` unless a value is a finite number that `fits`."""
    real = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    if not (real and math.isfinite(value) and fits(value)):
        raise ConfigError(f"{argument(name)} is {value!r}; expected a finite number {range_text}.")


def check_whole(name: str, value: Any, least: int, most: int) -> None:
    """Raises `ConfigError` unless a value is a whole number from `least` to `most`."""
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not (whole and least <= value <= most):
        raise ConfigError(f"{argument(name)} is {value!r}; expected a whole number from {least} to {most}.")
