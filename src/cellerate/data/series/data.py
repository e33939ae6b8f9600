"""An open series: a matrix of values, the meaning of its rows and columns, and its parts in time."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from cellerate.data.arrays import open_rows
from cellerate.data.times import Frequency, TimeForm
from cellerate.errors import ConfigError, DataError
from cellerate.messages import argument


@dataclasses.dataclass(frozen=True, eq=False)
class SeriesData:
    """A matrix of values and the meaning of its rows and columns.

    Attributes:
        values: (N, C) float32, float64 or float16, usually a memory map: the features, then the targets that are not
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
        frequency: The frequency of the rows; None without times.
        form: How the tables wrote the times. Those of zones and offsets are instants in UTC in `times`.
        notes: The notes on the reading of the tables.
        ahead: The columns known in advance for the rows after the last, as `FutureRows`; None without any.
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

        Times within the series are its own; after its last row they follow the calendar of its frequency.
        """
        if self.times is None:
            return np.arange(stop, stop + count)
        place = int(np.searchsorted(self._firsts, stop - 1, side="right")) - 1
        end = max(stop, min(self.segments[place][1], stop + count)) if place >= 0 else stop
        known = np.asarray(self.times[stop:end])
        if len(known) == count:
            return known
        if self.frequency is None:
            raise DataError(
                "the series has a single row, so the times that follow are not known: give more rows, or the "
                f"frequency ({argument('frequency')})."
            )
        return np.concatenate([known, self.frequency.after(self.times[end - 1], count - len(known))])

    @functools.cached_property
    def _firsts(self) -> np.ndarray:
        """The first row of each stretch; cached, because every series looks its row up here."""
        return np.array([first for first, _, _ in self.segments], np.int64)

    def whole(self) -> SeriesPart:
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
    ) -> SeriesSplit:
        """Cuts each series in time: first training, then validation, then test.

        Every row, and so every target, belongs to one part only. The inputs of the first validation and test
        windows reach back into the part before, because those rows are known at forecast time.

        Args:
            train: Share of each series' rows, above 0.
            validation: Share of each series' rows; what remains is the test part.
            counts: Rows for training, validation and test in each series, instead of shares. Any rows after
                them are not used.
            test_size: Rows of the test part, at the end of each series; all rows before the validation part are then
                the training part, and `train` is ignored.
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
                        f"{which} has {total} rows: {argument('test_size', test_size)} and {held} rows of validation "
                        "leave none to train on. Give more rows, or test on fewer."
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
