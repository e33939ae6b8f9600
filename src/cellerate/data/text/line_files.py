"""Reads lines from text files, from a field of JSON lines or from a string column of Parquet files.

They come at once or block by block. `data.text.lines` makes the vocabulary and the batches from them. Only
reading needs `pyarrow`.
"""

from __future__ import annotations

import contextlib
import glob
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from cellerate.data.files import Errors, check_codec, check_errors, read_text, resolve_paths
from cellerate.data.text.json_lines import field_texts, is_json_lines
from cellerate.errors import DataError
from cellerate.machine.environment import require
from cellerate.messages import argument

_PARQUET_MARK = b"PAR1"
_PARQUET_SUFFIXES = (".parquet", ".pq")
# Few enough to take little memory as text, which is how one pass reads them.
_READ_LINES = 65_536


def read_lines(
    path: str | Path,
    *,
    column: str | None = None,
    field: str | None = None,
    errors: Errors = "strict",
    encoding: str = "utf-8",
    drop_empty: bool = True,
) -> list[str]:
    """Reads the lines of a text file, a field of JSON lines, or a string column of a Parquet file.

    Args:
        path: A text file (any line ends, with or without byte-order mark), one of JSON lines (`*.jsonl`, `*.ndjson`),
            or a Parquet file.
        column: The Parquet column; None takes the only one that holds strings. A null is an empty line.
        field: The field of JSON lines that has the text; each record is one line, and a null an empty one.
        errors: Bytes of a text file that are not of the encoding: "strict" raises, "replace" puts U+FFFD.
        encoding: A text encoding that Python knows.
        drop_empty: Leave empty lines out. False keeps them, so that line i is line i of the file.

    Returns:
        The lines without their line ends, at least one.

    Raises:
        ConfigError: Python does not know the encoding.
        DataError: The file is missing, unreadable or has no line; or the column or field is missing, ambiguous or
            holds no strings.
        BackendError: The file is Parquet and the package `pyarrow` is not installed.
    """
    blocks = line_blocks(path, _READ_LINES, column=column, field=field, errors=errors, encoding=encoding)
    lines = [line for block in blocks for line in block() if line or not drop_empty]
    if not lines:
        raise DataError(f"{path} has no {'text' if drop_empty else 'line'}: expected at least one line.")
    return lines


def find_line_files(paths: Sequence[str | os.PathLike[str]]) -> list[Path]:
    """The files of lines that `paths` names: files, folders and globs, each file once.

    A folder stands for the Parquet, JSON-lines and .txt files in it and below it, or if there are none for its text
    files; a glob for the Parquet and text files that it matches. Names that begin with "." or "_" are left out of both.

    Raises:
        DataError: There is none, or a path does not exist.
    """
    found: dict[Path, Path] = {}
    for one in map(Path, paths):
        inside: list[Path] = []
        if one.is_dir():
            inside = [
                path
                for path in one.rglob("*")
                if path.suffix.lower() in (*_PARQUET_SUFFIXES, ".txt") or is_json_lines(path)
            ]
        elif not one.exists() and glob.has_magic(str(one)):
            # Any pattern, with folders or without.
            inside = [Path(hit) for hit in glob.glob(str(one), recursive=True)]  # noqa: PTH207
            inside = [path for path in inside if path.suffix.lower() in _PARQUET_SUFFIXES]
            with contextlib.suppress(DataError):
                inside += resolve_paths([one])
        inside = [path for path in sorted(set(inside)) if path.is_file() and not _is_hidden(path, one)]
        for path in inside or resolve_paths([one]):
            found.setdefault(path.resolve(), path)
    if not found:
        raise DataError("no file was given; expected at least one file of lines.")
    return list(found.values())


