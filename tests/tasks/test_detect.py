import csv
import json

import numpy as np
import pytest

import cellerate
from cellerate.data.settings import Reading
from cellerate.data.windows.scaler import Scaler
from cellerate.errors import ConfigError, DataError, ModelError
from cellerate.runtime.forecast.forecasting import ForecastSettings
from cellerate.runtime.forecast.intervals import Calibration
from cellerate.tasks import detect as task
from cellerate.tasks.judging.errors import SeriesForecaster
from cellerate.tasks.judging.intervals import calibrate
from cellerate.tasks.settings import SeriesOptions
from support import packed_forecaster

SEASON, WINDOW, HORIZON, ROWS = 24, 96, 24, 4000
START = np.datetime64("2024-01-01", "us")


def signal(rows=ROWS, seed=0):
    random = np.random.default_rng(seed)
    return 50 + 10 * np.sin(2 * np.pi * np.arange(rows) / SEASON) + random.normal(0, 1, rows)


def write(path, **columns):
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["date", *columns])
        for number, row in enumerate(zip(*columns.values(), strict=True)):
            table.writerow([str(START + np.timedelta64(number, "h")), *row])
    return path


def seasonal(scaled):
    """The median of the last four seasons, as a forecaster."""
    return np.median(scaled.reshape(len(scaled), WINDOW // SEASON, SEASON, -1), axis=1)


@pytest.fixture
def model(tmp_path, monkeypatch):
    """A forecaster of plain NumPy, calibrated on rows without anomalies."""
    reading = Reading(targets=["y"], features=["y"])
    settings = ForecastSettings(reading, WINDOW, HORIZON, (), Scaler(["y"], [50.0], [7.0]))
    plain = SeriesForecaster(seasonal, settings, SeriesOptions(target=["y"], window=WINDOW, horizon=HORIZON))
    clean = plain.open([write(tmp_path / "clean.csv", y=signal(seed=1))])
    made, _ = calibrate(plain, clean.split(0.3, 0.7))
    known = SeriesForecaster(
        seasonal, ForecastSettings(**(vars(settings) | {"calibration": made})), plain.options
    )
    monkeypatch.setattr(task, "open_model", lambda model, record: None)
    monkeypatch.setattr(task, "forecaster_of", lambda opened, name: known)
    return known


def test_detect_finds_planted_spikes_a_shift_and_a_flat_stretch_and_little_else(model, tmp_path):
    values = signal()
    spikes = [700, 1203, 1711, 2040]
    values[spikes] += [15, -15, 12, -20]
    shift, flat = slice(2500, 2520), slice(3200, 3230)
    values[shift] += 12
    values[flat] = values[3199]
    found = cellerate.detect("m.keras", write(tmp_path / "d.csv", y=values), level=0.99)
    rows = np.searchsorted(START + np.timedelta64(1, "h") * np.arange(ROWS), found.time)
    assert len(found) == ROWS - WINDOW
    anomalous = np.zeros(ROWS, bool)
    anomalous[rows] = found.anomaly
    assert anomalous[spikes].all()
    assert anomalous[shift].mean() > 0.8
    # A sensor that is stuck at a value is odd wherever the season is elsewhere.
    assert anomalous[flat].mean() > 0.6
    clean = np.ones(ROWS, bool)
    clean[:WINDOW] = False
    for first, stop in ((shift.start, shift.stop), (flat.start, flat.stop), *((s, s + 1) for s in spikes)):
        clean[first:stop] = False
    assert anomalous[clean].mean() < 0.015
    # The worst come first, and an anomaly is a value outside its bounds.
    worst = found.worst(5)
    assert (np.diff(found.score[worst]) <= 0).all()
    assert len(found.worst(10_000)) == found.anomaly.sum()
    np.testing.assert_array_equal(found.anomaly, (found.value < found.low) | (found.value > found.high))
    assert (found.p_value[found.score > 1.05] < 0.011).all()


@pytest.mark.parametrize("level", [0.9, 0.99, 0.995])
def test_detect_flags_about_one_minus_level_of_rows_that_are_usual(level, model, tmp_path):
    found = cellerate.detect("m.keras", write(tmp_path / "d.csv", y=signal(seed=9)), level=level)
    share = found.anomaly.mean()
    # Four standard errors, of the rows judged and of those calibrated on.
    assert share == pytest.approx(
        1 - level, abs=4 * np.sqrt(level * (1 - level) * (1 / len(found) + 1 / 2800))
    )


def test_detect_gives_rows_of_each_series_and_target_in_order(tmp_path):
    region = tmp_path / "regions.csv"
    packed_forecaster.write_series(region)
    model = packed_forecaster.packed(series_column=["region"])
    scores = np.linspace(0.1, 500, 400)[:, None, None] * np.ones((1, packed_forecaster.HORIZON, 2))
    kept = Calibration.of(
        scores, scores[:, 0], floor=None, non_negative=np.zeros(2, bool), until=None
    ).to_config()
    with pytest.raises(ModelError, match=r"this model was not calibrated.*cellerate train series"):
        cellerate.detect(model, region)
    model.cell.header["payload"]["calibration"] = kept
    told = []
    found = cellerate.detect(model, region, level=0.95, progress=lambda *both: told.append(both))
    each = 30 - packed_forecaster.WINDOW
    assert len(found) == 4 * each
    assert told[-1] == (2 * each, 2 * each)
    assert list(dict.fromkeys(zip(found.series, found.target, strict=True))) == [
        ("n", "price"),
        ("n", "load"),
        ("s", "price"),
        ("s", "load"),
    ]
    assert (np.diff(found.time[:each]) > np.timedelta64(0, "us")).all()
    assert list(found.columns()) == [
        "series",
        "time",
        "target",
        "value",
        "expected",
        "low",
        "high",
        "score",
        "p_value",
        "anomaly",
    ]
    np.testing.assert_allclose(found.high - found.expected, found.expected - found.low)


def test_detect_refuses_a_level_or_data_that_cannot_be(model, tmp_path):
    short = write(tmp_path / "d.csv", y=signal(WINDOW))
    with pytest.raises(DataError, match="no row can be judged: the model needs 96 rows"):
        cellerate.detect("m.keras", short)
    with pytest.raises(ConfigError, match=r"0.9999.*on 2,800 held-out rows.*validation_fraction of"):
        cellerate.detect("m.keras", short, level=0.9999)
    with pytest.raises(ConfigError, match="level must be between 0 and 1"):
        cellerate.detect("m.keras", short, level=99)


def test_detect_takes_the_highest_level_of_a_short_validation_part_and_says_so(model, tmp_path, monkeypatch):
    data = write(tmp_path / "d.csv", y=signal(400, seed=9))
    told = []
    assert cellerate.detect("m.keras", data, notify=told.append).level == 0.99
    assert not any("level" in sentence for sentence in told)
    short, _ = calibrate(model, model.open([write(tmp_path / "s.csv", y=signal(260))]).split(0.4, 0.3))
    known = SeriesForecaster(
        seasonal, ForecastSettings(**(vars(model.settings) | {"calibration": short})), model.options
    )
    monkeypatch.setattr(task, "forecaster_of", lambda opened, name: known)
    found = cellerate.detect("m.keras", data, notify=told.append)
    assert found.level == short.grid[-1] < 0.99
    assert told[-1].startswith(
        f"level {found.level:g}, the highest that a validation part of {short.scored_rows} rows"
    )


# --- the command line


@pytest.fixture
def cell(tmp_path):
    model = packed_forecaster.packed(series_column=["region"])
    scores = np.linspace(0.1, 60, 400)[:, None, None] * np.ones((1, packed_forecaster.HORIZON, 2))
    made = Calibration.of(scores, scores[:, 0], floor=None, non_negative=np.zeros(2, bool), until=None)
    model.cell.header["payload"]["calibration"] = made.to_config()
    from cellerate.runtime.cell import write_cell

    packed_forecaster.write_series(tmp_path / "d.csv")
    write_cell(tmp_path / "m.cell", model.cell.program, header=model.cell.header)
    return tmp_path


def run(*words):
    from typer.testing import CliRunner

    from cellerate.cli.main import app

    return CliRunner().invoke(app, ["detect", *map(str, words)])


def test_detect_on_the_command_line_writes_every_row_and_shows_the_worst(cell):
    import pyarrow.parquet as pq

    told = run(cell / "m.cell", cell / "d.csv", "--level", "0.9", "--worst", "3", "-q")
    assert told.exit_code == 0, told.output
    found = cellerate.detect(cell / "m.cell", cell / "d.csv", level=0.9)
    count = int(found.anomaly.sum())
    assert count > 3
    assert f"{count} of 96 rows" in told.output
    shown = [line.split() for line in told.stdout.splitlines()[2:5]]
    assert [line[0] for line in shown] == found.series[found.worst(3)].tolist()

    for name in ("a.csv", "a.parquet", "a.json"):
        done = run(cell / "m.cell", cell / "d.csv", "--level", "0.9", "-q", "-o", cell / name)
        assert done.exit_code == 0, done.output
    with (cell / "a.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["score"]) for row in rows] == found.score.tolist()
    assert [row["anomaly"] == "True" for row in rows] == found.anomaly.tolist()
    assert rows[0]["time"] == "2024-02-28T06:00"
    table = pq.read_table(cell / "a.parquet")
    assert table["score"].to_pylist() == found.score.tolist()
    written = json.loads((cell / "a.json").read_text())
    assert written["level"] == 0.9
    assert [row["score"] for row in written["rows"]] == found.score.tolist()


def test_detect_on_the_command_line_draws_and_gives_json(cell):
    pytest.importorskip("matplotlib")
    done = run(cell / "m.cell", cell / "d.csv", "--level", "0.9", "--json", "-q", "--plot", cell / "a.png")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["rows"] == 96
    assert len(told["worst"]) == min(10, told["anomalies"])
    assert (cell / "a.png").read_bytes().startswith(b"\x89PNG")


def test_detect_on_the_command_line_refuses_another_kind_of_file_before_it_works(cell):
    done = run(cell / "m.cell", cell / "missing.csv", "-o", cell / "a.txt")
    assert isinstance(done.exception, ConfigError)
    assert "expected a name that ends in .csv, .parquet or .json" in str(done.exception)


def test_detect_writes_times_as_the_data_do_and_says_the_level_in_its_chart(cell):
    pytest.importorskip("matplotlib")
    import pyarrow.parquet as pq

    words = [cell / "m.cell", cell / "d.csv", "--level", "0.9", "--time-zone", "Europe/Berlin"]
    for name in ("a.csv", "a.parquet"):
        assert run(*words, "-o", cell / name, "--plot", cell / "a.svg").exit_code == 0
    with (cell / "a.csv").open() as file:
        times = [row["time"] for row in csv.DictReader(file)]
    found = cellerate.detect(cell / "m.cell", cell / "d.csv", time_zone="Europe/Berlin")
    assert times[0] == "2024-02-28T06:00"
    assert found.time[0] == np.datetime64("2024-02-28T05:00")
    assert str(pq.read_schema(cell / "a.parquet").field("time").type) == "timestamp[us, tz=Europe/Berlin]"
    assert "90 % interval" in (cell / "a.svg").read_text()
