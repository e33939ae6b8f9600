"""Reads the time column of a table: dates, numbers, or texts in one of a few ways of writing times."""

from pathlib import Path
from typing import Any

import numpy as np

from cellerate.errors import DataError

# Dates with dots put the day first; with slashes it could be day or month, so those are not guessed.
_TIME_FORMATS = (
    "%Y/%m/%d %H:%M:%S",
    "%Y/%m/%d %H:%M",
    "%Y/%m/%d",
    "%d.%m.%Y %H:%M:%S",
    "%d.%m.%Y %H:%M",
    "%d.%m.%Y",
)


class TimeParser:
    """Turns a time column into numbers; the look of its first value decides the format of all."""

    def __init__(self, path: Path, column: str, *, date_order: str = "auto") -> None:
        del date_order
        self._path, self._column = path, column
        self._format: str | None = None

    def parse(self, values: Any, row: int) -> np.ndarray:
        """Some times as datetime64[us], or as float64 if the column holds numbers.

        Args:
            values: An Arrow array.
            row: How many rows of the file come before it.

        Raises:
            DataError: A value is missing, or no time as the first one is.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        if values.null_count:
            place = row + values.is_null().to_pylist().index(True) + 1
            raise DataError(f"{self._path}: the time column {self._column!r} is empty in data row {place}.")
        if pa.types.is_dictionary(values.type):
            values = values.dictionary_decode()
        if pa.types.is_integer(values.type) or pa.types.is_floating(values.type):
            return np.asarray(pc.cast(values, pa.float64()))
        if pa.types.is_temporal(values.type):
            return np.asarray(pc.cast(values, pa.timestamp("us"), safe=False)).astype("datetime64[us]")
        texts = pc.utf8_trim_whitespace(pc.cast(values, pa.string()))
        if self._format is None:
            ways = ("number", "iso", "zone", *_TIME_FORMATS)
            self._format = next((way for way in ways if _times(texts[:1], way) is not None), "iso")
        parsed = _times(texts, self._format)
        if parsed is None:
            bad = next(i for i in range(len(texts)) if _times(texts[i : i + 1], self._format) is None)
            raise DataError(
                f"{self._path}: the time column {self._column!r} holds {texts[bad].as_py()!r} in data row "
                f"{row + bad + 1}, which is no time as expected there. Write times like 2016-07-01 00:00:00, "
                f"all in one way."
            )
        return parsed


def _times(texts: Any, way: str) -> np.ndarray | None:
    """The times of Arrow strings that are all written in `way`, or None if one of them is not."""
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        if way == "number":
            return np.asarray(pc.cast(texts, pa.float64()))
        if way == "iso":
            found = pc.cast(texts, pa.timestamp("us"))
        elif way == "zone":
            found = pc.cast(pc.cast(texts, pa.timestamp("us", "UTC")), pa.timestamp("us"))
        else:
            found = pc.strptime(texts, format=way, unit="us")
    except pa.ArrowInvalid:
        return None
    return np.asarray(found).astype("datetime64[us]")
