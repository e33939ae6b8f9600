"""Chooses the columns of a series: what is forecast, from what, and which column holds times."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

from cellerate.errors import ConfigError, DataError

_TIME_NAMES = ("date", "time", "timestamp", "datetime", "ds")


@dataclasses.dataclass(frozen=True)
class ChosenColumns:
    """Which columns are read: `values` are stored, of which `features` are inputs."""

    values: list[str]
    features: list[str]
    time: str | None
    series: str | None


def choose_columns(
    path: Path,
    names: Sequence[str],
    kinds: Mapping[str, str],
    targets: list[str],
    features: Sequence[str] | None,
    time_column: str | None,
    series_column: str | None,
) -> ChosenColumns:
    """Which columns of a table are read, and as what.

    Args:
        path: The table, for messages.
        names: Its columns.
        kinds: What each holds: "number", "time" or something else.
        targets: Columns to forecast.
        features: Columns to forecast from; None for all numbers.
        time_column: The column of times, "" for none, None to find it.
        series_column: The column that tells series apart, or None.

    Raises:
        ConfigError: Columns contradict each other.
        DataError: The table has no such column.
    """
    if isinstance(features, str):
        raise ConfigError(f"features is {features!r}; expected a list of column names.")
    asked = {"targets": targets, "features": list(features or ())}
    asked |= {"time_column": [time_column] if time_column else []}
    asked |= {"series_column": [series_column] if series_column is not None else []}
    for argument, wanted in asked.items():
        for name in wanted:
            if name not in names:
                raise DataError(
                    f"{argument} names a column {name!r} that {path} does not have. It has: "
                    f"{', '.join(names)}."
                )
        if len(set(wanted)) < len(wanted):
            raise ConfigError(f"{argument} names a column twice: {', '.join(wanted)}.")
    if time_column == "":
        time_column = None
    elif time_column is None:
        named = [name for name in names if name.lower() in _TIME_NAMES]
        typed = [name for name in names if kinds[name] == "time"]
        taken = {*targets, *(features or ()), series_column}
        time_column = next((name for name in named + typed if name not in taken), None)
    if features is None:
        # A column without a name is an index that some program added.
        others = {time_column, series_column, ""}
        features = [name for name in names if kinds[name] == "number" and name not in others]
        # Reading a target then names its first value that is no number.
        features = features or list(targets)
        if not features:
            raise DataError(f"{path} has no column of numbers to forecast from.")
    elif not features:
        raise ConfigError("features is empty; expected at least one column, or None for all of them.")
    special = {"time": time_column, "series": series_column}
    for what, column in special.items():
        if column is not None and column in (*targets, *features):
            raise ConfigError(f"the {what} column {column!r} cannot be a target or a feature as well.")
    if time_column is not None and time_column == series_column:
        raise ConfigError(f"{time_column!r} cannot be both the time column and the series column.")
    values = list(dict.fromkeys([*features, *targets]))
    return ChosenColumns(values, list(features), time_column, series_column)
