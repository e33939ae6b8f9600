"""Opens time series: chooses columns, finds segments, and gives training, validation and test parts.

Targets, times, gaps, missing values and several series in one table are handled here, once. All other code sees
one matrix and its segments.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cellerate.data.arrays import digest
from cellerate.data.series.build import build_series, check_reading, copy_columns, packing_key
from cellerate.data.series.columns import choose_columns
from cellerate.data.series.data import SeriesData, SeriesPart, SeriesSplit
from cellerate.data.series.pack import PackedSeries, is_packed_series, open_packed
from cellerate.data.series.rows_read import Columns, EmptyColumnsError, without_value
from cellerate.data.settings import Reading, TableOptions, with_missing
from cellerate.data.tables import SERIES, VALUE, NpyTable, WideTable, as_sources, find_tables, open_tables
from cellerate.errors import ConfigError, DataError
from cellerate.files import atomic_write, cache_dir
from cellerate.listener import SILENT, Listener
from cellerate.messages import argument, marked

__all__ = ["SeriesData", "SeriesPart", "SeriesSplit", "open_series"]


def open_series(
    paths: Any,
    reading: Reading,
    *,
    table: TableOptions | None = None,
    listener: Listener = SILENT,
) -> SeriesData:
    """Opens a time series from tables (CSV, Parquet, Arrow, Excel, JSON lines, `.npy`, frames), or a packed one.

    Several files with the same columns are read one after another. Without a series column, a file whose times
    do not continue those of the file before it begins a new series.

    Tables are read once in blocks and kept as a matrix in the cache folder; a `.npy` file that already is that matrix
    is used in place. In both cases the values are memory-mapped, not loaded.

    Args:
        paths: Files, folders or patterns, frames in memory, or one packed series, whose settings then hold.
        reading: The columns, and the treatment of rows that do not fit. A `time_column` of "" means none. The default
            is the column named date, time, timestamp, datetime or ds, else the first one of a time type, else one
            of a name such as month or ts, or a first column of texts, whose values are times. Missing values are
            empty, NaN and infinite ones: "drop" cuts the series there; "ffill" repeats the last value before them
            (rows before the first value are dropped); "interpolate" draws a straight line between the neighbours, with
            the nearest value at the ends, and so looks ahead. For a wide table, `targets` may be empty.
        table: The format of the tables, if it cannot be detected.
        listener: Receives the format of the tables and the number of rows read; `SeriesData.notes` says the rest.

    Returns:
        The series.

    Raises:
        ConfigError: An argument has an invalid value.
        DataError: A file is missing, empty or damaged, a column is missing or holds no numbers, times cannot be
            read or occur twice, or values are missing and `missing` is "error". The message names file, column and row.
        OutputError: The cache folder cannot be written.
    """
    check_reading(reading)
    targets, features = reading.targets, reading.features
    if reading.wide:
        targets = _wide_targets(reading)
    if not targets:
        raise ConfigError(
            f"{argument('targets')} is {targets!r}; expected a list of at least one column name."
        )
    paths = as_sources(paths)
    path = _packed_path(paths)
    if path is not None:
        if table is not None and (given := table.given):
            raise ConfigError(
                f"{path} is packed, and {marked(given)} describe the format of tables: leave that out."
            )
        packed = open_packed(path)
        kinds = dict.fromkeys(packed.columns, "number")
        here = dataclasses.replace(reading, targets=targets, time_column="", series_column=())
        columns = choose_columns(path, packed.columns, kinds, here)
        return _series_data(_with_columns(packed, columns.values), columns.features, targets, packed.settings)
    table = with_missing(table, reading.missing_marks)
    tables = open_tables(find_tables(paths), table, listener)
    first, chosen = tables[0], dataclasses.replace(reading, targets=targets)
    if reading.wide:
        nothing = dataclasses.replace(reading, targets=(), features=None)
        times = choose_columns(first.path, first.columns, first.kinds, nothing, first).time
        tables = [WideTable(one, times) for one in tables]
        first = tables[0]
        chosen = dataclasses.replace(chosen, series_column=SERIES, time_column=times or "")

    def opened(empty: Sequence[str]) -> SeriesData:
        columns = choose_columns(first.path, first.columns, first.kinds, chosen, first, empty)
        read = Columns(columns.values, columns.time, columns.series, table.missing_values)
        key = packing_key(tables, read, reading)
        folder = cache_dir() / "series" / key
        with contextlib.suppress(DataError):
            if is_packed_series(folder):
                in_place = first.values if isinstance(first, NpyTable) else None
                return _series_data(open_packed(folder, in_place), columns.features, targets)
        known = folder.with_suffix(".empty")
        if features is None and not empty and (before := _names_in(known)):
            return opened(before)
        notes = [columns.note, *without_value(empty), *first.left_out(columns.left_out)]
        try:
            made = build_series(folder, key, tables, read, reading, notes=notes, listener=listener)
        except EmptyColumnsError as error:
            if features is not None or set(error.columns) & set(targets):
                raise
            # So the next call knows the empty columns without reading all rows.
            with atomic_write(known) as beside:
                beside.write_text(json.dumps(error.columns))
            return opened(error.columns)
        return dataclasses.replace(_series_data(made, columns.features, targets), cached=False)

    return opened(())


def _names_in(path: Path) -> list[str]:
    """The names of columns in a file of the cache; none if it is not there, or damaged."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError):
        return []
    return [name for name in found if isinstance(name, str)] if isinstance(found, list) else []


