"""Makes one matrix and its segments out of tables: streamed to disk, sorted by series, holes filled.

It does the work of `open_series` and keeps the result in the cache folder, so that the next run over the same
files starts at once.
"""

import dataclasses
import os
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np

from cellerate.data.tables import NpyTable, Table
from cellerate.errors import DataError
from cellerate.files import atomic_write

Missing = Literal["error", "drop", "ffill", "interpolate"]
Gaps = Literal["split", "error", "ignore"]
Storage = Literal["float32", "float16"]
_SORT_ROWS = 1 << 16


@dataclasses.dataclass(frozen=True)
class Columns:
    """Which columns are read: `values` are stored, of which `features` are inputs."""

    values: list[str]
    features: list[str]
    time: str | None
    series: str | None


@dataclasses.dataclass(frozen=True)
class Built:
    """What `open_series` needs in addition to names; `SeriesData` explains the fields."""

    values: np.ndarray
    times: np.ndarray | None
    segments: tuple[tuple[int, int, str], ...]
    step: np.timedelta64 | float | None


def load_series(folder: Path, key: str, tables: Sequence[Table]) -> Built | None:
    """The result that an earlier run kept under `key`, or None if there is nothing usable."""
    try:
        # Opened here: NumPy leaves a damaged archive open.
        with (folder / f"{key}.npz").open("rb") as file, np.load(file, allow_pickle=False) as kept:
            if bool(kept["in_place"]) and isinstance(tables[0], NpyTable):
                values = tables[0].values
            else:
                values = np.load(folder / f"{key}.npy", mmap_mode="r", allow_pickle=False)
            if values.shape != tuple(kept["shape"]):
                return None
            times = kept["times"] if kept["times"].size else None
            names = [str(name) for name in kept["series"]]
            return Built(values, times, _named(kept["segments"], names), _step(kept["step"]))
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None  # missing or damaged: it is built again


def build_series(
    folder: Path,
    key: str,
    tables: Sequence[Table],
    columns: Columns,
    *,
    missing: Missing,
    gaps: Gaps,
    dtype: Storage,
) -> Built:
    """Reads the tables and keeps the result under `key`.

    Raises:
        DataError: See `open_series`.
        OutputError: The folder cannot be written.
    """
    in_place = _usable_in_place(tables, columns, dtype)
    rows = _Rows(tables, columns, np.dtype(dtype))
    target = folder / f"{key}.npy"
    if in_place is not None:
        rows.read(None)
        if rows.complete or missing in ("error", "drop"):
            layout = _lay_out(rows, None, missing, gaps)
            _keep(folder, key, in_place, rows, layout, in_place=True)
            return _built(in_place, rows, layout)
        rows = _Rows(tables, columns, np.dtype(dtype))
    with atomic_write(target) as beside:
        with beside.open("wb") as file:
            _write_header(file, np.dtype(dtype), (0, len(columns.values)))
            begin = file.tell()
            rows.read(file)
            file.seek(0)
            _write_header(file, np.dtype(dtype), (rows.count, len(columns.values)))
            # NumPy leaves room in the header for the row count to grow. Without it, the longer header would
            # overwrite the first row.
            assert file.tell() == begin  # noqa: S101
        if rows.order is not None:
            _sort(beside, rows.order)
        values = np.load(beside, mmap_mode="r+")
        layout = _lay_out(rows, values, missing, gaps)
        values.flush()
        del values
    stored = np.load(target, mmap_mode="r")
    _keep(folder, key, stored, rows, layout, in_place=False)
    return _built(stored, rows, layout)


