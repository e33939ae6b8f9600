"""Where windows lie in a long array, and how to fetch many of them at once in bounded memory.

Text and time series both ask a plan for "windows number a to b of epoch e" and get rows plus the first row of
each window. Nothing else decides how much of the array is in memory. The three plans:

- `ArrayPlan`: the array is in memory (or small): an exact global shuffle, gathered straight from it.
- `FilePlan`: a large file, in order: only the rows a call needs are read.
- `BlockPlan`: a large file, shuffled: a two-level shuffle that reads whole blocks. A random walk over a
  memory map would pull the whole file into the process's resident memory.
"""

from __future__ import annotations

import mmap
import os
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from cellerate.data.arrays.shuffle import Permutation, ShuffledRuns, derive_seed
from cellerate.errors import DataError

# A file of up to this many bytes is shuffled exactly, through its memory map; a larger one in blocks.
EXACT_BYTES = 32 << 20
BLOCK_BYTES = 64 << 10
MIXING_BYTES = 8 << 20
_SEED_BLOCKS, _SEED_INSIDE, _SEED_TURN = 1, 2, 3

Shuffle = Literal["auto", "exact", "blocks"]
Located = tuple[np.ndarray, np.ndarray]  # rows (R, F), first row of each window (k,)


class WindowIndex:
    """The first row of window number i, where windows never cross the end of a segment.

    Args:
        segments: (S, 2) first row and row after the last, in rising order.
        span: Rows a window covers.
        stride: Rows between the starts of neighbouring windows of a segment.

    Attributes:
        count: Number of windows.
        rows: Rows that all windows cover; overlaps within a segment count once.
    """

    def __init__(self, segments: np.ndarray, span: int, stride: int) -> None:
        table = np.asarray(segments, dtype=np.int64).reshape(-1, 2)
        counts = (table[:, 1] - table[:, 0] - span) // stride + 1
        keep = counts > 0
        counts = counts[keep]
        self.span = span
        self.stride = stride
        self._first = table[keep, 0]
        self._ends = np.cumsum(counts)
        self._before = self._ends - counts
        self.count = int(counts.sum())
        self.rows = int(((counts - 1) * stride + span).sum())

    def starts(self, numbers: np.ndarray) -> np.ndarray:
        """The first rows (int64) of the windows with these `numbers` (int64)."""
        if len(self._first) == 1:
            return numbers * self.stride + self._first[0]
        which = np.searchsorted(self._ends, numbers, side="right")
        return self._first[which] + (numbers - self._before[which]) * self.stride

    def pieces(self, number: int, count: int) -> Iterator[tuple[int, int]]:
        """(first row, windows) of each run of evenly spaced windows in `number` to `number + count - 1`."""
        which = int(np.searchsorted(self._ends, number, side="right"))
        while count > 0:
            taken = min(count, int(self._ends[which]) - number)
            yield int(self._first[which]) + (number - int(self._before[which])) * self.stride, taken
            number, count, which = number + taken, count - taken, which + 1


class FileRows:
    """The rows of a memory-mapped array, read with `pread` so that no page of the map becomes resident.

    Args:
        path: The file.
        offset: Where the first row begins, in bytes.
        shape: (N, F).
        dtype: The type of the elements.
    """

    def __init__(self, path: Path, offset: int, shape: tuple[int, int], dtype: np.dtype) -> None:
        self.path, self.offset, self.shape, self.dtype = path, offset, shape, dtype
        self._row_bytes = shape[1] * dtype.itemsize
        self._handle = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self._handle)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.path, self.offset, self.shape, self.dtype)

    def read(self, first: int, out: np.ndarray) -> None:
        """Fills `out` (k, F), C-contiguous, with the rows from `first` on."""
        left = out.reshape(-1).view(np.uint8).data
        place = self.offset + first * self._row_bytes
        while left:
            got = os.preadv(self._handle, [left], place)
            if got == 0:
                raise DataError(f"{self.path} became shorter while it was being read; build the data anew.")
            left, place = left[got:], place + got


