"""Sorts the rows of each series by time, and merges or refuses rows of the same time.

The rows stay on the disk: in memory is an index of one series, or of many small ones together.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from cellerate.data.series.read import npy_header
from cellerate.data.settings import Duplicates
from cellerate.data.times import TimeForm, never_shown, shown_twice, to_instants, to_local, zones_of_repeats
from cellerate.errors import DataError
from cellerate.format import counted
from cellerate.messages import argument

# The number of rows of small series that are sorted together, and of rows that are written at once.
_TOGETHER, _WRITTEN = 1 << 20, 1 << 14
ORIGIN = "read-origin"
_SHOWN_COLUMNS = 3
# The largest share of steps against the order of a series. Files joined in any order have few, shuffled rows half.
_MOST_AGAINST = 0.25


@dataclasses.dataclass(frozen=True)
class Ordered:
    """The result of ordering.

    Attributes:
        counts: The rows of each series now.
        moved: The number of rows that changed their place.
        merged: The number of rows removed because others have the same time.
        rewritten: Whether the files are new, with each row's old number in `ORIGIN` in their folder.
    """

    counts: list[int]
    moved: int = 0
    merged: int = 0
    rewritten: bool = False

    @property
    def notes(self) -> list[str]:
        """The messages for the user."""
        notes = [f"sorted {self.moved:,} rows by time"] if self.moved else []
        merged = f"merged {self.merged:,} rows with others of the same series and time"
        return notes + ([merged] if self.merged else [])


@dataclasses.dataclass(frozen=True)
class Sorting:
    """The rules of ordering rows.

    Attributes:
        duplicates: What to do with rows of one time.
        zone: The time zone of the times, which become instants; "" leaves the times as they are.
        form: How messages write times.
        columns: The names of the columns of values, for messages.
        place: How a message names a row.
    """

    duplicates: Duplicates
    zone: str
    form: TimeForm
    columns: Sequence[str]
    place: Callable[[int], str]


def order_rows(folder: Path, counts: Sequence[int], how: Sorting) -> Ordered:
    """Orders `values.npy` and `times.npy` of a folder, in which the rows of each series lie together.

    Args:
        folder: The folder.
        counts: The rows of each series.
        how: The rules.

    Raises:
        DataError: Two rows of a series have the same time, or a clock never showed a time.
    """
    times = np.load(folder / "times.npy", mmap_mode="r", allow_pickle=False)
    if not how.zone and _rising(times, counts):
        return Ordered(list(counts))
    values = np.load(folder / "values.npy", mmap_mode="r", allow_pickle=False)
    new_counts, moved = np.zeros(len(counts), np.int64), 0
    paths = [folder / name for name in ("ordered-values", "ordered-times", ORIGIN)]
    with (
        paths[0].open("wb") as value_file,
        paths[1].open("wb") as time_file,
        paths[2].open("wb") as origin_file,
    ):
        value_file.write(npy_header(values.dtype, values.shape))
        time_file.write(npy_header(times.dtype, times.shape))
        for first, codes in _groups(counts):
            own = np.array(times[first : first + len(codes)])
            order, own = _sorted(own, codes, first, how)
            moved += int((order != np.arange(len(order))).sum())
            same = np.zeros(len(order), bool)
            same[1:] = (own[1:] == own[:-1]) & (codes[1:] == codes[:-1])
            if same.any() and how.duplicates == "error":
                _refuse(order + first, own, same, values, how)
            starts = np.flatnonzero(~same)
            stops = np.append(starts[1:], len(order))
            kept = stops - 1 if how.duplicates == "last" else starts
            np.add.at(new_counts, codes[starts], 1)
            time_file.write(own[starts].tobytes())
            origin_file.write((order[kept] + first).astype(np.int64).tobytes())
            for begin in range(0, len(kept), _WRITTEN):
                end = min(len(kept), begin + _WRITTEN)
                # A memory map of its own, so that closing it releases the pages that were touched.
                source = np.load(folder / "values.npy", mmap_mode="r", allow_pickle=False)
                if how.duplicates == "mean" and same.any():
                    rows = source[order[starts[begin] : stops[end - 1]] + first]
                    block = _means(rows, starts[begin:end] - starts[begin])
                else:
                    block = source[order[kept[begin:end]] + first]
                value_file.write(np.ascontiguousarray(block, values.dtype).tobytes())
    rows = int(new_counts.sum())
    del values, times
    for path, name in zip(paths, ("values.npy", "times.npy"), strict=False):
        source = np.load(folder / name, mmap_mode="r", allow_pickle=False)
        header = npy_header(source.dtype, (rows, *source.shape[1:]))
        del source
        with path.open("r+b") as file:
            file.write(header)
        path.replace(folder / name)
    return Ordered(new_counts.tolist(), moved, sum(counts) - rows, rewritten=True)


def _rising(times: np.ndarray, counts: Sequence[int]) -> bool:
    for first, codes in _groups(counts, whole=False):
        own = np.array(times[first : first + len(codes)])
        if not ((own[1:] > own[:-1]) | (codes[1:] != codes[:-1])).all():
            return False
    return True


def _groups(counts: Sequence[int], *, whole: bool = True) -> Iterator[tuple[int, np.ndarray]]:
    """The first row and each row's series, for one large series or several small ones at a time.

    Unless `whole`, large series come in parts; each part begins with the last row of the previous part.
    """
    first, codes, rows = 0, [], 0
    for code, count in enumerate(counts):
        codes.append((code, count))
        rows += count
        if rows >= _TOGETHER or code == len(counts) - 1:
            numbers = np.repeat(
                np.array([c for c, _ in codes], np.int32), np.array([n for _, n in codes], np.int64)
            )
            if whole:
                yield first, numbers
            else:
                for begin in range(0, rows, _TOGETHER):
                    back = int(begin > 0)
                    yield first + begin - back, numbers[begin - back : begin + _TOGETHER]
            first, codes, rows = first + rows, [], 0


def _sorted(times: np.ndarray, codes: np.ndarray, first: int, how: Sorting) -> tuple[np.ndarray, np.ndarray]:
    """The order of some rows, and their sorted times; rows of the same time keep their order."""
    order = _order(times, codes)
    if not how.zone:
        return order, times[order]
    local = times[order]
    missing = never_shown(local, how.zone)
    if missing.any():
        at = int(np.argmax(missing))
        raise DataError(
            f"{how.place(int(order[at]) + first)}: the clock of {argument('time_zone', how.zone)} never showed "
            f"{how.form.write(local[at : at + 1])[0]}, because it was put forward then. Name another "
            f"{argument('time_zone')}, or leave it out."
        )
    again = np.zeros(len(local), bool)
    again[1:] = (local[1:] == local[:-1]) & (codes[1:] == codes[:-1])
    falling, mixed = _directions(times, codes)
    unclear = again & mixed
    if unclear.any() and (twice := unclear & shown_twice(local, how.zone)).any():
        at = int(np.argmax(twice))
        raise DataError(
            f"{how.place(int(order[at]) + first)}: the clock of {argument('time_zone', how.zone)} showed "
            f"{how.form.write(local[at : at + 1])[0]} twice, and which of the two rows was first is not known, because "
            "the rows are in no order of time: sort the file, or write times with their offset from UTC."
        )
    # In a series that begins with its latest row, the second showing comes first.
    again = np.where(falling, np.append(again[1:], False), again)
    instants = to_instants(local, how.zone, again)
    inner = _order(instants, codes)
    return order[inner], instants[inner]


def _directions(times: np.ndarray, codes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(N,) whether each row's series begins with its latest row, and whether it is in no order: shuffled."""
    steps = np.sign(np.diff(times.astype(np.int64))) * (codes[1:] == codes[:-1])
    numbers = codes - codes[0]
    rising, falling = (np.bincount(numbers[1:], steps == sign, numbers[-1] + 1) for sign in (1, -1))
    # One step against the order is what a clock shows that is put back.
    mixed = np.minimum(rising, falling) > np.maximum(1, _MOST_AGAINST * (rising + falling))
    return (falling > rising)[numbers], mixed[numbers]


