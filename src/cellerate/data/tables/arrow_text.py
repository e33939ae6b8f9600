"""Strings of Arrow: blanks around them, and words for missing values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cellerate.data.tables.table import MISSING


def is_text(values: Any) -> bool:
    """True for an Arrow array of strings."""
    return is_text_type(values.type)


def is_text_type(kind: Any) -> bool:
    """True for the type of strings of Arrow, and of categories of strings."""
    import pyarrow as pa

    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


def decoded(values: Any) -> Any:
    """The values of an Arrow array, of categories too."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not pa.types.is_dictionary(values.type):
        return values
    words = values.dictionary
    if pa.types.is_string_view(words.type):
        # Arrow cannot take from views, which are what polars has for its categories.
        words = pc.cast(words, pa.string())
    return words.take(values.indices)


def trimmed(values: Any, words: Sequence[str] = (), missing: Sequence[str] = MISSING) -> Any:
    """Arrow strings without blanks around them, null where a value is missing.

    Args:
        values: The strings.
        words: Words for a missing value, beside the usual ones.
        missing: The usual words.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    values = decoded(values)
    if pa.types.is_string_view(values.type):
        values = pc.cast(values, pa.string())
    values = pc.utf8_trim_whitespace(values)
    return pc.if_else(pc.is_in(values, pa.array([*missing, *words], values.type)), None, values)


def without_missing(values: Any, missing: Sequence[str] = MISSING) -> Any:
    """An Arrow array whose words for a missing value become null; other values, and categories, stay."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_dictionary(values.type) or not is_text(values) or not len(values):
        return values
    if pa.types.is_string_view(values.type):
        values = pc.cast(values, pa.string())
    if (pc.min(pc.binary_length(values)).as_py() or 0) > max(map(len, missing)):
        return values
    return trimmed(values, missing=missing)


def distinct(texts: Any) -> list[str]:
    """The values of Arrow strings, each once, in the order in which they appear."""
    return [value for value in texts.unique().to_pylist() if value is not None]
