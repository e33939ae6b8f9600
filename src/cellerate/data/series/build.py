"""Makes a packed series from tables: reads them, groups the rows by series, finds the stretches without a gap.

It takes a constant amount of memory, and continues where a killed process stopped reading.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cellerate.data.arrays import digest
from cellerate.data.series.fill import blocks_of
from cellerate.data.series.layout import lay_out, sort_rows
from cellerate.data.series.order import ORIGIN, Ordered, Sorting, order_rows
from cellerate.data.series.pack import PackedSeries, describe, open_packed
from cellerate.data.series.read import NOTE, SERIES, TIMES, VALUES, Reader, npy_header
from cellerate.data.series.rows_read import Columns
from cellerate.data.series.sentinels import Sentinels
from cellerate.data.settings import Reading, Storage
from cellerate.data.tables import NpyTable, Table
from cellerate.data.times import (
    LOOKED_AT,
    TimeForm,
    check_zone,
    decide_order,
    parse_frequency,
    swap_day_and_month,
)
from cellerate.errors import ConfigError, DataError, OutputError
from cellerate.files import exclusive, output_error, publish_folder
from cellerate.listener import SILENT, Listener
from cellerate.messages import Message, argument, marked

_BUILDING = ".building"
_COPIED_BYTES, _SWAPPED_ROWS = 16 << 20, 1 << 20
_SHOWN_SERIES = 5


def build_series(
    folder: Path,
    key: str,
    tables: Sequence[Table],
    columns: Columns,
    reading: Reading,
    *,
    notes: Sequence[str] = (),
    cache: bool = True,
    listener: Listener = SILENT,
) -> PackedSeries:
    """Packs tables into a folder, or waits while another process does.

    Args:
        folder: The packed series to make. Unfinished work lies beside it, under its name and `.building`.
        key: A hash of the tables and of the settings; see `packing_key`.
        tables: The tables, with the same columns.
        columns: Which columns.
        reading: What to do with rows that do not fit.
        notes: The notes on the columns.
        cache: Whether the folder is in the cache. There a `.npy` file that equals the stored values is used in place,
            and damaged files are made again.
        listener: Receives the number of rows read.

    Raises:
        DataError: See `open_series`.
        OutputError: The folder cannot be written.
    """
    usable = _usable_in_place(tables, columns, reading.storage) if cache else None

    def make(building: Path) -> None:
        build = _Build(building, key, tables, columns, reading, notes, listener)
        packed = build.in_place(usable)
        describe(building, build.on_disk() if packed is None else packed, in_place=packed is not None)

    return _published(folder, usable, key, make, cache=cache)


def copy_columns(packed: PackedSeries, columns: Sequence[str], folder: Path, key: str) -> PackedSeries:
    """Makes a packed series in the cache of some columns of another; without times.

    Raises:
        OutputError: The folder cannot be written.
    """
    known = {name: place for place, name in enumerate(packed.columns)}
    places = [known[name] for name in columns]

    def make(building: Path) -> None:
        rows = _COPIED_BYTES // packed.values.dtype.itemsize // len(places)
        with (building / "values.npy").open("wb") as file:
            file.write(npy_header(packed.values.dtype, (len(packed.values), len(places))))
            for block in blocks_of(packed.values, rows):
                file.write(np.ascontiguousarray(block[:, places]).data)
        values = np.load(building / "values.npy", mmap_mode="r", allow_pickle=False)
        made = dataclasses.replace(packed, values=values, columns=tuple(columns), times=None, fingerprint=key)
        describe(building, made, in_place=False)

    return _published(folder, None, key, make, cache=True)


def _published(
    folder: Path, usable: np.ndarray | None, key: str, make: Callable[[Path], None], *, cache: bool
) -> PackedSeries:
    """The series that `make` writes into a folder beside `folder`, or that another process made meanwhile."""
    building = folder.with_name(folder.name + _BUILDING)
    with exclusive(building, wait=True):
        if folder.exists():
            found = _made_meanwhile(folder, usable, key, cache=cache)
            if found is not None:
                shutil.rmtree(building, ignore_errors=True)
                return found
        try:
            make(building)
            publish_folder(building, folder)
        except DataError as error:
            # Unusable data fail the next time, too, but a disk that failed may work then.
            if not isinstance(error.__cause__, OSError):
                shutil.rmtree(building, ignore_errors=True)
            raise
        except OutputError:
            raise
        except OSError as error:
            raise output_error(building, error) from error
    return open_packed(folder, usable)


def _made_meanwhile(folder: Path, usable: np.ndarray | None, key: str, *, cache: bool) -> PackedSeries | None:
    """The series that another process made while this one waited; None if it is damaged, and removed."""
    try:
        found = open_packed(folder, usable)
        if found.fingerprint == key:
            return found
    except DataError:
        if cache:
            shutil.rmtree(folder, ignore_errors=True)
            return None
    raise OutputError(f"cannot write {folder}: another process packed other data there. Choose another name.")


def check_reading(reading: Reading) -> None:
    """Raises `ConfigError` for a time zone or a frequency that cannot be used."""
    check_zone(reading.time_zone)
    if reading.frequency is not None:
        parse_frequency(reading.frequency)


def packing_key(tables: Sequence[Table], columns: Columns, reading: Reading) -> str:
    """A hash of the content of tables and of the settings of packing."""
    settings = {
        "version": 7,
        "files": [table.digest() for table in tables],
        # The format of a file, detected each time or given, decides which values are read.
        "reading": [dict(table.reading) for table in tables if table.reading],
        "table": tables[0].columns,
        "columns": dataclasses.asdict(columns),
        "missing": reading.missing,
        "gaps": reading.gaps,
        "dtype": reading.storage,
        "times": [reading.duplicates, reading.time_zone, reading.frequency],
        # A file that begins a new series gives its name to the series.
        "names": [table.path.stem for table in tables] if len(tables) > 1 else [],
    }
    return digest(json.dumps(settings, sort_keys=True).encode())


class _Build:
    def __init__(
        self,
        folder: Path,
        key: str,
        tables: Sequence[Table],
        columns: Columns,
        reading: Reading,
        notes: Sequence[str],
        listener: Listener,
    ) -> None:
        self._folder, self._key, self._tables, self._columns = folder, key, tables, columns
        self._reading, self._dtype = reading, np.dtype(reading.storage)
        self._notes, self._listener = notes, listener

    def in_place(self, values: np.ndarray | None) -> PackedSeries | None:
        """A description of values that stay where they are, or None if they cannot."""
        if values is None:
            return None
        reader = Reader(None, self._tables, self._columns, self._dtype, self._key, self._listener)
        done = reader.read()
        self._check_holes(reader)
        if not done.complete and self._reading.missing != "drop":
            return None
        return self._laid_out(values, None, reader.done.counts, reader, reader.place)

    def on_disk(self) -> PackedSeries:
        """Values and times in the folder, and their description."""
        reader = Reader(self._folder, self._tables, self._columns, self._dtype, self._key, self._listener)
        done = reader.read()
        self._check_holes(reader)
        # The next steps change the rows in place, so a process that is killed from here on starts again.
        (self._folder / NOTE).unlink(missing_ok=True)
        form, note = self._form(reader)
        files = [(VALUES, "values.npy")] + ([(TIMES, "times.npy")] if self._columns.time is not None else [])
        for name, final in files:
            source = self._folder / name
            if done.sorted:
                source.replace(self._folder / final)
            else:
                sort_rows(source, self._folder / final, self._folder / SERIES, done.counts)
                source.unlink()
        place = reader.place if done.sorted else self._place_before_sorting(reader)
        sentinels = Sentinels(**done.sentinels).notes(self._columns.values)
        times, counts, notes = None, done.counts, [*self._notes, *done.notes, *sentinels]
        if self._columns.time is not None:
            ordered, form = self._ordered(done.counts, form, place)
            counts, notes = ordered.counts, [*notes, note, *self._files(done.names), *ordered.notes]
            if ordered.rewritten:
                place = self._place_before_ordering(place)
            times = np.load(self._folder / "times.npy", mmap_mode="r", allow_pickle=False)
        values = np.load(self._folder / "values.npy", mmap_mode="r", allow_pickle=False)
        packed = self._laid_out(values, times, counts, reader, place, form, notes)
        for name in (SERIES, ORIGIN):
            (self._folder / name).unlink(missing_ok=True)
        return packed

    def _files(self, names: Sequence[str]) -> list[str]:
        """The note on files that begin series; none for a single series, and where a column tells series apart."""
        if self._columns.series or len(names) < 2:
            return []
        shown = ", ".join(names[:_SHOWN_SERIES]) + ", ..." * (len(names) > _SHOWN_SERIES)
        return [
            f"{len(names):,} series from {len(self._tables):,} files, each of which begins before the end of the one "
            f"before it: {shown}"
        ]

    def _form(self, reader: Reader) -> tuple[TimeForm, str]:
        """The form of the times, and a message on it; corrects dates that were read with the day first."""
        if self._columns.time is None:
            return TimeForm(), ""
        done, note = reader.done, ""
        form = TimeForm.from_config(done.form) if done.form is not None else TimeForm("number")
        times = np.load(self._folder / TIMES, mmap_mode="r+", allow_pickle=False)
        undecided = done.undecided
        if form.order == "?":
            series = np.fromfile(self._folder / SERIES, np.int32, LOOKED_AT)
            some = np.array(times[:LOOKED_AT])
            form, note = decide_order(form, some, series, self._tables[0].path, self._columns.time)
            undecided = len(times)
        if form.order == "mdy":
            for first in range(0, undecided, _SWAPPED_ROWS):
                stop = min(undecided, first + _SWAPPED_ROWS)
                times[first:stop] = swap_day_and_month(times[first:stop])
        told = self._in_named_zone(form) if form.mixed else form
        return form, note or (Message(f"read as: {marked(told.words)}") if told.words else "")

    def _ordered(
        self, counts: Sequence[int], form: TimeForm, place: Callable[[int], str]
    ) -> tuple[Ordered, TimeForm]:
        """The rows in the order of time, and the form with its time zone."""
        zone = self._reading.time_zone
        if zone is not None and form.kind == "number":
            raise ConfigError(
                f"{argument('time_zone')} is {zone!r}, but the column {self._columns.time!r} holds plain numbers: "
                "leave it out."
            )
        clock = zone if zone is not None and not form.zone else ""
        how = Sorting(self._reading.duplicates, clock, form, self._columns.values, place)
        ordered = order_rows(self._folder, counts, how)
        return ordered, self._in_named_zone(form)

    def _in_named_zone(self, form: TimeForm) -> TimeForm:
        """The form with the time zone that was named, if one was."""
        zone = self._reading.time_zone
        return form if zone is None else dataclasses.replace(form, zone=zone, mixed=False)

    def _check_holes(self, reader: Reader) -> None:
        done = reader.done
        if self._reading.missing == "error" and done.first_hole is not None:
            row, column = done.first_hole
            raise DataError(
                f"{reader.place(row)}: column {self._columns.values[column]!r} has no value "
                f"({sum(done.holes)} values are missing in all). Choose what to do with missing values: "
                f"{argument('missing', 'drop', 'ffill', 'interpolate')}."
            )

    def _laid_out(
        self,
        values: np.ndarray,
        times: np.ndarray | None,
        counts: Sequence[int],
        reader: Reader,
        place: Callable[[int], str],
        form: TimeForm | None = None,
        notes: Sequence[str] = (),
    ) -> PackedSeries:
        done, columns, how = reader.done, self._columns, self._reading
        names = [""] if not columns.series and len(done.names) == 1 else done.names
        layout = lay_out(
            None if done.complete else values,
            times,
            counts,
            how,
            place,
            form=form,
            names=names,
        )
        settings: dict[str, Any] = {
            "time_column": columns.time,
            "series_column": list(columns.series),
            "missing": how.missing,
            "missing_values": list(columns.missing_values),
            "gaps": how.gaps,
            "dtype": self._dtype.name,
            "duplicates": how.duplicates,
            "time_zone": how.time_zone,
            "frequency": how.frequency,
        }
        return PackedSeries(
            values,
            tuple(columns.values),
            times,
            layout.segments,
            tuple(names),
            layout.step,
            settings,
            self._key,
            layout.frequency,
            form or TimeForm(),
            tuple(filter(None, [*notes, *layout.notes])),
        )

    def _place_before_ordering(self, place: Callable[[int], str]) -> Callable[[int], str]:
        def before(row: int) -> str:
            return place(int(np.memmap(self._folder / ORIGIN, np.int64, mode="r")[row]))

        return before

    def _place_before_sorting(self, reader: Reader) -> Callable[[int], str]:
        def place(row: int) -> str:
            ends = np.cumsum(reader.done.counts)
            code = int(np.searchsorted(ends, row, side="right"))
            own = np.flatnonzero(np.memmap(self._folder / SERIES, np.int32, mode="r") == code)
            return reader.place(int(own[row - int(ends[code]) + reader.done.counts[code]]))

        return place


def _usable_in_place(tables: Sequence[Table], columns: Columns, dtype: Storage) -> np.ndarray | None:
    """The matrix of a single `.npy` file, if it equals the values to store."""
    table = tables[0]
    whole = not (columns.time or columns.series or columns.missing_values)
    if len(tables) > 1 or not isinstance(table, NpyTable) or not whole:
        return None
    same = table.values.dtype == np.dtype(dtype) and tuple(columns.values) == table.columns
    return table.values if same and table.values.flags.c_contiguous else None
