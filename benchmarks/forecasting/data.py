"""The series of the forecasting cases: how ETTh1 is cut, the windows that are judged, and the errors.

It imports only NumPy, because the peers import it in their own environment.
"""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

TRAIN, VALIDATION, TEST = 8640, 2880, 2880
"""Rows of 12, 4 and 4 months of 30 days, the usual split of ETTh1 in publications (Zhou et al., 2021)."""
ROWS = TRAIN + VALIDATION + TEST
WINDOW = 96
HORIZONS = (24, 96)
SEASON = 24
TASKS = ("OT", "all")
"""Oil temperature from itself alone; and all seven columns from all seven."""


class Series(NamedTuple):
    """The rows of a task.

    Attributes:
        names: Names of the columns, all of which are inputs and targets.
        times: (ROWS,) datetime64[s].
        values: (ROWS, columns) float64, in the units of the data.
    """

    names: tuple[str, ...]
    times: np.ndarray
    values: np.ndarray

    @property
    def mean(self) -> np.ndarray:
        """(columns,) of the training part."""
        return self.values[:TRAIN].mean(axis=0)

    @property
    def scale(self) -> np.ndarray:
        """(columns,) the standard deviations of the training part."""
        return self.values[:TRAIN].std(axis=0)

    @property
    def scaled(self) -> np.ndarray:
        """(ROWS, columns) float32, in standard deviations of the training part."""
        return ((self.values - self.mean) / self.scale).astype(np.float32)


def write_series(source: Path, folder: Path) -> None:
    """Cut the file to the rows that are used and write each task as `TASK.npz` and `TASK.csv` into a folder."""
    with source.open(newline="") as file:
        head, *rows = csv.reader(file)
    rows = rows[:ROWS]
    values = np.array([row[1:] for row in rows], np.float64)
    times = np.array([row[0] for row in rows], "datetime64[s]")
    for task in TASKS:
        names = [name for name in head[1:] if task == "all" or name == task]
        columns = [head.index(name) for name in names]
        picked = values[:, [column - 1 for column in columns]]
        np.savez(folder / f"{task}.npz", names=names, times=times, values=picked)
        with (folder / f"{task}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([row[0], *(row[c] for c in columns)] for row in [head, *rows])


def read_series(folder: Path, task: str) -> Series:
    """A task that `write_series` wrote."""
    with np.load(folder / f"{task}.npz") as found:
        return Series(tuple(found["names"].tolist()), found["times"], found["values"])


def test_origins(horizon: int) -> np.ndarray:
    """The first row to forecast of each window of the test part, (windows,); inputs reach back before it."""
    return np.arange(TRAIN + VALIDATION, ROWS - horizon + 1)


def truth_at(values: np.ndarray, origins: np.ndarray, horizon: int) -> np.ndarray:
    """(origins, horizon, columns): the true values."""
    return values[origins[:, None] + np.arange(horizon)]


def naive_at(values: np.ndarray, origins: np.ndarray, horizon: int) -> dict[str, np.ndarray]:
    """Forecasts without a model: the last value, and that of the same hour of the day before."""
    day = origins[:, None] - SEASON + np.arange(horizon) % SEASON
    last = np.repeat(values[origins - 1][:, None], horizon, axis=1)
    return {"last value": last, "the day before": values[day]}


def errors(forecast: np.ndarray, truth: np.ndarray, scale: np.ndarray) -> dict[str, float]:
    """Mean errors of raw forecasts: in the units of the data, and in standard deviations of the training part.

    Raises:
        ValueError: The number of forecasts is wrong, or one is not a finite number.
    """
    if forecast.shape != truth.shape:
        raise ValueError(f"forecasts of shape {forecast.shape}; expected {truth.shape}")
    if not np.isfinite(forecast).all():
        raise ValueError("a forecast is not a finite number")
    error = forecast - truth
    scaled = error / scale
    means = (np.abs(error), error**2, np.abs(scaled), scaled**2)
    names = ("mae", "mse", "scaled_mae", "scaled_mse")
    return {name: float(values.mean()) for name, values in zip(names, means, strict=True)}


def middle(values: Sequence[float]) -> float:
    """The median."""
    return float(np.median(values))


def of_ours(contestant: str) -> bool:
    """True if a contestant is Cellerate."""
    return contestant.startswith("cellerate")


Answer = dict[str, Any]
