import csv
import json

import numpy as np
import pyarrow.parquet as pq
import pytest

from cellerate.runtime.cell import write_cell
from cellerate.runtime.forecast.intervals import Calibration
from support import packed_forecaster


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    packed_forecaster.write_series(tmp_path / "s.csv")
    header = packed_forecaster.header(series_column=["region"], season=4)
    write_cell(tmp_path / "f.cell", packed_forecaster.program(), precision="float32", header=header)
    return tmp_path


def test_backtest_shows_each_fold_and_the_total(cellerate, here):
    code, out, err = cellerate("backtest", "f.cell", "s.csv", "--folds", "3", "--step", "2", "-q")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].startswith("3 folds of 3 rows, every 2 rows: the data are not those of the training")
    assert lines[2].split("  ")[:2] == ["fold", "from"]
    assert [line.split()[0] for line in lines[3:6]] == ["1", "2", "3"]
    assert "2024-02-28T23:00" in lines[3]
    assert "all folds, 6 forecasts" in lines
    assert any(line.startswith("the worst of 2 series, by MASE") for line in lines)
    assert "baseline" in lines[-1]


def test_backtest_json_and_files_agree(cellerate, here):
    words = ("backtest", "f.cell", "s.csv", "--folds", "2", "-q")
    code, out, _ = cellerate(*words, "--json", "-o", "b.csv")
    assert code == 0
    told = json.loads(out)
    with (here / "b.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2 * 2 * 3
    error = sum(abs(float(row["price"]) - float(row["price_true"])) for row in rows) / len(rows)
    assert told["by_target"]["price"]["model"]["mae"] == pytest.approx(error, rel=1e-5)
    assert cellerate(*words, "-o", "b.json")[0] == 0
    assert json.loads((here / "b.json").read_text()) == told
    assert cellerate(*words, "-o", "b.parquet")[0] == 0
    assert pq.read_table(here / "b.parquet").column_names == list(rows[0])


def test_backtest_without_baselines_says_that_they_were_left_out(cellerate, here):
    _, out, _ = cellerate("backtest", "f.cell", "s.csv", "--folds", "2", "--no-baselines", "-q")
    assert "left out: NLinear, because it was not asked for" in out


def test_backtest_draws_its_folds(cellerate, here):
    code, _, err = cellerate("backtest", "f.cell", "s.csv", "--folds", "2", "--plot", "p.png", "-q")
    assert code == 0
    assert "written: p.png" in err
    assert (here / "p.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--folds", "90"], 3, "--folds 8 is the most"),
        (["--refit"], 2, "--refit trains a model for each fold"),
        (["-o", "b.txt"], 2, "ends in .csv, .parquet or .json"),
    ],
)
def test_impossible_backtest_names_the_option_that_helps(cellerate, here, words, code, said):
    found, out, err = cellerate("backtest", "f.cell", "s.csv", *words, "-q")
    assert (found, out) == (code, "")
    assert said in err


def test_series_verbs_share_their_options_and_report_reading_once(cellerate, here):
    lines = [line.replace(",", ";").replace(".", ",") for line in (here / "s.csv").read_text().splitlines()]
    (here / "de.csv").write_text("\n".join([*lines[:3], lines[2], *lines[3:]]) + "\n")
    scores = np.linspace(0.1, 60, 400)[:, None, None] * np.ones((1, packed_forecaster.HORIZON, 2))
    made = Calibration.of(scores, scores[:, 0], floor=None, non_negative=np.zeros(2, bool), until=None)
    header = packed_forecaster.header(series_column=["region"], season=4)
    header["payload"]["calibration"] = made.to_config()
    write_cell(here / "f.cell", packed_forecaster.program(), precision="float32", header=header)
    for verb in (
        ["forecast"],
        ["evaluate"],
        ["backtest", "--folds", "2"],
        ["detect"],
        ["evaluate", "-o", "errors/"],
    ):
        words = (verb[0], "f.cell", "de.csv", *verb[1:], "--decimal", ",")
        code, _, err = cellerate(*words)
        assert code != 0
        assert "--duplicates" in err
        code, _, err = cellerate(*words, "--duplicates", "first", "--time-zone", "Europe/Berlin")
        assert code == 0, err
        assert err.count("merged 1 rows") == 1, (verb, err)
        assert err.count("de.csv read as") == 1, (verb, err)
    code, _, err = cellerate("detect", "f.cell", "de.csv", "--duplicates", "first", "-q")
    assert (code, err) == (0, "")


def test_backtest_gives_intervals_and_their_coverage(cellerate, here):
    assert "intervals" not in json.loads(
        cellerate("backtest", "f.cell", "s.csv", "--folds", "2", "--json")[1]
    )
    scores = np.linspace(0.1, 60, 400)[:, None, None] * np.ones((1, packed_forecaster.HORIZON, 2))
    made = Calibration.of(scores, scores[:, 0], floor=None, non_negative=np.zeros(2, bool), until=None)
    header = packed_forecaster.header(series_column=["region"])
    header["payload"]["calibration"] = made.to_config()
    write_cell(here / "c.cell", packed_forecaster.program(), precision="float32", header=header)
    words = ("backtest", "c.cell", "s.csv", "--folds", "2", "-q")
    assert "calibrated 95 % interval: holds" in cellerate(*words)[1]
    assert "calibrated 50 % interval: holds" in cellerate(*words, "--level", "0.5")[1]
    assert "interval" not in cellerate(*words, "--no-intervals")[1]
    assert cellerate(*words, "--plot", "p.svg")[0] == 0
    assert "95 % interval" in (here / "p.svg").read_text()


def test_evaluate_draws_its_errors_by_step(cellerate, here):
    code, _, err = cellerate("evaluate", "f.cell", "s.csv", "--plot", "e.svg", "-q")
    assert code == 0
    assert "written: e.svg" in err
    chart = (here / "e.svg").read_text()
    assert "steps ahead" in chart
    assert "last value" in chart
    code, _, err = cellerate("evaluate", "f.cell", "s.csv", "--plot", "e.svg", "-o", "errors")
    assert code != 0
    assert "--plot" in err
