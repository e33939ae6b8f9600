"""Opens time series: which columns, which rows follow one another, and what is training, validation and test.

Targets, times, gaps, missing values and several series in one table are settled here, once. All other code sees
one matrix and its segments.
"""

import contextlib
import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cellerate.data.arrays import digest
from cellerate.data.series.build import build_series, check_packing, copy_columns, packing_key
from cellerate.data.series.columns import choose_columns
from cellerate.data.series.data import SeriesData, SeriesPart, SeriesSplit
from cellerate.data.series.pack import PackedSeries, is_packed_series, open_packed
from cellerate.data.series.read import Progress
from cellerate.data.series.reading import Columns, EmptyColumnsError, without_value
from cellerate.data.settings import Duplicates, Gaps, Missing, Storage, TableOptions, with_missing
from cellerate.data.tables import SERIES, VALUE, NpyTable, WideTable, as_sources, find_tables, open_tables
from cellerate.errors import ConfigError, DataError
from cellerate.files import atomic_write, cache_dir

__all__ = ["SeriesData", "SeriesPart", "SeriesSplit", "open_series"]


def open_series(
    paths: Any,
    *,
    targets: Sequence[str] = (),
    features: Sequence[str] | None = None,
    time_column: str | None = None,
    series_column: Sequence[str] | str | None = None,
    missing: Missing = "error",
    missing_values: Sequence[str] = (),
    gaps: Gaps = "split",
    dtype: Storage = "float32",
    duplicates: Duplicates = "error",
    time_zone: str | None = None,
    frequency: str | None = None,
    names: Sequence[str] | None = None,
    wide: bool = False,
    table: TableOptions | None = None,
    progress: Progress | None = None,
) -> SeriesData:
    """Opens a time series from tables (CSV, Parquet, Arrow, Excel, JSON lines, `.npy`, frames), or a packed one.

    Several files with the same columns are read one after another. Without a series column, a file whose times
    do not continue those of the file before it begins a new series.

    Tables are read once in blocks and kept as a matrix in the cache folder; a `.npy` file that
    already is that matrix is used in place. In both cases the values are memory-mapped, not loaded.

    Args:
        paths: Files, folders or patterns, frames in memory, or one packed series, whose settings then hold.
        targets: Columns to forecast.
        features: Columns to forecast from; None for every column of numbers except time and series.
        time_column: The column of times; "" for none. None takes the column named date, time, timestamp,
            datetime or ds, else the first one of a time type, else one of a name such as month or ts, or a first
            column of texts, whose values are times; else none.
        series_column: The columns that tell several series in one table apart, one or more.
        missing: What to do with empty, NaN and infinite values. "error" raises; "drop" cuts the series there;
            "ffill" repeats the last value before them (rows before the first value are dropped);
            "interpolate" draws a straight line between the neighbours, with the nearest value at the ends.
            Note that such a line looks ahead.
        missing_values: What stands for a missing number beside the usual words, unless `table` says so: numbers such as
            "-999", or words.
        gaps: What to do where a row does not follow the one before it by the frequency. "split" lets no window
            cross it; "error" raises; "ignore" goes on.
        dtype: The type of the stored matrix. "float32" becomes float64 where it would lose digits: whole numbers
            above 2^24, and columns that change from row to row by less than its steps. "float16" halves the size.
        duplicates: What to do with rows of one series and one time: "error", keep the "first" or "last" in the file,
            or their "mean".
        time_zone: The zone of times that the tables give without one, and the one in which times are written. None
            takes them as they stand.
        frequency: How often there is a row: "15min", "hour", "day", "business-day", "trading-day", "week", "month",
            "quarter", "year"; None finds it from the times.
        names: Column names for `.npy` files and for CSV files without a header; None for "0", "1", ...
        wide: Whether each column of numbers beside the column of times is a series of its own, of one target named
            "value". Then `targets` may be empty, and there is no series column.
        table: How the tables are written, where that is not to be found out.
        progress: Called now and then with how many rows were read, and of how many, 0 if that is not known.

    Returns:
        The series.

    Raises:
        ConfigError: An argument has an invalid value.
        DataError: A file is missing, empty or damaged, a column is missing or holds no numbers, times are
            not to be read or occur twice, or values are missing and `missing` is "error". The message names
            file, column and row.
        OutputError: The cache folder cannot be written.
    """
    reading: dict[str, Any] = {"missing": missing, "gaps": gaps, "dtype": dtype, "duplicates": duplicates}
    reading |= {"time_zone": time_zone, "frequency": frequency}
    check_packing(**reading)
    if wide:
        targets = _wide_targets(targets, features, series_column)
    if isinstance(targets, str) or not targets:
        raise ConfigError(f"targets is {targets!r}; expected a list of at least one column name.")
    paths = as_sources(paths)
    path = _packed_path(paths)
    if path is not None:
        if table is not None and (given := table.given):
            raise ConfigError(f"{path} is packed, and {given} say how tables are written: leave that out.")
        packed = open_packed(path)
        kinds = dict.fromkeys(packed.columns, "number")
        columns = choose_columns(path, packed.columns, kinds, list(targets), features, "", None)
        return _series_data(_with_columns(packed, columns.values), columns.features, targets, packed.settings)
    table = with_missing(table, missing_values)
    tables = open_tables(find_tables(paths), names, table)
    first = tables[0]
    if wide:
        found = choose_columns(first.path, first.columns, first.kinds, [], None, time_column, None, first)
        tables = [WideTable(one, found.time) for one in tables]
        first, series_column, time_column = tables[0], SERIES, found.time or ""

    def opened(empty: Sequence[str]) -> SeriesData:
        columns = choose_columns(
            first.path,
            first.columns,
            first.kinds,
            list(targets),
            features,
            time_column,
            series_column,
            first,
            empty,
        )
        read = Columns(columns.values, columns.time, columns.series, table.missing_values)
        key = packing_key(tables, read, **reading)
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
            made = build_series(folder, key, tables, read, **reading, notes=notes, progress=progress)
        except EmptyColumnsError as error:
            if features is not None or set(error.columns) & set(targets):
                raise
            # Known by the next call without reading all rows.
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


def _wide_targets(
    targets: Sequence[str], features: Sequence[str] | None, series_column: Any
) -> Sequence[str]:
    """The target of a wide table. Raises `ConfigError` for what has no meaning in one."""
    if list(targets or [VALUE]) != [VALUE] or list(features or [VALUE]) != [VALUE]:
        raise ConfigError(
            f"of a wide table each column is a series, and the target and feature is {VALUE!r}: name no other "
            "to forecast (target) or to see (feature)."
        )
    if series_column:
        raise ConfigError("the series of a wide table are its columns: leave series_column out.")
    return [VALUE]


def _with_columns(packed: PackedSeries, columns: Sequence[str]) -> PackedSeries:
    """A packed series with these columns only, in this order: its own, or a copy in the cache.

    A window reads whole rows, so columns that nobody asked for would be read with each.
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
    """The packed series that is asked for, if one is."""
    found = [Path(path) for path in given if isinstance(path, str | os.PathLike)]
    packed = [path for path in found if is_packed_series(path)]
    if packed and len(given) > 1:
        raise DataError(
            f"{packed[0]} is a packed series, which is opened alone; {len(given)} paths were given."
        )
    return packed[0] if packed else None
