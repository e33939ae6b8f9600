"""Reads lines from a text file, or from a string column of a Parquet file.

`data.lines` makes the vocabulary and the batches from them. Only reading needs `pyarrow`.
"""

import os
from pathlib import Path
from typing import Any

from cellerate.data.text import Errors, check_errors, read_text
from cellerate.errors import DataError
from cellerate.machine.environment import require

_PARQUET_MARK = b"PAR1"


def read_lines(
    path: str | Path, *, column: str | None = None, errors: Errors = "strict", drop_empty: bool = True
) -> list[str]:
    """Reads the lines of a text file, or a string column of a Parquet file.

    Args:
        path: A text file in UTF-8 (any line ends, with or without byte-order mark), or a Parquet file.
        column: The Parquet column; None takes the only one that holds strings. A null is an empty line.
        errors: Bytes of a text file that are not UTF-8: "strict" raises, "replace" puts U+FFFD.
        drop_empty: Leave empty lines out. False keeps them, so that line i is line i of the file.

    Returns:
        The lines without their line ends, at least one.

    Raises:
        DataError: The file is missing, unreadable or has no line; or the column is missing, ambiguous or
            holds no strings.
        BackendError: The file is Parquet and the package `pyarrow` is not installed.
    """
    check_errors(errors)
    file = Path(path)
    try:
        if not file.is_file():
            came = "is not a regular file" if file.exists() else "not found"
            raise DataError(f"{file} {came}: expected a text file with one line each, or a Parquet file.")
        parquet = file.suffix.lower() in (".parquet", ".pq") or _has_parquet_marks(file)
    except OSError as error:
        raise DataError(f"cannot read {file}: {error.strerror or error}.") from error
    if parquet:
        lines = _parquet_column(file, column)
    elif column is not None:
        raise DataError(
            f"column {column!r} was asked for, but {file} is not a Parquet file: leave column out."
        )
    else:
        # Only a newline ends a line here; str.splitlines would also split at form feeds and the like.
        lines = "".join(read_text(file, errors)).split("\n")
        if not lines[-1]:
            lines.pop()
    if drop_empty:
        lines = [line for line in lines if line]
    if not lines:
        raise DataError(f"{file} has no {'text' if drop_empty else 'line'}: expected at least one line.")
    return lines


def _parquet_column(path: Path, column: str | None) -> list[str]:
    require("pyarrow", "train", "reading Parquet files")
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            schema = file.schema_arrow
            strings = [field.name for field in schema if _is_string(field.type)]
            listed = ", ".join(f"{field.name} ({field.type})" for field in schema) or "none"
            if column is None:
                if len(strings) != 1:
                    found = "more than one column" if strings else "no column"
                    raise DataError(f"{path} has {found} of strings: name one of its columns: {listed}.")
                column = strings[0]
            if schema.names.count(column) != 1 or column not in strings:
                missing = column not in schema.names
                problem = "no column" if missing else "no single column of strings named"
                raise DataError(f"{path} has {problem} {column!r}. Its columns: {listed}.")
            table = file.read(columns=[column])
            values = table.column(column).to_pylist()
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read {path} as a Parquet file: {error}") from error
    return [value or "" for value in values]


def _has_parquet_marks(path: Path) -> bool:
    with path.open("rb") as file:
        if file.read(4) != _PARQUET_MARK:
            return False
        file.seek(-4, os.SEEK_END)
        return file.read(4) == _PARQUET_MARK


def _is_string(kind: Any) -> bool:
    import pyarrow as pa

    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
