"""Identifies series by the values of one column of a table, or of several together."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cellerate.errors import DataError

# The separator of the values of several columns.
JOINED_BY = " / "
# Below it, float64 has every whole number.
_WHOLE = 2**53


def series_of(
    columns: Sequence[Any], names: Sequence[str], path: Path, row: int
) -> tuple[np.ndarray, list[str]]:
    """For each row the index of its id, and the ids: the joined values of the columns.

    Args:
        columns: Arrow arrays of one length.
        names: The names of the columns.
        path: The file, for messages.
        row: The number of rows of the file before.

    Raises:
        DataError: A value is missing, or is neither a text nor a number, a date or a truth value.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    codes, ids = np.zeros(len(columns[0]), np.int64), [""]
    for number, (name, column) in enumerate(zip(names, columns, strict=True)):
        if column.null_count:
            place = row + column.is_null().to_pylist().index(True) + 1
            raise DataError(
                f"{path}: the series column {name!r} is empty in data row {place}. Write the id of the series there, "
                "or delete the row."
            )
        kind = column.type
        try:
            if not pa.types.is_dictionary(kind):
                column = pc.dictionary_encode(column)
            texts = _texts(column.dictionary)
        except pa.ArrowNotImplementedError as error:
            raise DataError(
                f"{path}: the series column {name!r} holds values of type {kind}; expected texts or numbers."
            ) from error
        pairs = codes * len(texts) + np.asarray(column.indices)
        used, codes = np.unique(pairs, return_inverse=True)
        if len(names) > 1:
            # Within a value, the separator is escaped.
            texts = [_escaped(text) for text in texts]
        join = JOINED_BY if number else ""
        ids = [f"{ids[pair // len(texts)]}{join}{texts[pair % len(texts)]}" for pair in used.tolist()]
    return codes, ids


def _texts(values: Any) -> list[str]:
    """The values of an Arrow array as text; whole numbers without a point or an exponent, also those of Excel."""
    import pyarrow as pa
    import pyarrow.compute as pc

    texts: list[str] = pc.cast(values, pa.string()).to_pylist()
    if pa.types.is_floating(values.type):
        numbers = zip(values.to_pylist(), texts, strict=True)
        texts = [
            str(int(value)) if value.is_integer() and abs(value) < _WHOLE else text for value, text in numbers
        ]
    return texts


def _escaped(text: str) -> str:
    return re.sub(r"(?<= )(/+)(?= )", r"\1/", text)
