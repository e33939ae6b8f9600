"""The contestant Cellerate in the forecasting cases: `train_series` on one backend, and its backtest."""

import argparse
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.forecasting.data import (
    ROWS,
    SEASON,
    TRAIN,
    VALIDATION,
    WINDOW,
    read_series,
    test_origins,
    truth_at,
)
from benchmarks.forecasting.worker import serve

# (origins, horizon) → forecasts and truth.
Way = Callable[[np.ndarray, int], tuple[np.ndarray, np.ndarray]]
SPLIT = {"train_fraction": TRAIN / ROWS, "validation_fraction": VALIDATION / ROWS}


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


class Jobs:
    """The jobs of Cellerate.

    Args:
        folder: The folder of the tasks.
        backend: The Keras backend of this process.
    """

    def __init__(self, folder: Path, backend: str) -> None:
        self._folder, self._output = folder, folder / f"ours-{backend}.keras"
        self._ways: dict[str, Way] = {}

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
        from cellerate.tasks.opening import forecaster_of, open_model

        told = self._fit(task, horizon, seed, budget_s, settings)
        if into is None:
            return told
        forecaster = forecaster_of(open_model(self._output))
        data = forecaster.open([self._folder / f"{task}.csv"])
        start = time.monotonic()
        np.save(into, forecaster.forecast_at(data, test_origins(horizon)))
        return told | {"forecast_s": time.monotonic() - start}

    def begin(self, task: str, horizon: int, units: int, weights: str) -> dict[str, Any]:
        """Make the peer's model with the peer's weights, in Keras and packed.

        Darts's `BlockRNNModel` puts the outputs of the window's last `horizon` steps through one dense layer each.
        """
        import keras

        import cellerate
        from cellerate.models.storage import load_model
        from cellerate.tasks.opening import forecaster_of
        from cellerate.tasks.packing import packed

        count = len(read_series(self._folder, task).names)
        same = keras.Sequential(
            [
                keras.Input((WINDOW, count)),
                keras.layers.LSTM(units, return_sequences=True),
                keras.layers.Cropping1D((WINDOW - horizon, 0)),
                keras.layers.Dense(count),
            ]
        )
        # A brief training makes the model a forecaster with a scaler; the peer's weights then replace its own.
        self._fit(task, horizon, 0, 1.0, {"model": same, "batch_size": 256})
        model, record = load_model(self._output, need_task="series")
        with np.load(weights) as found:
            model.set_weights(keras_weights(dict(found)))
        cellerate.accelerate(model)
        small = packed(model, record)
        forecaster = forecaster_of((model, record, str(self._output)))
        path = self._folder / f"{task}.csv"
        data = forecaster.open([path])
        self._ways = {
            "keras": _in_memory(forecaster, data),
            "packed": _in_memory(forecaster_of(small), data),
            "backtest": _whole_call(model, record, path),
            "backtest packed": _whole_call(small, None, path),
        }
        return {}

    def backtest(
        self, way: str, horizon: int, origins: list[int], repeats: int, into: str | None = None
    ) -> dict[str, Any]:
        """Time a backtest: forecasts from each origin, and their errors."""
        asked, work = np.array(origins), self._ways[way]
        seconds = []
        for _ in range(repeats):
            start = time.perf_counter()
            made, truth = work(asked, horizon)
            seconds.append(time.perf_counter() - start)
        if into is not None:
            np.savez(into, forecast=made, truth=truth, origins=asked)
        return {"seconds": seconds}

    def _fit(
        self, task: str, horizon: int, seed: int, budget_s: float, settings: dict[str, Any]
    ) -> dict[str, Any]:
        """Train a model into the output file."""
        import keras

        import cellerate

        moments: list[float] = []
        clock = keras.callbacks.LambdaCallback(
            on_train_begin=lambda logs: moments.append(time.monotonic()),
            on_train_end=lambda logs: moments.append(time.monotonic()),
        )
        start = time.monotonic()
        run = cellerate.train_series(
            self._folder / f"{task}.csv",
            self._output,
            target=list(read_series(self._folder, task).names),
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
        *_, began, ended = moments
        trained = run.training
        steps = [record["steps"] for record in trained.history]
        # The time to solve for the linear map comes before the first batch.
        begun = trained.seconds - sum(record["seconds"] for record in trained.history)
        return {
            "seconds": ended - start,
            "trained_s": ended - began + begun,
            "steps": sum(steps),
            "windows": sum(steps) * settings.get("batch_size", 64),
            "validations": len(steps),
            "best_validation": trained.best,
            "best_step": sum(steps[: trained.best_epoch]),
        }


def _in_memory(forecaster: Any, data: Any) -> Way:
    def way(origins: np.ndarray, horizon: int) -> tuple[np.ndarray, np.ndarray]:
        made = forecaster.forecast_at(data, origins)
        truth = truth_at(data.values, origins, horizon)[..., list(data.target_columns)]
        np.abs(made - truth).mean(axis=1)
        return made, truth

    return way


def _whole_call(model: Any, record: Any, path: Path) -> Way:
    import cellerate

    def way(origins: np.ndarray, horizon: int) -> tuple[np.ndarray, np.ndarray]:
        step = int(origins[1] - origins[0])
        found = cellerate.backtest(
            model, path, record=record, folds=len(origins), step=step, baselines=False, levels=()
        )
        examples = [fold.examples[0] for fold in found.folds]
        return np.stack([one.forecast for one in examples]), np.stack([one.truth for one in examples])

    return way


def open_jobs(folder: Path, backend: str) -> tuple[dict[str, Callable[..., Any]], dict[str, Any]]:
    """Load Keras and Cellerate; return the jobs and the versions."""
    os.environ["KERAS_BACKEND"] = backend
    os.environ["CELLERATE_CACHE"] = str(folder / f"cache-{backend}")
    import keras  # noqa: F401 (loaded before the first job)

    import cellerate
    from cellerate.kernels import native
    from cellerate.tasks import opening, packing, series  # noqa: F401 (loaded before the first job)

    jobs = Jobs(folder, backend)
    core = native.num_threads() if native.why_unavailable() is None else None
    about = {"versions": {"cellerate": cellerate.__version__}, "threads": core}
    return {"train": jobs.train, "begin": jobs.begin, "backtest": jobs.backtest}, about


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("backend")
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    serve(lambda: open_jobs(arguments.folder, arguments.backend))
