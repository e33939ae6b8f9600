"""Finds the decimal mark and the grouping mark in the numbers of a file's text columns.

`1,234` and `1.234` can be read in two ways. All values of a file count, because a mark has one meaning in a file: a
single `0,5` shows that the comma is the decimal mark. If no value decides, semicolons between the columns do, unless
other evidence contradicts them; otherwise the caller must say.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Sequence
from typing import Literal

from cellerate.data.tables.table import MISSING

SPACES = " \u00a0\u202f"
WORDS = {".": "point", ",": "comma"}
"""The words for the marks in options: a mark itself would look like punctuation of the sentence."""
_NUMBER = re.compile(rf"[+-]?\d[\d.,'{SPACES}]*(?:[eE][+-]?\d+)?|[+-]?[.,]\d+(?:[eE][+-]?\d+)?")
_PLAIN = re.compile(r"[+-]?\d+(?:[eE][+-]?\d+)?")
_ONE_MARK = re.compile(r"[+-]?\d*[.,]\d*(?:[eE][+-]?\d+)?")
_EITHER = re.compile(r"[+-]?[1-9]\d{0,2}([.,])\d{3}")
_GROUPED = re.compile(rf"[+-]?\d{{1,3}}(?:([.,'{SPACES}])\d{{3}}(?:\1\d{{3}})*)(?:([.,])\d+)?")
_BELOW_THOUSAND = re.compile(r"[+-]?[1-9]\d{0,2}")
_MONTH_FIRST = re.compile(r"(?:0?[1-9]|1[0-2])/(?:1[3-9]|2\d|3[01])/(?:\d{4}|\d{2})(?:[ ,T].*)?")
_MOST = 0.5  # the share of number-like values from which a column counts as numbers with a few faults

Mark = Literal["decimal", "thousands"]


@dataclasses.dataclass
class Marks:
    """The evidence of a file's values on its marks.

    Attributes:
        seen: For each use of a mark, the column and the value that show it.
        either: For "." and ",", the column and the first value that can be read in both ways.
        commas: For each column, the first value whose comma can be read in both ways.
        below: For each column, the first whole number from 1 to 999. Such numbers occur beside grouped digits, and
            hardly ever beside numbers that all have three decimals.
        english: A date with the month first, or "".
    """

    seen: dict[tuple[Mark, str], tuple[str, str]] = dataclasses.field(default_factory=dict)
    either: dict[str, tuple[str, str]] = dataclasses.field(default_factory=dict)
    commas: dict[str, str] = dataclasses.field(default_factory=dict)
    below: dict[str, str] = dataclasses.field(default_factory=dict)
    english: str = ""

    def add(self, column: str, values: Iterable[str]) -> None:
        """Takes some values of a column into account."""
        there = [value for value in (one.strip() for one in values) if value not in MISSING]
        fitting = [value for value in there if _NUMBER.fullmatch(value)]
        if len(fitting) <= _MOST * len(there):
            self.english = self.english or next(filter(_MONTH_FIRST.fullmatch, there), "")
            return
        for value in fitting:
            if _PLAIN.fullmatch(value):
                if column not in self.below and _BELOW_THOUSAND.fullmatch(value):
                    self.below[column] = value
            elif match := _EITHER.fullmatch(value):
                self.either.setdefault(match[1], (column, value))
                if match[1] == ",":
                    self.commas.setdefault(column, value)
            elif _ONE_MARK.fullmatch(value):
                self.seen.setdefault(("decimal", "," if "," in value else "."), (column, value))
            elif match := _GROUPED.fullmatch(value):
                group = " " if match[1] in SPACES else match[1]
                if match[2] != match[1]:
                    self.seen.setdefault(("thousands", group), (column, value))
                    if match[2]:
                        self.seen.setdefault(("decimal", match[2]), (column, value))

    def of(self, use: Mark) -> list[str]:
        """The marks with this use."""
        return [mark for kind, mark in self.seen if kind == use]

    def settled(self, separator: str) -> bool:
        """True if the values alone decide how each of them is read."""
        if not self.either or any(use == "decimal" or mark in WORDS for use, mark in self.seen):
            return True
        if self.seen:
            # Blanks or apostrophes group digits, so another mark does not.
            return len(self.either) == 1
        return separator == "," and set(self.either) == {"."}

    def contradiction(self) -> tuple[str, str, str] | None:
        """The evidence against a decimal comma in a file of semicolons: a column, its value, and the reason in words.

        A country whose spreadsheets write semicolons writes decimal commas, too; programs that write semicolons write
        points. So a comma in a number is a decimal comma there, unless one of these signs contradicts it.
        """
        for column, value in self.commas.items():
            if column in self.below:
                return column, value, f"the whole number {self.below[column]!r} in the same column"
        if self.english and self.commas:
            column, value = next(iter(self.commas.items()))
            return column, value, f"the date {self.english!r} with the month first"
        return None


def number_pattern(decimal: str, thousands: str) -> str:
    """The regular expression of numbers that may have grouped digits; without anchors."""
    group = f"[{SPACES}]" if thousands == " " else re.escape(thousands)
    return rf"[+-]?(?:\d{{1,3}}(?:{group}\d{{3}})+|\d+)(?:{re.escape(decimal)}\d*)?(?:[eE][+-]?\d+)?"


def is_number(value: str, decimal: str, thousands: str) -> bool:
    """True if a value is a number, or missing."""
    value = value.strip()
    if value in MISSING:
        return True
    if thousands and re.fullmatch(number_pattern(decimal, thousands), value, re.ASCII):
        return True
    if decimal == "," and "." in value:
        return False
    try:
        float(value.replace(decimal, "."))
    except ValueError:
        return False
    # Python reads the digits of every script, Arrow those of ASCII.
    return "_" not in value and value.isascii()


def readings(value: str) -> tuple[str, str]:
    """The two numbers that a value such as `1,234` may be: with a decimal mark, and with a grouping mark."""
    plain = re.sub(r"[.,]", "", value)
    return str(float(value.replace(",", "."))), plain


def columns_of(rows: Sequence[Sequence[str]], names: Sequence[str]) -> dict[str, list[str]]:
    """The values of each column of rows, which may be short."""
    return {
        name: [row[place] for row in rows if place < len(row)]
        for place, name in reversed(list(enumerate(names)))
    }
