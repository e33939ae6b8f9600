"""Covariates of a forecaster: columns known in advance, the calendar, the id of the series.

`Covariates` describes them in a model's record; `Framing` turns rows of a series into the model's inputs, in the same
way for training and for forecasts. A model without covariates has one input, the scaled rows.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cellerate.data.series import SeriesData
from cellerate.data.tables import BySeries
from cellerate.data.times import Calendar, check_times, to_local
from cellerate.data.windows.scaler import Scaler, scaled
from cellerate.data.windows.series_scaler import SeriesScaler
from cellerate.errors import DataError, ModelError

Inputs = np.ndarray | dict[str, np.ndarray]
"""A model's input, or several by name: "series" (B, window, F), "future" (B, horizon, K), "series_id" (B, 1)."""

UNKNOWN_SERIES = 0
"""The id of a series that a model was not trained on."""

_MOST_SERIES = 200_000
_PREPARED_BYTES = 64 << 20


@dataclasses.dataclass(frozen=True, eq=False)
class Covariates:
    """The covariates of a forecaster.

    Attributes:
        future: Features whose values are known for the rows to forecast, too.
        calendar: The features of times; None without any.
        series: Names of the series with an id, which is their index plus one; None if the model reads no ids.
        scaling: The scale of each series; None if all series share one.
    """

    future: tuple[str, ...] = ()
    calendar: Calendar | None = None
    series: tuple[str, ...] | None = None
    scaling: SeriesScaler | None = None

    @property
    def plain(self) -> bool:
        """True if there are none."""
        return not (self.known_ahead or self.series is not None or self.scaling is not None)

    @property
    def known_ahead(self) -> bool:
        """True if the model reads inputs of the rows to forecast."""
        return bool(self.future) or self.calendar is not None

    @property
    def calendar_width(self) -> int:
        """The number of features of the calendar."""
        return 0 if self.calendar is None else self.calendar.width

    @property
    def future_width(self) -> int:
        """K, the number of known values in a row to forecast."""
        return len(self.future) + self.calendar_width

    def input_shapes(self, features: int, window: int, horizon: int) -> dict[str, tuple[int, ...]]:
        """The shape of a row of each input, by name."""
        shapes: dict[str, tuple[int, ...]] = {"series": (window, features + self.calendar_width)}
        if self.known_ahead:
            shapes["future"] = (horizon, self.future_width)
        if self.series is not None:
            shapes["series_id"] = (1,)
        return shapes

    def ids(self, names: Sequence[str]) -> np.ndarray:
        """(N,) int32, the id of each series; `UNKNOWN_SERIES` for unknown names."""
        return np.array([self._ids.get(name, UNKNOWN_SERIES) for name in names], np.int32)

    @functools.cached_property
    def _ids(self) -> BySeries[int]:
        """The id of each series by its name; cached, because a server looks ids up one at a time."""
        return BySeries({name: place for place, name in enumerate(self.series or (), start=1)})

    def to_config(self) -> dict[str, Any]:
        """A description for `from_config`, ready for JSON."""
        found: dict[str, Any] = {"future": list(self.future)}
        if self.calendar is not None:
            found["calendar"] = self.calendar.to_config()
        if self.series is not None:
            found["series"] = list(self.series)
        if self.scaling is not None:
            found["scaling"] = self.scaling.to_config()
        return found

    @classmethod
    def from_config(cls, config: Any, scaler: Scaler) -> Covariates:
        """The covariates that `to_config` described.

        Args:
            config: The description; None for a model without any.
            scaler: The model's scaler.

        Raises:
            ModelError: The description is not valid; a model file may hold anything.
        """
        if config is None:
            return cls()
        if not isinstance(config, Mapping):
            raise ModelError("the model's covariates must be a mapping; the file is damaged.")
        future, series = config.get("future", []), config.get("series")
        for what, names in (("future", future), ("series", [] if series is None else series)):
            good = isinstance(names, list) and len(names) <= _MOST_SERIES
            if not good or not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
                raise ModelError(f"the model's {what} must be different names; the file is damaged.")
        if not set(future) <= set(scaler.columns):
            raise ModelError("the model's future columns are not among its columns; the file is damaged.")
        calendar, scaling = config.get("calendar"), config.get("scaling")
        return cls(
            tuple(future),
            None if calendar is None else Calendar.from_config(calendar),
            None if series is None else tuple(series),
            None if scaling is None else SeriesScaler.from_config(scaling, scaler),
        )


