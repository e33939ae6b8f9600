"""Reads the time column of a table: dates, numbers, or texts in one of many formats."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from cellerate.data.settings import DateOrder
from cellerate.data.times.form import EPOCH_UNITS, TimeForm
from cellerate.data.times.frequency import find_frequency
from cellerate.data.times.patterns import (
    WEEKDAY,
    Parts,
    parts_of,
    pattern_of,
    put_together,
    way_of,
    zone_advice,
)
from cellerate.data.times.zones import check_zone, offset_name
from cellerate.errors import ConfigError, DataError
from cellerate.messages import argument, marked
from cellerate.settings import check_choice

_FIRST = {"dmy": "day", "mdy": "month"}
# 1990 to 2100, in seconds.
_EPOCHS = (631_152_000, 4_102_444_800)
# The end of the year 9999, in seconds.
_LATEST = 253_402_300_799
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_YEARS = (1900, 2100)
# Dates as numbers, by their count of digits.
_COMPACT = {
    8: "%Y%m%d",
    6: "%Y%m",
    10: "%Y%m%d%H",
    12: "%Y%m%d%H%M",
    14: "%Y%m%d%H%M%S",
}
_LOOKED_AT = 4096


class TimeParser:
    """Turns a time column into numbers; its first values decide the format of all.

    Args:
        path: The file, for messages.
        column: The name of the column.
        date_order: The order of day and month in dates such as 03/04/2020; "auto" finds it from the values.

    Attributes:
        form: The form of the times read so far.
    """

    def __init__(self, path: Path, column: str, *, date_order: DateOrder = "auto") -> None:
        check_choice("date_order", date_order, get_args(DateOrder))
        self._path, self._column, self._order = path, column, date_order
        self._way: str | None = None
        self._unread = True
        self._named = False
        self._last_unit = 0
        self.form = TimeForm()

    def parse(self, values: Any, row: int) -> np.ndarray:
        """Some times as datetime64[us], or as float64 if the column holds numbers.

        While the order of day and month is not known, dates are read with the day first and `form.order` is "?".

        Args:
            values: An Arrow array.
            row: The number of rows of the file before them.

        Raises:
            DataError: A value is missing, or is not a time in the format of the first one.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        if values.null_count:
            place = row + values.is_null().to_pylist().index(True) + 1
            raise DataError(
                f"{self._path}: the time column {self._column!r} is empty in data row {place}. Write the time there, "
                "or delete the row."
            )
        if pa.types.is_dictionary(values.type):
            values = values.dictionary_decode()
        if pa.types.is_temporal(values.type):
            return self._stamps(values, row)
        numeric = pa.types.is_integer(values.type) or pa.types.is_floating(values.type)
        texts = values if numeric else pc.utf8_trim_whitespace(pc.cast(values, pa.string()))
        if not len(values):
            return np.empty(0, "datetime64[us]" if self.form.kind != "number" else np.float64)
        if self._unread:
            self._named = not numeric and bool(re.match(WEEKDAY, texts[0].as_py()))
            texts = self._without_weekday(texts)
            self._settle(texts)
            self._unread = False
        else:
            texts = self._without_weekday(texts)
        if self._way in (None, "number"):
            numbers = _numbers(texts)
            if numbers is not None:
                return self._from_numbers(numbers, texts, row)
        elif self._way in ("iso", "zone"):
            found = _fast(texts, self._way)
            if found is not None:
                self._note_zone(texts, found)
                return found
        return self._from_texts(texts, row)

    def _without_weekday(self, texts: Any) -> Any:
        import pyarrow.compute as pc

        return pc.replace_substring_regex(texts, WEEKDAY, "") if self._named else texts

    def _stamps(self, values: Any, row: int) -> np.ndarray:
        import pyarrow as pa
        import pyarrow.compute as pc

        kind: Literal["date", "stamp"] = "date" if pa.types.is_date(values.type) else "stamp"
        if kind == "stamp" and not pa.types.is_timestamp(values.type):
            raise DataError(
                f"{self._path}: the time column {self._column!r} holds values of type {values.type}; expected dates, "
                f"with or without a time of day. Name the column of dates ({argument('time_column')})."
            )
        zone = getattr(values.type, "tz", None) or ""
        try:
            check_zone(zone or None)
        except ConfigError as error:
            raise DataError(
                f"{self._path}: the time column {self._column!r} has the time zone {zone!r}, which is not known here. "
                "Convert the column to UTC, or to a zone such as 'Europe/Berlin'."
            ) from error
        self.form = TimeForm(kind, zone=_known(zone))
        try:
            found = pc.cast(
                values, options=pc.CastOptions(pa.timestamp("us", zone or None), allow_time_truncate=True)
            )
        except pa.ArrowInvalid as error:
            years = np.asarray(values).astype("datetime64[Y]").astype(np.int64)
            far = int(np.argmax(np.abs(years)))
            raise DataError(
                f"{self._path}: the time column {self._column!r} has the year {1970 + years[far]} in data row "
                f"{row + far + 1}, which is too far away. Correct it."
            ) from error
        return np.asarray(pc.cast(found, pa.timestamp("us"))).astype("datetime64[us]")

    def _settle(self, texts: Any) -> None:
        """Finds the format of the first block."""
        numbers = _numbers(texts)
        if numbers is not None:
            self._way = "number"
            whole = numbers.dtype.kind == "i"
            self.form = _form_of_numbers(numbers, texts) or TimeForm("number", whole=whole)
            return
        looked_at = texts[:_LOOKED_AT].to_pylist()
        slow = way_of(looked_at[0])
        fast = next((way for way in ("iso", "zone") if _fast(texts[:1], way) is not None), None)
        self._way = slow if fast is None or slow == "either" else fast
        pattern = ""
        if slow is not None:
            alike = [text for text in looked_at if way_of(text) == slow]
            pattern = pattern_of(
                alike, slow, self._order if slow == "either" and self._order != "auto" else "dmy"
            )
        self.form = TimeForm("text", pattern)
        if slow == "either":
            order = "?" if self._order == "auto" else self._order
            self.form = dataclasses.replace(self.form, order="" if order == "ymd" else order)

    def _from_numbers(self, numbers: np.ndarray, texts: Any, row: int) -> np.ndarray:
        good = np.isfinite(numbers)
        if self.form.kind == "epoch":
            self._check_unit(numbers, texts, row)
            good &= np.abs(numbers) <= _LATEST * _PER_SECOND[self.form.unit]
        if not good.all():
            self._refuse(texts, row, int(np.argmin(good)))
        if self.form.kind == "number":
            return numbers.astype(np.float64)
        if self.form.kind == "epoch":
            return _from_epoch(numbers, self.form.unit)
        found, good = _from_compact(numbers, self.form.pattern)
        if not good.all():
            self._refuse(texts, row, int(np.argmin(good)))
        return found

    def _check_unit(self, numbers: np.ndarray, texts: Any, row: int) -> None:
        """Refuses epochs whose unit changes from one row to the next: one of them would be a time of 1970 or 50,000."""
        units = np.concatenate([[self._last_unit], _units_of(numbers)])
        self._last_unit = int(units[-1])
        changes = (units[1:] != units[:-1]) & (units[1:] > 0) & (units[:-1] > 0)
        if not changes.any():
            return
        at = int(np.argmax(changes))
        before, now = (EPOCH_UNITS[list(_PER_SECOND)[units[at + step] - 1]] for step in (0, 1))
        raise DataError(
            f"{self._path}: the time column {self._column!r} changes its unit: {texts[at].as_py()!r} in data row "
            f"{row + at + 1} is in {now}, the row before it in {before} since 1970. Write all times in one unit."
        )

    def _from_texts(self, texts: Any, row: int) -> np.ndarray:
        if self._way in ("iso", "zone"):
            # Texts that the fast path does not take, such as one digit for the month.
            first = self._way
            self._way = way_of(texts[0].as_py())
            if self._way is None or self._way == "either":
                self._way = first
                self._refuse(texts, row, _first_bad(texts, first))
        if self._way in (None, "number"):
            bad = 0 if self._way is None else _first_bad(texts, "number")
            self._refuse(texts, row, bad)
        parts = parts_of(texts, str(self._way))
        if "a" in parts.numbers and self._order == "auto":
            self._find_order(parts, texts, row)
        order: str = self.form.order if self.form.order in ("dmy", "mdy") else "dmy"
        if self._order == "ymd":
            order = "ymd"
        found, good = put_together(parts, order)
        good &= parts.zoned == parts.zoned[0]
        if not good.all():
            self._refuse(texts, row, int(np.argmin(good)))
        if parts.zoned.any():
            latest = int(np.argmax(found))
            zone = offset_name(int(parts.ahead[latest])) if parts.ahead.any() else "UTC"
            mixed = self.form.mixed or bool((parts.ahead != parts.ahead[0]).any())
            self.form = dataclasses.replace(self.form, zone=zone, mixed=mixed)
            found = found - parts.ahead.astype("timedelta64[m]")
        return found

    def _find_order(self, parts: Parts, texts: Any, row: int) -> None:
        """Decides whether day or month is first, if a value above 12 shows it."""
        for order, group in (("dmy", "a"), ("mdy", "b")):
            above = parts.good & (parts.numbers[group] > 12)
            if not above.any():
                continue
            at = int(np.argmax(above))
            said = f"{texts[at].as_py()!r} in data row {row + at + 1}"
            if self.form.order not in ("?", order):
                raise DataError(
                    f"{self._path}: the time column {self._column!r} has the {_FIRST[order]} first in {said}, but the "
                    f"{_FIRST[self.form.order]} first in {self.form.evidence}. Write all dates in one way."
                )
            if self.form.order == "?":
                form = (
                    self.form.month_first() if order == "mdy" else dataclasses.replace(self.form, order="dmy")
                )
                self.form = dataclasses.replace(form, evidence=said)
        if self.form.order == "?" and self.form.pattern.lstrip("%-dmy")[:1] == ".":
            # Wherever dates are written with dots, the day is first.
            self.form = dataclasses.replace(self.form, order="dmy", evidence=repr(texts[0].as_py()))

    def _note_zone(self, texts: Any, found: np.ndarray) -> None:
        """Notes the offset of the latest time."""
        if self._way != "zone" or not len(found):
            return
        latest = texts[int(np.argmax(found))].as_py()
        ahead = (
            parts_of(texts, "year first").ahead if way_of(latest) == "year first" else np.zeros(1, np.int64)
        )
        mine = int(ahead[int(np.argmax(found))]) if len(ahead) == len(found) else 0
        mixed = self.form.mixed or bool((ahead != ahead[0]).any())
        zone = offset_name(mine) if ahead.any() else "UTC"
        self.form = dataclasses.replace(self.form, zone=zone, mixed=mixed)

    def _refuse(self, texts: Any, row: int, bad: int) -> None:
        value = texts[bad].as_py()
        if self.form.order in _FIRST and self._order != "auto":
            raise DataError(
                f"{self._path}: the time column {self._column!r} holds {value!r} in data row {row + bad + 1}, which "
                f"is not a date with the {_FIRST[self.form.order]} first. Leave {argument('date_order', self._order)} "
                "out, or correct it."
            )
        advice = zone_advice(value) if isinstance(value, str) else ""
        raise DataError(
            f"{self._path}: the time column {self._column!r} holds {value!r} in data row {row + bad + 1}, which is not "
            "a time in the format of the column. "
            f"{marked(advice) or 'Write times like 2016-07-01 00:00:00, all in one way.'}"
        )


