"""Forecasts from rows in an array; the call brings the other inputs of the model."""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from cellerate.data.arrays import unmasked
from cellerate.data.windows import Covariates, Inputs, ModelUnits, Scaler, held_by, model_inputs
from cellerate.errors import ConfigError, DataError
from cellerate.messages import argument
from cellerate.runtime.forecast.named_rows import by_name


class RowForecaster:
    """Forecasts from windows of rows in NumPy arrays.

    Args:
        predict: The model.
        scaler: The scaler of all columns: the features, then other targets.
        covariates: The inputs of the model beside the features.
        window: The rows that the model sees.
        horizon: The rows that the model forecasts.
        features: The names of the features.
        targets: The indices of the targets among the columns.
        quantiles: Whether it forecasts quantiles.
    """

    def __init__(
        self,
        predict: Callable[[Inputs], np.ndarray],
        scaler: Scaler,
        covariates: Covariates,
        *,
        window: int,
        horizon: int,
        features: Sequence[str],
        targets: Sequence[int],
        quantiles: bool,
    ) -> None:
        self._predict, self._scaler, self._covariates = predict, scaler, covariates
        self._window, self._horizon = window, horizon
        self._features, self._targets, self._quantiles = list(features), list(targets), quantiles
        self._future = [scaler.columns.index(name) for name in covariates.future]

    def forecast(
        self, rows: np.ndarray, future: Any, times: Any, series: str | Sequence[str] | None
    ) -> np.ndarray:
        """Forecast from B windows.

        Args:
            rows: (B, window, features) in the units of the data.
            future: (horizon, future columns) or (B, horizon, future columns), or frames as in `by_name`; None if the
                model sees none.
            times: (T,) or (B, T), ending with the times of the window and of the horizon; None if the model sees no
                calendar.
            series: The series of all windows, or of each; None for an unknown one.

        Returns:
            (B, horizon, targets), or (B, horizon, targets, Q), float64.

        Raises:
            ConfigError: An argument is for another kind of model.
            DataError: An argument is missing, or has another shape or type.
        """
        count, covariates = len(rows), self._covariates
        ahead = self._ahead(future, count)
        before, after = self._calendar(times, count)
        names = self._names(series, count)
        units = self._units(rows, names)
        places = list(range(len(self._features)))
        inputs = model_inputs(
            covariates,
            units.scaled(rows, places),
            None if ahead is None else units.scaled(ahead, self._future),
            before,
            after,
            None if covariates.series is None else covariates.ids(names),
        )
        made = np.asarray(self._predict(inputs), np.float32)
        if made.ndim == 2:
            made = made[..., None]
        return units.of_data(made, self._targets, quantiles=self._quantiles)

    def _units(self, rows: np.ndarray, names: Sequence[str]) -> ModelUnits:
        scaling = self._covariates.scaling
        if scaling is None:
            return ModelUnits(self._scaler.mean, self._scaler.scale)
        places = scaling.known(names)
        # The rows do not hold targets that are not features, so they cannot give the scale of an unknown series.
        others = len(self._scaler.columns) - len(self._features)
        if others and (places < 0).any():
            raise DataError(
                "series must name a series of the training: the model forecasts columns that are not in the rows, so "
                "the rows do not show their scale."
            )
        filled = np.concatenate([rows, np.zeros((*rows.shape[:2], others), rows.dtype)], axis=2)
        return ModelUnits(*scaling.of(places, filled))

    def _ahead(self, future: Any, count: int) -> np.ndarray | None:
        names = self._covariates.future
        if not names:
            if future is not None:
                raise ConfigError(
                    f"{argument('future')} is for models with columns that are known in advance: leave it out."
                )
            return None
        wanted = (
            f"numbers of shape ({self._horizon}, {len(names)}) or ({count}, {self._horizon}, {len(names)})"
        )
        columns = ", ".join(names)
        if future is None:
            raise DataError(
                f"{argument('future')} is missing: the model sees {columns:.200} of the rows to forecast. Give "
                f"{wanted}."
            )
        named = by_name(future, names, "future", "fiub")
        array = np.asarray(unmasked(future)) if named is None else named
        if array.dtype.kind not in "fiub" or array.shape not in (
            (self._horizon, len(names)),
            (count, self._horizon, len(names)),
        ):
            raise DataError(
                f"{argument('future')} must be {wanted}, the columns {columns:.200}, not {array.dtype} {array.shape}."
            )
        with np.errstate(over="ignore"):
            usable = np.isfinite(array.astype(np.float32)).all()
        if not usable:
            raise DataError(
                "future holds a value that is missing, infinite or too large for float32: fill it in, or scale it down."
            )
        return np.broadcast_to(array.astype(held_by(array.dtype)), (count, self._horizon, len(names)))

    def _calendar(self, times: Any, count: int) -> tuple[np.ndarray | None, np.ndarray | None]:
        calendar = self._covariates.calendar
        if calendar is None:
            if times is not None:
                raise ConfigError("times is for models that see a calendar: leave it out.")
            return None, None
        span = self._window + self._horizon
        wanted = (
            f"the times of the rows and of the {self._horizon} that follow, datetime64 of shape (T,) or ({count}, T) "
            f"with T at least {span}"
        )
        if times is None:
            raise DataError(f"times is missing: the model sees a calendar. Give {wanted}.")
        array = np.asarray(times)
        if array.dtype.kind in "UO":
            try:
                shown = list(map(_clock_time, array.ravel().tolist()))
                array = np.array(shown, object).astype("M8[us]").reshape(array.shape)
            except (TypeError, ValueError) as error:
                raise DataError(f"times must be {wanted}: {error}.") from error
        if (
            array.dtype.kind != "M"
            or array.ndim not in (1, 2)
            or array.shape[-1] < span
            or (array.ndim == 2 and len(array) != count)
        ):
            raise DataError(f"times must be {wanted}, not {array.dtype} {array.shape}.")
        if np.isnat(array).any():
            raise DataError("times holds a missing time: fill it in.")
        last = array[..., -span:].astype("M8[us]")
        made = calendar.features(np.broadcast_to(last, (count, span)))
        return made[:, : self._window], made[:, self._window :]

    def _names(self, series: str | Sequence[str] | None, count: int) -> list[str]:
        covariates = self._covariates
        if covariates.series is None and covariates.scaling is None:
            if series is not None:
                raise ConfigError("series is for models that tell series apart: leave it out.")
            return []
        if series is None or isinstance(series, str):
            # No file or record can name a series like this, so it stands for an unknown series.
            return [_NOBODY if series is None else series] * count
        if len(series) != count:
            raise DataError(
                f"series must be a name, or {count} of them, one for each window, not {len(series)}."
            )
        return list(series)


def _clock_time(time: Any) -> Any:
    """A time as its zone's clock shows it, which is what a calendar counts; NumPy would turn it into UTC."""
    if isinstance(time, str):
        return _OFFSET.sub(r"\1", time)
    zoned = isinstance(time, datetime.datetime) and time.tzinfo is not None
    return time.replace(tzinfo=None) if zoned else time


_NOBODY = "\0"
_OFFSET = re.compile(r"(?<=:\d\d)(\.\d+)?(Z|[+-]\d\d:?\d\d)$")
