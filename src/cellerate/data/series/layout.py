"""Orders the rows of many series and finds the stretches without a gap, filling holes, one block of rows at a time.

The files may be larger than memory: rows are read and written by their place in the file, not through a memory map,
whose touched pages would count as the process's memory.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cellerate.data.arrays import FileRows, open_rows
from cellerate.data.series.fill import Filler, blocks_of
from cellerate.data.series.read import npy_header
from cellerate.data.settings import Gaps, Missing, Reading
from cellerate.data.times import (
    Frequency,
    TimeForm,
    check_agreement,
    days_apart,
    find_frequency,
    parse_frequency,
    settled,
)
from cellerate.errors import DataError
from cellerate.messages import Message, argument

_BLOCK_BYTES = 16 << 20
_NAMED = 3
# With more rows than this, the frequency is found from evenly spaced stretches of them.
_MEDIAN_ROWS, _MEDIAN_STRETCHES = 1 << 20, 64


def sort_rows(source: Path, target: Path, series: Path, counts: Sequence[int]) -> None:
    """Copies the rows of a `.npy` file, grouped by series; within a series rows keep their order.

    Args:
        source: The file.
        target: The copy.
        series: The number of each row's series, plain int32.
        counts: The rows of each series.
    """
    values = np.load(source, mmap_mode="r", allow_pickle=False)
    table = values.reshape(len(values), -1)
    header, row_bytes = npy_header(values.dtype, values.shape), table.shape[1] * table.dtype.itemsize
    next_row = np.cumsum([0, *counts[:-1]])
    with target.open("wb") as file:
        file.write(header)
        file.flush()
        before = 0
        for block in blocks_of(table, _BLOCK_BYTES // row_bytes):
            own = np.fromfile(series, np.int32, len(block), offset=4 * before)
            order = np.argsort(own, kind="stable")
            block, own = block[order], own[order]
            edges = np.flatnonzero(np.diff(own, prepend=-1, append=-1))
            for begin, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
                code = own[begin]
                _write(file.fileno(), block[begin:end], len(header) + int(next_row[code]) * row_bytes)
                next_row[code] += end - begin
            before += len(block)


@dataclasses.dataclass(frozen=True)
class Layout:
    """The stretches without a cut.

    Attributes:
        segments: (S, 3) int64: first row, row after the last, number of the series.
        step: The median time step, () timedelta64 or float64; an empty array without times.
        frequency: The frequency of the rows; None without times.
        apart: The least and the most days between rows on two days of each month; None for others.
    """

    segments: np.ndarray
    step: np.ndarray
    frequency: Frequency | None
    apart: tuple[int, int] | None = None

    @property
    def notes(self) -> list[str]:
        """The messages on the frequency."""
        if self.apart is not None and self.frequency is not None:
            least, most = self.apart
            return [
                f"two rows a month, {least} to {most} days apart, count as a row every {self.frequency.each}: the "
                "times of forecasts move away from these days of the month. One row a month would keep them"
            ]
        holidays = self.frequency.holidays if self.frequency is not None else ()
        if not holidays:
            return []
        some = ", ".join(holidays[:_NAMED]) + (", …" if len(holidays) > _NAMED else "")
        return [
            Message(
                f"trading days: {len(holidays):,} weekdays without a row count as holidays ({some}); "
                f"{argument('frequency', 'business-day')} counts them as gaps"
            )
        ]


def lay_out(
    values: np.ndarray | None,
    times: np.ndarray | None,
    counts: Sequence[int],
    reading: Reading,
    place: Callable[[int], str],
    *,
    form: TimeForm | None = None,
    names: Sequence[str] = (),
) -> Layout:
    """Finds the stretches, and fills holes inside them.

    Args:
        values: (N, C) with NaN where a value is missing, to be filled in its file unless they are to be dropped; None
            if none is missing.
        times: (N,) or None, rising in each series.
        counts: The rows of each series, in the order in which they lie.
        reading: What to do with missing values and gaps, and the frequency, if it was named.
        place: How a message names a row.
        form: How times are written.
        names: The names of the series.

    Raises:
        ConfigError: The frequency does not fit the times.
        DataError: There is a gap and `gaps` is "error", series have frequencies of their own, or no row is left.
    """
    ends, form = np.cumsum(counts), form or TimeForm()
    step, frequency, apart = np.empty(0), None, None
    if times is not None:
        some, series, inside = _sample(times, ends)
        step = _median(np.diff(some)[inside])
        if reading.frequency is not None:
            frequency = settled(parse_frequency(reading.frequency), some, inside, form.zone)
        else:
            frequency = find_frequency(some, inside, form.zone)
            several = len(counts) > 1 and len(some) > 1
            if frequency is not None and reading.gaps == "split" and several:
                whole = len(some) if len(some) == len(times) else _MEDIAN_ROWS // _MEDIAN_STRETCHES
                check_agreement(frequency, some[:whole], series[:whole], names)
            apart = None if frequency is None else days_apart(frequency, some, inside)
    starts: list[np.ndarray] = []
    stops: list[np.ndarray] = []
    kept_before = False
    clock = _Clock(times, ends, frequency, reading.gaps, place, form)
    for first, kept, cut in _kept_rows(values, clock, reading.missing):
        before = np.concatenate([[kept_before], kept[:-1]])
        starts.append(first + np.flatnonzero(kept & (cut | ~before)))
        stops.append(first + np.flatnonzero(before & (cut | ~kept)))
        kept_before = bool(kept[-1])
    begin = np.concatenate(starts)
    end = np.concatenate([*stops, [ends[-1]] if kept_before else []]).astype(np.int64)
    if not len(begin):
        raise DataError(
            "no row is left: every row misses a value. Leave out the columns that are mostly empty."
        )
    segments = np.stack([begin, end, np.searchsorted(ends, begin, side="right")], axis=1)
    return Layout(segments, step, frequency, apart)


@dataclasses.dataclass(frozen=True)
class _Clock:
    """The rows where a stretch must end because its series ends, or because time jumps."""

    times: np.ndarray | None
    ends: np.ndarray
    frequency: Frequency | None
    gaps: Gaps
    place: Callable[[int], str]
    form: TimeForm

    @property
    def rows(self) -> int:
        return int(self.ends[-1])

    def cut(self, first: int, stop: int) -> np.ndarray:
        """(stop - first,) True where a row does not continue the stretch of the row before.

        Raises:
            DataError: See `lay_out`.
        """
        begins = np.zeros(stop - first, bool)
        begins[0] = first == 0
        edges = self.ends[np.searchsorted(self.ends, first) : np.searchsorted(self.ends, stop)]
        begins[edges - first] = True
        if self.times is None or self.frequency is None or self.gaps == "ignore":
            return begins
        back = int(first > 0)
        (block,) = blocks_of(self.times[first - back : stop, None], stop - first + back)
        times = block[:, 0]
        irregular = ~begins[1 - back :] & self.frequency.gaps(times[:-1], times[1:])
        if self.gaps == "error" and irregular.any():
            at = int(np.argmax(irregular))
            before, after = self.form.write(times[at : at + 2])
            raise DataError(
                f"{self.place(first + at + 1 - back)}: the time goes from {before} to {after}, but the frequency is "
                f"{self.frequency.name}. Fill the gap, or choose {argument('gaps', 'split', 'ignore')}."
            )
        begins[1 - back :] |= irregular
        return begins


def _sample(times: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Some times, the series of each, and (n - 1,) whether a row and the next are neighbours in one series."""
    count = len(times)
    spread = [(0, count)]
    if count > _MEDIAN_ROWS:
        length = _MEDIAN_ROWS // _MEDIAN_STRETCHES
        spread = [(int(n), int(n) + length) for n in np.linspace(0, count - length, _MEDIAN_STRETCHES)]
    found, series, joints = [], [], []
    for first, stop in spread:
        (part,) = blocks_of(times[first:stop, None], stop - first)
        found.append(part[:, 0])
        series.append(np.searchsorted(ends, np.arange(first, stop), side="right"))
        joints.append(sum(map(len, found)))
    codes = np.concatenate(series)
    inside = codes[1:] == codes[:-1]
    inside[np.array(joints[:-1], np.int64) - 1] = False
    return np.concatenate(found), codes, inside


