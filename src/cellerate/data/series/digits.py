"""Finds numbers that a narrower type cannot hold: counters, ids and revenues, and changes smaller than its steps."""

from __future__ import annotations

import numpy as np

# float32 holds every whole number up to the first, float64 up to the second.
_WHOLE_IN_FLOAT32, _WHOLE_IN_FLOAT64 = 2.0**24, 2.0**53
# Changes are judged on this many rows of a block, in series with at least this many changes there.
_JUDGED_ROWS, _LEAST_CHANGES = 1 << 12, 8
# Rounding of more than this share of the usual change from row to row is a loss.
_LOSS = 0.01
# Changes below this share of a value are the rounding of float64 itself.
_NOISE = 1e-12


def lost_in_float32(numbers: np.ndarray, series: np.ndarray) -> tuple[int, int] | None:
    """Find a number whose digits float32 would lose.

    These are whole numbers that float32 cannot hold, and numbers of a column whose changes from row to row are so small
    that rounding is more than a hundredth of a change.

    Args:
        numbers: (N, C) float64, NaN where a value is missing.
        series: (N,) the number of each row's series.

    Returns:
        Its row and column, or None.
    """
    if _largest(numbers) > _WHOLE_IN_FLOAT32:
        with np.errstate(over="ignore", invalid="ignore"):
            lost = np.isfinite(numbers) & (numbers.astype(np.float32) != numbers)
            lost &= (np.abs(numbers) < _WHOLE_IN_FLOAT64) & (np.rint(numbers) == numbers)
        if lost.any():
            row, column = np.argwhere(lost)[0].tolist()
            return row, column
    some, codes = numbers[:_JUDGED_ROWS], series[:_JUDGED_ROWS]
    if (np.diff(codes) < 0).any():
        order = np.argsort(codes, kind="stable")
        some, codes = some[order], codes[order]
    else:
        order = np.arange(len(some))
    starts = np.flatnonzero(np.diff(codes, prepend=codes[0] - 1))
    rounding, change, changes = _roundings_and_changes(some, codes)
    counts = np.add.reduceat(changes.astype(np.int64), starts, axis=0)
    usual = np.add.reduceat(change, starts, axis=0) / np.maximum(counts, 1)
    rows = np.diff(starts, append=len(some))[:, None]
    fine = np.add.reduceat(rounding, starts, axis=0) / rows > _LOSS * usual
    found = np.argwhere(fine & (counts >= _LEAST_CHANGES))
    if not len(found):
        return None
    place, column = found[0].tolist()
    own = rounding[starts[place] : starts[place] + int(rows[place, 0]), column]
    return int(order[starts[place] + int(np.argmax(own > 0))]), column


def lost_in_float64(numbers: np.ndarray) -> int | None:
    """Find a column of whole numbers so large that neighbouring ones may be the same in float64.

    Args:
        numbers: (N, C) float64, NaN where a value is missing.

    Returns:
        The column, or None.
    """
    # A number just above is rounded down to the bound itself.
    if _largest(numbers) < _WHOLE_IN_FLOAT64:
        return None
    for column, values in enumerate(numbers.T):
        known = values[np.isfinite(values)]
        large = len(known) > 1 and np.abs(known).min() >= _WHOLE_IN_FLOAT64
        if large and np.abs(np.diff(known)).max() <= _NOISE * np.abs(known).max():
            return column
    return None


def _largest(numbers: np.ndarray) -> float:
    """The largest magnitude of the values that are not missing; 0 if all are."""
    both = np.fmax.reduce(numbers, axis=None, initial=0.0), np.fmin.reduce(numbers, axis=None, initial=0.0)
    return float(max(both[0], -both[1]))


def _roundings_and_changes(
    numbers: np.ndarray, series: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(N, C) the rounding of each number in float32, its change from the row before, and whether there is a change."""
    with np.errstate(over="ignore", invalid="ignore"):
        rounding = np.abs(numbers.astype(np.float32) - numbers)
        change = np.abs(np.diff(numbers, axis=0, prepend=np.nan))
        is_one = change > _NOISE * np.abs(numbers)
    is_one &= np.isfinite(change)
    is_one[1:] &= (series[1:] == series[:-1])[:, None]
    return (
        np.where(np.isfinite(rounding), rounding, 0.0),
        np.where(is_one, change, 0.0),
        is_one,
    )
