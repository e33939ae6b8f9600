"""Which mark stands before decimals, and which one groups digits: found in the numbers of a file's text columns.

`1,234` and `1.234` can be read in two ways. All values of a file count, because one mark has one meaning in it: a
single `0,5` says that the comma is the decimal mark. Where nothing says so, it is the caller who has to.
"""

import dataclasses
import re
from collections.abc import Iterable, Sequence
from typing import Literal

from cellerate.data.table import MISSING

SPACES = " \u00a0\u202f"
WORDS = {".": "point", ",": "comma"}
"""The words for the marks in options: in a sentence, a mark looks like one of its own."""
_NUMBER = re.compile(rf"[+-]?\d[\d.,'{SPACES}]*(?:[eE][+-]?\d+)?|[+-]?[.,]\d+(?:[eE][+-]?\d+)?")
_PLAIN = re.compile(r"[+-]?\d+(?:[eE][+-]?\d+)?")
_ONE_MARK = re.compile(r"[+-]?\d*[.,]\d*(?:[eE][+-]?\d+)?")
_EITHER = re.compile(r"[+-]?[1-9]\d{0,2}([.,])\d{3}")
_GROUPED = re.compile(rf"[+-]?\d{{1,3}}(?:([.,'{SPACES}])\d{{3}}(?:\1\d{{3}})*)(?:([.,])\d+)?")
_MOST = 0.5  # of the values of a column look like numbers if it is one with a few faults

Mark = Literal["decimal", "thousands"]


@dataclasses.dataclass
class Marks:
    """What the values of a file say of its marks.

    Attributes:
        seen: For each use of a mark, the column and the value that show it.
        either: For "." and ",", the column and the first value that can be read in both ways.
    """

    seen: dict[tuple[Mark, str], tuple[str, str]] = dataclasses.field(default_factory=dict)
    either: dict[str, tuple[str, str]] = dataclasses.field(default_factory=dict)

    def add(self, column: str, values: Iterable[str]) -> None:
        """Takes some values of a column into account."""
        there = [value for value in (one.strip() for one in values) if value not in MISSING]
        fitting = [value for value in there if _NUMBER.fullmatch(value)]
        if len(fitting) <= _MOST * len(there):
            return
        for value in fitting:
            if _PLAIN.fullmatch(value):
                continue
            if match := _EITHER.fullmatch(value):
                self.either.setdefault(match[1], (column, value))
            elif _ONE_MARK.fullmatch(value):
                self.seen.setdefault(("decimal", "," if "," in value else "."), (column, value))
            elif match := _GROUPED.fullmatch(value):
                group = " " if match[1] in SPACES else match[1]
                if match[2] != match[1]:
                    self.seen.setdefault(("thousands", group), (column, value))
                    if match[2]:
                        self.seen.setdefault(("decimal", match[2]), (column, value))

    def of(self, use: Mark) -> list[str]:
        """The marks that are used so."""
        return [mark for kind, mark in self.seen if kind == use]

    def settled(self, separator: str) -> bool:
        """Whether each value has one reading only."""
        return not self.either or bool(self.seen) or (separator == "," and set(self.either) == {"."})


def number_pattern(decimal: str, thousands: str) -> str:
    """The regular expression of numbers that may have grouped digits; without anchors."""
    group = f"[{SPACES}]" if thousands == " " else re.escape(thousands)
    return rf"[+-]?(?:\d{{1,3}}(?:{group}\d{{3}})+|\d+)(?:{re.escape(decimal)}\d*)?(?:[eE][+-]?\d+)?"


def is_number(value: str, decimal: str, thousands: str) -> bool:
    """Whether a value is a number, or missing."""
    value = value.strip()
    if value in MISSING:
        return True
    if thousands and re.fullmatch(number_pattern(decimal, thousands), value):
        return True
    if decimal == "," and "." in value:
        return False
    try:
        float(value.replace(decimal, "."))
    except ValueError:
        return False
    return "_" not in value


def readings(value: str) -> tuple[str, str]:
    """What a value such as `1,234` is with its mark before decimals, and with its mark as a group's."""
    plain = re.sub(r"[.,]", "", value)
    return str(float(value.replace(",", "."))), plain


def columns_of(rows: Sequence[Sequence[str]], names: Sequence[str]) -> dict[str, list[str]]:
    """The values of each column of rows, which may be short."""
    return {
        name: [row[place] for row in rows if place < len(row)]
        for place, name in reversed(list(enumerate(names)))
    }
