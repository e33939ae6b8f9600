"""Takes the columns of a frame by their names, not by their order.

It needs only NumPy: it recognizes a frame by its attributes and does not import pandas, polars or pyarrow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cellerate.data.arrays import unmasked
from cellerate.errors import DataError

_SHOWN = 12


def by_name(rows: Any, names: Sequence[str], argument: str = "rows", kinds: str = "fiu") -> np.ndarray | None:
    """Return the columns of these names, or None if the rows have no names.

    Args:
        rows: A frame of pandas or polars, an Arrow table or record batch, a mapping of columns, a structured array; or
            a list of these, which are windows of equally many rows.
        names: The columns, in the order of the result. Other columns are ignored.
        argument: The name of `rows` in errors.
        kinds: The kinds of numbers in a column, as NumPy abbreviates them.

    Returns:
        (rows, names), or for a list (windows, rows, names), float64, with NaN where a value is missing.

    Raises:
        DataError: A column is missing, occurs twice or holds no numbers; or columns or windows differ in length.
    """
    if isinstance(rows, list | tuple) and rows and all(_names(one) is not None for one in rows):
        windows = [_columns(one, names, argument, kinds) for one in rows]
        lengths = {len(one) for one in windows}
        if len(lengths) > 1:
            raise DataError(
                f"{argument} is a list of windows of {min(lengths)} to {max(lengths)} rows: make them equally long."
            )
        return np.stack(windows)
    return None if _names(rows) is None else _columns(rows, names, argument, kinds)


def _names(rows: Any) -> list[Any] | None:
    """The names of the columns, or None if there are none."""
    if isinstance(rows, np.ndarray):
        return None if rows.dtype.names is None else list(rows.dtype.names)
    if isinstance(rows, Mapping):
        return list(rows)
    for attribute in ("column_names", "columns"):
        found = getattr(rows, attribute, None)
        if found is not None and not callable(found):
            names = list(found)
            # `columns` of a record batch holds values; the names are in its schema.
            if all(isinstance(name, str | int) for name in names):
                return names
    schema: Any = getattr(rows, "schema", None)
    return list(schema.names) if hasattr(schema, "names") else None


def _columns(rows: Any, names: Sequence[str], argument: str, kinds: str) -> np.ndarray:
    there = _names(rows) or []
    lacking = [name for name in names if name not in there]
    if lacking:
        shown = ", ".join(map(str, there[:_SHOWN])) + (", ..." if len(there) > _SHOWN else "")
        raise DataError(
            f"{argument} has no column {', '.join(map(repr, lacking))}, which the model forecasts from. "
            f"It has: {shown}."
        )
    columns = []
    for name in names:
        if there.count(name) > 1:
            raise DataError(f"{argument} has more than one column named {name!r}; rename one of them.")
        columns.append(_numbers(rows[name], name, argument, kinds))
    if len({len(column) for column in columns}) > 1:
        lengths = ", ".join(f"{name} {len(column)}" for name, column in zip(names, columns, strict=True))
        raise DataError(f"the columns of {argument} differ in length: {lengths}.")
    return np.column_stack(columns)


def _numbers(column: Any, name: str, argument: str, kinds: str) -> np.ndarray:
    """(rows,) float64."""
    values = column
    # A column of integers with nulls has its own method to put NaN there.
    if hasattr(column, "to_numpy"):
        try:
            values = column.to_numpy(zero_copy_only=False)
        except TypeError:
            values = column.to_numpy()
    values = np.asarray(unmasked(values))
    if values.ndim != 1:
        raise DataError(
            f"the column {name!r} of {argument} has shape {values.shape}; expected one number a row."
        )
    if values.dtype == object:
        values = np.array([np.nan if _is_missing(value) else value for value in values.tolist()], object)
        if any(isinstance(value, str | bytes | bool) for value in values):
            raise DataError(
                f"the column {name!r} of {argument} holds {_first_text(values)!r}, which is not a number."
            )
        try:
            values = values.astype(np.float64)
        except (TypeError, ValueError) as error:
            raise DataError(f"the column {name!r} of {argument} holds no numbers: {error}.") from error
    if values.dtype.kind not in kinds:
        raise DataError(f"the column {name!r} of {argument} holds {values.dtype}; expected numbers.")
    return values.astype(np.float64)


def _is_missing(value: Any) -> bool:
    # Comparing pandas's NA gives NA again, which is not a truth value.
    return value is None or type(value).__name__ in ("NAType", "NaTType")


def _first_text(values: np.ndarray) -> Any:
    return next(value for value in values if isinstance(value, str | bytes | bool))