def _order(times: np.ndarray, codes: np.ndarray) -> np.ndarray:
    if codes[0] == codes[-1]:
        return np.argsort(times, kind="stable")
    return np.lexsort((times, codes))


def _means(rows: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """The means of runs of rows, without missing values."""
    finite = np.isfinite(rows)
    sums = np.add.reduceat(np.where(finite, rows, 0).astype(np.float64), starts, axis=0)
    counts = np.add.reduceat(finite.astype(np.int64), starts, axis=0)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def _refuse(rows: np.ndarray, times: np.ndarray, same: np.ndarray, values: np.ndarray, how: Sorting) -> None:
    at = int(np.argmax(same))
    before, here = sorted((int(rows[at - 1]), int(rows[at])))

    def shown(row: int) -> str:
        cells = zip(how.columns[:_SHOWN_COLUMNS], values[row].tolist(), strict=False)
        return ", ".join(f"{name} {value:g}" for name, value in cells)

    form = dataclasses.replace(how.form, zone=how.zone or how.form.zone)
    written, count = form.write(times[at : at + 1])[0], int(same.sum())
    message = (
        f"{how.place(here)}: the time {written} occurs twice; it is also in {how.place(before)} ({shown(before)} "
        f"there, {shown(here)} here; {counted(count, 'such row')} in all). "
    )
    zones = []
    if times.dtype.kind == "M" and not how.form.zone:
        zones = [zone for zone in zones_of_repeats(to_local(times[same], how.zone)) if zone != how.zone]
    if zones:
        raise DataError(
            f"{message}The clock is put back then in zones such as {', '.join(zones[:3])}: name yours "
            f"({argument('time_zone', zones[0])}), or choose {argument('duplicates', 'first', 'last', 'mean')}."
        )
    raise DataError(
        f"{message}Choose {argument('duplicates', 'first', 'last', 'mean')}; if the file holds several series, name "
        f"the column that tells them apart ({argument('series_column')})."
    )
