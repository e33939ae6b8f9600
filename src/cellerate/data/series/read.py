"""Reads tables into long columns on the disk, block by block: values and times as `.npy` files, the series of each row.

Only one block is in memory, however many rows there are. Progress is saved after each part of a table, so that the
next process continues where a killed one stopped.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import itertools
import json
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np

from cellerate.data.series.digits import lost_in_float32, lost_in_float64
from cellerate.data.series.rows_read import Columns, EmptyColumnsError, RowsRead
from cellerate.data.series.sentinels import Sentinels
from cellerate.data.tables import Block, Table
from cellerate.data.times import TimeForm, swap_day_and_month
from cellerate.errors import DataError
from cellerate.files import atomic_write
from cellerate.listener import SILENT, Listener
from cellerate.messages import argument

_NOTE_EVERY_S = 2.0
_FIRST = {"dmy": "the day", "mdy": "the month"}
NOTE = "reading.json"
VALUES, TIMES, SERIES = "read-values.npy", "read-times.npy", "read-series"


class _TooFineError(Exception):
    """float32 would lose digits; the message names the column."""


class Reader:
    """Reads tables into the files `VALUES`, `TIMES` and `SERIES` of a folder; the last one holds plain int32.

    Args:
        folder: The target folder; None only inspects the rows.
        tables: The tables, with the same columns.
        columns: The columns to read.
        dtype: The type of the values on the disk; float32 becomes float64 if it would lose digits.
        key: A hash of the tables and settings; work of another key in the folder is not continued.
        listener: Receives the number of rows read.
    """

    def __init__(
        self,
        folder: Path | None,
        tables: Sequence[Table],
        columns: Columns,
        dtype: np.dtype,
        key: str,
        listener: Listener = SILENT,
    ) -> None:
        self._folder, self._tables, self._columns, self._dtype = folder, tables, columns, dtype
        self._progress = listener.progress
        self.done = self._noted(key)
        self._dtype = self._wider(self.done)
        self._codes: dict[str, int] = {}
        if columns.series:
            self._codes = {name: code for code, name in enumerate(self.done.names)}

    def read(self) -> RowsRead:
        """Reads the remaining rows.

        Raises:
            DataError: See `open_series`.
            OSError: The folder cannot be written.
        """
        try:
            return self._read()
        except _TooFineError as found:
            if self._folder is not None:
                (self._folder / NOTE).unlink(missing_ok=True)
            self.done = RowsRead(self.done.key, widened=str(found))
            self._codes, self._dtype = {}, np.dtype(np.float64)
            return self._read()

    def _read(self) -> RowsRead:
        known = [table.rows for table in self._tables]
        total = 0 if None in known else sum(filter(None, known))
        done, noted, pause_s = self.done, time.monotonic(), _NOTE_EVERY_S
        with self._files() as files:
            while done.table < len(self._tables):
                table = self._tables[done.table]
                if done.part == 0:
                    done.file_starts.append(done.rows)
                columns = self._columns
                for block in table.blocks(columns.values, columns.time, columns.series, done.part):
                    if len(block.numbers):
                        self._take(block, table, files)
                        self._progress(done.rows, total)
                done.table, done.part = (
                    (done.table, done.part + 1) if done.part + 1 < table.parts else (done.table + 1, 0)
                )
                last = done.table == len(self._tables)
                if files and (last or time.monotonic() - noted > pause_s):
                    begin = time.monotonic()
                    self._note(files)
                    noted = time.monotonic()
                    # With very many series, saving the progress takes a while.
                    pause_s = max(_NOTE_EVERY_S, 20 * (noted - begin))
        self._progress(done.rows, done.rows)
        self._check()
        if self._folder is not None:
            shape = (done.rows, len(self._columns.values))
            _put_header(self._folder / VALUES, self._dtype, shape)
            if self._columns.time is not None:
                _put_header(self._folder / TIMES, np.dtype(done.time_type), shape[:1])
        return done

    def place(self, row: int) -> str:
        """The name of a row in messages, by its number in the order of reading."""
        starts = self.done.file_starts
        file = int(np.searchsorted(starts, row, side="right")) - 1
        return self._tables[file].place(row - starts[file])

    def _take(self, block: Block, table: Table, files: Sequence[BinaryIO]) -> None:
        done, count = self.done, len(block.numbers)
        if missing := self._columns.missing_numbers:
            known = np.where(np.isin(block.numbers, missing), np.nan, block.numbers)
            block = dataclasses.replace(block, numbers=known)
        stored = self._stored(block.numbers)
        if block.times is not None:
            if done.time_type and block.times.dtype.str != done.time_type:
                raise DataError(f"the time column holds numbers in one file and dates in {table.path}.")
            done.time_type = block.times.dtype.str
            if block.form is not None:
                block = self._note_form(block, block.form)
        codes = self._series_of(block, table)
        self._check_digits(block.numbers, codes)
        sentinels = Sentinels(**done.sentinels) if done.sentinels else Sentinels.of(len(self._columns.values))
        sentinels.add(block.numbers)
        done.sentinels = vars(sentinels)
        if block.times is not None:
            self._note_latest(block.times)
        in_order = bool(codes[0] >= done.last_series) and not (np.diff(codes) < 0).any()
        done.sorted = done.sorted and in_order
        done.last_series = int(codes[-1])
        for code, rows in zip(*np.unique(codes, return_counts=True), strict=True):
            done.counts[code] += int(rows)
        if files:
            columns = [stored, block.times, codes.astype(np.int32)]
            for file, column in zip(files, [each for each in columns if each is not None], strict=True):
                file.write(np.ascontiguousarray(column).view(np.uint8).data)
        done.rows += count

    def _note_latest(self, times: np.ndarray) -> None:
        done = self.done
        fresh = done.rows == done.file_starts[-1] and done.counts[-1] == 0
        last = _latest(times)
        done.last_time = last if fresh or done.last_time is None else max(done.last_time, last)
        if done.form is not None and done.form["order"] == "?":
            other = _latest(swap_day_and_month(times))
            known = done.last_month_first
            done.last_month_first = other if fresh or known is None else max(known, other)

    def _note_form(self, block: Block, form: TimeForm) -> Block:
        """Notes the form of a block's times, and returns the block with day and month in the order of the others."""
        done = self.done
        known = TimeForm.from_config(done.form) if done.form is not None else None
        if known is not None and (known.zone == "") != (form.zone == ""):
            raise DataError(
                f"{self.place(done.rows)}: the time column {self._columns.time!r} has a time zone in one place and "
                "none in another. Write all times in one way."
            )
        if form.order == "?" and (known is None or known.order in ("", "?")):
            done.undecided = done.rows + len(block.numbers)
        elif form.order == "?" and known is not None:
            if known.order == "mdy":
                assert block.times is not None  # noqa: S101 (it has a form)
                block = dataclasses.replace(block, times=swap_day_and_month(block.times))
            form = known
        elif known is not None and known.order in ("dmy", "mdy") and form.order not in ("", known.order):
            raise DataError(
                f"the time column {self._columns.time!r} has {_FIRST[form.order]} first in "
                f"{form.evidence or 'one place'}, and {_FIRST[known.order]} first in {known.evidence or 'another'}. "
                f"Write all dates in one way, or say which is first ({argument('date_order')})."
            )
        if form.order == "mdy" and known is not None and known.order == "?":
            done.last_time = done.last_month_first
        assert block.times is not None  # noqa: S101 (it has a form)
        latest = _latest(block.times)
        mixed = form.mixed or (known is not None and (known.mixed or known.zone != form.zone))
        if done.latest is None or latest >= done.latest or known is None:
            done.latest = latest
        else:
            form = dataclasses.replace(form, zone=known.zone)
        done.form = dataclasses.replace(form, mixed=mixed).to_config()
        return block

    def _series_of(self, block: Block, table: Table) -> np.ndarray:
        """The number of each row's series; new ones are added."""
        done = self.done
        if block.series is not None:
            used, first_rows = np.unique(block.series, return_index=True)
            codes = np.empty(len(block.ids), np.int64)
            for place in used[np.argsort(first_rows)].tolist():
                name = block.ids[place]
                if name not in self._codes:
                    self._codes[name] = len(self._codes)
                    done.names.append(name)
                    done.counts.append(0)
                codes[place] = self._codes[name]
            found: np.ndarray = codes[block.series]
            return found
        # Without such a column, a file begins a series unless its times continue those of the file before.
        begins = done.rows == done.file_starts[-1]
        if begins and not (
            block.times is not None and done.last_time is not None and self._goes_on(block.times)
        ):
            # Files of the same name in several folders are several series.
            stem, names = table.path.stem, set(done.names)
            others = (f"{stem} ({number})" for number in itertools.count(2))
            done.names.append(next(name for name in itertools.chain([stem], others) if name not in names))
            done.counts.append(0)
        return np.full(len(block.numbers), len(done.names) - 1)

    def _goes_on(self, times: np.ndarray) -> bool:
        done = self.done
        if times.dtype.str != done.time_type:
            return False
        if done.form is not None and done.form["order"] == "?" and done.last_month_first is not None:
            # It is not known yet whether day or month is first.
            other = swap_day_and_month(times[:1])
            return _latest(times[:1]) > (done.last_time or 0) or _latest(other) > done.last_month_first
        return done.last_time is not None and _latest(times[:1]) > done.last_time

    def _stored(self, numbers: np.ndarray) -> np.ndarray:
        done = self.done
        done.holes = done.holes or [0] * numbers.shape[1]
        finite = np.isfinite(numbers)
        with np.errstate(over="ignore"):
            stored = numbers.astype(self._dtype)
        lost = finite & ~np.isfinite(stored)
        if lost.any():
            row, column = (int(place) for place in np.argwhere(lost)[0])
            wider = (
                f"Use {argument('storage', 'float32')}, or rescale"
                if self._dtype == np.float16
                else "Rescale"
            )
            raise DataError(
                f"{self.place(done.rows + row)}: column {self._columns.values[column]!r} holds "
                f"{numbers[row, column]:g}, too large for {self._dtype}. {wider} the column."
            )
        if not finite.all():
            stored[~finite] = np.nan
            missing = (~finite).sum(axis=0).tolist()
            done.holes = [before + more for before, more in zip(done.holes, missing, strict=True)]
            if done.first_hole is None:
                row, column = (int(place) for place in np.argwhere(~finite)[0])
                done.first_hole = [done.rows + row, column]
        return stored

    def _check_digits(self, numbers: np.ndarray, codes: np.ndarray) -> None:
        """Raises `_TooFineError` if float32 would lose digits; notes a column of which float64 would."""
        large = None if self._dtype == np.float16 else lost_in_float64(numbers)
        if self._dtype == np.float32:
            place = lost_in_float32(numbers, codes) if large is None else (0, large)
            if place is not None:
                row, column = place
                raise _TooFineError(
                    f"stored in float64: float32 loses digits of {self._columns.values[column]!r} "
                    f"({numbers[row, column]:.15g} in {self.place(self.done.rows + row)})"
                )
        if large is not None and not self.done.too_large:
            self.done.too_large = self._columns.values[large]

    def _check(self) -> None:
        done = self.done
        if not done.rows:
            raise DataError(f"{self._tables[0].path} has a header but no rows.")
        holes = zip(self._columns.values, done.holes, strict=True)
        if empty := [name for name, count in holes if count == done.rows]:
            raise EmptyColumnsError(empty, done.rows)

    @contextlib.contextmanager
    def _files(self) -> Iterator[list[BinaryIO]]:
        """The files of values, times and series, ready for the next row; none without a folder."""
        with contextlib.ExitStack() as opened:
            yield [
                opened.enter_context(self._opened(path, *sizes))
                for path, sizes in self._sizes(self._dtype).items()
            ]

    def _wider(self, done: RowsRead) -> np.dtype:
        return np.dtype(np.float64) if done.widened else self._dtype

    def _sizes(self, dtype: np.dtype) -> dict[Path, tuple[int, int]]:
        """The bytes before the first row and of each row, for each file."""
        if self._folder is None:
            return {}
        width = len(self._columns.values)
        header = len(npy_header(dtype, (0, width)))
        sizes = {VALUES: (header, dtype.itemsize * width)}
        if self._columns.time is not None:
            sizes[TIMES] = (len(npy_header(np.dtype("M8[us]"), (0,))), 8)
        sizes[SERIES] = (0, 4)
        return {self._folder / name: size for name, size in sizes.items()}

    def _opened(self, path: Path, header: int, row_bytes: int) -> BinaryIO:
        path.touch()
        file = path.open("r+b")
        # Rows written after the last saved progress are read again.
        file.truncate(header + self.done.rows * row_bytes)
        file.seek(0, os.SEEK_END)
        return file

    def _note(self, files: Sequence[BinaryIO]) -> None:
        assert self._folder is not None  # noqa: S101
        for file in files:
            file.flush()
            os.fsync(file.fileno())
        with atomic_write(self._folder / NOTE) as beside:
            beside.write_text(json.dumps(vars(self.done)))

    def _noted(self, key: str) -> RowsRead:
        """The progress that an earlier process with the same key saved, or the beginning."""
        if self._folder is not None:
            with contextlib.suppress(OSError, ValueError, TypeError, RecursionError):
                found = RowsRead(**json.loads((self._folder / NOTE).read_text()))
                sizes = self._sizes(self._wider(found)).items()
                if found.key == key and all(
                    p.stat().st_size >= h + found.rows * row for p, (h, row) in sizes
                ):
                    return found
            # Leftovers of another key would be mistaken for a part of this reading.
            for name in (NOTE, VALUES, TIMES, SERIES):
                (self._folder / name).unlink(missing_ok=True)
        return RowsRead(key)


def _latest(times: np.ndarray) -> float:
    """The latest of some times as an integer or float."""
    last = times.max().reshape(1)
    found: float = last.view(np.int64 if times.dtype.kind == "M" else np.float64)[0].item()
    return found


def npy_header(dtype: np.dtype, shape: tuple[int, ...]) -> bytes:
    """The header of a `.npy` file. Its length does not depend on the number of rows."""
    file = io.BytesIO()
    header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)
    return file.getvalue()


def _put_header(path: Path, dtype: np.dtype, shape: tuple[int, ...]) -> None:
    with path.open("r+b") as file:
        file.write(npy_header(dtype, shape))
