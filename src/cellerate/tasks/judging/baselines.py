"""The forecasts that a model has to beat, together: last value, seasonal naive, a linear one and statistical ones.

With them are the scales of MASE, which come from the same training part.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from cellerate.data.series import SeriesData, SeriesPart
from cellerate.data.times import season_of
from cellerate.tasks.judging.forecasts import Naive
from cellerate.tasks.judging.linear import NLinear, fit_linear, too_large
from cellerate.tasks.judging.metrics import in_sample_errors
from cellerate.tasks.judging.statistical import STATISTICAL, Statistical

# The forecasts in words: those of `Naive`, the linear one and the statistical ones.
LABELS = {
    "model": "the model",
    "last_value": "last value",
    "seasonal_naive": "seasonal naive",
    "nlinear": "NLinear",
    **STATISTICAL,
}


def season_rows(season: int | None, data: SeriesData) -> int | None:
    """Rows of a season: the chosen number, else that of the frequency; None if neither is known."""
    return season or season_of(data.frequency)


@dataclasses.dataclass(frozen=True)
class Baselines:
    """Forecasts without a network.

    Attributes:
        naive: The naive forecasts.
        scales: (targets,) for each series, the divisors of MASE; see `metrics.in_sample_errors`.
        linear: The linear forecast, or None.
        why_not_linear: Why the linear forecast was left out; None if it was not.
        statistical: The requested models of StatsForecast, or None.
    """

    naive: Naive
    scales: Mapping[str, np.ndarray]
    linear: NLinear | None = None
    why_not_linear: str | None = None
    statistical: Statistical | None = None

    @classmethod
    def fit(
        cls,
        train: SeriesPart,
        window: int,
        horizon: int,
        season: int | None,
        *,
        why_not_linear: str | None = None,
    ) -> Baselines:
        """Fit the baselines on a training part.

        Args:
            train: The part.
            window: Rows of the input.
            horizon: Rows to forecast.
            season: The chosen season; see `season_rows`.
            why_not_linear: The reason to leave out the linear forecast; None fits it.
        """
        season = season_rows(season, train.data)
        scales = in_sample_errors(train, season or 1)
        linear = None
        if why_not_linear is None and too_large(window, horizon):
            why_not_linear = "with such a window it would take too much memory"
        if why_not_linear is None and train.bounds:
            linear = fit_linear(train, window, horizon, scales)
        if linear is None and why_not_linear is None:
            why_not_linear = "too few windows fit into the training part to fit it"
        return cls(Naive(horizon, season), scales, linear, why_not_linear)

    def names(self, window: int) -> list[str]:
        """The names of the forecasts that windows of `window` rows allow."""
        linear = ["nlinear"] if self.linear is not None else []
        statistical = [] if self.statistical is None else list(self.statistical.models)
        return [*self.naive.names(window), *linear, *statistical]

    @property
    def left_out(self) -> dict[str, str]:
        """The reasons why expected forecasts are missing, by their names."""
        found = {} if self.why_not_linear is None else {"nlinear": self.why_not_linear}
        return found if self.statistical is None else {**found, **self.statistical.left_out}

    def forecasts(
        self, data: SeriesData, origins: np.ndarray, past: np.ndarray, scale: np.ndarray
    ) -> dict[str, np.ndarray]:
        """Forecast the rows from each of B origins on, by every baseline.

        Args:
            data: The series.
            origins: (B,) int64, the first row of each forecast.
            past: (B, window, targets) the rows before them.
            scale: (B, targets), the scales of the windows' series; see `scales_of`.

        Returns:
            (B, H, targets) by each baseline, in the units of the data.
        """
        found = {}
        for name in self.names(past.shape[1]):
            if self.statistical is not None and name in self.statistical.models:
                found[name] = self.statistical.forecast(name, data, origins, self.naive.horizon)
            else:
                found[name] = self.forecast(name, past, scale)
        return found

    def forecast(self, name: str, past: np.ndarray, scale: np.ndarray) -> np.ndarray:
        """Continue windows by a naive forecast or the linear one.

        Args:
            name: The name of the forecast.
            past: (B, window, targets).
            scale: (B, targets), the scales of the windows' series.

        Returns:
            (B, H, targets).
        """
        if name == "nlinear":
            assert self.linear is not None  # noqa: S101 (`names` does not give it then)
            return self.linear.forecast(past, scale)
        return self.naive.forecast(name, past)

    def scales_of(self, series: Sequence[str], targets: int) -> np.ndarray:
        """(S, targets) the scales of the named series; NaN if unknown."""
        unknown = np.full(targets, np.nan)
        return np.array([self.scales.get(name, unknown) for name in series]).reshape(len(series), targets)
