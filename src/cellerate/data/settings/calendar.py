"""The names of calendar features; without NumPy, because the command line reads settings first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

from cellerate.errors import ConfigError
from cellerate.messages import argument

CalendarPart = Literal["hour", "weekday", "day", "month", "holiday"]
PARTS: tuple[str, ...] = get_args(CalendarPart)


def check_calendar(parts: Sequence[str], country: str | None) -> None:
    """Raises `ConfigError` if the parts of a calendar and the country for its holidays do not fit together."""
    if isinstance(parts, str):
        raise ConfigError(
            f"{argument('calendar')} is {parts!r}; expected a list, such as ['hour', 'weekday']."
        )
    for part in parts:
        if part not in PARTS:
            raise ConfigError(f"{argument('calendar')} may hold {', '.join(PARTS)}, not {part!r}.")
    if len(set(parts)) < len(parts):
        raise ConfigError(f"{argument('calendar')} names a part twice: {', '.join(parts)}.")
    if "holiday" in parts and not country:
        raise ConfigError(
            "calendar holds 'holiday', but holidays names no country: give its code, such as 'DE' or 'US'."
        )
    if country and "holiday" not in parts:
        raise ConfigError(
            f"{argument('holidays')} is {country!r}, but {argument('calendar')} does not hold 'holiday': add it."
        )