class _Rows:
    """Reads all tables once, and knows each row's time, its series and whether it is complete."""

    def __init__(self, tables: Sequence[Table], columns: Columns, dtype: np.dtype) -> None:
        self._tables, self.columns, self._dtype = tables, columns, dtype
        self.count = 0
        self.names: list[str] = []
        self.times: np.ndarray | None = None
        self.order: np.ndarray | None = None  # of the rows as read, if they had to be sorted by series
        self._file_starts: list[int] = []
        self._holes = np.zeros(len(columns.values), np.int64)
        self._first_hole: tuple[int, int] | None = None  # row, column

    @property
    def complete(self) -> bool:
        """Whether no value is missing."""
        return not self._holes.any()

    def read(self, file: BinaryIO | None) -> None:
        """Reads everything; writes the values to `file`, if one is given."""
        times: list[np.ndarray] = []
        codes: list[np.ndarray] = []
        whole: list[np.ndarray] = []
        known: dict[str, int] = {}
        for table in self._tables:
            self._file_starts.append(self.count)
            fresh = True
            for block in table.blocks(self.columns.values, self.columns.time, self.columns.series):
                if not len(block.numbers):
                    continue
                stored, good = self._stored(block.numbers)
                if file is not None:
                    file.write(stored.data)
                if block.times is not None and times and block.times.dtype != times[0].dtype:
                    raise DataError(f"the time column holds numbers in one file and dates in {table.path}.")
                if block.series is not None:
                    codes.append(np.array([known.setdefault(name, len(known)) for name in block.series]))
                else:
                    goes_on = block.times is not None and times and block.times[0] > times[-1][-1]
                    if fresh and not goes_on:
                        known[f"{table.path.stem}#{len(known)}"] = len(known)
                        self.names.append(table.path.stem)
                    codes.append(np.full(len(good), len(known) - 1))
                fresh = False
                if block.times is not None:
                    times.append(block.times)
                whole.append(good)
                self.count += len(good)
        if not self.count:
            raise DataError(f"{self._tables[0].path} has a header but no rows.")
        if self.columns.series is not None:
            self.names = list(known)
        elif len(self.names) == 1:
            self.names = [""]
        for place, name in enumerate(self.columns.values):
            if self._holes[place] == self.count:
                raise DataError(
                    f"column {name!r} has no value in any of the {self.count} rows; leave it out of targets "
                    f"and features."
                )
        self.times = np.concatenate(times) if times else None
        self.codes = np.concatenate(codes)
        self.whole = np.concatenate(whole)
        if (np.diff(self.codes) < 0).any():
            self.order = np.argsort(self.codes, kind="stable")
            self.codes, self.whole = self.codes[self.order], self.whole[self.order]
            self.times = self.times[self.order] if self.times is not None else None

    def place(self, row: int, *, sorted_row: bool = True) -> str:
        """How a message names a row."""
        if sorted_row and self.order is not None:
            row = int(self.order[row])
        file = int(np.searchsorted(self._file_starts, row, side="right")) - 1
        return f"{self._tables[file].path}, data row {row - self._file_starts[file] + 1}"

    def missing_error(self) -> DataError:
        """The error that names the first missing value."""
        assert self._first_hole is not None  # noqa: S101
        row, column = self._first_hole
        return DataError(
            f"{self.place(row, sorted_row=False)}: column {self.columns.values[column]!r} has no value "
            f"({int(self._holes.sum())} values are missing in all). Choose what to do with missing values: "
            f"missing='drop', 'ffill' or 'interpolate'."
        )

    def _stored(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        finite = np.isfinite(numbers)
        with np.errstate(over="ignore"):
            stored = numbers.astype(self._dtype)
        lost = finite & ~np.isfinite(stored)
        if lost.any():
            row, column = (int(place) for place in np.argwhere(lost)[0])
            raise DataError(
                f"{self.place(self.count + row, sorted_row=False)}: column {self.columns.values[column]!r} "
                f"holds {numbers[row, column]:g}, too large for {self._dtype}. Use dtype='float32', or "
                f"rescale the column."
            )
        good: np.ndarray = finite.all(axis=1)
        if not good.all():
            stored[~finite] = np.nan
            self._holes += (~finite).sum(axis=0)
            if self._first_hole is None:
                row, column = (int(place) for place in np.argwhere(~finite)[0])
                self._first_hole = (self.count + row, column)
        return np.ascontiguousarray(stored), good


@dataclasses.dataclass(frozen=True)
class _Layout:
    segments: np.ndarray  # (S, 3) first row, row after the last, number of the series
    step: Any  # () timedelta64 or float, or an empty array


def _lay_out(rows: _Rows, values: np.ndarray | None, missing: Missing, gaps: Gaps) -> _Layout:
    """Finds the stretches without a cut, and fills holes in `values` inside them."""
    if missing == "error" and not rows.complete:
        raise rows.missing_error()
    cut = np.ones(rows.count, bool)
    cut[1:] = rows.codes[1:] != rows.codes[:-1]
    step: Any = np.empty(0)
    if rows.times is not None:
        step, irregular = _time_steps(rows, cut)
        if gaps == "error" and irregular.any():
            at = int(np.argmax(irregular))
            raise DataError(
                f"{rows.place(at)}: the time goes from {rows.times[at - 1]} to {rows.times[at]}, but the "
                f"usual step is {step}. Fill the gap, or choose gaps='split' or 'ignore'."
            )
        if gaps == "split":
            cut |= irregular
    kept = rows.whole
    if not rows.complete and missing in ("ffill", "interpolate"):
        assert values is not None  # noqa: S101
        kept = _fill(values, rows.whole, cut, missing)
    edges = np.append(np.flatnonzero(cut | ~kept), rows.count)
    begins = cut.copy()
    begins[1:] |= ~kept[:-1]
    starts = np.flatnonzero(begins & kept)
    if not len(starts):
        raise DataError(
            "no row is left: every row misses a value. Leave out the columns that are mostly empty."
        )
    stops = edges[np.searchsorted(edges, starts, side="right")]
    return _Layout(np.stack([starts, stops, rows.codes[starts]], axis=1), step)


def _time_steps(rows: _Rows, cut: np.ndarray) -> tuple[Any, np.ndarray]:
    """The median step, and the rows whose step from the row before is not about that."""
    assert rows.times is not None  # noqa: S101
    steps = np.diff(rows.times)
    inside = ~cut[1:]
    wrong = inside & ~(steps > steps.dtype.type(0))
    if wrong.any():
        at = int(np.argmax(wrong)) + 1
        same = rows.times[at] == rows.times[at - 1]
        raise DataError(
            f"{rows.place(at)}: the time {rows.times[at]} "
            + ("occurs twice" if same else f"comes after {rows.times[at - 1]}")
            + ", so rows are out of order. Sort the file by time; if it holds several series, name the "
            "column that tells them apart (series_column)."
        )
    irregular = np.zeros(rows.count, bool)
    if not inside.any():
        return np.empty(0), irregular
    step = np.median(steps[inside].astype(np.float64))
    far = np.abs(steps.astype(np.float64) - step) > 0.5 * step
    irregular[1:] = inside & far
    if rows.times.dtype.kind == "M":
        return np.array(round(float(step)), "timedelta64[us]"), irregular
    return np.array(step), irregular


def _fill(values: np.ndarray, whole: np.ndarray, cut: np.ndarray, missing: Missing) -> np.ndarray:
    """Fills holes in place, never across a cut; returns which rows are complete now."""
    kept = whole.copy()
    starts = np.flatnonzero(cut)
    stops = np.append(starts[1:], len(values))
    touched = np.unique(np.searchsorted(starts, np.flatnonzero(~whole), side="right") - 1)
    for first, stop in zip(starts[touched], stops[touched], strict=True):
        kept[first:stop] = True
        for column in range(values.shape[1]):
            series = values[first:stop, column].astype(np.float64)
            holes = np.flatnonzero(np.isnan(series))
            if not len(holes):
                continue
            good = np.flatnonzero(~np.isnan(series))
            if not len(good):
                kept[first:stop] = False
            elif missing == "interpolate":
                values[first + holes, column] = np.interp(holes, good, series[good])
            else:
                last = np.searchsorted(good, holes) - 1
                kept[first + holes[last < 0]] = False  # nothing to carry forward yet
                values[first + holes[last >= 0], column] = series[good[last[last >= 0]]]
    return kept


def _sort(path: Path, order: np.ndarray) -> None:
    """Rewrites a `.npy` file with its rows in `order`."""
    values = np.load(path, mmap_mode="r")
    handle, name = tempfile.mkstemp(prefix=".sorted.", suffix=".npy", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            _write_header(file, values.dtype, values.shape)
            for first in range(0, len(order), _SORT_ROWS):
                file.write(np.ascontiguousarray(values[order[first : first + _SORT_ROWS]]).data)
        Path(name).replace(path)
    finally:
        Path(name).unlink(missing_ok=True)


def _write_header(file: BinaryIO, dtype: np.dtype, shape: tuple[int, ...]) -> None:
    header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)


def _usable_in_place(tables: Sequence[Table], columns: Columns, dtype: Storage) -> np.ndarray | None:
    """The matrix of a single `.npy` file, if it is exactly what would be stored."""
    table = tables[0]
    if len(tables) > 1 or not isinstance(table, NpyTable) or columns.time or columns.series:
        return None
    same = table.values.dtype == np.dtype(dtype) and tuple(columns.values) == table.columns
    return table.values if same and table.values.flags.c_contiguous else None


def _keep(
    folder: Path, key: str, values: np.ndarray, rows: _Rows, layout: _Layout, *, in_place: bool
) -> None:
    with atomic_write(folder / f"{key}.npz") as beside:
        np.savez(
            beside,
            in_place=np.array(in_place),
            shape=np.array(values.shape),
            times=np.empty(0) if rows.times is None else rows.times,
            segments=layout.segments,
            series=np.array(rows.names, dtype=np.str_),
            step=layout.step,
        )


def _built(values: np.ndarray, rows: _Rows, layout: _Layout) -> Built:
    return Built(values, rows.times, _named(layout.segments, rows.names), _step(layout.step))


def _named(segments: np.ndarray, names: Sequence[str]) -> tuple[tuple[int, int, str], ...]:
    return tuple((first, stop, names[code]) for first, stop, code in segments.tolist())


def _step(step: Any) -> np.timedelta64 | float | None:
    if not np.size(step):
        return None
    return np.timedelta64(step[()]) if step.dtype.kind == "m" else float(step)
