"""Forecasters of noisy sines, trained in a moment, and their figures recomputed in plain NumPy."""

import csv

import keras
import numpy as np

from cellerate.models.storage import load_model
from cellerate.tasks.series.train import train_on_series
from cellerate.tasks.settings import ForecastArchitecture, SeriesOptions
from cellerate.training.run import RunOptions
from cellerate.training.settings import TrainingSettings

WINDOW, HORIZON, ROWS = 8, 3, 240
START = np.datetime64("2024-02-26T00:00")


def wave(rows=ROWS, period=12, seed=0, level=20.0):
    noise = np.random.default_rng(seed).normal(0, 0.3, rows)
    return level + 5 * np.sin(2 * np.pi * np.arange(rows) / period) + noise


def hours(rows, start=START):
    return [str(start + np.timedelta64(n, "h")).replace("T", " ") + ":00" for n in range(rows)]


def write(path, **columns):
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(columns)
        table.writerows(zip(*columns.values(), strict=True))
    return path


def options(path, **changes):
    settings = {
        "paths": [path],
        "target": ["load"],
        "window": WINDOW,
        "horizon": HORIZON,
        "batch_size": 16,
        "season": 6,
    }
    return SeriesOptions.of_record(settings | changes)


def fit(path, output="m.keras", *, epochs=1, model=None, units=8, quantile=(), linear=True, **changes):
    cell = changes.pop("cell", "lstm")
    return train_on_series(
        options(path, **changes),
        RunOptions(output=path.parent / output, training=TrainingSettings(epochs=epochs, learning_rate=0.01)),
        architecture=ForecastArchitecture(
            units=units, cell=cell, dropout=0.0, quantile=quantile, linear=linear
        ),
        model=model,
    )


def recomputed(path, values, columns, *, rows, train_rows, season=6):
    """Errors of the model and of naive forecasts on `rows`, by plain NumPy from the file's values."""
    table = np.column_stack([values[name] for name in columns]).astype(np.float32).astype(np.float64)
    mean, scale = table[:train_rows].mean(axis=0), table[:train_rows].std(axis=0)
    firsts = np.arange(rows[0] - WINDOW, rows[1] - WINDOW - HORIZON + 1)
    firsts = firsts[firsts >= 0]
    past = table[firsts[:, None] + np.arange(WINDOW)]
    truth = table[firsts[:, None] + WINDOW + np.arange(HORIZON), 0]
    model, _ = load_model(path)
    made = keras.ops.convert_to_numpy(model(((past - mean) / scale).astype(np.float32), training=False))
    made = made.astype(np.float64).reshape(*truth.shape, -1) * scale[0] + mean[0]
    seasonal = past[:, [WINDOW - season + n % season for n in range(HORIZON)], 0]
    forecasts = {
        "model": made[..., made.shape[-1] // 2],
        "last_value": np.repeat(past[:, -1:, 0], HORIZON, axis=1),
        "seasonal_naive": seasonal,
    }
    found = {}
    for name, one in forecasts.items():
        error = one - truth
        found[name] = {
            "mae": np.abs(error).mean(),
            "mse": (error**2).mean(),
            "scaled_mae": np.abs(error / scale[0]).mean(),
            "scaled_mse": ((error / scale[0]) ** 2).mean(),
        }
    coverage = (truth[..., None] <= made).mean(axis=(0, 1))
    return len(firsts), found, coverage
