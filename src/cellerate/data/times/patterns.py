"""The formats of times as texts, each a regular expression whose groups are the parts of a time."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import numpy as np

from cellerate.data.times.month_names import month_number
from cellerate.messages import Message, argument

# Groups: Y year, m month, d day, B month by name, q quarter, w week, u weekday, a and b day and month in either order,
# H hour, M minute, S second, f fraction, p AM or PM, z offset; others are what stands between.
_CLOCK = (
    r"(?:(?:[ T]+|, ?)(?P<H>\d{1,2})(?::(?P<M>\d{2})(?::(?P<S>\d{2})(?:[.,](?P<f>\d{1,9}))?)?)?"
    r"(?: ?(?P<p>[AaPp]\.?[Mm]\.?))?(?: ?(?P<z>Z|z|UTC|GMT|[+-]\d{2}:?\d{2}|[+-]\d{2}))?)?"
)
_YEAR, _NAME, _TWO = r"(?P<Y>\d{4})", r"(?P<B>[A-Za-zÀ-ÿ]{3,10}\.?)", r"\d{1,2}"
WAYS = {
    name: re.compile(f"^{date}{_CLOCK if clock else ''}$")
    for name, date, clock in (
        ("year first", rf"{_YEAR}[-/.](?P<m>{_TWO})[-/.](?P<d>{_TWO})\.?", True),
        ("either", rf"(?P<a>{_TWO})[-/.](?P<b>{_TWO})[-/.](?P<Y>\d{{4}}|\d{{2}})\.?", True),
        ("day, name", rf"(?P<d>{_TWO})[ \-/.]+{_NAME}[ \-/.,]+(?P<Y>\d{{4}}|\d{{2}})", True),
        ("name, day", rf"{_NAME}[ \-/.]+(?P<d>{_TWO})(?:, ?| |-|/){_YEAR}", True),
        ("year, name, day", rf"{_YEAR}[ \-/.]+{_NAME}[ \-/.]+(?P<d>{_TWO})", True),
        ("name, year", rf"{_NAME}[ \-/.,']*(?P<Y>\d{{4}}|\d{{2}})", False),
        ("year, name", rf"{_YEAR}[ \-/.]*{_NAME}", False),
        ("year, month", rf"{_YEAR}(?:[-/.]|[Mm])(?P<m>{_TWO})", False),
        ("month, year", rf"(?P<m>{_TWO})[-/.]{_YEAR}", False),
        ("year, quarter", rf"{_YEAR}[-/ ]?[Qq](?P<q>[1-4])", False),
        ("quarter, year", rf"[Qq](?P<q>[1-4])[-/ ]?{_YEAR}", False),
        ("year, week", rf"{_YEAR}-?[Ww](?P<w>\d{{2}})(?:-?(?P<u>[1-7]))?", False),
        (
            "compact time",
            rf"{_YEAR}(?P<m>\d{{2}})(?P<d>\d{{2}})[T ](?P<H>\d{{2}}):?(?P<M>\d{{2}})(?::?(?P<S>\d{{2}}))?(?P<z>Z)?",
            False,
        ),
    )
}  # fmt: skip
_TOKENS = {"Y": "Y", "m": "m", "d": "d", "a": "d", "b": "m", "q": "Q", "w": "V", "u": "u"}
_TOKENS |= {"H": "H", "M": "M", "S": "S", "p": "p"}
_UNPADDED = {"m", "d", "a", "b", "H"}
_ZONE = re.compile(r"([+-])(\d{2}):?(\d{2})?")
WEEKDAY = r"^(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]{0,6}\.?,? +"
"""The weekday before a date, as in mails and from web servers; it adds no information."""
_ABBREVIATION = re.compile(r"[\d:apmAPM] ?\(?([A-Z]{3,5})\)?$")
_OFFSETS = {
    **{"EST": "-05:00", "EDT": "-04:00", "CST": "-06:00", "CDT": "-05:00", "MST": "-07:00", "MDT": "-06:00"},
    **{"PST": "-08:00", "PDT": "-07:00", "AKST": "-09:00", "HST": "-10:00", "BRT": "-03:00", "WET": "+00:00"},
    **{
        "WEST": "+01:00",
        "BST": "+01:00",
        "CET": "+01:00",
        "CEST": "+02:00",
        "MEZ": "+01:00",
        "MESZ": "+02:00",
    },
    **{
        "EET": "+02:00",
        "EEST": "+03:00",
        "MSK": "+03:00",
        "SAST": "+02:00",
        "IST": "+05:30",
        "SGT": "+08:00",
    },
    **{
        "HKT": "+08:00",
        "JST": "+09:00",
        "KST": "+09:00",
        "AEST": "+10:00",
        "AEDT": "+11:00",
        "NZST": "+12:00",
    },
}


@dataclasses.dataclass(frozen=True)
class Parts:
    """The parts of N times.

    Attributes:
        numbers: (N,) int64 by the name of the group.
        ahead: (N,) the minutes that the clock is ahead of UTC.
        zoned: (N,) whether the text names a zone.
        good: (N,) whether the text has this format at all.
    """

    numbers: dict[str, np.ndarray]
    ahead: np.ndarray
    zoned: np.ndarray
    good: np.ndarray


def way_of(text: str) -> str | None:
    """The name of the format of a time, or None if the text is not a time."""
    for name, pattern in WAYS.items():
        found = pattern.match(text)
        if found and ("B" not in pattern.groupindex or month_number(found["B"])):
            return name
    return None


def parts_of(texts: Any, way: str) -> Parts:
    """Takes (N,) texts of Arrow apart."""
    import pyarrow as pa
    import pyarrow.compute as pc

    pattern = WAYS[way]
    found = pc.extract_regex(texts, pattern=pattern.pattern)
    good = np.asarray(found.is_valid())
    numbers: dict[str, np.ndarray] = {}
    ahead, zoned = np.zeros(len(texts), np.int64), np.zeros(len(texts), bool)
    for name in pattern.groupindex:
        group = pc.fill_null(pc.struct_field(found, name), "")
        if name in ("B", "p", "z"):
            coded = pc.dictionary_encode(group)
            if isinstance(coded, pa.ChunkedArray):
                coded = coded.combine_chunks()
            words, codes = coded.dictionary.to_pylist(), np.asarray(coded.indices)
            meant = {
                "B": month_number,
                "p": lambda text: {"": 0, "a": 1, "p": 2}[text[:1].lower()],
                "z": _minutes_ahead,
            }[name]
            values = np.array([meant(word) for word in words] or [0], np.int64)[codes]
            if name == "z":
                ahead, zoned = values, np.array([word != "" for word in words] or [False])[codes]
            else:
                numbers[name] = values
        elif name == "f":
            digits = pc.utf8_slice_codeunits(pc.utf8_rpad(group, 6, "0"), 0, 6)
            numbers[name] = np.asarray(pc.cast(digits, pa.int64()))
        else:
            known = pc.if_else(pc.equal(group, ""), "0", group)
            numbers[name] = np.asarray(pc.cast(known, pa.int64()))
    return Parts(numbers, ahead, zoned, good)


def put_together(parts: Parts, order: str) -> tuple[np.ndarray, np.ndarray]:
    """The (N,) datetime64[us] of parts as the clock shows them, and (N,) which are times at all.

    Args:
        parts: The parts.
        order: "dmy", "mdy" or "ymd": of dates that begin with two digits, what is first.
    """
    numbers = dict(parts.numbers)
    zero = np.zeros(len(parts.good), np.int64)
    one = zero + 1
    year = numbers.get("Y", zero)
    if "a" in numbers:
        first, second = numbers["a"], numbers["b"]
        if order == "ymd":
            year, numbers["m"], numbers["d"] = first, second, year
        else:
            numbers["d"], numbers["m"] = (first, second) if order == "dmy" else (second, first)
    # As POSIX has it.
    year = np.where(year >= 100, year, np.where(year >= 69, 1900 + year, 2000 + year))
    month = numbers.get("m", numbers.get("B", one))
    if "q" in numbers:
        month = 3 * numbers["q"] - 2
    day = numbers.get("d", one)
    good = parts.good & (month >= 1) & (month <= 12) & (day >= 1)
    months = ((year - 1970) * 12 + np.clip(month, 1, 12) - 1).astype("datetime64[M]")
    first_day = months.astype("datetime64[D]")
    next_day = (months + np.timedelta64(1, "M")).astype("datetime64[D]")
    good &= first_day + (day - 1).astype("timedelta64[D]") < next_day
    days = first_day + (day - 1).astype("timedelta64[D]")
    if "w" in numbers:
        # Week 1 is the one with 4 January, and begins on a Monday.
        fourth = (year - 1970).astype("datetime64[Y]").astype("datetime64[D]") + np.timedelta64(3, "D")
        monday = fourth - _since_monday(fourth)
        weekday = np.maximum(numbers["u"], 1) - 1
        days = monday + (7 * (numbers["w"] - 1) + weekday).astype("timedelta64[D]")
        next_year = (year - 1969).astype("datetime64[Y]").astype("datetime64[D]") + np.timedelta64(3, "D")
        good &= (numbers["w"] >= 1) & (days < next_year - _since_monday(next_year))
    hour = numbers.get("H", zero)
    half = numbers.get("p", zero)
    # 24:00 is the end of a day.
    end = (hour == 24) & (numbers.get("M", zero) == 0) & (numbers.get("S", zero) == 0)
    good &= ((hour <= 23) | end) & (numbers.get("M", zero) < 60) & (numbers.get("S", zero) < 60)
    good &= (half == 0) | ((hour >= 1) & (hour <= 12))
    hour = np.where(half == 0, hour, hour % 12 + 12 * (half == 2))
    seconds = 3600 * hour + 60 * numbers.get("M", zero) + numbers.get("S", zero)
    micros = 10**6 * seconds + numbers.get("f", zero)
    return days.astype("datetime64[us]") + micros.astype("timedelta64[us]"), good


def zone_advice(text: str) -> str:
    """The offset to write in the place of a zone's abbreviation that ends a time, as a sentence; "" without one."""
    found = _ABBREVIATION.search(text)
    if not found or found[1] in ("UTC", "GMT"):
        return ""
    offset = _OFFSETS.get(found[1])
    such = f"{offset} if that is its offset" if offset is not None else "such as +02:00"
    return Message(
        f"It ends with {found[1]!r}, which stands for several time zones: write the offset ({such}), or leave it out "
        f"and name the zone ({argument('time_zone')})."
    )


