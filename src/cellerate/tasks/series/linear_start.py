"""Begins a forecaster where the linear forecast ends: its linear map is the least squares solution.

The head of the LSTM begins at zero, so before the first step the model forecasts as NLinear does, and quantiles lie
around that as the residuals of the training windows do. Training can only add to it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import keras
import numpy as np

from cellerate.data.series import SeriesPart
from cellerate.data.windows import Covariates, Scaler
from cellerate.models.losses import middle_place
from cellerate.tasks.judging import (
    NLinear,
    TargetWindows,
    fit_linear,
    in_sample_errors,
    season_rows,
    too_large,
)
from cellerate.tasks.settings import SeriesOptions
from cellerate.training.beginning import Beginning

# The most residuals for quantiles: windows, and numbers in all.
_MOST_WINDOWS, _MOST_NUMBERS = 20_000, 1 << 24
# The least initial distance of neighbouring quantiles, in standard deviations: below it, a softplus hardly learns.
_LEAST_GAP = 1e-3


def has_linear_map(model: keras.Model) -> bool:
    """Return True if a model is one of `build_forecast_model` with a linear map."""
    return model.name == "forecast" and {"linear", "with_linear", "center"} <= {
        layer.name for layer in model.layers
    }


@dataclasses.dataclass(frozen=True)
class LinearStart:
    """Finds the start of a forecaster.

    Attributes:
        part: The training part.
        options: The division of the series into parts and windows.
        quantiles: Those that the model forecasts, or empty.
        scaler: The scales of the columns.
        covariates: The covariates, which have the scales of the series.
    """

    part: SeriesPart
    options: SeriesOptions
    quantiles: tuple[float, ...]
    scaler: Scaler
    covariates: Covariates

    def __call__(self, model: keras.Model) -> Beginning | None:
        """Fits the linear map of an untrained model.

        Returns:
            The initial weights; None to begin at the last value, because too few windows fit, or a window is too long.
        """
        window, horizon = self.options.window, self.options.horizon
        if too_large(window, horizon) or not self.part.bounds:
            return None
        layer, units = model.get_layer("linear"), self._units()
        scales = in_sample_errors(self.part, season_rows(self.options.season, self.part.data) or 1)
        shared = len(layer.kernel.shape) == 2
        found = fit_linear(self.part, window, horizon, scales, units, shared=shared)
        if found is None:
            return None
        kernel, bias = found.coefficients[:, :-1], found.coefficients[:, -1]
        weights = {"linear": [kernel[0], bias[0]] if shared else [kernel, bias]}
        if self.quantiles:
            biases = _quantile_biases(self.quantiles, self._residual_quantiles(found, units))
            for name, one in biases.items():
                weights[name] = [np.zeros(model.get_layer(name).kernel.shape), one.reshape(-1)]
        return Beginning(f"as NLinear, solved for on {found.windows:,} windows", weights, ("linear",))

    def _units(self) -> Mapping[str, np.ndarray]:
        """(targets,) for each series, the scale of the model's numbers."""
        names = list(dict.fromkeys(name for _, _, name in self.part.data.segments))
        targets = list(self.part.data.target_columns)
        scaling = self.covariates.scaling
        if scaling is None:
            return dict.fromkeys(names, self.scaler.scale[targets])
        _, scale = scaling.of(scaling.known(names), np.empty((0, 0, 0)))
        return dict(zip(names, scale[:, targets], strict=True))

    def _residual_quantiles(self, linear: NLinear, units: Mapping[str, np.ndarray]) -> np.ndarray:
        """(horizon, targets, Q) the quantiles of the linear forecast's residuals, in the model's scale."""
        window, horizon = self.options.window, self.options.horizon
        targets = len(self.part.data.target_columns)
        most = max(2, min(_MOST_WINDOWS, _MOST_NUMBERS // (horizon * targets)))
        windows = TargetWindows(self.part, window, horizon, most)
        scale = windows.by_series(units, self.scaler.scale[list(self.part.data.target_columns)])
        left = np.empty((windows.count, horizon, targets), np.float32)
        for some, values in windows.read():
            rows = values.transpose(1, 2, 0)
            made = linear.forecast(rows[:, :window], scale[some])
            left[some] = (rows[:, window:] - made) / scale[some][:, None]
        return np.moveaxis(np.quantile(left, self.quantiles, axis=0), 0, -1)


def _quantile_biases(levels: Sequence[float], found: np.ndarray) -> dict[str, np.ndarray]:
    """The biases of a model's heads that give its quantiles the values `found` (horizon, targets, Q)."""
    middle = middle_place(levels)
    gaps = np.maximum(np.diff(found, axis=-1), _LEAST_GAP)
    # From the middle outwards, the model adds softplus(bias) for each further quantile.
    biases = gaps + np.log(-np.expm1(-gaps))
    made = {"center": found[..., middle]}
    if middle:
        made["gaps_below"] = biases[..., :middle][..., ::-1]
    if middle + 1 < len(levels):
        made["gaps_above"] = biases[..., middle:]
    return made
