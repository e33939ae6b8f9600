"""Forecasts by the statistical models of StatsForecast: AutoETS, AutoTheta and AutoARIMA.

On one short series they are often hard to beat. Each model is fitted on the rows before the first forecast of a
stretch. At later origins it keeps its parameters, and its state follows the new rows. If that fails, because the rows
have changed their nature, the model is fitted again.

Source: Hyndman & Athanasopoulos, "Forecasting: Principles and Practice", 3rd ed., chapters 8 and 9.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from cellerate.data.series import SeriesData
from cellerate.errors import DataError
from cellerate.machine.environment import require
from cellerate.settings import check_choice

_T = TypeVar("_T")

# The classes of StatsForecast by our names for them.
STATISTICAL = {"ets": "AutoETS", "theta": "AutoTheta", "arima": "AutoARIMA"}
# The most rows of a fit, which takes seconds. Fewer would be quicker and worse: the MAE of AutoARIMA over 60 days of
# ETTh1 is 1.18 with 8,000 rows and 1.28 with 1,000.
_MOST_ROWS = 10_000
# The number of rows from which `forecast::auto.arima` approximates in its search.
_LONG, _LONG_SEASON = 150, 12


def check_statistical(names: Sequence[str]) -> None:
    """Raise `ConfigError` for an unknown name, and `BackendError` if StatsForecast is not installed."""
    for name in names:
        check_choice("statistical", name, tuple(STATISTICAL))
    if names:
        require("statsforecast", "statistical", f"the baseline {STATISTICAL[names[0]]}")


@dataclasses.dataclass(frozen=True)
class Statistical:
    """Statistical models that were fitted for each target of each stretch of rows.

    Attributes:
        models: By name, the model of each stretch and target.
        begins: (S,) the first row that the models of each stretch were fitted on.
        firsts: (S,) the first row of each stretch, in rising order.
        left_out: The reasons why models are missing, by their names.
    """

    models: Mapping[str, Sequence[Sequence[Any]]]
    begins: np.ndarray
    firsts: np.ndarray
    left_out: Mapping[str, str]

    @classmethod
    def fit(
        cls,
        names: Sequence[str],
        data: SeriesData,
        starts: Iterable[tuple[int, int]],
        season: int | None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Statistical:
        """Fits the models.

        Args:
            names: Keys of `STATISTICAL`.
            data: The series.
            starts: For each stretch its first row, and its first forecast row.
            season: Rows of a season; None if there is none.
            progress: Called after each fit with the number of finished fits and their total.
        """
        stretches = sorted(starts)
        begins = [max(first, origin - _MOST_ROWS) for first, origin in stretches]
        models: dict[str, list[list[Any]]] = {}
        left_out: dict[str, str] = {}
        done, count = 0, len(names) * len(stretches)
        for name in dict.fromkeys(names):
            made = []
            for begin, (_, origin) in zip(begins, stretches, strict=True):
                known = target_rows(data, begin, origin)
                try:
                    made.append([_fitted(name, column, season) for column in known.T])
                except DataError as error:
                    left_out[name] = str(error)
                    break
                done += 1
                if progress is not None:
                    progress(done, count)
            else:
                models[name] = made
        return cls(models, np.array(begins), np.array([first for first, _ in stretches]), left_out)

    def forecast(self, name: str, data: SeriesData, origins: np.ndarray, horizon: int) -> np.ndarray:
        """Forecasts the rows from each origin on.

        Args:
            name: The name of the model.
            data: The series of the fit.
            origins: (B,) int64, the first row of each forecast.
            horizon: Rows to forecast.

        Returns:
            (B, horizon, targets) in the units of the data.

        Raises:
            DataError: A model can be neither updated nor fitted anew.
        """
        made = np.empty((len(origins), horizon, len(data.target_columns)))
        places = np.searchsorted(self.firsts, origins, side="right") - 1
        for number, (place, origin) in enumerate(zip(places.tolist(), origins.tolist(), strict=True)):
            known = target_rows(data, int(self.begins[place]), origin)
            for target, model in enumerate(self.models[name][place]):
                made[number, :, target] = _carried_on(name, model, known[:, target], horizon)
        return made


def target_rows(data: SeriesData, begin: int, end: int) -> np.ndarray:
    """(end - begin, targets) float64 rows of the targets, in the units of the data."""
    return np.asarray(data.values[begin:end, list(data.target_columns)], np.float64)


def _fitted(name: str, known: np.ndarray, season: int | None) -> Any:
    """Fits one model on (N,) values."""
    from statsforecast import models

    settings: dict[str, Any] = {"season_length": season or 1}
    if name == "arima":
        settings["approximation"] = len(known) > _LONG or (season or 1) > _LONG_SEASON
    return _quietly(lambda: getattr(models, STATISTICAL[name])(**settings).fit(known), name, known)


def _carried_on(name: str, model: Any, known: np.ndarray, horizon: int) -> np.ndarray:
    """Forecast (horizon,) values after (N,) values, the first of which the model was fitted on."""

    def following(fitted: Any) -> np.ndarray:
        made = np.asarray(fitted.forward(known, horizon)["mean"], np.float64)
        if not np.isfinite(made).all():
            raise ValueError("its forecast is not finite")
        return made

    try:
        return _quietly(lambda: following(model), name, known)
    except DataError:
        # For example, a multiplicative model fails once the values are no longer all above 0.
        again = _fitted(name, known, model.season_length)
        return _quietly(lambda: following(again), name, known)


def _quietly(work: Callable[[], _T], name: str, known: np.ndarray) -> _T:
    """Run a part of StatsForecast without its warnings of failed searches, after which it continues."""
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            return work()
    except Exception as error:  # it raises plain exceptions, too
        message = f"{STATISTICAL[name]} failed on {len(known):,} rows: {error}"
        raise DataError(message) from error