def _numbers(texts: Any) -> np.ndarray | None:
    """Arrow's numbers, or numbers written as texts, as int64 or float64; None if a value is not a number."""
    import pyarrow as pa
    import pyarrow.compute as pc

    for kind in (pa.int64(), pa.float64()):
        if pa.types.is_floating(texts.type) and kind == pa.int64():
            continue
        try:
            return np.asarray(pc.cast(texts, kind))
        except pa.ArrowInvalid:
            continue
    return None


def _form_of_numbers(numbers: np.ndarray, texts: Any) -> TimeForm | None:
    """The form of times written as numbers; None if they are plain numbers."""
    import pyarrow as pa

    low, high = numbers.min(), numbers.max()
    if numbers.dtype.kind == "i" and low > 0:
        pattern = _COMPACT.get(len(str(low)))
        if pattern is not None and len(str(high)) == len(str(low)):
            found, good = _from_compact(numbers, pattern)
            if good.all() and _is_calendar(found, numbers):
                return TimeForm("text", pattern, whole=True)
    units = _units_of(numbers)
    if not units.all():
        return None
    whole = numbers.dtype.kind == "i" or (
        pa.types.is_floating(texts.type) and bool((numbers == np.floor(numbers)).all())
    )
    return TimeForm("epoch", unit=list(_PER_SECOND)[units[0] - 1], zone="UTC", whole=whole)


