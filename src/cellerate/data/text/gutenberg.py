"""Finds the licence that Project Gutenberg puts around its books, and leaves it out where that is asked for.

A model that learns a book with it learns to write licences, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

_NAME = b"PROJECT GUTENBERG EBOOK"
# The longest header, with its credits, has some ten thousand characters.
_HEADER_BYTES = 1 << 16
_START = re.compile(
    r"^\*\*\* ?START OF (?:THE|THIS) PROJECT GUTENBERG EBOOK[^*]{0,400}\*\*\*[^\n]*\n", re.MULTILINE
)
_END = re.compile(r"^\*\*\* ?END OF (?:THE|THIS) PROJECT GUTENBERG EBOOK", re.MULTILINE)
# The most characters that `_END` needs to see at once.
_HELD = 64


def has_licence(head: bytes) -> bool:
    """True if the beginning of a file, in any encoding that has ASCII in it, holds the marks of Project Gutenberg."""
    return _NAME in head[:_HEADER_BYTES].replace(b"\0", b"")


def without_licence(chunks: Iterable[str]) -> Iterator[str]:
    """The text between the marks of Project Gutenberg, without blank lines at its ends; without marks, all of it.

    Args:
        chunks: The text of a file, cut anywhere.

    Yields:
        Its text, cut elsewhere.
    """
    held, inside, begun = "", None, False
    source = iter(chunks)
    blank = ""
    for chunk in source:
        held += chunk
        if inside is None:
            if match := _START.search(held):
                held, inside = held[match.end() :], True
            elif len(held) < _HEADER_BYTES:
                continue
            else:
                inside = False
        if not inside:
            yield held
            yield from source
            return
        end = _END.search(held)
        # A mark may begin in what is held and end in the next chunk.
        whole = held[: end.start()] if end else held[: max(0, len(held) - _HELD)]
        held = held[len(whole) :]
        text = (blank + whole) if begun else (blank + whole).lstrip("\n")
        kept = text.rstrip("\n")
        # Line ends wait until a character follows them: those at the end of the text are left out.
        blank = text[len(kept) :]
        if kept:
            begun = True
            yield kept
        if end:
            yield "\n"
            for _ in source:  # the digest of the file needs its end, too
                pass
            return
    # There was no mark at the end, or none at all.
    if blank or held:
        yield blank + held