def _median(steps: np.ndarray) -> np.ndarray:
    """The median of (n,) steps, () timedelta64[us] or float64; an empty array if there are none."""
    if not len(steps):
        return np.empty(0)
    median = float(np.median(steps.astype(np.float64)))
    return np.array(round(median), "timedelta64[us]") if steps.dtype.kind == "m" else np.array(median)


def _kept_rows(
    values: np.ndarray | None, clock: _Clock, missing: Missing
) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """For each block its first row, which of its rows are complete after filling, and where a stretch begins."""
    if values is None:
        length = _BLOCK_BYTES // 8
        for first in range(0, clock.rows, length):
            cut = clock.cut(first, min(clock.rows, first + length))
            yield first, np.ones(len(cut), bool), cut
        return
    length = max(16, _BLOCK_BYTES // (values.shape[1] * values.dtype.itemsize))
    filler = None if missing == "drop" else Filler(values, clock.cut, interpolate=missing == "interpolate")
    for first in range(0, clock.rows, length):
        cut = clock.cut(first, min(clock.rows, first + length))
        (block,) = blocks_of(values[first : first + length], length)
        kept = np.isfinite(block).all(axis=1)
        if filler is not None:
            filled = filler.fill(first, block, cut)
            if not kept.all():
                write_rows(values, first, block)
            kept = filled
        yield first, kept, cut


def write_rows(values: np.ndarray, first: int, rows: np.ndarray) -> None:
    """Writes rows of a memory-mapped array into its file."""
    reader = open_rows(values)
    assert isinstance(reader, FileRows)  # noqa: S101 (holes are filled in a copy on the disk)
    handle = os.open(reader.path, os.O_WRONLY)
    try:
        _write(handle, rows, reader.offset + first * values.shape[1] * values.dtype.itemsize)
    finally:
        os.close(handle)


def _write(handle: int, rows: np.ndarray, place: int) -> None:
    left: Any = np.ascontiguousarray(rows).reshape(-1).view(np.uint8).data
    while left:
        done = os.pwrite(handle, left, place)
        left, place = left[done:], place + done
