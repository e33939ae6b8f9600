"""A forecaster's reading of a series: its columns, its sizes, its scaler and its covariates."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from cellerate.data.series import MissingColumnError, SeriesData, open_known
from cellerate.data.settings import Reading, TableOptions
from cellerate.data.times import Frequency
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
        return data