def _wide_targets(reading: Reading) -> Sequence[str]:
    """The target of a wide table. Raises `ConfigError` for options that do not apply to a wide table."""
    if any(list(named or [VALUE]) != [VALUE] for named in (reading.targets, reading.features)):
        raise ConfigError(
            f"in a wide table each column is a series, and the target and feature is {VALUE!r}: name no other "
            f"to forecast ({argument('target')}) or to see ({argument('feature')})."
        )
    if reading.series_column:
        raise ConfigError(
            f"the series of a wide table are its columns: leave {argument('series_column')} out."
        )
    return [VALUE]


def _with_columns(packed: PackedSeries, columns: Sequence[str]) -> PackedSeries:
    """A packed series with these columns only, in this order: its own, or a copy in the cache.

    A window reads whole rows, so it would also read every column that was not requested.
    """
    if list(packed.columns) == list(columns):
        return packed
    key = digest(json.dumps(["columns/1", packed.fingerprint, list(columns)]).encode())
    folder = cache_dir() / "series" / key
    with contextlib.suppress(DataError):
        if is_packed_series(folder):
            return dataclasses.replace(open_packed(folder), times=packed.times)
    return dataclasses.replace(copy_columns(packed, columns, folder, key), times=packed.times)


def _series_data(
    packed: PackedSeries,
    features: Sequence[str],
    targets: Sequence[str],
    packed_with: Mapping[str, Any] | None = None,
) -> SeriesData:
    place = {name: number for number, name in enumerate(packed.columns)}
    step: np.timedelta64 | float | None = None
    if packed.step.size:
        dates = packed.step.dtype.kind == "m"
        step = np.timedelta64(int(packed.step.astype(np.int64)), "us") if dates else float(packed.step)
    chosen = f"{packed.fingerprint} {list(features)} {list(targets)}"
    return SeriesData(
        values=packed.values,
        columns=packed.columns,
        feature_columns=tuple(place[name] for name in features),
        target_columns=tuple(place[name] for name in targets),
        times=packed.times,
        segments=tuple((first, stop, packed.names[code]) for first, stop, code in packed.segments.tolist()),
        step=step,
        fingerprint=digest(chosen.encode()),
        cached=True,
        packed_with=packed_with,
        frequency=packed.frequency,
        form=packed.form,
        notes=packed.notes,
    )


def _packed_path(given: Sequence[Any]) -> Path | None:
    """The path of the given packed series, or None."""
    found = [Path(path) for path in given if isinstance(path, str | os.PathLike)]
    packed = [path for path in found if is_packed_series(path)]
    if packed and len(given) > 1:
        raise DataError(
            f"{packed[0]} is a packed series, which is opened alone; {len(given)} paths were given."
        )
    return packed[0] if packed else None
