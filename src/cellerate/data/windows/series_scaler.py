"""A mean and a scale of each column for each series, so that series of very different size look alike to a model.

The usual scale of a series is used where one alone does not show its scale.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from cellerate.data.tables import BySeries
from cellerate.data.windows.scaler import Scaler, check_sizes, held_by, moments
from cellerate.errors import DataError, ModelError
from cellerate.messages import argument

if TYPE_CHECKING:
    from cellerate.data.series import SeriesPart

MOST_NUMBERS = 200_000
"""The most means, of all series and columns; more would make the model's record too long to be read."""

# Deviations below this many roundings, of a mean or of the usual deviation of a series, are noise.
_ROUNDINGS = 8


class SeriesScaler:
    """A mean and a scale for each series and column.

    Args:
        names: (S,) the names of the series.
        mean: (S, C) in the units of the data.
        scale: (S, C) positive, in the units of the data.
        usual: The scaler of all series together, with the same columns.

    Raises:
        ModelError: Shapes differ, or a number is not finite, or a scale is not positive.
    """

    def __init__(self, names: Sequence[str], mean: np.ndarray, scale: np.ndarray, usual: Scaler) -> None:
        shape = (len(names), len(usual.columns))
        if mean.shape != shape or scale.shape != shape:
            raise ModelError(
                f"the scaler of the series needs {shape} numbers, got {mean.shape} and {scale.shape}; the file is "
                "damaged."
            )
        # 1e30 fits into float32, with room for the subtraction.
        if not (np.isfinite(mean).all() and np.isfinite(scale).all() and (scale > 0).all()) or (
            max(np.abs(mean).max(initial=0), scale.max(initial=0)) > 1e30
        ):
            raise ModelError(
                "the scaler of the series holds numbers that cannot be used; the file is damaged."
            )
        self.names = tuple(names)
        self.usual = usual
        self._mean, self._scale = mean, scale
        self._usual = UsualScale.of(mean, scale, usual)
        self._place = BySeries({name: place for place, name in enumerate(self.names)})

    @classmethod
    def fit(cls, part: SeriesPart, usual: Scaler) -> SeriesScaler:
        """Mean and standard deviation of each column over each series' rows of `part`, in one streamed pass.

        A column that hardly changes within a series gets the scale that is usual for a series of its size, because its
        own deviation cannot be distinguished from noise.

        Args:
            part: The training part.
            usual: The scaler of all series, fitted on it.

        Raises:
            DataError: There are more series and columns than a record holds, or numbers too large for a scaler.
        """
        data = part.data
        names = list(dict.fromkeys(name for _, _, name in data.segments))
        width = len(data.columns)
        if len(names) * width > MOST_NUMBERS:
            raise DataError(
                f"{argument('scaling', 'series')} keeps the scale of each of {len(names):,} series and {width:,} "
                f"columns, and a model holds at most {MOST_NUMBERS:,}: choose {argument('scaling', 'global')}, or "
                "train on fewer columns."
            )
        place = {name: number for number, name in enumerate(names)}
        firsts = [first for first, _, _ in data.segments]
        count = np.zeros((len(names), 1), int)
        mean, squares = np.zeros((len(names), width)), np.zeros((len(names), width))
        for bound, own in zip(part.bounds, _segments(firsts, part.bounds), strict=True):
            at = place[data.segments[own][2]]
            one = type(part)(data, part.name, (bound,))
            count[at], mean[at], squares[at] = moments((int(count[at, 0]), mean[at], squares[at]), one)
        deviation = np.sqrt(squares / np.maximum(count, 1))
        check_sizes(data.columns, mean, deviation, names)
        mean = np.where(count > 0, mean, usual.mean)
        dtype = data.values.dtype
        shown = np.where(deviation > _noise(dtype) * np.abs(mean), deviation, np.nan)
        return cls(names, mean, UsualScale.of(mean, shown, usual).safe(mean, deviation, dtype), usual)

    def known(self, names: Sequence[str]) -> np.ndarray:
        """(N,) the index of each name among the series; -1 for series outside the training data."""
        return np.array([self._place.get(name, -1) for name in names], np.int64)

    def of(self, places: np.ndarray, past: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The mean and the scale for each of B windows.

        Args:
            places: (B,) the series of each, from `known`; -1 takes them from the window itself.
            past: (B, window, C) the rows of each window in the units of the data.

        Returns:
            Twice (B, C) float64.
        """
        mean, scale = self._mean[places], self._scale[places]
        strange = places < 0
        if strange.any():
            rows = past[strange].astype(np.float64)
            mean[strange] = rows.mean(axis=1)
            scale[strange] = self._usual.safe(mean[strange], rows.std(axis=1), past.dtype)
        return mean, scale

    def to_config(self) -> dict[str, Any]:
        """A description for `from_config`, ready for JSON."""
        return {"names": list(self.names), "mean": self._mean.tolist(), "scale": self._scale.tolist()}

    @classmethod
    def from_config(cls, config: Any, usual: Scaler) -> SeriesScaler:
        """The scaler that `to_config` described.

        Raises:
            ModelError: The description is not valid; a model file may hold anything.
        """
        try:
            names = config["names"] if isinstance(config, Mapping) else None
            if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
                raise ValueError("no names")
            shape = (len(names), len(usual.columns))
            mean, scale = (np.array(config[which], np.float64).reshape(shape) for which in ("mean", "scale"))
        except (LookupError, TypeError, ValueError, OverflowError) as error:
            raise ModelError("the scaler of the series cannot be used: the file is damaged.") from error
        return cls(names, mean, scale, usual)


@dataclasses.dataclass(frozen=True)
class UsualScale:
    """The scale of a series that does not show its own.

    It is not the scale over all series, which says how far these are apart: where one sells a thousand times as much
    as another, the forecast for a series at rest would jump by more than any series changes.

    Attributes:
        within: (C,) the median scale of a series.
        share: (C,) the median scale of a series as a share of its mean.
    """

    within: np.ndarray
    share: np.ndarray

    @classmethod
    def of(cls, mean: np.ndarray, scale: np.ndarray, usual: Scaler) -> UsualScale:
        """The medians over series.

        Args:
            mean: (S, C).
            scale: (S, C), NaN where a series does not show it.
            usual: The scaler of all series together, for columns that change in none.
        """
        size = np.abs(mean)
        share = np.divide(
            scale, size, out=np.full_like(scale, np.nan), where=size > np.finfo(np.float32).tiny
        )
        return cls(known_medians(scale, usual.scale), known_medians(share, np.full(len(usual.scale), np.inf)))

    def safe(self, mean: np.ndarray, deviation: np.ndarray, dtype: np.dtype) -> np.ndarray:
        """The deviation (S, C), or the usual scale where it is only the rounding noise of a type."""
        size, noise = np.abs(mean), _noise(dtype)
        flat = deviation <= noise * np.maximum(size, self.within)
        # A series of next to nothing shows no size, either.
        sized = np.multiply(
            size, self.share, out=np.full_like(size, np.inf), where=size > noise * self.within
        )
        return np.where(flat, np.minimum(self.within, sized), deviation)


def known_medians(values: np.ndarray, otherwise: np.ndarray) -> np.ndarray:
    """(C,) the median of the numbers of each column that are known; `otherwise` if none is."""
    known = (column[np.isfinite(column)] for column in values.T)
    return np.array(
        [np.median(some) if len(some) else other for some, other in zip(known, otherwise, strict=True)]
    )


def _noise(dtype: np.dtype) -> float:
    """The share of a number below which a deviation is only rounding noise of a type."""
    return float(_ROUNDINGS * np.finfo(held_by(dtype)).eps)


def _segments(firsts: Sequence[int], bounds: Sequence[tuple[int, int, int]]) -> list[int]:
    """The number of the stretch that each bound lies in."""
    begins = [begin for _, begin, _ in bounds]
    return (np.searchsorted(firsts, begins, side="right") - 1).tolist()
