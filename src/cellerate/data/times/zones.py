"""Local and universal time, for arrays: what `zoneinfo` knows of a zone, as the instants at which its clock changes."""

from __future__ import annotations

import datetime
import functools
import re
import zoneinfo

import numpy as np

from cellerate.errors import ConfigError
from cellerate.messages import argument

_SECOND, _DAY_S = 1_000_000, 86_400
_OFFSET = re.compile(r"([+-])(\d{2}):?(\d{2})")
# Of zones with the same rules one that many know; asked when a clock seems to have been put back.
_COMMON = (
    "Europe/Berlin",
    "Europe/London",
    "Europe/Helsinki",
    "America/New_York",
    "America/Chicago",
    "America/Denver",
    "America/Los_Angeles",
    "America/Sao_Paulo",
    "Australia/Sydney",
    "Pacific/Auckland",
    "America/Santiago",
)


def check_zone(name: str | None) -> None:
    """Raises `ConfigError` unless a name is that of a time zone or an offset such as "+02:00"; None is none."""
    if name is None or (isinstance(name, str) and _OFFSET.fullmatch(name)):
        return
    try:
        zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError, TypeError) as error:
        raise ConfigError(
            f"{argument('time_zone')} is {name!r}, which is not a time zone known here; expected a name such as "
            "'Europe/Berlin', or 'UTC'."
        ) from error


def offset_name(minutes: int) -> str:
    """The name of the zone whose clock is always so many minutes ahead of UTC."""
    if not minutes:
        return "UTC"
    return f"{'-' if minutes < 0 else '+'}{abs(minutes) // 60:02}:{abs(minutes) % 60:02}"


def and_an_hour_beside(zone: str) -> list[str]:
    """A zone, and the offsets an hour ahead of it and behind it; a named zone alone, for it knows its own summers."""
    fixed = "+00:00" if zone in ("", "UTC") else zone
    if not _OFFSET.fullmatch(fixed):
        return [zone]
    ahead = int(offsets_at(np.zeros(1, "datetime64[us]"), fixed)[0] // np.timedelta64(1, "m"))
    return [zone, offset_name(ahead + 60), offset_name(ahead - 60)]


def offsets_at(instants: np.ndarray, zone: str) -> np.ndarray:
    """timedelta64[us]: how far a zone's clock is ahead of UTC at datetime64[us] instants, of any shape."""
    if not instants.size:
        return np.empty(instants.shape, "timedelta64[us]")
    starts, offsets = _changes(zone, instants.min(), instants.max())
    return offsets[np.searchsorted(starts, instants, side="right")]


def to_local(instants: np.ndarray, zone: str) -> np.ndarray:
    """The readings of a zone's clock at datetime64[us] instants, of any shape; "" leaves them as they are."""
    if not zone or zone == "UTC":
        return instants
    return instants + offsets_at(instants, zone)


def to_instants(local: np.ndarray, zone: str, again: np.ndarray | bool = False) -> np.ndarray:
    """The instants at which a zone's clock shows (N,) datetime64[us].

    Args:
        local: What the clock shows. A time that it leaves out counts as the one that it shows in its place.
        zone: The zone; "" leaves them as they are.
        again: (N,) or one for all, whether of a time that the clock shows twice the second is meant.
    """
    if not zone or zone == "UTC" or not len(local):
        return local
    first, second, offsets = _segments(local, zone)
    skipped = offsets[first] < offsets[second]
    return local - offsets[np.where(again & ~skipped, second, first)]


def shown_twice(local: np.ndarray, zone: str) -> np.ndarray:
    """(N,) which of these times the clock of a zone shows twice."""
    first, second, offsets = _segments(local, zone)
    return offsets[first] > offsets[second]


def never_shown(local: np.ndarray, zone: str) -> np.ndarray:
    """(N,) which of these times the clock of a zone leaves out."""
    first, second, offsets = _segments(local, zone)
    return offsets[first] < offsets[second]


def zones_of_repeats(local: np.ndarray) -> list[str]:
    """Well-known zones whose clocks show each of these (N,) datetime64[us] twice."""
    found = []
    for zone in _COMMON:
        try:
            if shown_twice(local, zone).all():
                found.append(zone)
        except zoneinfo.ZoneInfoNotFoundError:
            continue
    return found


def _segments(local: np.ndarray, zone: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For each local time which offset holds, if the earlier is taken where two fit, and if the later is."""
    day = np.timedelta64(1, "D")
    starts, offsets = _changes(zone, local.min() - day, local.max() + day)
    before, after = starts + offsets[:-1], starts + offsets[1:]
    return (
        np.searchsorted(np.maximum(before, after), local, side="right"),
        np.searchsorted(np.minimum(before, after), local, side="right"),
        offsets,
    )


def _changes(zone: str, first: np.datetime64, last: np.datetime64) -> tuple[np.ndarray, np.ndarray]:
    """The instants at which the clock of a zone changes, (n,) datetime64[us], and its (n + 1,) offsets around them."""
    fixed = _OFFSET.fullmatch(zone)
    if fixed:
        sign, hours, minutes = fixed.groups()
        ahead = (60 * int(hours) + int(minutes)) * (1 if sign == "+" else -1)
        return np.empty(0, "datetime64[us]"), np.array([ahead], "timedelta64[m]").astype("timedelta64[us]")
    # Those that Python's dates have.
    begin, end = (min(9998, max(2, int(str(time.astype("datetime64[Y]"))))) for time in (first, last))
    years = range(begin, end + 1)
    changes = [change for year in years for change in _year(zone, year)[1]]
    offsets = [_year(zone, years[0])[0], *(offset for _, offset in changes)]
    return (
        (np.array([instant for instant, _ in changes], np.int64) * _SECOND).view("datetime64[us]"),
        (np.array(offsets, np.int64) * _SECOND).view("timedelta64[us]"),
    )


@functools.lru_cache(maxsize=4096)
def _year(zone: str, year: int) -> tuple[int, tuple[tuple[int, int], ...]]:
    """The offset in seconds when a year begins in UTC, and each change in it: the second, and the offset after it."""
    info = zoneinfo.ZoneInfo(zone)

    def offset(second: int) -> int:
        moment = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(seconds=second)
        return round((moment.astimezone(info).utcoffset() or datetime.timedelta()).total_seconds())

    begin, end = (
        round((datetime.datetime(y, 1, 1) - datetime.datetime(1970, 1, 1)).total_seconds())
        for y in (year, year + 1)
    )
    known, changes = offset(begin), []
    first = known
    for day in range(begin, end, _DAY_S):
        after = offset(min(end, day + _DAY_S))
        if after != known:
            low, high = day, min(end, day + _DAY_S)
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if offset(middle) == known else (low, middle)
            changes.append((high, after))
            known = after
    # A change at the very end is the next year's beginning.
    return first, tuple(change for change in changes if change[0] < end)
