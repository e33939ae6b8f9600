"""The settings for reading tables: facts that files do not show, or that override how a file looks."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Literal, get_args

from cellerate.data.files import check_codec
from cellerate.errors import ConfigError
from cellerate.messages import Message, argument
from cellerate.settings import check_choice, check_number

DateOrder = Literal["auto", "ymd", "mdy", "dmy"]
Header = Literal["auto", "yes", "no"]
_SEPARATORS = {"tab": "\t", "\\t": "\t", "comma": ",", "semicolon": ";", "pipe": "|", "space": " "}
_THOUSANDS = (",", ".", " ", "'", "")
_THOUSANDS_WORDS = {"space": " ", "none": "", "comma": ",", "point": ".", "apostrophe": "'"}
_DECIMAL_WORDS = {"comma": ",", "point": "."}


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableOptions:
    """The form of tables. It is a property of files, not of a model, so a model does not remember it.

    Attributes:
        separator: The separator of the columns of a CSV file, such as ";" or "tab"; found if left out.
        decimal: The decimal mark of a CSV file, "." or ","; found if left out.
        thousands: The mark that groups the digits of a CSV file's numbers: ",", ".", "space", "'" or "none"; found if
            left out.
        date_order: The order in dates such as 03/04/2024: "ymd", "mdy", "dmy", or "auto" to find it.
        encoding: The encoding of a CSV file, of JSON lines, or of a text that a model is judged on; without it, UTF-8,
            UTF-16 and Windows-1252 are told apart in tables, and texts are read as in training.
        header: Whether the first row of a CSV file or of a sheet has the names of the columns: "yes", "no", or "auto"
            to find it. Without names, the columns are 0, 1, ...
        skip_lines: Lines of a CSV file, or rows of a sheet, before the table begins.
        sheet: The sheet of an Excel file; without it, the first one.
        missing_values: Marks of missing numbers besides the usual words: numbers such as -999, or words, separated by
            commas. A model remembers these.
    """

    separator: str | None = None
    decimal: str | None = None
    thousands: str | None = None
    date_order: DateOrder = "auto"
    encoding: str | None = None
    header: Header = dataclasses.field(default="auto", metadata={"accepts": Header | bool | None})
    skip_lines: int = 0
    sheet: str | None = None
    missing_values: Sequence[str] = dataclasses.field(default=(), metadata={"accepts": Sequence[str | float]})

    def __post_init__(self) -> None:
        """Checks every field, and replaces the names of marks by the marks.

        Raises:
            ConfigError: A field cannot be used.
        """
        for name, words in (
            ("separator", _SEPARATORS),
            ("decimal", _DECIMAL_WORDS),
            ("thousands", _THOUSANDS_WORDS),
        ):
            value = getattr(self, name)
            if value is not None and not isinstance(value, str):
                raise ConfigError(f"{argument(name)} must be a character such as ';', not {value!r}.")
            if value in words:
                object.__setattr__(self, name, words[value])
        object.__setattr__(self, "missing_values", as_words(self.missing_values))
        # As pandas and others have it.
        booleans: dict[object, Header] = {True: "yes", False: "no", None: "auto"}
        object.__setattr__(self, "header", booleans.get(self.header, self.header))
        if self.separator is not None and (
            len(self.separator) != 1 or ord(self.separator) > 127 or self.separator in '"\r\n'
        ):
            raise ConfigError(
                f"{argument('separator')} must be one ASCII character such as ';', or tab, not {self.separator!r}."
            )
        if self.decimal is not None and self.decimal not in (".", ","):
            raise ConfigError(f"{argument('decimal')} must be '.' or ',', not {self.decimal!r}.")
        if self.thousands is not None and self.thousands not in _THOUSANDS:
            raise ConfigError(
                f"{argument('thousands')} must be ',', '.', 'space', an apostrophe or 'none', not {self.thousands!r}."
            )
        if self.decimal is not None and self.decimal == self.thousands:
            raise ConfigError(
                f"{argument('decimal')} and {argument('thousands')} cannot be the same: {self.decimal!r} stands for "
                "one of them only."
            )
        check_choice("date_order", self.date_order, get_args(DateOrder))
        check_choice("header", self.header, get_args(Header))
        check_number("skip_lines", self.skip_lines, at_least=0, whole=True)
        if self.encoding is not None:
            check_codec(self.encoding)

    @property
    def given(self) -> Message:
        """The fields that are not left out, as arguments."""
        given = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        return Message(
            ", ".join(argument(name, value) for name, value in given.items() if value != defaults[name])
        )


def as_words(missing_values: Iterable[object]) -> tuple[str, ...]:
    """The marks of missing values, a word each; one text may hold several, separated by commas.

    Raises:
        ConfigError: It is not a list of words and numbers.
    """
    given = [missing_values] if isinstance(missing_values, str) else missing_values
    if not isinstance(given, Iterable) or not all(isinstance(one, str | int | float) for one in given):
        raise ConfigError(
            f"{argument('missing_values')} must be words or numbers such as -999, not {missing_values!r}."
        )
    words = [word.strip() for one in given for word in str(one).split(",")]
    return tuple(dict.fromkeys(filter(None, words)))


def with_missing(table: TableOptions | None, missing_values: Sequence[str]) -> TableOptions:
    """The options of tables, with the given marks of missing values unless the options have some."""
    table = table or TableOptions()
    return table if table.missing_values else dataclasses.replace(table, missing_values=missing_values)
