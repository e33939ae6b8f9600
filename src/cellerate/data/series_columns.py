"""Chooses the columns of a series: what is forecast, from what, and which column holds times."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from cellerate.errors import ConfigError, DataError

_TIME_NAMES = ("date", "time", "timestamp", "datetime", "ds")
# Columns of these names hold times only if their values are some.
_LIKELY_NAMES = (
    "month", "ts", "day", "week", "period", "date_time", "quarter", "datum", "zeit", "zeitpunkt", "zeitstempel",
    "fecha", "jour", "data", "t", "index", "",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class ChosenColumns:
    """Which columns are read.

    Attributes:
        values: Those that are stored.
        features: Those of them that are inputs.
        time: The column of times, or None.
        series: The columns that tell series apart.
        note: What is to be told of the column of times, or "".
        left_out: Columns that nobody named and that are not of numbers.
    """

    values: list[str]
    features: list[str]
    time: str | None
    series: tuple[str, ...]
    note: str = ""
    left_out: tuple[str, ...] = ()


def choose_columns(
    path: Path,
    names: Sequence[str],
    kinds: Mapping[str, str],
    targets: list[str],
    features: Sequence[str] | None,
    time_column: str | None,
    series_column: Sequence[str] | str | None,
    holds_times: Callable[[str], bool] = lambda column: False,
) -> ChosenColumns:
    """Which columns of a table are read, and as what.

    Args:
        path: The table, for messages.
        names: Its columns.
        kinds: What each holds: "number", "time" or something else.
        targets: Columns to forecast.
        features: Columns to forecast from; None for all numbers.
        time_column: The column of times, "" for none, None to find it.
        series_column: The columns that tell series apart.
        holds_times: Whether the first values of a column are times; asked where neither name nor type say so.

    Raises:
        ConfigError: Columns contradict each other.
        DataError: The table has no such column.
    """
    if isinstance(features, str):
        raise ConfigError(f"features is {features!r}; expected a list of column names.")
    asked = {"targets": targets, "features": list(features or ())}
    asked |= {"time_column": [time_column] if time_column else []}
    series = (series_column,) if isinstance(series_column, str) else tuple(series_column or ())
    asked |= {"series_column": list(series)}
    for argument, wanted in asked.items():
        for name in wanted:
            if name not in names:
                raise DataError(f"{path} has no column {name!r} ({argument}). It has: {', '.join(names)}.")
        if len(set(wanted)) < len(wanted):
            raise ConfigError(f"{argument} names a column twice: {', '.join(wanted)}.")
    note, left_out = "", []
    if time_column == "":
        time_column = None
    elif time_column is None:
        time_column, note = _time_column(names, kinds, {*targets, *(features or ()), *series}, holds_times)
    if features is None:
        # A column without a name is an index that some program added.
        others = {time_column, *series, ""}
        features = [name for name in names if kinds[name] == "number" and name not in others]
        left_out = [name for name in names if name not in (*features, *targets, time_column, *series)]
        # Reading a target then names its first value that is no number.
        features = features or list(targets)
        if not features:
            raise DataError(f"{path} has no column of numbers to forecast from.")
    elif not features:
        raise ConfigError("features is empty; expected at least one column, or None for all of them.")
    special = [("time", time_column), *(("series", name) for name in series)]
    for what, column in special:
        if column is not None and column in (*targets, *features):
            raise ConfigError(f"the {what} column {column!r} cannot be a target or a feature as well.")
    if time_column in series:
        raise ConfigError(f"{time_column!r} cannot be both the time column and the series column.")
    values = list(dict.fromkeys([*features, *targets]))
    return ChosenColumns(values, list(features), time_column, series, note, tuple(left_out))


def _time_column(
    names: Sequence[str], kinds: Mapping[str, str], taken: set[str], holds_times: Callable[[str], bool]
) -> tuple[str | None, str]:
    """The column of times that nobody named, and what is to be told of it."""
    free = [name for name in names if name not in taken]
    named = [name for name in free if name.lower() in _TIME_NAMES]
    typed = [name for name in free if kinds[name] == "time"]
    if named or typed:
        return (named + typed)[0], ""
    likely = [name for name in free if name.lower() in _LIKELY_NAMES]
    likely += [name for name in names[:1] if name in free and kinds[name] == "other" and name not in likely]
    for name in likely:
        if holds_times(name):
            return name, f"times from the column {name!r}"
    return None, "no time column found: rows count as steps; name it with time_column"
