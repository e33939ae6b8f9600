"""The contestant Cellerate in the forecasting cases: `train_series` on one backend, and its backtest."""

import argparse
import os
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from forecasting_data import (
    ROWS,
    SEASON,
    TRAIN,
    VALIDATION,
    WINDOW,
    read_series,
    test_origins,
    truth_at,
)
from forecasting_worker import serve

FORECAST_AT_ONCE = 1024
SPLIT = {"train_fraction": TRAIN / ROWS, "validation_fraction": VALIDATION / ROWS}


def forecast_at(forecaster: Any, data: Any, origins: np.ndarray) -> np.ndarray:
    """(origins, horizon, targets) in the units of the data, from the rows before each origin."""
    made = []
    for begin in range(0, len(origins), FORECAST_AT_ONCE):
        some = origins[begin : begin + FORECAST_AT_ONCE]
        made.append(forecaster.forecast(data, data.values[some[:, None] + np.arange(-WINDOW, 0)]))
    return np.concatenate(made)


def backtest(forecaster: Any, data: Any, origins: np.ndarray, horizon: int) -> tuple[np.ndarray, np.ndarray]:
    """Forecasts from every origin without training again, and the mean absolute error of each, (origins, targets)."""
    made = forecast_at(forecaster, data, origins)
    truth = truth_at(data.values, origins, horizon)[..., list(data.target_columns)]
    return made, np.abs(made - truth).mean(axis=1)


def keras_weights(found: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """The weights of torch's LSTM and dense layer in Keras's order; torch adds up two biases, Keras has one."""
    (head,) = {name.rpartition(".")[0] for name in found if name.startswith("fc")}
    return [
        found["rnn.weight_ih_l0"].T,
        found["rnn.weight_hh_l0"].T,
        found["rnn.bias_ih_l0"] + found["rnn.bias_hh_l0"],
        found[f"{head}.weight"].T,
        found[f"{head}.bias"],
    ]


def open_jobs(folder: Path, backend: str) -> tuple[dict[str, Callable[..., Any]], dict[str, Any]]:
    """Loads Keras and Cellerate; gives the jobs, and the versions."""
    os.environ["KERAS_BACKEND"] = backend
    os.environ["CELLERATE_CACHE"] = str(folder / f"cache-{backend}")
    import keras

    import cellerate
    from cellerate.kernels import native
    from cellerate.models.storage import TaskRecord
    from cellerate.tasks.opening import forecaster_of
    from cellerate.tasks.packing import packed
    from cellerate.tasks.series import load_series_model

    class Clock(keras.callbacks.Callback):
        """When training began and ended."""

        def on_train_begin(self, logs: Any = None) -> None:
            self.began = time.monotonic()

        def on_train_end(self, logs: Any = None) -> None:
            self.ended = time.monotonic()

    kept: dict[str, Any] = {}

    def fit(task: str, horizon: int, seed: int, budget_s: float, settings: dict[str, Any]) -> Any:
        target = list(read_series(folder, task).names)
        output = folder / f"ours-{backend}.keras"
        clock = Clock()
        start = time.monotonic()
        run = cellerate.train_series(
            folder / f"{task}.csv",
            output,
            target=target,
            window=WINDOW,
            horizon=horizon,
            season=SEASON,
            epochs=10**6,
            max_seconds=budget_s,
            seed=seed,
            overwrite=True,
            verbose=False,
            callbacks=[clock],
            **SPLIT,
            **settings,
        )
        trained = run.training
        steps = [record["steps"] for record in trained.history]
        return output, {
            "seconds": clock.ended - start,
            "trained_s": clock.ended - clock.began,
            "steps": sum(steps),
            "windows": sum(steps) * settings.get("batch_size", 64),
            "validations": len(steps),
            "best_validation": trained.best,
            "best_step": sum(steps[: trained.best_epoch]),
        }

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
        output, told = fit(task, horizon, seed, budget_s, settings)
        if into is None:
            return told
        forecaster = load_series_model(output).forecaster
        data = forecaster.open([folder / f"{task}.csv"])
        start = time.monotonic()
        np.save(into, forecast_at(forecaster, data, test_origins(horizon)))
        return told | {"forecast_s": time.monotonic() - start}

    def begin(task: str, horizon: int, units: int, weights: str) -> dict[str, Any]:
        """Makes the peer's model and gives it the peer's weights; also packed.

        Darts's `BlockRNNModel` puts the outputs of the window's last `horizon` steps through one dense layer each.
        """
        count = len(read_series(folder, task).names)
        same = keras.Sequential(
            [
                keras.Input((WINDOW, count)),
                keras.layers.LSTM(units, return_sequences=True),
                keras.layers.Cropping1D((WINDOW - horizon, 0)),
                keras.layers.Dense(count),
            ]
        )
        # A moment of training makes it a forecaster with a scaler; then it forgets what it learned.
        output, _ = fit(task, horizon, 0, 1.0, {"model": same, "batch_size": 256})
        model = load_series_model(output)
        with np.load(weights) as found:
            model.model.set_weights(keras_weights(dict(found)))
        cellerate.accelerate(model.model)
        kept["keras"] = model.forecaster
        kept["packed"] = forecaster_of(packed(model.model, TaskRecord("series", model.record)))
        kept["data"] = model.forecaster.open([folder / f"{task}.csv"])
        return {}

    def timed(
        way: str, horizon: int, origins: list[int], repeats: int, into: str | None = None
    ) -> dict[str, Any]:
        """Times a backtest in memory: forecasts from each origin and their errors."""
        data, asked = kept["data"], np.array(origins)
        seconds = []
        for _ in range(repeats):
            start = time.perf_counter()
            made, _ = backtest(kept[way], data, asked, horizon)
            seconds.append(time.perf_counter() - start)
        if into is not None:
            truth = truth_at(data.values, asked, horizon)[..., list(data.target_columns)]
            np.savez(into, forecast=made, truth=truth, origins=asked)
        return {"seconds": seconds}

    shutil.rmtree(folder / f"cache-{backend}", ignore_errors=True)
    core = native.num_threads() if native.why_unavailable() is None else None
    about = {"versions": {"cellerate": cellerate.__version__}, "threads": core}
    return {"train": train, "begin": begin, "backtest": timed}, about


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("backend")
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    serve(lambda: open_jobs(arguments.folder, arguments.backend))
