"""Forecasters of `train series` beside NLinear, on real series, the demo's and twenty that were made by other rules."""

import csv
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from cellerate.data.settings import Reading
from cellerate.settings import record_of
from cellerate.tasks.series.train import train_on_series
from cellerate.tasks.settings import ForecastArchitecture, SeriesOptions
from cellerate.training.run import RunOptions
from cellerate.training.settings import TrainingSettings
from support.data.made_series import RULES

pytestmark = [pytest.mark.keras, pytest.mark.slow]

ROOT = Path(__file__).parents[3]
ALL = ["HUFL", "HULL", "MUFL", "MULL", "LUFL", "LULL", "OT"]
DEMO = {
    "target": ["demand"],
    "window": 168,
    "horizon": 48,
    "quantile": (0.025, 0.1, 0.5, 0.9, 0.975),
    "learning_rate": 0.004,
    "clipnorm": 1.0,
}


def demo_series(folder: Path) -> Path:
    """The series that `examples/demo.sh` makes up."""
    script = (ROOT / "examples" / "demo.sh").read_text()
    program = script.partition("<<'END'\n")[2].partition("\nEND\n")[0]
    made = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    path = folder / "demand.csv"
    path.write_text(made.stdout)
    return path


def made_series(folder: Path, name: str, seed: int) -> Path:
    """A table of a rule, with a time column; values that are missing are empty."""
    columns = {key: values.tolist() for key, values in RULES[name].make(np.random.default_rng(seed)).items()}
    first, rows = np.datetime64("2020-01-01T00", "h"), {}
    path = folder / "made.csv"
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["time", *columns])
        for values in zip(*columns.values(), strict=True):
            series = values[0] if "series" in columns else ""
            rows[series] = rows.get(series, -1) + 1
            time = str(first + rows[series]).replace("T", " ")
            table.writerow([f"{time}:00", *("" if value != value else value for value in values)])
    return path


def cases(folder: Path, shared: Path) -> Iterator[tuple[str, Path, dict[str, object]]]:
    """Every series with its settings; the others are the defaults."""
    for horizon in (24, 96):
        common = {"window": 96, "horizon": horizon}
        for label, settings in (
            ("OT", {"target": ["OT"], "feature": ["OT"]}),
            ("OT from all seven", {"target": ["OT"]}),
            ("all seven", {"target": ALL}),
        ):
            yield f"ETTh1, {label}, {horizon} ahead", shared / "ETTh1.csv", {**common, **settings}
    yield "the demo", demo_series(folder), DEMO
    yield (
        "the demo, a point forecast",
        folder / "demand.csv",
        {"target": ["demand"], "window": 168, "horizon": 48},
    )
    for number, (name, rule) in enumerate(RULES.items()):
        settings = {"target": rule.targets, "window": rule.window, "horizon": rule.horizon, **rule.options}
        yield name, made_series(folder, name, 100 + number), settings


def beside_nlinear(path: Path, output: Path, settings: dict[str, object]) -> dict[str, float]:
    """The errors of a forecaster and of NLinear on the test part."""
    run = train_on_series(
        record_of(SeriesOptions, settings, paths=(path,), reading=record_of(Reading, settings)),
        RunOptions(
            output=output,
            training=record_of(TrainingSettings, settings | {"max_seconds": 20.0}),
            overwrite=True,
        ),
        architecture=record_of(ForecastArchitecture, settings),
    )
    figure = "mae" if "mae" in run.test["model"] else "scaled_mae"
    model, nlinear = (run.test[name][figure] for name in ("model", "nlinear"))
    return {
        "model": model,
        "nlinear": nlinear,
        "ratio": model / nlinear,
        "best_epoch": run.training.best_epoch,
        "epochs": len(run.training.history),
    }


def test_forecaster_is_hardly_ever_worse_than_nlinear(tmp_path, shared_data):
    found = {}
    for name, path, settings in cases(tmp_path, shared_data):
        found[name] = one = beside_nlinear(path, tmp_path / "m.keras", settings)
        print(
            f"{name:<36} {one['nlinear']:9.4f} {one['model']:9.4f} {one['ratio']:7.4f}  epoch {one['best_epoch']} of "
            f"{one['epochs']}",
            flush=True,
        )
    if "CELLERATE_BESIDE_NLINEAR" in os.environ:
        Path(os.environ["CELLERATE_BESIDE_NLINEAR"]).write_text(json.dumps(found, indent=1))
    ratios = {name: one["ratio"] for name, one in found.items()}
    assert max(ratios.values()) <= 1.01, ratios
    # Quantiles begin around NLinear, and a float32 model beside a float64 one: a thousandth does not count.
    assert np.mean([ratio <= 1.001 for ratio in ratios.values()]) >= 0.95, ratios