class ArrayRows:
    """The rows of any array, copied by slicing: for memory maps that cannot be read as a file."""

    def __init__(self, values: np.ndarray) -> None:
        self.values, self.shape, self.dtype = values, values.shape, values.dtype

    def read(self, first: int, out: np.ndarray) -> None:
        """Fills `out` (k, F) with the rows from `first` on."""
        np.copyto(out, self.values[first : first + len(out)])


Rows = FileRows | ArrayRows


def mapped_root(values: np.ndarray) -> np.memmap | None:
    """The `numpy.memmap` that `values` is a view of, or None if it lies in memory."""
    found: Any = values
    while isinstance(found, np.ndarray):
        below: Any = found.base
        if isinstance(found, np.memmap) and isinstance(below, mmap.mmap):
            return found
        found = below
    return None


def open_rows(values: np.ndarray) -> Rows:
    """The best reader for a memory-mapped (N, F) array."""
    root = mapped_root(values)
    # A copy-on-write map ("c") may hold changes that its file does not.
    if root is None or root.mode == "c" or root.filename is None or not values.flags.c_contiguous:
        return ArrayRows(values)
    offset = int(root.offset) + values.__array_interface__["data"][0] - root.__array_interface__["data"][0]
    try:
        rows = FileRows(Path(root.filename), offset, values.shape, values.dtype)
    except OSError:
        return ArrayRows(values)  # the file was removed or renamed, but the map still holds it
    # Another file may have taken the name since the map was made.
    probe = np.empty((1, values.shape[1]), values.dtype)
    for place in (0, len(values) - 1):
        try:
            rows.read(place, probe)
        except DataError:
            return ArrayRows(values)
        if probe.tobytes() != values[place].tobytes():
            return ArrayRows(values)
    return rows


class WindowFinder(Protocol):
    """Finds the windows at positions `first` to `last - 1` of an epoch's order."""

    def locate(self, epoch: int, first: int, last: int, shift: int = 0) -> Iterator[Located]:
        """Rows and first rows, in order, in one or more parts; `shift` is added to every first row."""
        ...

    def where(self, epoch: int, first: int, last: int) -> np.ndarray:
        """(last - first,) int64, where these windows begin in the whole array."""
        ...


class ArrayPlan:
    """Windows of an array in memory: in order, or by one permutation of all of them."""

    def __init__(self, values: np.ndarray, index: WindowIndex, seed: int | None) -> None:
        self._values, self._index, self._seed = values, index, seed
        self._recent: tuple[int, ShuffledRuns] | None = None

    def locate(self, epoch: int, first: int, last: int, shift: int = 0) -> Iterator[Located]:
        """See `WindowFinder.locate`."""
        yield self._values, self.where(epoch, first, last) + shift

    def where(self, epoch: int, first: int, last: int) -> np.ndarray:
        """See `WindowFinder.where`."""
        if self._seed is None:
            return self._index.starts(np.arange(first, last))
        recent = self._recent
        if recent is None or recent[0] != epoch:
            seed = derive_seed(self._seed, epoch)
            recent = self._recent = epoch, ShuffledRuns(Permutation(self._index.count, seed))
        return self._index.starts(recent[1].run(first, last))


class FilePlan:
    """Windows of a large file, in order."""

    def __init__(self, rows: Rows, index: WindowIndex) -> None:
        self._rows, self._index = rows, index

    def locate(self, epoch: int, first: int, last: int, shift: int = 0) -> Iterator[Located]:
        """See `WindowFinder.locate`."""
        loaded = _load(self._rows, self._index, list(self._index.pieces(first, last - first)), shift)
        yield loaded.values, loaded.starts(np.arange(last - first))

    def where(self, epoch: int, first: int, last: int) -> np.ndarray:
        """See `WindowFinder.where`."""
        return self._index.starts(np.arange(first, last))


