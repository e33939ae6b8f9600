"""The plan of `cellerate plan` for a forecaster on 8, 64 and 512 devices, and its error for two local processes."""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.processes import report_of

WINDOW, HORIZON, FEATURES, UNITS, BATCH = 49, 1, 5, 64, 8192
DEVICES = (1, 8, 64, 512)
ITEMS = (10**9, 10**10, 10**11, 10**12)
ROWS = 300_000
GB_PER_S, LATENCY_US = 3.0, 30.0
BACKENDS = ("jax", "torch")


def run(*, quick: bool) -> dict[str, Any]:
    """Plan on each backend that can train in several processes."""
    from cellerate.distributed.plan import Link, predict

    link = Link(GB_PER_S * 1e9, LATENCY_US * 1e-6)
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        series = Path(folder) / "series.npy"
        np.save(series, np.random.default_rng(0).standard_normal((ROWS, FEATURES), dtype=np.float32))
        for backend in BACKENDS:
            made = _plan(series, Path(folder) / f"{backend}.keras", backend, quick)
            made["epochs_s"] = {
                str(items): {
                    str(each.devices): each.epoch_s
                    for each in predict(made["measured"], DEVICES, link, items)
                }
                for items in ITEMS
            }
            found[backend] = made
            print(
                f"{backend}: {1e3 * made['check']['measured_s']:.1f} ms, {made['check']['error']:+.0%}",
                flush=True,
            )
    return {
        "window": WINDOW,
        "horizon": HORIZON,
        "features": FEATURES,
        "units": UNITS,
        "batch_size": BATCH,
        "gb_per_s": GB_PER_S,
        "latency_us": LATENCY_US,
        "backends": found,
    }


def _plan(series: Path, output: Path, backend: str, quick: bool) -> dict[str, Any]:
    devices = ",".join(map(str, DEVICES))
    options = ["--devices", devices, "--bandwidth", GB_PER_S, "--latency", LATENCY_US, "--check", 2]
    training = ["train", "series", series, "-o", output, "--target", 0, "--backend", backend, "--quiet"]
    training += ["--window", WINDOW, "--horizon", HORIZON, "--units", UNITS]
    training += ["--batch-size", BATCH // 8 if quick else BATCH]
    return report_of("plan", *options, "--json", "--", *training)


def planned(result: dict[str, Any]) -> list[list[str]]:
    """A row for each backend and number of devices: the step, then epochs of more and more rows."""
    from cellerate.format import duration, milliseconds, percent, size

    epochs = next(iter(result["backends"].values()))["epochs_s"]
    rows = [
        [
            "",
            "Devices",
            "Rows each",
            "A step",
            "Efficiency",
            *(f"An epoch of 10{_POWERS[len(items) - 1]} rows" for items in epochs),
            "Memory each",
        ]
    ]
    for backend, plan in result["backends"].items():
        for each in plan["predictions"]:
            rows.append(
                [
                    backend,
                    str(each["devices"]),
                    f"{each['rows']:,}",
                    milliseconds(1e3 * each["step_s"]),
                    percent(each["efficiency"]),
                    *(duration(epochs[str(each["devices"])]) for epochs in plan["epochs_s"].values()),
                    size(each["memory_bytes"]),
                ]
            )
        predicted, found = (
            milliseconds(1e3 * plan["check"][f"{kind}_s"]) for kind in ("predicted", "measured")
        )
        step = f"predicted {predicted}, measured {found}"
        rows.append([f"{backend}, two processes here", "2", "", step, "", *("" for _ in epochs), ""])
    return rows


_POWERS = {9: "⁹", 10: "¹⁰", 11: "¹¹", 12: "¹²"}
