"""The forecasts that a model has to beat, together: last value, seasonal naive and a linear one.

With them are the scales of MASE, which come from the same training part.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from cellerate.data.frequency import season_of
from cellerate.data.series import SeriesData, SeriesPart
from cellerate.tasks.forecasts import Naive
from cellerate.tasks.linear import NLinear, fit_linear, scale_or_one, too_large
from cellerate.tasks.metrics import in_sample_errors

# What people call them; those of `Naive` and the linear one.
LABELS = {
    "model": "the model",
    "last_value": "last value",
    "seasonal_naive": "seasonal naive",
    "nlinear": "NLinear",
}


def season_rows(season: int | None, data: SeriesData) -> int | None:
    """Rows of a season: those that were chosen, else those of the frequency; None if neither is known."""
    return season or season_of(data.frequency)


@dataclasses.dataclass(frozen=True)
class Baselines:
    """Forecasts without a network.

    Attributes:
        naive: The naive ones.
        scales: (targets,) for each series: what MASE divides by; see `metrics.in_sample_errors`.
        linear: The linear one, or None.
        why_not_linear: Why there is none.
    """

    naive: Naive
    scales: Mapping[str, np.ndarray]
    linear: NLinear | None = None
    why_not_linear: str | None = None

    @classmethod
    def fit(
        cls,
        train: SeriesPart,
        window: int,
        horizon: int,
        season: int | None,
        *,
        why_not_linear: str | None = None,
    ) -> "Baselines":
        """Fits them on a training part.

        Args:
            train: The part.
            window: Rows they see.
            horizon: Rows they forecast.
            season: What was chosen; see `season_rows`.
            why_not_linear: Why to leave out the linear one; None fits it.
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
        return self.naive.names(window) + (["nlinear"] if self.linear is not None else [])

    def forecast(self, name: str, past: np.ndarray, scale: np.ndarray) -> np.ndarray:
        """Continues (B, window, targets) rows to (B, H, targets); `scale` is (B, targets), by the windows' series."""
        if name == "nlinear":
            assert self.linear is not None  # noqa: S101 (`names` does not give it then)
            return self.linear.forecast(past, scale_or_one(scale))
        return self.naive.forecast(name, past)

    def scales_of(self, series: Sequence[str], targets: int) -> np.ndarray:
        """(S, targets) the scales of series by their names; NaN where they are not known."""
        unknown = np.full(targets, np.nan)
        return np.array([self.scales.get(name, unknown) for name in series]).reshape(len(series), targets)
