"""Values known in advance: the rows of a table after the last known target, or a table of their own.

Rows at the end of a table without targets hold known values of the future. They are recognised, separated from the rows
of the past, and looked up by series and time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from cellerate.data.series.columns import MissingColumnError
from cellerate.data.series.rows_read import EmptyColumnsError
from cellerate.data.series.series import SeriesData, open_series
from cellerate.data.settings import Reading, TableOptions
from cellerate.data.tables import BySeries, as_sources, check_readers, find_tables
from cellerate.errors import DataError
from cellerate.listener import SILENT, Callbacks, Listener
from cellerate.messages import argument


class FutureRows:
    """The columns that are known in advance, by series and time.

    Args:
        open_data: Opens a series with these columns alone, where a row that misses one of them is in no segment.
        columns: The columns.
        source: What messages call the table.
        past: The series up to its last known target.
    """

    def __init__(
        self, open_data: Callable[[], SeriesData], columns: Sequence[str], source: str, past: SeriesData
    ) -> None:
        self._open, self._columns, self._source = open_data, list(columns), source
        self._form, self._clock = past.form, _clock(past)

    def rows(self, series: str, times: np.ndarray) -> np.ndarray:
        """The values at times of a series.

        Args:
            series: Its name, or "".
            times: (horizon,) datetime64 or numbers; row numbers where the tables have no times.

        Returns:
            (horizon, columns) as stored.

        Raises:
            DataError: A row, or a value of it, is missing, or the times are of another kind.
        """
        data = self._data
        if data.times is None:
            raise DataError(
                f"the rows of {self._source} have no times, so the future cannot be separated from the past: "
                f"name the time column ({argument('time_column')})."
            )
        if _clock(data) != self._clock:
            raise DataError(
                f"{self._source} has {_clock(data)}, but the series so far has {self._clock}: write all times in one "
                f"way, or name the zone of those that name none ({argument('time_zone')})."
            )
        stretches = self._stretches.get(series, [])
        known = np.concatenate(
            [np.asarray(data.times[first:stop]) for first, stop in stretches] or [times[:0]]
        )
        numbers = np.concatenate([np.arange(first, stop) for first, stop in stretches] or [np.empty(0, int)])
        place = np.minimum(np.searchsorted(known, times), max(0, len(known) - 1))
        found = known[place] == times if len(known) else np.zeros(len(times), bool)
        if not found.all():
            missing = times[int(np.argmin(found))]
            whose = f" of series {series!r}" if series else ""
            at, first, last = self._form.write(np.array([missing, times[0], times[-1]]))
            raise DataError(
                f"{self._source} has no {', '.join(map(repr, self._missing(missing)))}{whose} at {at}, and the "
                f"model needs {'it' if len(self._columns) == 1 else 'them'} from {first} to {last}: add these "
                f"rows at the end of the data with empty targets, or give a table of them ({argument('future')})."
            )
        columns = [data.columns.index(name) for name in self._columns]
        return np.asarray(data.values[numbers[place]][:, columns])

    def _missing(self, time: Any) -> list[str]:
        """The columns without a value in a row at a time; all if there is no such row."""
        data = self._data
        assert data.times is not None  # noqa: S101 (the caller looked)
        rows = np.asarray(data.values[np.flatnonzero(np.asarray(data.times) == time)])
        empty = [name for name in self._columns if np.isnan(rows[:, data.columns.index(name)]).any()]
        return empty or self._columns

    @functools.cached_property
    def _data(self) -> SeriesData:
        try:
            return self._open()
        except MissingColumnError as error:
            raise DataError(
                f"{error.problem}, which the model needs at the times that it forecasts ({argument('future')}). "
                f"{error.listed}"
            ) from error
        except EmptyColumnsError as error:
            named = ", ".join(map(repr, error.columns))
            raise DataError(
                f"{self._source} has no value of {named} in any row, which the model needs at the times that it "
                f"forecasts ({argument('future')})."
            ) from error

    @functools.cached_property
    def _stretches(self) -> BySeries[list[tuple[int, int]]]:
        data = self._data
        found: dict[str, list[tuple[int, int]]] = {}
        following = [*data.segments[1:], (len(data.values), 0, None)]
        for (first, stop, series), (begin, _, after) in zip(data.segments, following, strict=True):
            found.setdefault(series, []).append((first, stop))
            # What a packed series left out of its stretches may lack other columns than these.
            if data.packed_with is not None and stop < begin:
                end = begin if after in (series, None) else _end_of_series(data, stop, begin)
                found[series] += self._whole(stop, end)
        return BySeries(found)

    def _whole(self, first: int, stop: int) -> list[tuple[int, int]]:
        """The stretches of rows in which no column misses a value."""
        columns = [self._data.columns.index(name) for name in self._columns]
        whole = np.isfinite(np.asarray(self._data.values[first:stop])[:, columns]).all(axis=1)
        edges = np.flatnonzero(np.diff(np.concatenate([[False], whole, [False]]).astype(np.int8)))
        return [(first + begin, first + end) for begin, end in edges.reshape(-1, 2).tolist()]


def open_known(
    paths: Any,
    reading: Reading,
    columns: Sequence[str] = (),
    future: Any = None,
    *,
    table: TableOptions | None = None,
    listener: Listener = SILENT,
) -> SeriesData:
    """Opens a series up to its last known target, with the known columns of the rows after it.

    Args:
        paths: As `open_series` takes them.
        reading: See `open_series`.
        columns: The columns that are known in advance.
        future: Tables with these columns, as `paths`; None for the rows of the series itself that have no targets.
        table: The format of all these tables, if it cannot be detected.
        listener: Receives notes on them, and the number of rows read.

    Returns:
        The series; `ahead` looks up the rows after it.

    Raises:
        BackendError: A package that reads the tables is not installed.
        DataError: See `open_series`.
    """
    # A reader gives its rows only once, and they are needed more than once.
    paths = as_sources(paths)
    if future is not None and columns:
        check_readers(find_tables(future))
    opened = functools.partial(open_series, paths, table=table, listener=listener)
    data = _without_trailing(opened, reading, listener) if columns else opened(reading)
    for note in data.notes:
        listener.message(note)
    for name in columns:
        if name not in data.feature_names:
            raise DataError(
                f"{argument('future')} names {name!r}, which is not a column of numbers beside the times and series of "
                f"{_named(paths)}. These are: {', '.join(data.feature_names)}."
            )
    if not columns:
        return data
    alone = dataclasses.replace(
        reading, targets=list(columns), features=list(columns), missing="drop", gaps="ignore"
    )
    # The format of the same tables was reported already.
    heard = SILENT if future is None else Callbacks(message=listener.message)
    where = paths if future is None else as_sources(future)
    open_ahead = functools.partial(open_series, where, alone, table=table, listener=heard)
    return dataclasses.replace(data, ahead=FutureRows(open_ahead, columns, _named(where), data))


def _end_of_series(data: SeriesData, first: int, begin: int) -> int:
    """Where a series ends between its last stretch and the first of the next: where time goes back.

    If it never does, nothing tells which of the two has these rows, and neither gets them.
    """
    assert data.times is not None  # noqa: S101 (the caller looked)
    back = np.flatnonzero(np.diff(np.asarray(data.times[first - 1 : begin + 1]).astype(np.float64)) < 0)
    return first + int(back[0]) if len(back) else first


def _clock(data: SeriesData) -> str:
    """The kind of a series' times, in words; times of different kinds cannot be compared."""
    if data.times is None or data.times.dtype.kind != "M":
        return "numbers as times"
    return "times with a zone" if data.form.zone else "times without a zone"