class BlockPlan:
    """Windows of a large file, shuffled on two levels in bounded memory.

    An epoch is a random order of *blocks* (runs of neighbouring windows, about `BLOCK_BYTES` of file each).
    A *group* of about `mixing_bytes / BLOCK_BYTES` blocks from all over the file is loaded at a time, and its
    windows come in a random order. Each epoch draws anew where blocks begin. So the windows of a batch come
    from as many places as a group has blocks, 128 by default, but windows of different groups never share a
    batch in that epoch. A larger `mixing_bytes` mixes better and takes proportionally more memory; `ArrayPlan`
    shuffles exactly.
    """

    def __init__(self, rows: Rows, index: WindowIndex, seed: int, mixing_bytes: int) -> None:
        self._rows, self._index, self._seed = rows, index, seed
        window_bytes = index.rows / index.count * rows.shape[1] * rows.dtype.itemsize
        # A block covers at least one span, so that at most twice the rows of a block are read.
        shortest = -(-index.span // index.stride)
        self._block = min(index.count, max(1, int(BLOCK_BYTES / window_bytes), shortest))
        self._blocks = index.count // self._block
        most = max(4, int(mixing_bytes / (self._block * window_bytes)))
        self._groups = max(1, -(-self._blocks // most))
        self._group_blocks = max(1, -(-self._blocks // self._groups))
        self._recent: tuple[tuple[tuple[int, int, int], _Loaded, ShuffledRuns], ...] = ()

    def locate(self, epoch: int, first: int, last: int, shift: int = 0) -> Iterator[Located]:
        """See `WindowFinder.locate`."""
        for loaded, numbers in self._located(epoch, first, last, shift):
            yield loaded.values, loaded.starts(numbers)

    def where(self, epoch: int, first: int, last: int) -> np.ndarray:
        """See `WindowFinder.where`."""
        return np.concatenate(
            [loaded.places(numbers) for loaded, numbers in self._located(epoch, first, last, 0)]
        )

    def _located(self, epoch: int, first: int, last: int, shift: int) -> Iterator[tuple[_Loaded, np.ndarray]]:
        size = self._group_blocks * self._block
        while first < last:
            group = min(first // size, self._groups - 1)
            stop = last if group == self._groups - 1 else min(last, (group + 1) * size)
            loaded, order = self._group(epoch, group, shift)
            yield loaded, order.run(first - group * size, stop - group * size)
            first = stop

    def _group(self, epoch: int, group: int, shift: int) -> tuple[_Loaded, ShuffledRuns]:
        key = (epoch, group, shift)
        for known, loaded, order in self._recent:
            if known == key:
                return loaded, order
        count = self._index.count
        # The last block may be short. It is always in the last group, but holds different data each epoch,
        # because the whole order is rotated by a random number of windows.
        turn = derive_seed(self._seed, epoch, _SEED_TURN) % count
        begin = group * self._group_blocks
        slots = np.arange(begin, min(begin + self._group_blocks, self._blocks))
        chosen = Permutation(max(1, self._blocks), derive_seed(self._seed, epoch, _SEED_BLOCKS))(slots)
        runs = [((turn + int(block) * self._block) % count, self._block) for block in chosen]
        if group == self._groups - 1 and self._blocks * self._block < count:
            tail = self._blocks * self._block
            runs.append(((turn + tail) % count, count - tail))
        pieces: list[tuple[int, int]] = []
        for number, windows in sorted(runs):  # in file order: kinder to a disk
            before_end = min(windows, count - number)
            pieces += self._index.pieces(number, before_end)
            pieces += self._index.pieces(0, windows - before_end)
        loaded = _load(self._rows, self._index, pieces, shift)
        seed = derive_seed(self._seed, epoch, _SEED_INSIDE, group)
        order = ShuffledRuns(Permutation(loaded.count, seed))
        # Two groups are kept, for threads on both sides of a border. A single assignment needs no lock.
        self._recent = ((key, loaded, order), *self._recent[:1])
        return loaded, order


class _Loaded:
    """Rows of several pieces of a file, one after another, and where the windows lie in them and in the file."""

    def __init__(
        self, values: np.ndarray, row: np.ndarray, place: np.ndarray, ends: np.ndarray, stride: int
    ) -> None:
        self.values, self._ends, self._stride = values, ends, stride
        self.count = int(ends[-1])
        before = np.concatenate(([0], ends[:-1]))
        self._base, self._place = row - before * stride, place - before * stride

    def starts(self, numbers: np.ndarray) -> np.ndarray:
        return self._from(self._base, numbers)

    def places(self, numbers: np.ndarray) -> np.ndarray:
        return self._from(self._place, numbers)

    def _from(self, base: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        if len(self._ends) == 1:
            return numbers * self._stride + base[0]
        piece = np.searchsorted(self._ends, numbers, side="right")
        return base[piece] + numbers * self._stride


def _load(rows: Rows, index: WindowIndex, pieces: list[tuple[int, int]], shift: int) -> _Loaded:
    windows = np.array([count for _, count in pieces], dtype=np.int64)
    lengths = (windows - 1) * index.stride + index.span
    ends = np.cumsum(lengths)
    values = np.empty((int(ends[-1]), rows.shape[1]), rows.dtype)
    for (first, _), length, end in zip(pieces, lengths, ends, strict=True):
        rows.read(first + shift, values[end - length : end])
    places = np.array([first for first, _ in pieces], dtype=np.int64)
    return _Loaded(values, ends - lengths, places, np.cumsum(windows), index.stride)


def take_windows(rows: np.ndarray, starts: np.ndarray, offset: int, length: int, step: int = 1) -> np.ndarray:
    """Copies `length` rows from `starts + offset` on, for each start.

    Args:
        rows: (R, F).
        starts: (k,) int64, valid first rows.
        offset: Rows to skip after each start.
        length: Rows to copy, at least 1.
        step: Rows from one that is copied to the next.

    Returns:
        (k, length, F), a new array of the same dtype.
    """
    count, features = len(starts), rows.shape[1]
    if offset:
        starts = starts + offset
    if step > 1 or not rows.flags.c_contiguous:
        return rows[starts[:, None] + np.arange(0, length * step, step)]
    # With a whole window as one opaque item, NumPy copies it in one go. That is the fastest gather here:
    # 45 M windows/s of 50x5, against 33 M for a sliding view and 9 M for an index of every row.
    item = np.dtype((np.void, length * features * rows.dtype.itemsize))
    view = np.ndarray((len(rows) - length + 1,), item, buffer=rows.data, strides=rows.strides[:1])
    return view[starts].view(rows.dtype).reshape(count, length, features)


def windows_at(values: np.ndarray, starts: np.ndarray, length: int) -> np.ndarray:
    """Copies `length` rows from each start on; in a large file, starts close together are read and not mapped.

    Args:
        values: (N, F) array or memory map.
        starts: (k,) int64, valid first rows, at least one.
        length: Rows to copy, at least 1.

    Returns:
        (k, length, F), a new array of the same dtype.
    """
    if mapped_root(values) is not None and values.nbytes > EXACT_BYTES:
        first = int(starts.min())
        count = int(starts.max()) + length - first
        if count * values.shape[1] * values.dtype.itemsize <= MIXING_BYTES:
            block = np.empty((count, values.shape[1]), values.dtype)
            open_rows(values).read(first, block)
            return take_windows(block, starts - first, 0, length)
    return take_windows(values, starts, 0, length)


def plan_windows(
    values: np.ndarray, index: WindowIndex, seed: int | None, shuffle: Shuffle, mixing: int
) -> WindowFinder:
    """The plan for an (N,) or (N, F) array; `shuffle` "auto" shuffles in blocks only if it is a large file."""
    table = values.reshape(len(values), -1)
    large_file = mapped_root(values) is not None and values.nbytes > EXACT_BYTES
    if shuffle == "exact" or (shuffle == "auto" and not large_file):
        return ArrayPlan(table, index, seed)
    rows = open_rows(table)
    return FilePlan(rows, index) if seed is None else BlockPlan(rows, index, seed, mixing)
