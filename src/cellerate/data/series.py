"""Opens time series: which columns, which rows follow one another, and what is training, validation and test.

Targets, times, gaps, missing values and several series in one table are settled here, once. All other code sees
one matrix and its segments.
"""

import contextlib
import dataclasses
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cellerate.data.batches import digest
from cellerate.data.frames import as_sources
from cellerate.data.frequency import Frequency
from cellerate.data.gather import open_rows
from cellerate.data.series_build import Storage, build_series, check_packing, copy_columns, packing_key
from cellerate.data.series_columns import choose_columns
from cellerate.data.series_layout import Gaps, Missing
from cellerate.data.series_order import Duplicates
from cellerate.data.series_pack import PackedSeries, is_packed_series, open_packed
from cellerate.data.series_read import Columns, Progress, times_in
from cellerate.data.table_options import TableOptions
from cellerate.data.tables import NpyTable, find_tables, open_tables
from cellerate.data.time_form import TimeForm
from cellerate.data.wide_table import SERIES, VALUE, WideTable
from cellerate.errors import ConfigError, DataError
from cellerate.files import cache_dir

__all__ = ["SeriesData", "SeriesPart", "SeriesSplit", "open_series"]


@dataclasses.dataclass(frozen=True, eq=False)
class SeriesData:
    """One matrix of values and what its rows and columns mean.

    Attributes:
        values: (N, C) float32 or float16, usually a memory map: the features, then the targets that are not
            features.
        columns: Names of the C columns.
        feature_columns: Positions of the features among the columns.
        target_columns: Positions of the targets among the columns.
        times: (N,) datetime64[us], or float64 if the time column holds numbers, or None.
        segments: (first row, row after the last, series) of each stretch without a gap, in rising order.
        step: The median time step: timedelta64 or float, or None without times.
        fingerprint: Hash of the files' content and of all settings.
        cached: Whether the matrix was already in the cache.
        packed_with: The settings of a packed series: time_column, series_column, missing, gaps, dtype, duplicates,
            time_zone, frequency; None for tables.
        frequency: How often there is a row; None without times.
        form: How the tables wrote the times. Those of zones and offsets are instants in UTC in `times`.
        notes: What is to be told of how the tables were read.
        ahead: What is known of the rows after the last, a `data.future_rows.FutureRows`; None for nothing.
    """

    values: np.ndarray
    columns: tuple[str, ...]
    feature_columns: tuple[int, ...]
    target_columns: tuple[int, ...]
    times: np.ndarray | None
    segments: tuple[tuple[int, int, str], ...]
    step: np.timedelta64 | float | None
    fingerprint: str
    cached: bool = False
    packed_with: Mapping[str, Any] | None = None
    frequency: Frequency | None = None
    form: TimeForm = dataclasses.field(default_factory=TimeForm)
    notes: tuple[str, ...] = ()
    ahead: Any = None

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the features, in the order of a batch's last axis."""
        return tuple(self.columns[place] for place in self.feature_columns)

    @property
    def target_names(self) -> tuple[str, ...]:
        """Names of the targets, in the order of a target's last axis."""
        return tuple(self.columns[place] for place in self.target_columns)

    @property
    def rows(self) -> int:
        """The number of rows in segments; other rows are not used."""
        return sum(stop - first for first, stop, _ in self.segments)

    def times_after(self, stop: int, count: int) -> np.ndarray:
        """The (count,) times, or numbers, of the rows that follow row `stop - 1`.

        Those that the series has are given as they are, and the calendar of its frequency goes on after its last.
        """
        if self.times is None:
            return np.arange(stop, stop + count)
        firsts = [first for first, _, _ in self.segments]
        place = int(np.searchsorted(firsts, stop - 1, side="right")) - 1
        end = max(stop, min(self.segments[place][1], stop + count)) if place >= 0 else stop
        known = np.asarray(self.times[stop:end])
        if len(known) == count:
            return known
        if self.frequency is None:
            raise DataError(
                "the series has a single row, so nobody knows which times follow: give more rows, or say how often "
                "there is one (frequency)."
            )
        return np.concatenate([known, self.frequency.after(self.times[end - 1], count - len(known))])

    def whole(self) -> "SeriesPart":
        """All rows as one part."""
        return SeriesPart(self, "whole", tuple((first, first, stop) for first, stop, _ in self.segments))

    def split(
        self,
        train: float = 0.7,
        validation: float = 0.1,
        *,
        counts: tuple[int, int, int] | None = None,
        test_size: int | None = None,
        validation_size: int | None = None,
    ) -> "SeriesSplit":
        """Cuts each series in time: first training, then validation, then test.

        Every row, and so every target, belongs to one part only. The inputs of the first validation and test
        windows reach back into the part before, because those rows are known at forecast time.

        Args:
            train: Share of each series' rows, above 0.
            validation: Share of each series' rows; what remains is the test part.
            counts: Rows for training, validation and test in each series, instead of shares. Any rows after
                them are not used.
            test_size: Rows of the test part, at the end of each series; what lies before the validation part is then
                the training part, and `train` does not count.
            validation_size: With `test_size`, rows of the validation part, instead of a share.

        Returns:
            The three parts; a part may be empty.

        Raises:
            ConfigError: The shares or counts are out of range.
            DataError: A series has fewer rows than `counts` asks for, or none before validation and test.
        """
        if counts is None:
            if not (0 < train <= 1 and 0 <= validation <= 1 and train + validation <= 1 + 1e-9):
                raise ConfigError(
                    f"train is {train} and validation {validation}; expected shares with train above 0 and a "
                    f"sum of at most 1."
                )
        elif len(counts) != 3 or counts[0] < 1 or min(counts) < 0:
            raise ConfigError(f"counts is {counts}; expected rows of training (1 or more), validation, test.")
        parts: tuple[list[tuple[int, int, int]], ...] = ([], [], [])
        by_series: dict[str, list[tuple[int, int]]] = {}
        for first, stop, series in self.segments:
            by_series.setdefault(series, []).append((first, stop))
        for name, own in by_series.items():
            total = sum(stop - first for first, stop in own)
            if test_size is not None:
                held = round(total * validation) if validation_size is None else validation_size
                edges = [0, total - test_size - held, total - test_size, total]
                if edges[1] < 1:
                    which = f"series {name!r}" if name else "the series"
                    raise DataError(
                        f"{which} has {total} rows: test_size={test_size} and {held} rows of validation leave none to "
                        "train on. Give more rows, or test on fewer."
                    )
            elif counts is None:
                edges = [0, round(total * train), round(total * min(1.0, train + validation)), total]
            else:
                edges = [0, counts[0], counts[0] + counts[1], sum(counts)]
                if edges[3] > total:
                    which = f"series {name!r}" if name else "the series"
                    raise DataError(f"{which} has {total} rows, but counts {counts} need {edges[3]}.")
            for part, low, high in zip(parts, edges[:3], edges[1:], strict=True):
                before = 0
                for first, stop in own:
                    begin = first + max(0, low - before)
                    end = min(stop, first + high - before)
                    if begin < end:
                        part.append((first, begin, end))
                    before += stop - first
        names = ("training", "validation", "test")
        return SeriesSplit(*(SeriesPart(self, n, tuple(p)) for n, p in zip(names, parts, strict=True)))


