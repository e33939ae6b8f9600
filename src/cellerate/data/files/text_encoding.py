"""Guesses the encoding of a file from its beginning."""

from __future__ import annotations

import codecs

_MARKS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
# The least share of zeros at even or at odd offsets in text of two bytes a character.
_ZEROS = 0.3


def likely_encoding(data: bytes) -> str | None:
    """The name of the encoding that bytes seem to have: "utf-16", "utf-16-le", "utf-16-be", "utf-8" or "cp1252".

    Args:
        data: The beginning of a file.

    Returns:
        A name for `open`, or None if they do not look like text.
    """
    for mark, name in _MARKS.items():
        if data.startswith(mark):
            return name
    even, odd = data[0::2], data[1::2]
    if odd and odd.count(0) > _ZEROS * len(odd) and even.count(0) < odd.count(0) / 4:
        return "utf-16-le"
    if even and even.count(0) > _ZEROS * len(even) and odd.count(0) < even.count(0) / 4:
        return "utf-16-be"
    for name in ("utf-8", "cp1252"):
        try:
            codecs.getincrementaldecoder(name)().decode(data, False)
        except UnicodeDecodeError:
            continue
        return None if 0 in data else name
    return None
