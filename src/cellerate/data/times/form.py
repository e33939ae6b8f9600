"""The form in which a file writes its times, so that forecasts are written in the same way.

Internally, times are datetime64[us]: instants in UTC if the file has a zone or offsets, else clock times as they stand.
"""

from __future__ import annotations

import dataclasses
import datetime
import re
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from cellerate.data.times.zones import offsets_at, to_local
from cellerate.messages import Message, argument

Kind = Literal["number", "epoch", "text", "stamp", "date"]
Order = Literal["", "?", "dmy", "mdy"]
EPOCH_UNITS = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}
MONTH_NAMES = (
    "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
)  # fmt: skip
_TOKEN = re.compile(r"%(-?[YymdHMSIbBpQGVu]|[1-9]f|z+|Z)")
_ISO = "%Y-%m-%d %H:%M:%S"
# The resolution of each part of a pattern, in microseconds.
_RESOLUTION = {
    **{f"{digits}f": 10 ** max(0, 6 - digits) for digits in range(1, 10)},
    "S": 10**6,
    "M": 60 * 10**6,
    "H": 3600 * 10**6,
    "I": 3600 * 10**6,
}


@dataclasses.dataclass(frozen=True)
class TimeForm:
    """The form of written times.

    Attributes:
        kind: "number", "epoch", "text", or an Arrow "stamp" or "date".
        pattern: For texts and dates as numbers, a pattern of `strftime`, with `%-d` for no leading zero and `%Q` for a
            quarter.
        unit: For an epoch "s", "ms", "us" or "ns".
        zone: A time zone, an offset such as "+02:00", "UTC", or "" if the file has none.
        whole: Whether numbers are integers.
        mixed: Whether several offsets are in use.
        order: For a date that begins with day or month, "dmy" or "mdy"; "?" if undecided so far and read with the
            day first.
        evidence: The first value that decided the order, and its place.
    """

    kind: Kind = "stamp"
    pattern: str = ""
    unit: str = ""
    zone: str = ""
    whole: bool = False
    mixed: bool = False
    order: Order = ""
    evidence: str = ""

    @property
    def words(self) -> str:
        """The recognised form, in words; "" for times in the usual form."""
        said = []
        if self.kind == "epoch":
            said.append(f"times as epoch {EPOCH_UNITS[self.unit]}, {self.zone or 'UTC'}")
        elif self.whole:
            said.append(f"dates as {_spelled(self.pattern)}" if self.pattern else "")
        elif self.order == "dmy":
            said.append("dates day first")
        elif self.order == "mdy":
            said.append("dates month first")
        elif "%Q" in self.pattern:
            said.append("quarters")
        elif "%V" in self.pattern:
            said.append("ISO weeks")
        elif "b" in self.pattern or "B" in self.pattern:
            said.append("months by name")
        elif self.kind == "text" and "d" not in self.pattern and "m" in self.pattern:
            said.append("months")
        if self.zone and self.kind != "epoch":
            last = (
                f"times with changing offsets, written with the last, {self.zone}; {argument('time_zone')} names the "
                "zone"
            )
            said.append(last if self.mixed else f"times in {self.zone}")
        return Message(", ".join(filter(None, said)))

    def month_first(self) -> TimeForm:
        """The form with the month first, for dates that were read day first."""
        swapped = {"d": "m", "m": "d"}
        pattern = re.sub(r"%(-?)([dm])", lambda found: f"%{found[1]}{swapped[found[2]]}", self.pattern)
        return dataclasses.replace(self, pattern=pattern, order="mdy")

    def write(self, times: np.ndarray) -> list[Any]:
        """(N,) times, or row numbers, in the form of the file: texts, or numbers."""
        times = np.asarray(times)
        if times.dtype.kind != "M":
            values = times.tolist()
            return [int(value) if self.whole and value == int(value) else value for value in values]
        times = times.astype("datetime64[us]")
        if self.kind == "epoch":
            return [int(value) if self.whole else float(value) for value in self._epochs(times)]
        local = to_local(times, self.zone)
        pattern = self._usable(local)
        texts = [
            _written(time, ahead, pattern) for time, ahead in zip(local, self._ahead(times), strict=True)
        ]
        return [int(text) if self.whole else text for text in texts] if self.pattern else texts

    def column(self, times: np.ndarray) -> Any:
        """(N,) times as a column of Parquet: numbers where the file has numbers, else times, with their zone."""
        if times.dtype.kind != "M" or self.kind == "epoch" or self.whole:
            return np.array(self.write(times)) if times.dtype.kind == "M" or self.whole else times
        if self.kind == "date":
            return times.astype("datetime64[D]")
        if not self.zone:
            return times
        import pyarrow as pa

        return pa.array(times).cast(pa.timestamp("us", self.zone))

    def to_config(self) -> dict[str, Any]:
        """The form as JSON values."""
        return dataclasses.asdict(self)

    @classmethod
    def from_config(cls, config: Mapping[str, Any] | None) -> TimeForm:
        """The form that `to_config` gave; the usual form for None."""
        return cls() if config is None else cls(**{str(name): value for name, value in config.items()})

    def _usable(self, local: np.ndarray) -> str:
        """The pattern, or that of ISO 8601 if the pattern would lose a part of these times."""
        pattern = self.pattern or (_ISO + ("%zz" if self.zone else ""))
        if self.kind == "date" and not self.pattern:
            pattern = "%Y-%m-%d"
        tokens = {token.lstrip("-") for token in _TOKEN.findall(pattern)}
        finest = min((_RESOLUTION[token] for token in tokens if token in _RESOLUTION), default=86_400 * 10**6)
        numbers = local.astype(np.int64)
        if (numbers % finest).any():
            pattern = _ISO + (".%6f" if (numbers % 10**6).any() else "") + ("%zz" if self.zone else "")
        return pattern

    def _ahead(self, times: np.ndarray) -> list[int]:
        """For each time the minutes that its clock is ahead of UTC."""
        if not self.zone or self.zone == "UTC":
            return [0] * len(times)
        ahead: list[int] = offsets_at(times, self.zone).astype("timedelta64[m]").astype(int).tolist()
        return ahead

    def _epochs(self, times: np.ndarray) -> list[Any]:
        numbers = times.astype(np.int64).tolist()
        per = {"s": 10**6, "ms": 10**3, "us": 1}.get(self.unit)
        if per is None:
            return [number * 1000 for number in numbers]
        return [number // per if number % per == 0 else number / per for number in numbers]


def _written(time: np.datetime64, ahead: int, pattern: str) -> str:
    day = time.astype("datetime64[D]")
    date = day.item()
    if not isinstance(date, datetime.date):
        # A year that Python's dates do not have.
        return str(time).replace("T", " ")
    year, month = date.year, date.month
    rest = int((time - day.astype("datetime64[us]")).astype(np.int64))
    hour = rest // 3600_000_000
    minute = rest // 60_000_000 % 60
    second = rest // 10**6 % 60
    micro = rest % 10**6
    iso = date.isocalendar()
    sign = "-" if ahead < 0 else "+"
    hours, minutes = divmod(abs(ahead), 60)
    values = {
        "Y": f"{year:04}", "y": f"{year % 100:02}", "m": f"{month:02}", "d": f"{date.day:02}",
        "H": f"{hour:02}", "M": f"{minute:02}", "S": f"{second:02}", "I": f"{(hour + 11) % 12 + 1:02}",
        "b": MONTH_NAMES[month - 1][:3], "B": MONTH_NAMES[month - 1], "p": "PM" if hour >= 12 else "AM",
        "Q": str((month + 2) // 3), "G": f"{iso.year:04}", "V": f"{iso.week:02}", "u": str(iso.weekday),
        "Z": "Z" if not ahead else f"{sign}{hours:02}:{minutes:02}",
        "z": f"{sign}{hours:02}{minutes:02}", "zz": f"{sign}{hours:02}:{minutes:02}", "zzz": f"{sign}{hours:02}",
    }  # fmt: skip

    def value(match: re.Match[str]) -> str:
        token = match[1]
        if token.startswith("-"):
            return values[token[1:]].lstrip("0") or "0"
        if token.endswith("f"):
            return f"{micro:06}000"[: int(token[0])]
        return values[token]

    return _TOKEN.sub(value, pattern)


def _spelled(pattern: str) -> str:
    for token, word in (("%Y", "yyyy"), ("%m", "mm"), ("%d", "dd"), ("%H", "HH"), ("%M", "MM"), ("%S", "SS")):
        pattern = pattern.replace(token, word)
    return pattern
