"""Identifies series by the values of one column of a table, or of several together."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np

from cellerate.errors import DataError

# The separator of the values of several columns.
JOINED_BY = " / "
# Below it, float64 has every whole number.
_WHOLE = 2**53
_SPELLED = re.compile(
    r"([+-]?\d+)\.0+|(\d{4}-\d\d-\d\d)[T ]00:00(?::00(?:\.0+)?)?|(true|false)", re.IGNORECASE | re.ASCII
)
_Value = TypeVar("_Value")


class BySeries(Generic[_Value]):
    """Values of series by their ids, also as another format of table writes them.

    A frame has the ids 1 and true where the CSV file that pandas writes of it has 1.0 and True. An id as it stands goes
    first, and one of several that differ in this only is found as it stands alone.

    Args:
        values: The value of each id.
    """

    def __init__(self, values: Mapping[str, _Value]) -> None:
        self._values = values

    def get(self, name: str, default: _Value) -> _Value:
        """The value of a series, or the default."""
        if name in self._values:
            return self._values[name]
        return self._alike.get(_usual(name), default)

    @functools.cached_property
    def _alike(self) -> dict[str, _Value]:
        usual = {name: _usual(name) for name in self._values}
        counts = Counter(usual.values())
        return {usual[name]: value for name, value in self._values.items() if counts[usual[name]] == 1}


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


def _usual(name: str) -> str:
    """An id with whole numbers without decimals, dates without midnight, and truth values in small letters."""
    found = [(part, _SPELLED.fullmatch(part)) for part in name.split(JOINED_BY)]
    return JOINED_BY.join(match[match.lastindex or 0].lower() if match else part for part, match in found)
