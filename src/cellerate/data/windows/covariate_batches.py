"""Windows of a series for a model that needs more than scaled features: several inputs, or a scale per series."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from cellerate.data.arrays import Batch, derive_seed, digest, joined, take_windows
from cellerate.data.series import SeriesPart
from cellerate.data.windows.covariates import UNKNOWN_SERIES, Covariates, Framing
from cellerate.data.windows.scaler import Scaler
from cellerate.data.windows.windows import SeriesBatches, WindowSettings

# The number of windows in a thousand whose series counts as unknown, so that the unknown id is trained, too.
_UNKNOWN_IN_1000 = 30
_ODD = np.uint64(0x9E37_79B9_7F4A_7C15)


class CovariateBatches(SeriesBatches):
    """Windows of one part of a time series, as `SeriesBatches`, with covariates.

    Batches are `(x, y)` or `(x, y, sample_weight)`; x is a dictionary of the inputs, or an array if there is only one.
    With a seed, a few windows in a hundred have the id of an unknown series.

    Args:
        part: From `SeriesData.split`, or `SeriesData.whole`.
        settings: The form of the windows and batches, and their order.
        scaler: Fitted on the training part.
        covariates: The covariates of the model.

    Raises:
        ConfigError, DataError: See `SeriesBatches`; or the series has no times, and the model sees a calendar.
    """

    def __init__(
        self, part: SeriesPart, settings: WindowSettings, scaler: Scaler, covariates: Covariates
    ) -> None:
        super().__init__(part, settings, scaler)
        self._framing = Framing(part.data, scaler, covariates, prepared=True)
        self._targets_at = list(part.data.target_columns)
        self._names = sorted(covariates.input_shapes(1, 1, 1))
        self._drops = covariates.series is not None and self.seed is not None
        self._settings += f" covariates/1 {digest(str(covariates.to_config()).encode())}"

    def batch(self, epoch: int, index: int) -> tuple[Any, ...]:
        """See `BatchSource.batch`."""
        return self._named(super().batch(epoch, index))

    def batches(self, epoch: int, start: int = 0) -> Iterator[tuple[Any, ...]]:
        """See `GatheredBatches.batches`."""
        return map(self._named, super().batches(epoch, start))

    def _named(self, arrays: Batch) -> tuple[Any, ...]:
        count = len(self._names)
        x = dict(zip(self._names, arrays, strict=False)) if count > 1 else arrays[0]
        return x, *arrays[count:]

    def _read(self, epoch: int, first: int, last: int) -> Batch:
        span, window = self.window + self.horizon, self.window
        located = self._plan.locate(epoch, first, last)
        rows = joined([take_windows(values, starts, 0, span) for values, starts in located])
        origins = self._plan.where(epoch, first, last) + window
        past, after = rows[:, :window], rows[:, window:]
        units = self._framing.units(past, origins)
        columns = self._framing.future_columns
        x = self._framing.inputs(past, origins, units, after[..., columns] if columns else None, self.horizon)
        y = units.scaled(after[..., self._targets_at], self._targets_at)
        if not isinstance(x, dict):
            return x, y
        if self._drops:
            x["series_id"][self._dropped(epoch, origins)] = UNKNOWN_SERIES
        return *(x[name] for name in self._names), y

    def _dropped(self, epoch: int, origins: np.ndarray) -> np.ndarray:
        """The windows whose series counts as unknown: drawn per window and epoch, whichever process reads them."""
        seed = np.uint64(derive_seed(self.seed or 0, epoch, _UNKNOWN_IN_1000))
        mixed = (origins.astype(np.uint64) + seed) * _ODD
        mixed ^= mixed >> np.uint64(29)
        mixed *= _ODD
        return (mixed >> np.uint64(32)) % np.uint64(1000) < np.uint64(_UNKNOWN_IN_1000)
