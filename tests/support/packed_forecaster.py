"""A packed forecaster made by hand, so that no Keras is needed, and series for it."""

import csv

import numpy as np

from cellerate.data.windows.scaler import Scaler
from cellerate.program import Node, Program
from cellerate.runtime.cell import Cell, narrowed
from cellerate.runtime.packed import PackedModel

WINDOW, HORIZON, H = 6, 3, 10
SCALER = Scaler(["load", "wind", "price"], [20.0, 5.0, -3.0], [4.0, 0.5, 100.0])


def program(features=2, targets=2, quantiles=0, *, flat=False, window=WINDOW, horizon=HORIZON):
    """An LSTM and a head: (B, window, features) -> (B, horizon, targets[, quantiles]); flat: (B, horizon)."""
    random = np.random.default_rng(0)

    def draw(*shape):
        return (random.normal(size=shape) / np.sqrt(shape[0])).astype(np.float32)

    shape = (horizon,) if flat else (horizon, targets, *([quantiles] if quantiles else []))
    lstm = {"kernel": draw(features, 4 * H), "recurrent_kernel": draw(H, 4 * H), "bias": draw(4 * H)}
    options = {
        "activation": "tanh",
        "recurrent_activation": "sigmoid",
        "masked_output": "zero",
        "go_backwards": False,
        "return_sequences": False,
    }
    head = {"kernel": draw(H, int(np.prod(shape))), "bias": draw(int(np.prod(shape)))}
    nodes = (
        Node("input", "series", options={"shape": (-1, window, features), "dtype": "float32"}),
        Node("lstm", "lstm", {"x": 0}, lstm, options),
        Node("dense", "head", {"x": 1}, head, {"activation": "linear"}),
        Node("reshape", "forecast", {"x": 2}, options={"shape": shape}),
    )
    return Program(nodes, {"forecast": 3})


# The options that `train series` records for a model of two features that forecasts one of them and a third column.
OPTIONS = {
    "target": ["price", "load"],
    "feature": ["load", "wind"],
    "time_column": None,
    "series_column": [],
    "wide": False,
    "missing": "error",
    "gaps": "split",
    "duplicates": "error",
    "time_zone": None,
    "frequency": None,
    "storage": "float32",
    "window": WINDOW,
    "horizon": HORIZON,
}


def header(quantiles=(), scaler=None, **options):
    record = {
        "options": OPTIONS | options,
        "quantiles": list(quantiles),
        "scaler": (scaler or SCALER).to_config(),
    }
    return {"task": "series", "payload": record}


def packed(precision="float32", what=None, quantiles=(), **options):
    what = what or program(quantiles=len(quantiles))
    return PackedModel(Cell(narrowed(what, precision), precision, header(quantiles, **options)))


def write_series(path):
    """Write a table of two regions, hour by hour; return the last window of each."""
    rows = np.random.default_rng(7).normal([20.0, 5.0, -3.0], [4.0, 0.5, 100.0], (60, 3))
    start = np.datetime64("2024-02-28T00:00")
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["date", "region", "load", "wind", "price"])
        for number, values in enumerate(rows):
            table.writerow([str(start + np.timedelta64(number % 30, "h")), "ns"[number // 30], *values])
    return rows[[*range(30 - WINDOW, 30)]], rows[-WINDOW:]