def _named(sources: Sequence[Any]) -> str:
    return ", ".join(str(getattr(one, "path", one)) for one in sources)


def _without_trailing(opened: Callable[..., SeriesData], reading: Reading, listener: Listener) -> SeriesData:
    """The series without the rows at the end of each that have no targets."""
    # The first reading reports the format of the tables.
    heard = Callbacks(progress=listener.progress)
    dropped = functools.partial(opened, dataclasses.replace(reading, missing="drop"), listener=heard)
    if reading.missing == "drop":
        return opened(reading)
    if reading.missing == "error":
        try:
            return opened(reading)
        except DataError:
            with contextlib.suppress(DataError):
                found = dropped()
                if _only_trailing(found):
                    return found
            raise
    data = opened(reading)
    if data.packed_with is not None:
        return data
    # Filling reached the last row, so it invented targets for the rows of the future.
    return dataclasses.replace(data, segments=_cut(data, dropped()))


def _only_trailing(data: SeriesData) -> bool:
    """True if all rows outside the stretches have no targets and lie after the last stretch of a series."""
    begins = [first for first, _, _ in data.segments] + [len(data.values)]
    names: list[str | None] = [series for _, _, series in data.segments] + [None]
    if begins[0] > 0:
        return False
    for (_, stop, series), begin, following in zip(data.segments, begins[1:], names[1:], strict=True):
        if stop < begin and (following == series or not _no_target(data, stop, begin).all()):
            return False
    return True


def _cut(filled: SeriesData, dropped: SeriesData) -> tuple[tuple[int, int, str], ...]:
    """The stretches of a filled series up to the last known target of each series."""
    last = {series: stop for _, stop, series in dropped.segments}
    cut = []
    for first, stop, series in filled.segments:
        known = last.get(series, first)
        begin = max(first, known)
        if begin < stop:
            targets = np.flatnonzero(~_no_target(dropped, begin, stop))
            stop = begin + int(targets[-1]) + 1 if len(targets) else begin
        if first < stop:
            cut.append((first, stop, series))
    return tuple(cut)


def _no_target(data: SeriesData, first: int, stop: int) -> np.ndarray:
    """(stop - first,) whether a row misses all of its targets."""
    rows = np.asarray(data.values[first:stop])[:, list(data.target_columns)]
    return np.isnan(rows).all(axis=1)
