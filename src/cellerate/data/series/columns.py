"""Chooses the columns of a series: targets, features, and the column of times."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

from cellerate.data.settings import Reading
from cellerate.data.tables import NpyTable, Table, columns_of_time, of_parts, with_clock
from cellerate.errors import ConfigError, DataError
from cellerate.messages import Message, argument, marked

_TIME_NAMES = ("date", "time", "timestamp", "datetime", "ds")
# Columns of these names hold times only if their values are some.
_LIKELY_NAMES = (
    "month", "ts", "day", "week", "period", "date_time", "quarter", "datum", "zeit", "zeitpunkt", "zeitstempel",
    "fecha", "jour", "data", "t", "index", "",
)  # fmt: skip

_NAMED = 5


class MissingColumnError(DataError):
    """A table lacks a column that was asked for.

    Attributes:
        argument: The argument that names the column.
        problem: The table and the column that it lacks.
        listed: The columns that it has.
    """

    def __init__(self, path: Path, column: str, asked_by: str, names: Sequence[str]) -> None:
        self.argument = asked_by
        self.problem = f"{path} has no column {column!r}"
        self.listed = f"It has: {', '.join(names)}."
        super().__init__(f"{self.problem} ({argument(asked_by)}). {self.listed}")


@dataclasses.dataclass(frozen=True)
class ChosenColumns:
    """The columns to read.

    Attributes:
        values: The stored columns.
        features: The stored columns that are inputs.
        time: The column of times, or None.
        series: The columns that identify the series of a row.
        note: The note on the column of times, or "".
        left_out: Columns that are neither named nor numeric.
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
    reading: Reading,
    look: Table | None = None,
    empty: Sequence[str] = (),
) -> ChosenColumns:
    """The columns of a table to read, and their kinds.

    Args:
        path: The table, for messages.
        names: Its columns.
        kinds: The kind of each column: "number", "time" or another word.
        reading: The requested columns; a `time_column` of "" means none.
        look: The table; its first rows decide if neither the name nor the type of a column shows that it holds times.
        empty: Columns without any value, which are not features unless they are named.

    Raises:
        ConfigError: Columns contradict each other.
        DataError: The table has no such column.
    """
    targets, features, time_column = list(reading.targets), reading.features, reading.time_column
    series = tuple(reading.series_column)
    asked = {"targets": targets, "features": list(features or ())}
    asked |= {"time_column": [time_column] if time_column else [], "series_column": list(series)}
    for given, wanted in asked.items():
        for name in wanted:
            if name not in names and not (given == "time_column" and columns_of_time(name, names)):
                raise MissingColumnError(path, name, given, names)
        if len(set(wanted)) < len(wanted):
            raise ConfigError(f"{argument(given)} names a column twice: {', '.join(wanted)}.")
    note, left_out = "", []
    if time_column == "":
        time_column = None
    elif time_column is None:
        time_column, note = _time_column(names, kinds, {*targets, *(features or ()), *series}, look)
    of_time = columns_of_time(time_column, names) if time_column is not None else []
    if features is None:
        # A column without a name is an index that some program added.
        others = {*of_time, *series, "", *empty}
        features = [name for name in names if kinds[name] == "number" and name not in others]
        named = {*features, *targets, *of_time, *series, *empty}
        left_out = [name for name in names if name not in named]
        # Reading a target then names its first value that is not a number.
        features = features or list(targets)
        if not features:
            raise _no_numbers(path, names, look)
    elif not features:
        raise ConfigError(
            f"{argument('features')} is empty; expected at least one column, or None for all of them."
        )
    special = [*(("time", name) for name in of_time), *(("series", name) for name in series)]
    for what, column in special:
        if column is not None and column in (*targets, *features):
            raise ConfigError(f"the {what} column {column!r} cannot be a target or a feature as well.")
    for name in of_time:
        if name in series:
            raise ConfigError(f"{name!r} cannot be both the time column and the series column.")
    values = list(dict.fromkeys([*features, *targets]))
    return ChosenColumns(values, list(features), time_column, series, note, tuple(left_out))


def _time_column(
    names: Sequence[str], kinds: Mapping[str, str], taken: set[str], look: Table | None
) -> tuple[str | None, str]:
    """The column of times, if none was named, and the note on it."""
    free = [name for name in names if name not in taken]
    found, note = _one_column(names, free, kinds, look)
    if look is None:
        return found, note
    if found is None:
        whole = of_parts(free, kinds, look.texts)
        if whole is None:
            return None, note
    else:
        place = names.index(found) + 1
        after = names[place] if place < len(names) and kinds[names[place]] != "number" else None
        whole = with_clock(found, [name for name in free if name != found], look.texts, after)
    several = columns_of_time(whole, names)
    if len(several) > 1:
        return whole, f"times from the columns {', '.join(map(repr, several[:-1]))} and {several[-1]!r}"
    return found, note


def _one_column(
    names: Sequence[str], free: Sequence[str], kinds: Mapping[str, str], look: Table | None
) -> tuple[str | None, str]:
    named = [name for name in free if name.lower() in _TIME_NAMES]
    typed = [name for name in free if kinds[name] == "time"]
    # Numbers in a column of such a name may be what was measured, such as how long something took.
    plain = [name for name in named if kinds[name] == "number"]
    sure = [name for name in named if name not in plain or (len(free) > 1 and _holds_times(look, name))]
    if sure or typed:
        return (sure + typed)[0], ""
    likely = [name for name in free if name.lower() in _LIKELY_NAMES]
    likely += [name for name in names[:1] if name in free and kinds[name] == "other" and name not in likely]
    for name in likely:
        if _holds_times(look, name):
            return name, f"times from the column {name!r}"
    if plain:
        return plain[0], ""
    return None, Message(f"no time column found: rows count as steps; name it with {argument('time_column')}")


def _holds_times(table: Table | None, column: str) -> bool:
    """True if the first values of a column are times, written as texts or as numbers such as 20200131."""
    if table is None or isinstance(table, NpyTable):
        return False
    try:
        block = next(iter(table.blocks([], column, [], 0)), None)
    except DataError:
        return False
    return block is not None and block.times is not None and block.times.dtype.kind == "M"


def _no_numbers(path: Path, names: Sequence[str], look: Table | None) -> DataError:
    """The error that says that a table has no numeric column, and what its columns hold."""
    held = [marked(line) for line in (look.left_out(names) if look is not None else [])]
    said = [line.removeprefix("left out").lstrip(":, ").removeprefix("because ") for line in held]
    more = f"; and {len(said) - _NAMED:,} more" if len(said) > _NAMED else ""
    what = f": {'; '.join(said[:_NAMED])}{more}." if said else "."
    return DataError(f"{path} has no column of numbers to forecast from{what}")