def pattern_of(texts: list[str], way: str, order: str = "dmy") -> str:
    """The pattern of `TimeForm` of some texts: what the longest has, without leading zeros where one has none."""
    expression = WAYS[way]
    example = expression.match(max(texts, key=len))
    assert example is not None  # noqa: S101 (they were taken apart)
    short = {
        name
        for name in _UNPADDED & set(expression.groupindex)
        for text in texts
        if (found := expression.match(text)) and found[name] and len(found[name]) == 1
    }
    parts = sorted((example.span(name), name) for name in expression.groupindex if example[name])
    pattern, at = "", 0
    for (begin, end), name in parts:
        value = example[name]
        pattern += example.string[at:begin]
        if name == "z":
            pattern += {5: "%z", 6: "%zz", 3: "%zzz"}.get(len(value), "%Z") if value[0] in "+-" else "%Z"
        elif name == "B":
            pattern += "%b" if len(value) == 3 else "%B"
        elif name == "f":
            pattern += f"%{len(value)}f"
        else:
            token = "y" if name == "Y" and len(value) == 2 else _TOKENS[name]
            if "a" in expression.groupindex and order != "dmy":
                swapped = {"mdy": {"a": "m", "b": "d"}, "ymd": {"a": "y", "b": "m", "Y": "d"}}[order]
                token = swapped.get(name, token)
            token = "G" if name == "Y" and "w" in expression.groupindex else token
            token = "I" if name == "H" and "p" in expression.groupindex and example["p"] else token
            pattern += f"%-{token}" if name in short else f"%{token}"
        at = end
    return pattern + example.string[at:]


def _minutes_ahead(text: str) -> int:
    found = _ZONE.fullmatch(text)
    if not found:
        return 0
    minutes = 60 * int(found[2]) + int(found[3] or 0)
    return minutes if found[1] == "+" else -minutes


def _since_monday(days: np.ndarray) -> np.ndarray:
    """The distance of days (datetime64[D]) from their Mondays, in timedelta64[D]."""
    passed: np.ndarray = ((days.astype(np.int64) + 3) % 7).astype("timedelta64[D]")
    return passed
