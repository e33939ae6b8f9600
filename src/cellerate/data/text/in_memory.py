"""Lines as a program has them: lists, arrays of NumPy and Arrow, and columns of pandas, polars and Arrow tables.

None of these packages is imported here: the caller has imported the one that is needed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol, TypeAlias

from cellerate.errors import ConfigError, DataError
from cellerate.messages import argument


class TextTable(Protocol):
    """A table of pandas, polars or Arrow."""

    @property
    def columns(self) -> Any:
        """Its columns, or their names."""


TextLines: TypeAlias = Iterable[str] | TextTable
"""Lines in memory: a list, an array, a column, or a table with a column of them."""


def given_lines(lines: TextLines, column: str | None = None) -> list[str]:
    """The texts of a list, of an array, or of a column of a table.

    Args:
        lines: Texts, or a table with a column of them.
        column: The column of a table; without it, its only column of texts.

    Raises:
        ConfigError: `lines` is a single text or of another type, one of them is not a text, or `column` is given for
            lines without columns.
        DataError: The column of a table is missing or ambiguous.
    """
    if isinstance(lines, str):
        raise ConfigError(f"lines must be a list of texts, not {lines!r:.60}: put a single line into a list.")
    if (names := _columns(lines)) is not None:
        found = _values(lines[_column(lines, names, column)])  # type: ignore[index] # a table's are
    elif column is not None:
        raise ConfigError(
            f"{argument('column')} is for a table or a Parquet file, and lines is a {type(lines).__name__}."
        )
    else:
        found = _values(lines)
    for number, line in enumerate(found):
        if not isinstance(line, str):
            raise ConfigError(
                f"lines must be a list of texts, and line {number} is {line!r:.60}: leave it out, or make it a text."
            )
    return found


def _columns(lines: Any) -> list[Any] | None:
    """The names of the columns of a table; None for anything else."""
    if not hasattr(lines, "columns"):
        return None
    # Arrow keeps the columns themselves under that name.
    return list(getattr(lines, "column_names", lines.columns))


def _column(table: Any, names: list[Any], column: str | None) -> Any:
    listed = ", ".join(map(str, names))
    if column is not None:
        if column not in names:
            raise DataError(f"the table has no column {column!r}. It has: {listed}.")
        return column
    texts = [name for name in names if any(isinstance(one, str) for one in _values(table[name]))]
    if len(texts) != 1:
        several = f"several columns of texts ({', '.join(map(str, texts))})"
        raise DataError(
            f"the table has {several if texts else f'no column of texts, only {listed}'}: say which one "
            f"({argument('column')})."
        )
    return texts[0]


def _values(lines: Any) -> list[Any]:
    for convert in ("to_pylist", "to_list", "tolist"):
        if hasattr(lines, convert):
            lines = getattr(lines, convert)()
            break
    try:
        return list(lines)
    except TypeError as error:
        raise ConfigError(
            f"lines must be a list of texts, not {lines!r:.60}: give a list, an array or a column of them."
        ) from error
