"""The contestant NeuralForecast: its `LSTM` and `NLinear`. Runs in the peers' environment."""

import argparse
import logging
import time
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.forecasting.data import TEST, VALIDATION, WINDOW, read_series
from benchmarks.forecasting.worker import serve


def train(
    folder: Path,
    kind: str,
    task: str,
    horizon: int,
    seed: int,
    budget_s: float,
    settings: dict[str, Any],
    into: str | None = None,
) -> dict[str, Any]:
    """Train; with `into`, write the forecasts of every window of the test part, in the units of the data.

    `cross_validation` without refit does both in one call: it trains on the rows before the validation and test parts,
    and forecasts from each row of the test part.
    """
    import pandas as pd
    from neuralforecast import NeuralForecast
    from neuralforecast.models import LSTM, NLinear

    from benchmarks.forecasting.watch import QUIET, Watch

    rows = read_series(folder, task)
    frame = pd.concat(
        pd.DataFrame({"unique_id": f"{place}", "ds": rows.times.astype("datetime64[ns]"), "y": column})
        for place, column in enumerate(rows.scaled.T)
    )
    watch = Watch(budget_s, "ptl/val_loss")
    model = {"lstm": LSTM, "nlinear": NLinear}[kind](
        h=horizon,
        input_size=WINDOW,
        max_steps=10**9,
        random_seed=seed,
        callbacks=[watch],
        **QUIET,
        **settings,
    )
    start = time.monotonic()
    found = NeuralForecast([model], freq="h").cross_validation(
        frame, n_windows=None, val_size=VALIDATION, test_size=TEST, step_size=1
    )
    seconds = time.monotonic() - start
    told = watch.told()
    told |= {"seconds": seconds, "windows": told["steps"] * settings["windows_batch_size"]}
    if into is not None:
        # The columns of the models lie between the key columns and the truth.
        (name,) = set(found.columns) - {"unique_id", "ds", "cutoff", "y"}
        ordered = found.sort_values(["unique_id", "cutoff", "ds"])[name].to_numpy(np.float64)
        made = ordered.reshape(len(rows.names), -1, horizon).transpose(1, 2, 0)
        np.save(into, made * rows.scale + rows.mean)
    return told | {"forecast_s": seconds - told["trained_s"]}


def open_jobs(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Load NeuralForecast; return its jobs and its versions."""
    import neuralforecast
    import neuralforecast.models
    import torch

    warnings.simplefilter("ignore")
    for name in ("pytorch_lightning", "lightning.pytorch", "lightning_fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    about = {
        "versions": {"neuralforecast": neuralforecast.__version__, "torch": torch.__version__},
        "threads": torch.get_num_threads(),
    }
    return {"train": partial(train, folder)}, about


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    serve(lambda: open_jobs(arguments.folder))