def line_blocks(
    path: str | Path,
    size: int,
    *,
    column: str | None = None,
    field: str | None = None,
    errors: Errors = "strict",
    encoding: str = "utf-8",
) -> Iterator[Callable[[], list[str]]]:
    """The lines of a file of any length, `size` at a time; the last block may have fewer.

    Args:
        path: See `read_lines`.
        size: Lines in a block.
        column: See `read_lines`.
        field: See `read_lines`.
        errors: See `read_lines`.
        encoding: See `read_lines`.

    Yields:
        A function that returns the lines of a block, empty ones included. A block whose function is not called costs
        little; call it before taking the next block.

    Raises:
        ConfigError: See `read_lines`.
        DataError: See `read_lines`.
        BackendError: See `read_lines`.
    """
    check_errors(errors)
    check_codec(encoding)
    file = Path(path)
    try:
        if not file.is_file():
            came = "is not a regular file" if file.exists() else "not found"
            raise DataError(
                f"{file} {came}: expected a text file with one line each, JSON lines, or a Parquet file."
            )
        parquet = file.suffix.lower() in _PARQUET_SUFFIXES or _has_parquet_marks(file)
    except OSError as error:
        raise DataError(f"cannot read {file}: {error.strerror or error}.") from error
    records = not parquet and is_json_lines(file)
    for name, value, kind, fits in (
        ("column", column, "a Parquet file", parquet),
        ("field", field, "a file of JSON lines (*.jsonl, *.ndjson)", records),
    ):
        if value is not None and not fits:
            by_field = name == "column" and records
            instead = (
                f"its texts are named by {argument('field')}" if by_field else f"leave {argument(name)} out"
            )
            raise DataError(f"{argument(name, value)} is given, but {file} is not {kind}: {instead}.")
    if parquet:
        return _parquet_blocks(file, column, size)
    chunks = read_text(file, errors, encoding)
    return _blocks(field_texts(chunks, file, field, errors) if records else _text_lines(chunks), size)


def _text_lines(chunks: Iterator[str]) -> Iterator[str]:
    begun = ""
    for chunk in chunks:
        # Only a newline ends a line here; str.splitlines would also split at form feeds and the like.
        *ended, begun = (begun + chunk).split("\n")
        yield from ended
    if begun:
        yield begun


def _blocks(lines: Iterator[str], size: int) -> Iterator[Callable[[], list[str]]]:
    while block := list(itertools.islice(lines, size)):
        yield lambda block=block: block  # type: ignore[misc]


def _parquet_blocks(path: Path, column: str | None, size: int) -> Iterator[Callable[[], list[str]]]:
    require("pyarrow", "tables", "reading Parquet files")
    import pyarrow as pa
    import pyarrow.parquet as pq

    def lines(parts: list[Any]) -> list[str]:
        try:
            return [value or "" for part in parts for value in part.to_pylist()]
        except UnicodeDecodeError as error:
            raise DataError(f"cannot read {path} as a Parquet file: {error}") from error

    try:
        with pq.ParquetFile(path) as file:
            chosen = _string_column(path, file.schema_arrow, column)
            held: list[Any] = []
            missing = size
            # A batch may have fewer rows than requested.
            for batch in file.iter_batches(min(size, _READ_LINES), columns=[chosen]):
                values = batch.column(0)
                while len(values) >= missing:
                    block = [*held, values[:missing]]
                    yield lambda block=block: lines(block)  # type: ignore[misc]
                    values, held, missing = values[missing:], [], size
                if len(values):
                    held.append(values)
                    missing -= len(values)
            if held:
                yield lambda: lines(held)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"cannot read {path} as a Parquet file: {error}") from error


def _string_column(path: Path, schema: Any, column: str | None) -> str:
    """The column of a Parquet file to read. Raises `DataError` if there is none, or more than one."""
    strings = [field.name for field in schema if _is_string(field.type)]
    listed = ", ".join(f"{field.name} ({field.type})" for field in schema) or "none"
    if column is None:
        if len(strings) != 1:
            found = "more than one column" if strings else "no column"
            raise DataError(f"{path} has {found} of strings: name one of its columns: {listed}.")
        return strings[0]
    if schema.names.count(column) != 1 or column not in strings:
        missing = column not in schema.names
        problem = "no column" if missing else "no single column of strings named"
        raise DataError(f"{path} has {problem} {column!r}. Its columns: {listed}.")
    return column


def _is_hidden(path: Path, given: Path) -> bool:
    """True if a name is hidden: it begins with "." or "_", as is the custom in folders of data."""
    names = path.relative_to(given).parts if path.is_relative_to(given) else (path.name,)
    return any(name.startswith((".", "_")) for name in names)


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
