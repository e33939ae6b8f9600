"""A meter at 250,000,000 that grows by 3 is learned, judged and forecast in its own units."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cellerate.runtime.packed import load
from cellerate.tasks.packing import pack
from cellerate.tasks.series.train import train_on_series
from cellerate.tasks.settings import ForecastArchitecture, SeriesOptions
from cellerate.training.run import RunOptions
from cellerate.training.settings import TrainingSettings

WINDOW, HORIZON, ROWS = 12, 4, 400

Meter = tuple[Path, Any, np.ndarray, str | None]

pytestmark = pytest.mark.keras


@pytest.fixture(scope="module", params=["global", "series"])
def meter(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Meter:
    folder = tmp_path_factory.mktemp("meter")
    random = np.random.default_rng(0)
    readings = 250_000_000 + np.cumsum(3 + (random.random(ROWS) < 0.3))
    lines = [f"{number},{reading}" for number, reading in enumerate(readings.tolist())]
    (folder / "meter.csv").write_text("\n".join(["time,reading", *lines]) + "\n")
    run = train_on_series(
        SeriesOptions(
            paths=(folder / "meter.csv",),
            target=["reading"],
            window=WINDOW,
            horizon=HORIZON,
            scaling=request.param,
        ),
        RunOptions(output=folder / "meter.keras", training=TrainingSettings(epochs=1)),
        architecture=ForecastArchitecture(units=4),
    )
    return folder, run, readings, "" if request.param == "series" else None


def test_errors_are_those_of_the_meter(meter: Meter) -> None:
    _, run, _, _ = meter
    assert run.test["model"]["mae"] < 1


def test_packed_model_forecasts_rows_of_whole_numbers(meter: Meter) -> None:
    folder, _, readings, series = meter
    pack(folder / "meter.keras", folder / "meter.cell")
    model = load(folder / "meter.cell")
    rows = readings[-WINDOW - HORIZON : -HORIZON, None]
    for given in (rows, rows.astype(np.float64), rows.tolist()):
        made = np.asarray(model.forecast(given, series=series))[:, 0]
        np.testing.assert_allclose(made, readings[-HORIZON:], rtol=0, atol=2.5)
        # float32 has steps of 16 there.
        assert (np.diff(made) > 1).all()
        assert (np.diff(made) < 6).all()
