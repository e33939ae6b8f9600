"""The figures of a forecaster and of the baselines beside it, from sums over windows that can be added up in any order.

Targets differ in their units, so each has its own figures, and only figures without a unit are averaged.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cellerate.tasks.judging.metrics import ERRORS, central_intervals, crps_weights
from cellerate.tasks.judging.verdict import verdict_of


@dataclasses.dataclass(frozen=True)
class Judging:
    """The units of the figures of a series.

    Attributes:
        targets: Names of the T targets.
        quantiles: The Q quantiles of the model, or empty; they span I central intervals.
        deviations: (T,) the standard deviation of each target on the training part.
        hints: Ideas to try if the model does not beat the baselines.
    """

    targets: tuple[str, ...]
    quantiles: tuple[float, ...]
    deviations: np.ndarray
    hints: tuple[str, ...] = ("a longer window",)

    @property
    def coverage_names(self) -> list[str]:
        """The names of the Q + I shares: the quantiles, then the intervals."""
        return [
            *(f"q{q:g}" for q in self.quantiles),
            *(f"{100 * level:g}%" for level in central_intervals(self.quantiles)),
        ]


@dataclasses.dataclass(frozen=True)
class SeriesErrors:
    """Sums over the windows of each of S stretches of rows.

    Attributes:
        series: (S,) the name of each stretch's series.
        windows: (S,) the number of windows.
        sums: For the model and each baseline (S, T, 3): the `metrics.ERRORS` of all windows.
        pinball: (S, T, Q) the pinball losses of the model.
        covered: (S, T, Q + I) how often the truth was at most each quantile, and within each central interval.
        scales: (S, T) the divisors of MASE; NaN if unknown.
    """

    series: tuple[str, ...]
    windows: np.ndarray
    sums: Mapping[str, np.ndarray]
    pinball: np.ndarray
    covered: np.ndarray
    scales: np.ndarray

    @classmethod
    def zeros(
        cls,
        series: Sequence[str],
        windows: np.ndarray,
        names: Sequence[str],
        about: Judging,
        scales: np.ndarray,
    ) -> SeriesErrors:
        """Sums of 0 for the forecasts with these names."""
        stretches, targets = len(windows), len(about.targets)
        return cls(
            tuple(series),
            windows,
            {name: np.zeros((stretches, targets, len(ERRORS))) for name in names},
            np.zeros((stretches, targets, len(about.quantiles))),
            np.zeros((stretches, targets, len(about.coverage_names))),
            scales,
        )

    def only(self, chosen: np.ndarray | slice) -> SeriesErrors:
        """The sums of some stretches, given by indices, a mask or a slice."""
        series = self.series[chosen] if isinstance(chosen, slice) else np.array(self.series, object)[chosen]
        return SeriesErrors(
            tuple(series),
            self.windows[chosen],
            {name: sums[chosen] for name, sums in self.sums.items()},
            self.pinball[chosen],
            self.covered[chosen],
            self.scales[chosen],
        )

    def report(self, about: Judging) -> dict[str, Any]:
        """The figures of all stretches together, as `evaluate_forecaster` returns them."""
        report: dict[str, Any] = {"windows": int(self.windows.sum()), "targets": list(about.targets)}
        every = list(range(len(about.targets)))
        report |= self._figures(about, every)
        report["by_target"] = {name: self._figures(about, [n]) for n, name in enumerate(about.targets)}
        report["verdict"] = verdict_of(report, about.hints)
        return report

    def ranking(self, about: Judging) -> list[dict[str, Any]]:
        """The figures of each series, the worst first: by MASE, or by the scaled MAE if that is unknown.

        A series that is too short for a window has no figures.
        """
        names, places = np.unique(np.array(self.series, object), return_inverse=True)
        ordered = self.only(np.argsort(places, kind="stable"))
        edges = [0, *np.bincount(places).cumsum().tolist()]
        found = []
        for name, (first, stop) in zip(names, itertools.pairwise(edges), strict=True):
            own = ordered.only(slice(first, stop))
            if not own.windows.any():
                continue
            figures = own._figures(about, list(range(len(about.targets))))
            kinds = {key: value for key, value in figures.items() if key in self.sums}
            found.append({"series": name, "windows": int(own.windows.sum()), **kinds})
        return sorted(found, key=_badness, reverse=True)

    def _figures(self, about: Judging, targets: list[int]) -> dict[str, Any]:
        windows = self.windows.sum()
        found: dict[str, Any] = {}
        for name, sums in self.sums.items():
            found[name] = self._errors(sums[:, targets], about.deviations[targets], targets)
        if about.quantiles:
            pinball = (self.pinball[:, targets].sum(axis=0) / windows).mean(axis=0)
            crps = self.pinball[:, targets].sum(axis=0) / windows @ crps_weights(about.quantiles)
            scaled = float((crps / about.deviations[targets]).mean())
            if len(targets) == 1:
                found["model"]["crps"] = float(crps[0])
                found["pinball"] = dict(
                    zip([f"q{q:g}" for q in about.quantiles], pinball.tolist(), strict=True)
                )
            for name in found.keys() & self.sums.keys():
                # The CRPS of a forecast of one value is its absolute error.
                found[name]["scaled_crps"] = scaled if name == "model" else found[name]["scaled_mae"]
                if len(targets) == 1 and name != "model":
                    found[name]["crps"] = found[name]["mae"]
            shares = (self.covered[:, targets].sum(axis=0) / windows).mean(axis=0).tolist()
            named = dict(zip(about.coverage_names, shares, strict=True))
            found["coverage"] = {name: share for name, share in named.items() if name.startswith("q")}
            found["interval_coverage"] = {
                name: share for name, share in named.items() if not name.startswith("q")
            }
        return found

    def _errors(self, sums: np.ndarray, deviations: np.ndarray, targets: list[int]) -> dict[str, float]:
        """The figures of one forecast; those with a unit only if there is one target."""
        mae, mse, smape = (sums.sum(axis=0) / self.windows.sum()).T
        found = {}
        if len(targets) == 1:
            found = {"mae": float(mae[0]), "mse": float(mse[0]), "rmse": float(np.sqrt(mse[0]))}
        scales = self.scales[:, targets]
        known = np.isfinite(scales)
        counted = (known * self.windows[:, None]).sum(axis=0)
        if counted.any():
            ratios = np.divide(sums[..., 0], scales, out=np.zeros_like(scales), where=known).sum(axis=0)
            found["mase"] = float((ratios[counted > 0] / counted[counted > 0]).mean())
        return found | {
            "smape": float(smape.mean()),
            "scaled_mae": float((mae / deviations).mean()),
            "scaled_mse": float((mse / deviations**2).mean()),
        }


def _badness(row: Mapping[str, Any]) -> tuple[bool, float]:
    figures = row["model"]
    badness = figures.get("mase", figures["scaled_mae"])
    return "mase" in figures, float("-inf") if np.isnan(badness) else badness
