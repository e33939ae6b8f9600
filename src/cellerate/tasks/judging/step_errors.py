"""The growth of a forecast's error with the steps ahead."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np


class StepErrors:
    """Mean absolute errors by the step ahead, of several forecasters.

    Args:
        deviations: (T,) the standard deviation of each target; errors of a single target are in its unit.
    """

    def __init__(self, deviations: np.ndarray) -> None:
        self._units = deviations if len(deviations) > 1 else np.ones(1)
        self._sums: dict[str, np.ndarray] = {}
        self._windows = 0

    def add(self, forecasts: Mapping[str, np.ndarray], truth: np.ndarray) -> None:
        """Adds the errors of windows.

        Args:
            forecasts: (B, horizon, T) for each forecaster.
            truth: (B, horizon, T).
        """
        self._windows += len(truth)
        for name, made in forecasts.items():
            found = (np.abs(made - truth) / self._units).mean(axis=-1).sum(axis=0)
            self._sums[name] = self._sums.get(name, 0.0) + found

    def means(self) -> dict[str, list[float]]:
        """The error of each step for each forecaster: in the unit of the target, or in standard deviations."""
        return {name: (sums / self._windows).tolist() for name, sums in self._sums.items()}
