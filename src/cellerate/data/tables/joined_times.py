"""Times in several columns: a date and a time of day, or year, month, day and hour.

The joined column of times has the names of its columns with blanks between them: "Date Time".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cellerate.data.tables.arrow_text import is_text, trimmed

_CLOCK_NAMES = (
    *("time", "hour", "hr", "hours", "clock", "time_of_day", "timeofday", "hour_of_day"),
    *("uhrzeit", "zeit", "stunde", "heure", "hora", "ora", "tijd"),
)
_HOURS = re.compile(r"\d{1,2}")
_CLOCK = re.compile(r"\d{1,2}[:.h]\d{2}(?:[:.]\d{2}(?:[.,]\d+)?)?(?: ?[AaPp]\.?[Mm]\.?)?")
_MIDNIGHT = re.compile(r"[T ]0?0:00(?::00(?:\.0+)?)?$")
_HAS_CLOCK = re.compile(r"\d:\d|[T ]\d{2}$")
_PARTS = (
    ("year", "yr", "yyyy", "jahr", "annee", "année", "año", "ano", "anno", "jaar"),
    ("month", "mo", "mon", "mnth", "monat", "mois", "mes", "mês", "mese", "maand"),
    ("day", "dy", "dd", "tag", "jour", "dia", "día", "giorno", "dag", "day_of_month"),
    ("hour", "hr", "hh", "stunde", "heure", "hora", "ora", "uur"),
    ("minute", "min", "minuto", "minuut"),
)
_LEAST_PARTS = 2


def columns_of_time(name: str, columns: Sequence[str]) -> list[str]:
    """The columns of a column of times: itself, several whose names it joins, or none."""
    if name in columns:
        return [name]
    words = name.split(" ")
    for count in range(len(words) - 1, 0, -1):
        first = " ".join(words[:count])
        rest = columns_of_time(" ".join(words[count:]), columns) if first in columns else []
        if rest and first not in rest:
            return [first, *rest]
    return []


def with_clock(
    date: str, others: Sequence[str], texts: Callable[[str], list[str]], beside: str | None = None
) -> str:
    """Find the column that holds the time of day of a column of dates.

    Args:
        date: The column of dates.
        others: Columns that may hold it.
        texts: Returns the first values of a column as texts.
        beside: The column after the dates, if it does not hold numbers: it may hold times of day under any name.

    Returns:
        The joined name of both; the name of the dates if they include a time of day, or if no column holds it.
    """
    known = [name for name in others if name.lower() in _CLOCK_NAMES or name == beside]
    if not known and date.lower() not in _CLOCK_NAMES:
        return date
    clocks = [name for name in known if _all(texts(name), _CLOCK) or _all_hours(texts(name))]
    days = texts(date)
    if date.lower() in _CLOCK_NAMES and _all(days, _CLOCK):
        # The time of day comes first.
        dated = next(
            (name for name in others if name.lower() in ("date", "datum", "fecha", "data", "day")), None
        )
        return f"{dated} {date}" if dated is not None else date
    clocked = [day for day in days if _HAS_CLOCK.search(day)]
    if not clocks or not all(map(_MIDNIGHT.search, clocked)):
        return date
    return f"{date} {clocks[0]}"


def of_parts(names: Sequence[str], kinds: Mapping[str, str], texts: Callable[[str], list[str]]) -> str | None:
    """The name of the columns year, month and so on together; None without at least the first two."""
    found: list[str] = []
    for words in _PARTS:
        name = next((name for name in names if name.lower() in words and kinds[name] == "number"), None)
        if name is None:
            break
        found.append(name)
    if len(found) < _LEAST_PARTS:
        return None
    years, months = ([_whole(text) for text in texts(name)] for name in found[:2])
    right = all(1000 <= year < 3000 for year in years) and all(1 <= month <= 12 for month in months)
    return " ".join(found) if years and right else None


def joined(columns: Sequence[Any]) -> Any:
    """Arrow strings of times, joined from their columns; null where a part is missing."""
    import pyarrow.compute as pc

    texts = [_text(column) for column in columns]
    if len(texts) == 2 and not _are_numbers(columns[0], texts[0]):
        date = pc.replace_substring_regex(texts[0], r"[T ]0?0:00(:00(\.0+)?)?$", "")
        return pc.binary_join_element_wise(date, _clock(texts[1]), " ")
    padded = [texts[0], *(pc.utf8_lpad(text, 2, "0") for text in texts[1:])]
    date = pc.binary_join_element_wise(*padded[:3], "-")
    if len(padded) <= 3:
        return date
    minutes = padded[4] if len(padded) > 4 else "00"
    return pc.binary_join_element_wise(date, pc.binary_join_element_wise(padded[3], minutes, ":"), " ")


def _text(values: Any) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    if is_text(values):
        values = pc.cast(trimmed(values), pa.string())
        # A column with a missing value may be written as 1.0.
        return pc.replace_substring_regex(values, r"^(\d+)\.0+$", r"\1")
    if pa.types.is_timestamp(values.type) or pa.types.is_date(values.type):
        return pc.strftime(values, format="%Y-%m-%d")
    if pa.types.is_floating(values.type):
        values = pc.cast(values, pa.int64(), safe=False)
    return pc.cast(values, pa.string())


def _are_numbers(values: Any, texts: Any) -> bool:
    """True if a column holds years, not dates."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_integer(values.type) or pa.types.is_floating(values.type):
        return bool(pc.all(pc.less_equal(pc.utf8_length(texts), 4)).as_py())
    return bool(pc.all(pc.match_substring_regex(texts, r"^\d{4}$")).as_py())


def _clock(texts: Any) -> Any:
    """Times of day as `10:30`: also from hours, from `1030`, and with points or h between the parts."""
    import pyarrow.compute as pc

    texts = pc.replace_substring_regex(texts, r"^(\d{1,2})[.h](\d{2})(?:\.(\d{2}))?$", r"\1:\2:\3")
    texts = pc.replace_substring_regex(texts, r":$", "")
    texts = pc.replace_substring_regex(texts, r"^(\d{1,2})$", r"\1:00")
    return pc.replace_substring_regex(texts, r"^(\d{1,2})(\d{2})$", r"\1:\2")


def _all(texts: Sequence[str], pattern: re.Pattern[str]) -> bool:
    return bool(texts) and all(map(pattern.fullmatch, texts))


def _all_hours(texts: Sequence[str]) -> bool:
    return _all(texts, _HOURS) and max(map(int, texts)) <= 24


def _whole(text: str) -> int:
    return int(text) if text.isdecimal() else int(float(text)) if re.fullmatch(r"\d+\.0+", text) else -1
