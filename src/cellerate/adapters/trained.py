"""A forecaster trained on arrays and kept as the bytes of a packed model, so that it can be copied and pickled.

Both adapters train and forecast with it, so that they only implement the interfaces of their libraries.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cellerate.errors import ConfigError, DataError
from cellerate.messages import argument
from cellerate.runtime.forecast import Intervals, point_of
from cellerate.runtime.packed import PackedModel, load
from cellerate.tasks.packing import pack
from cellerate.tasks.train import train_series

# The series that an adapter is given decide them.
_DECIDED = (
    "target",
    "feature",
    "future",
    "time_column",
    "series_column",
    "wide",
    "train_fraction",
    "verbose",
)


@dataclasses.dataclass(frozen=True, eq=False)
class Rows:
    """The rows of one series, one after another without gaps.

    Attributes:
        name: Its name; "" for the only one.
        targets: (T, targets).
        past: (T, P) the columns known for the past only.
        known: (T + ahead, K) the columns known in advance, too.
        times: (T + ahead,) datetime64; None if the model reads no calendar.
    """

    name: str
    targets: np.ndarray
    past: np.ndarray
    known: np.ndarray
    times: np.ndarray | None = None

    @property
    def columns(self) -> dict[str, np.ndarray]:
        """The T rows as columns: targets, past and known ones."""
        rows = len(self.targets)
        groups = {"target": self.targets, "past": self.past[:rows], "known": self.known[:rows]}
        found = {
            f"{group}{n}": column for group, values in groups.items() for n, column in enumerate(values.T)
        }
        for name, column in found.items():
            if len(column) < rows:
                whose = f" of the series {self.name!r}" if self.name else ""
                raise DataError(
                    f"a covariate ({name}) ends {rows - len(column):,} rows too early{whose}: give values up to the "
                    "last row, and for forecasts of several chunks up to the last chunk."
                )
        return found


@dataclasses.dataclass(frozen=True)
class Trained:
    """A trained forecaster.

    Attributes:
        cell: The bytes of its `.cell` file.
    """

    cell: bytes

    @classmethod
    def on(cls, series: Sequence[Rows], *, window: int, horizon: int, settings: Mapping[str, Any]) -> Trained:
        """Trains a forecaster on some series, up to their last rows.

        Args:
            series: At least one.
            window: Rows of the input.
            horizon: Rows of a forecast.
            settings: Further arguments of `cellerate.train_series`; `train_fraction` is what `validation_fraction`
                leaves.

        Raises:
            CellerateError: As in `cellerate.train_series`; or `settings` has one that the series decide.
        """
        for name in _DECIDED:
            if name in settings:
                raise ConfigError(
                    f"{argument('options')} has {name!r}, which the series themselves decide: leave it out."
                )
        columns = [one.columns for one in series]
        table: dict[str, np.ndarray] = {
            name: np.concatenate([one[name] for one in columns]) for name in columns[0]
        }
        names = list(table)
        # Row numbers without a calendar: rows count as consecutive, whatever their times.
        table["time"] = np.concatenate(
            [
                np.arange(len(one.targets)) if one.times is None else one.times[: len(one.targets)]
                for one in series
            ]
        )
        how: dict[str, Any] = {"time_column": "time"}
        if len(series) > 1:
            table["series"] = np.repeat([one.name for one in series], [len(one.targets) for one in series])
            how["series_column"] = "series"
        with tempfile.TemporaryDirectory(prefix="cellerate-") as folder:
            model, cell = Path(folder, "model.keras"), Path(folder, "model.cell")
            train_series(
                table,
                model,
                target=[name for name in names if name.startswith("target")],
                feature=names,
                future=[name for name in names if name.startswith("known")],
                window=window,
                horizon=horizon,
                train_fraction=1 - settings.get("validation_fraction", 0.1),
                verbose=False,
                **how,
                **settings,
            )
            pack(model, cell)
            return cls(cell.read_bytes())

    @functools.cached_property
    def model(self) -> PackedModel:
        """The packed model, opened."""
        with tempfile.TemporaryDirectory(prefix="cellerate-") as folder:
            path = Path(folder, "model.cell")
            path.write_bytes(self.cell)
            return load(path)

    def __getstate__(self) -> dict[str, Any]:
        """The pickled state, without the opened model."""
        return {"cell": self.cell}

    def forecast(self, series: Sequence[Rows]) -> np.ndarray:
        """Forecasts the rows after the end of each of N series.

        Returns:
            (N, horizon, targets) in the units of the series: of a model with quantiles, the median.

        Raises:
            DataError: A series has too few rows, or its columns known in advance end too early.
        """
        return point_of(self._made(series), self.model.forecaster.settings.quantiles)

    def _made(self, series: Sequence[Rows]) -> np.ndarray:
        """(N, horizon, targets), with quantiles (..., Q)."""
        settings = self.model.forecaster.settings
        window, horizon = settings.window, settings.horizon
        for one in series:
            if len(one.targets) < window:
                whose = f"the series {one.name!r}" if one.name else "the series"
                raise DataError(
                    f"{whose} has {len(one.targets):,} rows, and the model reads {window:,} ({argument('window')}): "
                    "give more."
                )
        features = [str(name) for name in settings.reading.features or ()]
        rows = np.stack(
            [
                np.stack([columns[name][-window:] for name in features], axis=-1)
                for columns in (one.columns for one in series)
            ]
        )
        further: dict[str, Any] = {}
        covariates = settings.covariates
        if covariates.future:
            further["future"] = np.stack([self._known(one, horizon) for one in series])
        if covariates.calendar is not None:
            further["times"] = np.stack([self._times(one, window, horizon) for one in series])
        if covariates.series is not None or covariates.scaling is not None:
            further["series"] = [one.name for one in series]
        return self.model.forecast(rows, **further)

    def forecast_with_bounds(
        self, series: Sequence[Rows], levels: Sequence[float]
    ) -> tuple[np.ndarray, np.ndarray]:
        """The forecasts of N series, and calibrated intervals around them.

        Args:
            series: As in `forecast`.
            levels: Each above 0 and below 1.

        Returns:
            The result of `forecast`, and (levels, N, horizon, targets, 2): low and high. For a level that needs a
            longer validation part the interval is infinite, because no finite one can guarantee the level.
        """
        settings = self.model.forecaster.settings
        calibration, made = settings.calibration, self._made(series)
        point = point_of(made, settings.quantiles)
        found = np.empty((len(levels), *point.shape, 2))
        found[..., 0], found[..., 1] = -math.inf, math.inf
        if calibration is None:
            return point, found
        reach = {level: calibration.reach_at(level) for level in levels if level <= calibration.grid[-1]}
        past = np.stack([one.targets[-settings.window :] for one in series])
        around = Intervals(calibration, reach, 0).bounds(past, made, settings.quantiles)
        for number, level in enumerate(levels):
            if level in around:
                found[number] = around[level]
        return point, found

    @staticmethod
    def _known(one: Rows, horizon: int) -> np.ndarray:
        known = one.known[len(one.targets) : len(one.targets) + horizon]
        if len(known) < horizon:
            whose = f" of the series {one.name!r}" if one.name else ""
            raise DataError(
                f"the model needs the columns known in advance for {horizon:,} rows after the last one{whose}, and got "
                f"{len(known):,} rows: give values up to the last row to forecast."
            )
        return known

    @staticmethod
    def _times(one: Rows, window: int, horizon: int) -> np.ndarray:
        assert one.times is not None  # noqa: S101 (callers with a calendar give times)
        end = len(one.targets)
        return one.times[end - window : end + horizon]
