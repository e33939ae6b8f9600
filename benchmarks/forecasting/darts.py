"""The contestant Darts: `BlockRNNModel("LSTM")`, `NLinearModel` and its backtest. Runs in the peers' environment."""

import argparse
import logging
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.forecasting.data import ROWS, TRAIN, VALIDATION, WINDOW, Series, read_series
from benchmarks.forecasting.worker import serve

PREDICTED_AT_ONCE = 1024


def open_jobs(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Load Darts; give its jobs, and its versions."""
    import darts
    import pandas as pd
    import torch
    from darts import TimeSeries
    from darts.models import BlockRNNModel, NLinearModel

    from benchmarks.forecasting.watch import QUIET, Watch

    warnings.simplefilter("ignore")
    for name in ("darts", "pytorch_lightning", "lightning.pytorch"):
        logging.getLogger(name).setLevel(logging.ERROR)
    kinds = {"lstm": BlockRNNModel, "nlinear": NLinearModel}
    fixed = {"lstm": {"model": "LSTM"}, "nlinear": {}}
    kept: dict[str, Any] = {}

    def as_darts(series: Series) -> Any:
        times = pd.DatetimeIndex(series.times.astype("datetime64[ns]"))
        return TimeSeries.from_times_and_values(times, series.scaled, columns=list(series.names))

    def fit(
        kind: str, series: Any, horizon: int, seed: int, budget_s: float, settings: dict[str, Any]
    ) -> Any:
        given = dict(settings)
        watch = Watch(budget_s, "val_loss")
        model = kinds[kind](
            input_chunk_length=WINDOW,
            output_chunk_length=horizon,
            n_epochs=10**6,
            random_state=seed,
            optimizer_kwargs={"lr": given.pop("learning_rate")},
            pl_trainer_kwargs={**QUIET, "callbacks": [watch]},
            **fixed[kind],
            **given,
        )
        start = time.monotonic()
        held_out = series[TRAIN - WINDOW : TRAIN + VALIDATION]
        model.fit(series[:TRAIN], val_series=held_out, verbose=False)
        told = watch.told() | {"seconds": time.monotonic() - start}
        return model, told | {"windows": told["steps"] * settings["batch_size"]}

    def forecasts(model: Any, series: Any, horizon: int, stride: int, batch: int) -> list[Any]:
        found: list[Any] = model.historical_forecasts(
            series,
            start=WINDOW,
            start_format="position",
            forecast_horizon=horizon,
            stride=stride,
            retrain=False,
            last_points_only=False,
            predict_kwargs={"batch_size": batch},
        )
        return found

    def train(
        kind: str,
        task: str,
        horizon: int,
        seed: int,
        budget_s: float,
        settings: dict[str, Any],
        into: str | None = None,
    ) -> dict[str, Any]:
        """Trains; with `into`, forecasts every window of the test part into a file, in the units of the data."""
        rows = read_series(folder, task)
        series = as_darts(rows)
        model, told = fit(kind, series, horizon, seed, budget_s, settings)
        if into is None:
            return told
        start = time.monotonic()
        found = forecasts(model, series[TRAIN + VALIDATION - WINDOW :], horizon, 1, PREDICTED_AT_ONCE)
        made = np.stack([one.values() for one in found]).astype(np.float64)
        np.save(into, made * rows.scale + rows.mean)
        return told | {"forecast_s": time.monotonic() - start}

    def begin(task: str, horizon: int, units: int, seed: int, budget_s: float, into: str) -> dict[str, Any]:
        """Train the model of the backtest and write its weights."""
        series = as_darts(read_series(folder, task))
        settings = {"hidden_dim": units, "batch_size": 256, "learning_rate": 1e-3}
        model, told = fit("lstm", series, horizon, seed, budget_s, settings)
        weights = {name: value.numpy() for name, value in model.model.state_dict().items()}
        np.savez(into, **{name: value for name, value in weights.items() if name.startswith(("rnn", "fc"))})
        kept.update(model=model, series=series, rows=read_series(folder, task))
        return told

    def backtest(
        way: str,
        horizon: int,
        first: int,
        stride: int,
        batch: int,
        repeats: int,
        into: str | None = None,
    ) -> dict[str, Any]:
        """Time a backtest in memory; `historical_forecasts` makes the forecasts, `backtest` judges them, too."""
        model, rows = kept["model"], kept["rows"]
        series = kept["series"][first - WINDOW :]
        seconds, found = [], []
        for _ in range(repeats):
            start = time.perf_counter()
            if way == "backtest":
                model.backtest(
                    series,
                    start=WINDOW,
                    start_format="position",
                    forecast_horizon=horizon,
                    stride=stride,
                    retrain=False,
                    last_points_only=False,
                    metric=darts.metrics.mae,
                    reduction=None,
                    predict_kwargs={"batch_size": batch},
                )
            else:
                found = forecasts(model, series, horizon, stride, batch)
            seconds.append(time.perf_counter() - start)
        if into is not None:
            made = np.stack([one.values() for one in found]).astype(np.float64)
            starts = np.array([one.start_time() for one in found], "datetime64[s]")
            origins = np.searchsorted(rows.times, starts)
            np.savez(into, forecast=made * rows.scale + rows.mean, origins=origins)
        return {"seconds": seconds}

    about = {
        "versions": {"darts": darts.__version__, "torch": torch.__version__},
        "threads": torch.get_num_threads(),
        "rows": ROWS,
    }
    return {"train": train, "begin": begin, "backtest": backtest}, about


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    serve(lambda: open_jobs(arguments.folder))
