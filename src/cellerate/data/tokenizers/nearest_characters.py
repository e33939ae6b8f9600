"""Finds the known characters that come nearest to one that a vocabulary does not have.

It only serves messages: nothing is replaced without being asked for.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator

# The ASCII signs for typographic ones, by a part of their Unicode names.
_PLAIN = {
    "APOSTROPHE": "'",
    "SINGLE": "'",
    "QUOTATION MARK": "\"'",
    "DASH": "-",
    "HYPHEN": "-",
    "MINUS": "-",
    "SPACE": " ",
    "ELLIPSIS": ".",
    "BULLET": "*-",
    "SOLIDUS": "/",
    "TILDE": "~",
}


def nearest_known(character: str, known: str) -> str | None:
    """The known character that comes nearest to another one, or the few that together stand for it.

    Args:
        character: One character.
        known: The vocabulary.

    Returns:
        Its base letter or its expansion ("e" for "é", "fi" for the ligature), the other case, the plain sign, or for a
        digit the nearest digit; None if there is none.
    """
    has = set(known)
    for candidate in _candidates(character):
        if candidate and candidate != character and set(candidate) <= has:
            return candidate
    if not character.isdecimal():
        return None
    digits = (one for one in known if one.isdecimal())
    return min(digits, key=lambda one: abs(ord(one) - ord(character)), default=None)


def _candidates(character: str) -> Iterator[str]:
    plain = "".join(one for one in unicodedata.normalize("NFKD", character) if not unicodedata.combining(one))
    yield plain
    yield character.casefold()
    yield character.swapcase()
    yield plain.swapcase()
    name = unicodedata.name(character, "")
    for part, signs in _PLAIN.items():
        if part in name:
            yield from signs
    if character.isspace():
        yield from " \n"
