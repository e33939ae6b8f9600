"""A forecaster's reading of a series: its columns, its sizes, its scaler and its covariates."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from cellerate.data.series import MissingColumnError, SeriesData, open_known
from cellerate.data.settings import Reading, TableOptions
from cellerate.data.times import Frequency, and_an_hour_beside
from cellerate.data.windows import NO_COVARIATES, Covariates, Inputs, Scaler
from cellerate.errors import ConfigError, DataError
from cellerate.listener import SILENT, Listener
from cellerate.messages import argument
from cellerate.runtime.forecast.intervals import Calibration

Predict = Callable[[Inputs], np.ndarray]
"""A model: (B, window, features) scaled → (B, horizon, targets), with quantiles (B, horizon, targets, Q).

One with covariates takes a dictionary of inputs; see `data.windows.covariates`.
"""


@dataclasses.dataclass(frozen=True)
class ForecastSettings:
    """The way a forecaster was trained to read a series.

    Attributes:
        reading: The settings for reading tables.
        window: The rows that the model sees.
        horizon: The rows that the model forecasts.
        quantiles: The Q quantiles, or empty.
        scaler: To and from the units of the data, for the features and then the targets that are not features.
        covariates: The inputs of the model beside the features.
        calibration: The source of intervals; None if the model was not calibrated.
        frequency: The frequency of the data of the training; None if it is not known.
    """

    reading: Reading
    window: int
    horizon: int
    quantiles: tuple[float, ...]
    scaler: Scaler
    covariates: Covariates = NO_COVARIATES
    calibration: Calibration | None = None
    frequency: Frequency | None = None

    def open(
        self,
        paths: Any,
        future: Any = None,
        changes: Mapping[str, Any] = MappingProxyType({}),
        *,
        table: TableOptions | None = None,
        listener: Listener = SILENT,
    ) -> SeriesData:
        """Open tables as in training, up to the last known target.

        Args:
            paths: As `open_series` takes them.
            future: A table of the columns that are known in advance; None for rows of the files without targets.
            changes: Fields of `Reading` that override those of the training.
            table: The format of the tables; what is unset is detected.
            listener: Receives messages about the tables.

        Raises:
            ConfigError: There is a table, and no column is known in advance.
            DataError: The files cannot be used.
        """
        known = self.covariates.future
        if future is not None and not known:
            raise ConfigError(
                f"{argument('future')} is for models with columns that are known in advance, but this model has none: "
                "leave it out."
            )
        reading = dataclasses.replace(self.reading, **changes)
        try:
            data = open_known(paths, reading, known, future, table=table, listener=listener)
        except MissingColumnError as error:
            if error.argument in changes:
                raise
            # The training chose the column, and not an argument of this call.
            raise DataError(f"{error.problem}, which the model reads. {error.listed}") from error
        trained, found = self.frequency, data.frequency
        if trained is not None and found is not None and found.is_another(trained):
            listener.message(
                f"the data have a row every {found.each}, but the model was trained on a row every {trained.each}: "
                "its forecasts may mean nothing"
            )
        return self._timed(data, named=changes.get("frequency") is not None)

    def _timed(self, data: SeriesData, *, named: bool) -> SeriesData:
        """The data with the frequency of the training, if their rows fit it: a few rows do not show a month's day.

        Args:
            data: The data.
            named: Whether the caller named the frequency.
        """
        trained, found, times = self.frequency, data.frequency, data.times
        if trained is None or found is None or times is None or times.dtype.kind != "M":
            return data
        zone = trained.zone if trained.zone in and_an_hour_beside(data.form.zone) else found.zone
        frequency = dataclasses.replace(trained, zone=zone)
        # The third Fridays of a training have no day of the month.
        day_found = found.unit == trained.unit == "month" and not trained.day
        other = (found.unit, found.step) != (trained.unit, trained.step)
        if frequency == found or day_found or found.is_another(trained) or (named and other):
            return data
        inside = np.zeros(len(times), bool)
        for first, stop, _ in data.segments:
            inside[first : stop - 1] = True
        fits = frequency.fits(np.asarray(times), inside[:-1])
        return dataclasses.replace(data, frequency=frequency) if fits else data