def _units_of(numbers: np.ndarray) -> np.ndarray:
    """For each number the position, from 1, of the unit of `_PER_SECOND` that makes it a time since 1990, or 0."""
    units = np.zeros(len(numbers), np.int64)
    for place, per_second in enumerate(_PER_SECOND.values(), 1):
        units[(_EPOCHS[0] * per_second <= numbers) & (numbers <= _EPOCHS[1] * per_second)] = place
    return units


def _is_calendar(times: np.ndarray, numbers: np.ndarray) -> bool:
    """True if numbers that could be dates follow each other as dates, and not as numbers."""
    order = np.unique(times)
    if len(order) < 3:
        return True
    frequency = find_frequency(order, np.ones(len(order) - 1, bool))
    assert frequency is not None  # noqa: S101 (there are steps)
    usual = np.diff(np.unique(numbers))
    as_numbers = float((usual == np.median(usual)).mean())
    return float(1 - frequency.gaps(order[:-1], order[1:]).mean()) >= min(0.5, as_numbers)


def _from_compact(numbers: np.ndarray, pattern: str) -> tuple[np.ndarray, np.ndarray]:
    """(N,) datetime64[us] of numbers such as 20200131, and (N,) True for valid times."""
    groups = ["YYYY", *pattern.replace("%Y", "").split("%")[1:]]
    values, rest = {}, numbers.astype(np.int64)
    for name in reversed(groups[1:]):
        values[name], rest = rest % 100, rest // 100
    values["Y"] = rest
    none = np.zeros(len(numbers), np.int64)
    good = (rest >= _YEARS[0]) & (rest <= _YEARS[1])
    parts = Parts(values, none, none.astype(bool), good)
    return put_together(parts, "ymd")


