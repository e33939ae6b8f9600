"""A forecaster's reading of a series: its columns, its sizes, its scaler and its covariates."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from cellerate.data.series import SeriesData, open_known
from cellerate.data.windows import NO_COVARIATES, Covariates, Inputs, Scaler
from cellerate.errors import ConfigError
from cellerate.runtime.forecast.intervals import Calibration

Predict = Callable[[Inputs], np.ndarray]
"""A model: (B, window, features) scaled → (B, horizon, targets), with quantiles (B, horizon, targets, Q).

One with covariates takes a dictionary of inputs; see `data.covariates`.
"""


@dataclasses.dataclass(frozen=True)
class ForecastSettings:
    """The way a forecaster was trained to read a series.

    Attributes:
        reading: The arguments of `open_series` beside the paths.
        window: Rows it sees.
        horizon: Rows it forecasts.
        quantiles: The Q quantiles, or empty.
        scaler: To and from the units of the data, for the features and then the targets that are not features.
        covariates: What it sees beside the features.
        calibration: What intervals are made of; None if the model was not calibrated.
    """

    reading: Mapping[str, Any]
    window: int
    horizon: int
    quantiles: tuple[float, ...]
    scaler: Scaler
    covariates: Covariates = NO_COVARIATES
    calibration: Calibration | None = None

    def open(self, paths: Any, future: Any = None, **more: Any) -> SeriesData:
        """Opens tables as in training, up to the last known target.

        Args:
            paths: As `open_series` takes them.
            future: A table of the columns that are known in advance; None for rows of the files without targets.
            more: Arguments of `open_series`; they win over those of the training.

        Raises:
            ConfigError: There is a table, and no column is known in advance.
            DataError: The files cannot be used.
        """
        if future is not None and not self.covariates.future:
            raise ConfigError(
                "future is for models with columns that are known in advance, and this has none."
            )
        reading = {**self.reading, **more}
        return open_known(paths, reading, self.covariates.future, future)
