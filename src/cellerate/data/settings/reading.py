"""The settings for reading tables as a series: which columns, and what to do with rows that do not fit."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, get_args

from cellerate.data.settings.choices import Duplicates, Gaps, Missing, Storage
from cellerate.errors import ConfigError
from cellerate.messages import argument
from cellerate.settings import check_choice

FILLED_IN = ("targets", "features", "missing_marks")
"""The fields of `Reading` that verbs take from other settings."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reading:
    """The way in which tables are read as a series.

    Attributes:
        targets: Columns to forecast.
        features: Columns to forecast from; None for every column of numbers except time and series.
        missing_marks: Marks of missing numbers besides the usual words, unless the options of tables give them.
        time_column: The column of times; without it, it is found by its name or type.
        series_column: The columns that tell several series apart; no window crosses from one to another.
        wide: Whether each column of numbers beside the times is a series of its own; the target is then "value".
        missing: What to do with missing values: "error", "drop" rows, "ffill" or "interpolate".
        gaps: What to do where a row does not follow by the frequency: "split" the series, "error" or "ignore".
        duplicates: What to do with rows of the same time: "error", keep the "first" or "last", or their "mean".
        time_zone: The zone of times that name none, such as Europe/Berlin, in which forecasts are written, too.
        frequency: How often there is a row: 15min, hour, day, business-day, trading-day, week, month, quarter, year;
            without it, it is found from the times.
        storage: How values are stored: "float32" (float64 where it would lose digits) or "float16".
    """

    targets: Sequence[str] = ()
    features: Sequence[str] | None = None
    missing_marks: Sequence[str] = ()
    time_column: str | None = None
    series_column: Sequence[str] = ()
    wide: bool = False
    missing: Missing = "error"
    gaps: Gaps = "split"
    duplicates: Duplicates = "error"
    time_zone: str | None = None
    frequency: str | None = None
    storage: Storage = "float32"

    def __post_init__(self) -> None:
        """Checks what can be checked without reading: `data.series` checks the zone and the frequency.

        Raises:
            ConfigError: A field cannot be used.
        """
        for name, choices in (
            ("missing", Missing),
            ("gaps", Gaps),
            ("duplicates", Duplicates),
            ("storage", Storage),
        ):
            check_choice(name, getattr(self, name), get_args(choices))
        for name in ("targets", "features"):
            if isinstance(value := getattr(self, name), str):
                raise ConfigError(f"{argument(name)} is {value!r}; expected a list of column names.")
        named = self.series_column or ()
        object.__setattr__(self, "series_column", (named,) if isinstance(named, str) else tuple(named))

    def settings(self) -> dict[str, Any]:
        """The fields that users set, as a model's record keeps them."""
        return {name: value for name, value in vars(self).items() if name not in FILLED_IN}