def _from_epoch(numbers: np.ndarray, unit: str) -> np.ndarray:
    if numbers.dtype.kind == "i":
        micros = numbers // 1000 if unit == "ns" else numbers * {"s": 10**6, "ms": 10**3, "us": 1}[unit]
        return np.asarray(micros, np.int64).view("datetime64[us]")
    per = {"s": 1e6, "ms": 1e3, "us": 1.0, "ns": 1e-3}[unit]
    return np.rint(numbers * per).astype(np.int64).view("datetime64[us]")


def _fast(texts: Any, way: str) -> np.ndarray | None:
    """The times of Arrow strings if all are ISO 8601, with a zone or without; otherwise None."""
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        if way == "iso":
            found = pc.cast(texts, pa.timestamp("us"))
        else:
            found = pc.cast(pc.cast(texts, pa.timestamp("us", "UTC")), pa.timestamp("us"))
    except pa.ArrowInvalid:
        return None
    return np.asarray(found).astype("datetime64[us]")


def _first_bad(texts: Any, way: str) -> int:
    for at in range(len(texts)):
        one = texts[at : at + 1]
        if (_numbers(one) if way == "number" else _fast(one, way)) is None:
            return at
    return 0


def _known(zone: str) -> str:
    return "UTC" if zone in ("UTC", "Etc/UTC", "GMT", "Z", "+00:00") else zone