NO_COVARIATES = Covariates()


@dataclasses.dataclass(frozen=True, eq=False)
class ModelUnits:
    """Scales B windows for a model, and its forecasts back to the units of the data.

    Attributes:
        mean: (B, C) or (C,) in the units of the data.
        scale: The same.
    """

    mean: np.ndarray
    scale: np.ndarray

    def scaled(self, values: np.ndarray, columns: Sequence[int]) -> np.ndarray:
        """(B, T, columns) in the units of the data → float32 in the model's scale."""
        mean, scale = self.mean[..., columns], self.scale[..., columns]
        if mean.ndim == 2:
            mean, scale = mean[:, None], scale[:, None]
        return scaled(values, mean, scale)

    def of_data(self, values: np.ndarray, columns: Sequence[int], *, quantiles: bool) -> np.ndarray:
        """(B, horizon, targets) or (B, horizon, targets, Q) of a model → float64 in the units of the data."""
        mean, scale = self.mean[..., columns], self.scale[..., columns]
        if mean.ndim == 2:
            mean, scale = mean[:, None], scale[:, None]
        if quantiles:
            mean, scale = mean[..., None], scale[..., None]
        return values.astype(np.float64) * scale + mean


class Framing:
    """Turns the rows of a series into a model's inputs.

    Args:
        data: The series.
        scaler: The scaler of all columns.
        covariates: The model's inputs beside the features.
        prepared: Whether to compute the calendar of all rows at once, if it is small; worthwhile for many windows.

    Raises:
        DataError: The series has no times, and the model reads a calendar.
    """

    def __init__(
        self, data: SeriesData, scaler: Scaler, covariates: Covariates, *, prepared: bool = False
    ) -> None:
        # It holds no reference to the data, which may know it.
        self._scaler, self._covariates = scaler, covariates
        self._features = list(data.feature_columns)
        self._future = [data.columns.index(name) for name in covariates.future]
        self._times = None if covariates.calendar is None else check_times(data.times)
        # The clock that the frequency was found by: by the offset of the last row, days of summer may begin at 23:00.
        self._zone = (data.frequency.zone if data.frequency is not None else "") or data.form.zone
        self._table: np.ndarray | None = None
        calendar = covariates.calendar
        if prepared and calendar is not None and 4 * len(data.values) * calendar.width <= _PREPARED_BYTES:
            self._table = self._calendar(np.arange(len(data.values)))
        self._firsts = np.array([first for first, _, _ in data.segments], np.int64)
        self._stops = np.array([stop for _, stop, _ in data.segments], np.int64)
        self._names = names = [series for _, _, series in data.segments]
        self._ids = covariates.ids(names) if covariates.series is not None else None
        self._places = None if covariates.scaling is None else covariates.scaling.known(names)

    def segments(self, origins: np.ndarray) -> np.ndarray:
        """The number of the stretch that the row before each origin lies in."""
        return np.searchsorted(self._firsts, origins - 1, side="right") - 1

    def units(self, past: np.ndarray, origins: np.ndarray) -> ModelUnits:
        """The scale of each window (B, window, C) that ends before a row."""
        scaling = self._covariates.scaling
        if scaling is None or self._places is None:
            return ModelUnits(self._scaler.mean, self._scaler.scale)
        return ModelUnits(*scaling.of(self._places[self.segments(origins)], past))

    def strangers(self, window: int) -> list[str]:
        """The series that the model was not trained on, of those with at least `window` rows without a gap."""
        unknown = np.zeros(len(self._names), bool)
        if self._ids is not None:
            unknown |= self._ids == UNKNOWN_SERIES
        if self._places is not None:
            unknown |= self._places < 0
        # Shorter ones are not forecast at all.
        unknown &= self._stops - self._firsts >= window
        return list(dict.fromkeys(self._names[number] for number in np.flatnonzero(unknown)))

    def check(self, origins: np.ndarray, window: int) -> None:
        """Raises `DataError` if fewer than `window` rows without a gap lie before an origin."""
        segments = np.maximum(self.segments(origins), 0)
        wrong = (origins - window < self._firsts[segments]) | (origins > self._stops[segments])
        if wrong.any():
            origin = int(origins[int(np.argmax(wrong))])
            raise DataError(
                f"row {origin} (from 0) cannot be forecast: the model needs {window} rows without a gap before it."
            )

    def inside(self, origins: np.ndarray, horizon: int) -> np.ndarray:
        """(B,) whether all rows to forecast are rows of the series, without a gap."""
        return origins + horizon <= self._stops[self.segments(origins)]

    def names(self, origins: np.ndarray) -> list[str]:
        """The series of each origin."""
        return [self._names[number] for number in self.segments(origins).tolist()]

    def inputs(
        self,
        past: np.ndarray,
        origins: np.ndarray,
        units: ModelUnits,
        ahead: np.ndarray | None,
        times: np.ndarray | int,
    ) -> Inputs:
        """The inputs for B windows.

        Args:
            past: (B, window, C) in the units of the data.
            origins: (B,) the row after each window.
            units: From `units`.
            ahead: (B, horizon, future columns) in the units of the data; None if the model reads none.
            times: (B, horizon) the times of the rows to forecast, or their number if they are rows of the series.
        """
        calendar = self._covariates.calendar
        before = after = None
        if calendar is not None:
            before = self._calendar(origins[:, None] + np.arange(-past.shape[1], 0))
            if isinstance(times, int):
                after = self._calendar(origins[:, None] + np.arange(times))
            else:
                after = calendar.features(to_local(times, self._zone))
        ids = None if self._ids is None else self._ids[self.segments(origins)]
        return model_inputs(
            self._covariates,
            units.scaled(past[..., self._features], self._features),
            None if ahead is None else units.scaled(ahead, self._future),
            before,
            after,
            ids,
        )

    def _calendar(self, rows: np.ndarray) -> np.ndarray:
        """The features of the times of rows of the series."""
        calendar, times = self._covariates.calendar, self._times
        assert calendar is not None and times is not None  # noqa: S101 (asked for only then)
        if self._table is not None:
            return self._table[rows]
        # People sleep, work and shop by local time.
        return calendar.features(to_local(np.asarray(times[rows]), self._zone))

    @property
    def future_columns(self) -> list[int]:
        """The positions of the columns that are known in advance."""
        return self._future


def model_inputs(
    covariates: Covariates,
    series: np.ndarray,
    ahead: np.ndarray | None,
    calendar_past: np.ndarray | None,
    calendar_ahead: np.ndarray | None,
    ids: np.ndarray | None,
) -> Inputs:
    """Joins the parts of the inputs: an array if the series is the only input."""
    seen = [series] if calendar_past is None else [series, calendar_past]
    made = {"series": np.concatenate(seen, axis=-1) if len(seen) > 1 else series}
    known = [part for part in (ahead, calendar_ahead) if part is not None]
    if covariates.known_ahead:
        made["future"] = np.concatenate(known, axis=-1) if len(known) > 1 else known[0]
    if ids is not None:
        made["series_id"] = ids[:, None]
    return made if len(made) > 1 else made["series"]
