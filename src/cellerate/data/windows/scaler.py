"""Scales the columns of a series to mean 0 and standard deviation 1, and forecasts back to their own units.

A scaler is stored with the model, so `Scaler.from_config` reads files that may be damaged or hostile.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from cellerate.errors import DataError, ModelError

if TYPE_CHECKING:
    from cellerate.data.series import SeriesPart

_CHUNK_BYTES = 4 << 20
_MOST_COLUMNS = 1_000_000
# 1e30 fits into float32, with room for the subtraction.
_LARGEST = 1e30


class Scaler:
    """A mean and a scale for each column; a value becomes `(value - mean) / scale`.

    Args:
        columns: Names, in the order of the columns.
        mean: (C,) in the units of the data.
        scale: (C,) positive, in the units of the data.

    Raises:
        ModelError: Lengths differ, or a number is not finite, or a scale is not positive.
    """

    def __init__(
        self, columns: Sequence[str], mean: Sequence[float] | np.ndarray, scale: Sequence[float] | np.ndarray
    ) -> None:
        self.columns = tuple(columns)
        self.mean = _numbers("mean", mean, len(self.columns))
        self.scale = _numbers("scale", scale, len(self.columns))
        if not (self.scale > 0).all():
            raise ModelError("the scaler's scale holds a number that is not positive; the file is damaged.")

    @classmethod
    def fit(cls, part: SeriesPart) -> Scaler:
        """Mean and standard deviation of each column over the rows of `part`, in one streamed pass.

        Fit on the training part only: statistics of later rows would leak them to the model. A constant
        column gets a scale of 1.

        Args:
            part: The training part.

        Returns:
            A scaler for all columns of the series.

        Raises:
            DataError: The part is empty, or a column holds numbers too large for a scaler.
        """
        columns = part.data.columns
        count, mean, squares = moments((0, np.zeros(len(columns)), np.zeros(len(columns))), part)
        if not count:
            raise DataError(f"the {part.name} part has no rows, so there is nothing to fit a scaler on.")
        deviation = np.sqrt(squares / count)
        check_sizes(columns, mean[None], deviation[None], [""])
        # The deviation of a constant column is rounding noise, not a scale.
        flat = deviation <= 1e-9 * np.abs(mean)
        return cls(columns, mean, np.where(flat | (deviation < np.finfo(np.float32).tiny), 1.0, deviation))

    def transform(self, values: np.ndarray, columns: Sequence[int] | None = None) -> np.ndarray:
        """Scales values, in float32.

        Args:
            values: (..., C), any float dtype.
            columns: Positions of the C columns among all; None for all of them, in order.

        Returns:
            (..., C) float32, a new array.
        """
        chosen = slice(None) if columns is None else list(columns)
        return scaled(values, self.mean[chosen], self.scale[chosen])

    def inverse_transform(
        self, values: np.ndarray, columns: Sequence[int] | None = None, *, quantiles: bool = False
    ) -> np.ndarray:
        """Takes scaled values back to the units of the data.

        Args:
            values: (..., C), or (..., C, Q) with `quantiles`.
            columns: Positions of the C columns among all, such as `SeriesData.target_columns` for forecasts;
                None for all of them.
            quantiles: Whether the last axis holds quantiles and the one before it columns.

        Returns:
            The same shape, float64.
        """
        chosen = slice(None) if columns is None else list(columns)
        mean, scale = self.mean[chosen], self.scale[chosen]
        if quantiles:
            mean, scale = mean[:, None], scale[:, None]
        return values.astype(np.float64) * scale + mean

    def to_config(self) -> dict[str, Any]:
        """A description for `from_config`, ready for JSON."""
        return {"columns": list(self.columns), "mean": self.mean.tolist(), "scale": self.scale.tolist()}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Scaler:
        """The scaler that `to_config` described.

        Raises:
            ModelError: The description is not valid; a model file may hold anything.
        """
        if not isinstance(config, Mapping) or set(config) != {"columns", "mean", "scale"}:
            raise ModelError(
                "the scaler's description must have columns, mean and scale; the file is damaged."
            )
        columns = config["columns"]
        if not isinstance(columns, list) or not 1 <= len(columns) <= _MOST_COLUMNS:
            raise ModelError("the scaler's columns must be a list of names; the file is damaged.")
        if not all(isinstance(name, str) for name in columns) or len(set(columns)) != len(columns):
            raise ModelError("the scaler's columns must be names, each once; the file is damaged.")
        return cls(columns, config["mean"], config["scale"])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Scaler) and self.to_config() == other.to_config()

    __hash__ = None  # type: ignore[assignment]  # its arrays could be changed


def check_sizes(
    columns: Sequence[str], mean: np.ndarray, deviation: np.ndarray, series: Sequence[str]
) -> None:
    """Raises `DataError` for a column of a series, (S, C), whose numbers are too large for a scaler."""
    sizes = np.maximum(np.abs(mean), deviation)
    found = np.argwhere(np.isfinite(sizes) & (sizes > _LARGEST))
    if len(found):
        row, column = found[0]
        whose = f" in series {series[row]!r}" if series[row] else ""
        raise DataError(
            f"column {columns[column]!r} holds numbers of about {sizes[row, column]:.2g}{whose}, too large to be "
            f"scaled: rescale the column below {_LARGEST:g}."
        )


def moments(
    before: tuple[int, np.ndarray, np.ndarray], part: SeriesPart
) -> tuple[int, np.ndarray, np.ndarray]:
    """The number of rows, the means (C,) and the sums of squared distances from the means (C,), after adding a part.

    Source: T. Chan, G. Golub and R. LeVeque, "Updating Formulae and a Pairwise Algorithm for Computing Sample
    Variances", 1979.
    """
    count, mean, squares = before
    for chunk in part.chunks(max(1, _CHUNK_BYTES // (8 * len(mean)))):
        values = chunk.astype(np.float64)
        here = values.mean(axis=0)
        total = count + len(values)
        away = here - mean
        squares = squares + (((values - here) ** 2).sum(axis=0) + away**2 * (count * len(values) / total))
        mean = mean + away * (len(values) / total)
        count = total
    return count, mean, squares


def scaled(values: np.ndarray, mean: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Scales values: `(value - mean) / scale`.

    If float32 would lose digits of the values, the mean is subtracted in float64, so that the difference keeps them.

    Args:
        values: Of any dtype of numbers.
        mean: float64, of a shape that broadcasts with `values`.
        scale: The same.

    Returns:
        float32, a new array.
    """
    exact = held_by(values.dtype)
    made = np.subtract(values, mean.astype(exact, copy=False), dtype=exact)
    made /= scale.astype(exact, copy=False)
    return made.astype(np.float32, copy=False)


def held_by(dtype: np.dtype) -> np.dtype:
    """float32 if it holds every number of a type, else float64."""
    return np.dtype(np.float32) if np.can_cast(dtype, np.float32) else np.dtype(np.float64)


def _numbers(name: str, values: Any, count: int) -> np.ndarray:
    if isinstance(values, np.ndarray):
        values = values.tolist()
    if not isinstance(values, list | tuple) or len(values) != count:
        raise ModelError(f"the scaler's {name} must be a list of {count} numbers; the file is damaged.")
    for value in values:
        good = isinstance(value, int | float) and not isinstance(value, bool)
        if not good or not math.isfinite(value) or abs(value) > _LARGEST:
            raise ModelError(f"the scaler's {name} holds {value!r:.40}, not a number; the file is damaged.")
    return np.array(values, dtype=np.float64)
