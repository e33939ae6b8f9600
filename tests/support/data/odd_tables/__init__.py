"""The odd files that people bring, each with the values to read from it or the words of its refusal."""

from collections.abc import Callable

from support.data.odd_tables.clean import clean
from support.data.odd_tables.odd import Odd
from support.data.odd_tables.refused import refused
from support.data.odd_tables.timed import timed

MAKERS: tuple[Callable[[], list[Odd]], ...] = (clean, refused, timed)


def odd_tables() -> list[Odd]:
    """All odd files."""
    return [one for maker in MAKERS for one in maker()]
