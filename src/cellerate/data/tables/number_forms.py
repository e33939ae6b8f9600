"""Numbers with marks (`$1.5`, `5%`, `(1.5)`, `1.2M`, TRUE), which are read if a whole column has them."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Sequence
from typing import Any

_SIGNS = "[$€£¥₹₽₩₺₪฿]|R\\$|USD|EUR|GBP|CHF|JPY|CNY|INR"
_CURRENCY = re.compile(rf"^[(+-]*\s*({_SIGNS})|({_SIGNS})\)?$")
_SIZES = (("[kK]", "e3"), ("M", "e6"), ("B", "e9"), ("T", "e12"))
_SIZE = re.compile(r"\d\s*[kKMBT]\)?$")
_BOOLEANS = (r"(?i)^true$", "1"), (r"(?i)^false$", "0")
_ZERO = re.compile(r"[+-]?0*[.,]?0*")
# The number of values by which a text column is recognised.
_LOOKED_AT = 32


@dataclasses.dataclass(frozen=True)
class NumberForm:
    """The marks in the numbers of a column.

    Attributes:
        currency: The sign or code before or after each number, or "".
        percent: Whether a percent sign follows each number.
        brackets: Whether brackets mark negative numbers.
        sizes: Whether K, M, B and T stand for thousands, millions, billions and trillions.
        booleans: Whether the values are TRUE and FALSE.
    """

    currency: str = ""
    percent: bool = False
    brackets: bool = False
    sizes: bool = False
    booleans: bool = False

    @functools.cached_property
    def rules(self) -> tuple[tuple[str, str], ...]:
        """The substitutions that turn the values into plain numbers: regular expressions and replacements."""
        if self.booleans:
            return _BOOLEANS
        found: list[tuple[str, str]] = []
        if self.brackets:
            found.append((r"^\((.+)\)$", r"-\1"))
        if self.currency:
            sign = re.escape(self.currency)
            found += [(rf"^([+-]?)\s*{sign}\s*", r"\1"), (rf"\s*{sign}$", "")]
        if self.percent:
            found.append((r"\s*%$", ""))
        if self.sizes:
            found += [(rf"\s*{size}$", power) for size, power in _SIZES]
        return tuple(found)

    @property
    def in_words(self) -> str:
        """The marks and their meanings."""
        words = [f"{self.currency!r} left out"] * bool(self.currency)
        words += ["'5%' as 5"] * self.percent + ["'(1.5)' as -1.5"] * self.brackets
        words += ["'1.2M' as 1,200,000"] * self.sizes + ["TRUE as 1"] * self.booleans
        return " and ".join(words)

    def plain(self, value: str) -> str:
        """A value without its marks."""
        for pattern, by in self.rules:
            value = re.sub(pattern, by, value)
        return value

    def plain_all(self, values: Any) -> Any:
        """An Arrow array of strings without their marks."""
        import pyarrow.compute as pc

        for pattern, by in self.rules:
            values = pc.replace_substring_regex(values, pattern, by)
        return values


def find_form(values: Sequence[str], is_number: Callable[[str], bool]) -> NumberForm | None:
    """Find the marks in the numbers of a column.

    Args:
        values: The values that are not missing, each once, without blanks around them.
        is_number: Whether a value without marks is a number.

    Returns:
        The marks; None if a value is not a number with them, if they are only in a part of the values, or if there are
        none.
    """
    if not values or sum(map(_may_be, values[:_LOOKED_AT])) < min(len(values), _LOOKED_AT):
        return None
    if all(value.lower() in ("true", "false") for value in values):
        return NumberForm(booleans=True)
    signs = {sign for value in values for sign in [_sign_of(value)] if sign}
    found = NumberForm(
        currency=next(iter(signs)) if len(signs) == 1 else "",
        percent=any(value.rstrip(")").endswith("%") for value in values),
        brackets=any(value.startswith("(") for value in values),
        sizes=any(map(_SIZE.search, values)),
    )
    if not found.rules or not all(is_number(found.plain(value)) for value in values):
        return None
    others = [value for value in values if not _ZERO.fullmatch(value)]
    whole = (
        (not found.currency or all(map(_sign_of, others)))
        and (not found.percent or all("%" in value for value in others))
        and (not found.sizes or sum(bool(_SIZE.search(value)) for value in others) * 2 >= len(others))
        and not (found.brackets and any(value.startswith("-") for value in values))
    )
    return found if whole else None


def bare(value: str) -> str:
    """A value without any mark that a number may have, which leaves its digits."""
    value = value.strip()
    value = NumberForm(_sign_of(value), percent=True, brackets=True).plain(value)
    return value if _SIZE.search(value) is None else value[:-1].rstrip()


def _may_be(value: str) -> bool:
    return value.lower() in ("true", "false") or bool(re.search(r"\d", value) and len(value) < 40)


def _sign_of(value: str) -> str:
    match = _CURRENCY.search(value)
    return (match[1] or match[2]) if match else ""