@dataclasses.dataclass(frozen=True)
class SeriesPart:
    """The rows of a series that training, validation or test may predict.

    Attributes:
        data: The series.
        name: "training", "validation", "test" or "whole".
        bounds: One (row from which inputs may be taken, first row of the part, row after its last) per stretch.
    """

    data: SeriesData
    name: str
    bounds: tuple[tuple[int, int, int], ...]

    @property
    def rows(self) -> int:
        """Rows in this part, without the earlier rows that its inputs may use."""
        return sum(stop - begin for _, begin, stop in self.bounds)

    def spans(self, window: int) -> list[tuple[int, int]]:
        """First row and row after the last of each stretch that windows of `window` input rows may use.

        Raises:
            DataError: The part is empty.
        """
        if not self.bounds:
            raise DataError(f"the {self.name} part has no rows; give it a larger share of the series.")
        return [(max(floor, begin - window), stop) for floor, begin, stop in self.bounds]

    def chunks(self, rows: int) -> Iterator[np.ndarray]:
        """The part's rows in order, at most `rows` at a time, as stored; resident memory stays small."""
        reader = open_rows(self.data.values)
        for _, begin, stop in self.bounds:
            for first in range(begin, stop, rows):
                out = np.empty((min(rows, stop - first), self.data.values.shape[1]), self.data.values.dtype)
                reader.read(first, out)
                yield out


@dataclasses.dataclass(frozen=True)
class SeriesSplit:
    """The three parts of a series."""

    train: SeriesPart
    validation: SeriesPart
    test: SeriesPart


def open_series(
    paths: Any,
    *,
    targets: Sequence[str] = (),
    features: Sequence[str] | None = None,
    time_column: str | None = None,
    series_column: Sequence[str] | str | None = None,
    missing: Missing = "error",
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
        gaps: What to do where a row does not follow the one before it by the frequency. "split" lets no window
            cross it; "error" raises; "ignore" goes on.
        dtype: The type of the stored matrix; "float16" halves its size.
        duplicates: What to do with rows of one series and one time: "error", keep the "first" or "last" in the file,
            or their "mean".
        time_zone: The zone of times that the tables give without one, and the one in which times are written. None
            takes them as they stand.
        frequency: How often there is a row: "15min", "hour", "day", "business-day", "week", "month", "quarter",
            "year"; None finds it from the times.
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
    tables = open_tables(find_tables(paths), names, table)
    first = tables[0]
    if wide:
        found = choose_columns(
            first.path, first.columns, first.kinds, [], None, time_column, None, times_in(first)
        )
        tables = [WideTable(one, found.time) for one in tables]
        first, series_column, time_column = tables[0], SERIES, found.time or ""
    columns = choose_columns(
        first.path,
        first.columns,
        first.kinds,
        list(targets),
        features,
        time_column,
        series_column,
        times_in(first),
    )
    read = Columns(columns.values, columns.time, columns.series)
    key = packing_key(tables, read, **reading)
    folder = cache_dir() / "series" / key
    with contextlib.suppress(DataError):
        if is_packed_series(folder):
            in_place = first.values if isinstance(first, NpyTable) else None
            return _series_data(open_packed(folder, in_place), columns.features, targets)
    made = build_series(folder, key, tables, read, **reading, note=columns.note, progress=progress)
    return dataclasses.replace(_series_data(made, columns.features, targets), cached=False)


def _wide_targets(
    targets: Sequence[str], features: Sequence[str] | None, series_column: Any
) -> Sequence[str]:
    """The target of a wide table. Raises `ConfigError` for what has no meaning in one."""
    if list(targets or [VALUE]) != [VALUE] or list(features or [VALUE]) != [VALUE]:
        raise ConfigError(
            f"of a wide table each column is a series, and the target and feature is {VALUE!r}: leave targets and "
            "features out."
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
