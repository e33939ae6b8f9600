"""The contestant Darts: `BlockRNNModel("LSTM")`, `NLinearModel` and its backtest. Runs in the peers' environment."""

import argparse
import logging
import time
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.forecasting.data import ROWS, TRAIN, VALIDATION, WINDOW, Series, read_series
from benchmarks.forecasting.worker import serve

PREDICTED_AT_ONCE = 1024


class Jobs:
    """The jobs of Darts.

    Args:
        folder: The folder of the tasks.
    """

    def __init__(self, folder: Path) -> None:
        from darts.models import BlockRNNModel, NLinearModel

        self._folder = folder
        self._kinds = {
            "lstm": partial(BlockRNNModel, model="LSTM"),
            "nlinear": NLinearModel,
        }

    def train(
        self,
        kind: str,
        task: str,
        horizon: int,
        seed: int,
        budget_s: float,
        settings: dict[str, Any],
        into: str | None = None,
    ) -> dict[str, Any]:
        """Train; with `into`, forecast every window of the test part into a file, in the units of the data."""
        rows = read_series(self._folder, task)
        series = _as_darts(rows)
        model, told = self._fit(kind, series, horizon, seed, budget_s, settings)
        if into is None:
            return told
        start = time.monotonic()
        found = _forecasts(model, series[TRAIN + VALIDATION - WINDOW :], horizon, 1, PREDICTED_AT_ONCE)
        np.save(into, _values(found, rows))
        return told | {"forecast_s": time.monotonic() - start}

    def begin(
        self, task: str, horizon: int, units: int, seed: int, budget_s: float, into: str
    ) -> dict[str, Any]:
        """Train the model of the backtest and write its weights."""
        self._rows = read_series(self._folder, task)
        self._series = _as_darts(self._rows)
        settings = {"hidden_dim": units, "batch_size": 256, "learning_rate": 1e-3}
        self._model, told = self._fit("lstm", self._series, horizon, seed, budget_s, settings)
        weights = {name: value.numpy() for name, value in self._model.model.state_dict().items()}
        np.savez(into, **{name: value for name, value in weights.items() if name.startswith(("rnn", "fc"))})
        return told

    def backtest(
        self,
        way: str,
        horizon: int,
        first: int,
        stride: int,
        batch: int,
        repeats: int,
        into: str | None = None,
    ) -> dict[str, Any]:
        """Time a backtest in memory: `historical_forecasts` makes the forecasts, `backtest` judges them, too."""
        work = _judged if way == "backtest" else _forecasts
        series = self._series[first - WINDOW :]
        seconds, found = [], []
        for _ in range(repeats):
            start = time.perf_counter()
            found = work(self._model, series, horizon, stride, batch)
            seconds.append(time.perf_counter() - start)
        if into is not None:
            starts = np.array([one.start_time() for one in found], "datetime64[s]")
            origins = np.searchsorted(self._rows.times, starts)
            np.savez(into, forecast=_values(found, self._rows), origins=origins)
        return {"seconds": seconds}

    def _fit(
        self, kind: str, series: Any, horizon: int, seed: int, budget_s: float, settings: dict[str, Any]
    ) -> tuple[Any, dict[str, Any]]:
        from benchmarks.forecasting.watch import QUIET, Watch

        given = dict(settings)
        watch = Watch(budget_s, "val_loss")
        model = self._kinds[kind](
            input_chunk_length=WINDOW,
            output_chunk_length=horizon,
            n_epochs=10**6,
            random_state=seed,
            optimizer_kwargs={"lr": given.pop("learning_rate")},
            pl_trainer_kwargs={**QUIET, "callbacks": [watch]},
            **given,
        )
        start = time.monotonic()
        held_out = series[TRAIN - WINDOW : TRAIN + VALIDATION]
        model.fit(series[:TRAIN], val_series=held_out, verbose=False)
        told = watch.told() | {"seconds": time.monotonic() - start}
        return model, told | {"windows": told["steps"] * settings["batch_size"]}


def _as_darts(series: Series) -> Any:
    import pandas as pd
    from darts import TimeSeries

    times = pd.DatetimeIndex(series.times.astype("datetime64[ns]"))
    return TimeSeries.from_times_and_values(times, series.scaled, columns=list(series.names))


def _values(forecasts: list[Any], rows: Series) -> np.ndarray:
    """(forecasts, horizon, columns) in the units of the data."""
    made = np.stack([one.values() for one in forecasts]).astype(np.float64)
    return made * rows.scale + rows.mean


def _folds(horizon: int, stride: int, batch: int) -> dict[str, Any]:
    """The arguments of a backtest that trains nothing again."""
    return {
        "start": WINDOW,
        "start_format": "position",
        "forecast_horizon": horizon,
        "stride": stride,
        "retrain": False,
        "last_points_only": False,
        "predict_kwargs": {"batch_size": batch},
    }


def _forecasts(model: Any, series: Any, horizon: int, stride: int, batch: int) -> list[Any]:
    found: list[Any] = model.historical_forecasts(series, **_folds(horizon, stride, batch))
    return found


def _judged(model: Any, series: Any, horizon: int, stride: int, batch: int) -> list[Any]:
    from darts.metrics import mae

    found: list[Any] = model.backtest(series, metric=mae, reduction=None, **_folds(horizon, stride, batch))
    return found


def open_jobs(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Load Darts; return its jobs and its versions."""
    import darts
    import torch

    warnings.simplefilter("ignore")
    jobs = Jobs(folder)
    for name in ("darts", "pytorch_lightning", "lightning.pytorch"):
        logging.getLogger(name).setLevel(logging.ERROR)
    about = {
        "versions": {"darts": darts.__version__, "torch": torch.__version__},
        "threads": torch.get_num_threads(),
        "rows": ROWS,
    }
    return {"train": jobs.train, "begin": jobs.begin, "backtest": jobs.backtest}, about


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    serve(lambda: open_jobs(arguments.folder))
