"""Forecasters are judged alike: the same windows, the same truth, nobody dropped silently, and equal backtests."""

import sys
from typing import ClassVar

import numpy as np
import pytest

from benchmarks import processes
from benchmarks.forecasting import (
    backtest,
    data,
    peers as forecasting_peers,
    race as forecasting,
    table as forecasting_table,
)
from benchmarks.forecasting.data import HORIZONS, ROWS, TRAIN, VALIDATION, errors, naive_at, of_ours, truth_at
from benchmarks.forecasting.ours import keras_weights
from benchmarks.tables import by_case
from support.benchmarks import planted, planted_forecasts

WORKER = """
from benchmarks.forecasting.worker import serve

def train(into=None, **question):
    print("what a library says")
    return {"asked": question}

def fail():
    raise ValueError("no such column")

serve(lambda: ({"train": train, "fail": fail}, {"versions": {"peer": "1"}}))
"""


@pytest.fixture
def folder(tmp_path):
    """A folder with the tasks, made of a series as long as ETTh1 whose columns rise by one an hour."""
    hours = np.datetime64("2016-07-01T00:00:00") + np.arange(ROWS + 7) * np.timedelta64(1, "h")
    lines = ["date,A,OT", *(f"{str(t).replace('T', ' ')},{n},{n + 0.5}" for n, t in enumerate(hours))]
    (tmp_path / "source.csv").write_text("\n".join(lines))
    data.write_series(tmp_path / "source.csv", tmp_path)
    return tmp_path


class FakeField:
    """Contestants that forecast in no time: each is off by its own number of degrees."""

    off: ClassVar[dict[str, float]] = dict(
        zip(forecasting.GRIDS, (1.0, 2.0, 3.0, 4.0, 5.0, 6.0), strict=True)
    )

    def __init__(self, folder):
        self.folder, self.about, self.asked = folder, {}, []

    def ask(self, name, job, given_s=0.0, *, settings, horizon, task, into, **question):
        self.asked.append((name, settings, given_s, question["seed"]))
        if into is not None:
            self.write(name, into, task, horizon)
        place = forecasting.GRIDS[name].index(settings)
        told = {"steps": 10, "windows": 640, "trained_s": 2.0, "seconds": 2.5, "validations": 1}
        return told | {"best_step": 10, "best_validation": [0.4, 0.2, 0.1, 0.3][place]}

    def write(self, name, into, task, horizon):
        values = data.read_series(self.folder, task).values
        made = truth_at(values, data.test_origins(horizon), horizon)
        np.save(into, made + self.off[name])


def test_series_is_cut_as_in_papers_and_each_task_has_its_columns(folder):
    one, both = (data.read_series(folder, task) for task in ("OT", "all"))
    assert (one.names, both.names) == (("OT",), ("A", "OT"))
    assert one.values.shape == (14_400, 1) and both.values.shape == (14_400, 2)
    assert np.array_equal(both.values[:, 1:], one.values)
    assert one.scaled[:TRAIN].std() == pytest.approx(1, rel=1e-5) and one.scaled[-1, 0] > 1
    assert (folder / "OT.csv").read_text().splitlines()[:2] == ["date,OT", "2016-07-01 00:00:00,0.5"]


@pytest.mark.parametrize(("horizon", "windows"), [(24, 2857), (96, 2785)])
def test_every_window_of_the_test_part_is_judged(horizon, windows):
    origins = data.test_origins(horizon)
    assert len(origins) == windows
    assert origins[0] == TRAIN + VALIDATION and origins[-1] + horizon == ROWS


def test_naive_forecasts_look_back_only():
    values, origins = np.arange(200.0)[:, None], np.array([100, 101])
    made = naive_at(values, origins, 48)
    assert made["last value"][:, [0, 47], 0].tolist() == [[99, 99], [100, 100]]
    assert made["the day before"][0, [0, 23, 24, 47], 0].tolist() == [76, 99, 76, 99]


def test_errors_are_means_in_units_and_in_deviations():
    truth = np.zeros((2, 3, 2))
    made = truth + np.array([1.0, -4.0])
    found = errors(made, truth, np.array([1.0, 2.0]))
    assert found == {"mae": 2.5, "mse": 8.5, "scaled_mae": 1.5, "scaled_mse": 2.5}


@pytest.mark.parametrize("spoiled", ["another number", "no number"])
def test_errors_of_other_windows_or_of_no_numbers_are_refused(spoiled):
    truth = np.zeros((3, 2, 1))
    made = (
        truth[1:]
        if spoiled == "another number"
        else np.where(np.arange(3)[:, None, None] == 1, np.nan, truth)
    )
    with pytest.raises(ValueError, match=r"expected|finite"):
        errors(made, truth, np.ones(1))


def test_race_tries_settings_for_a_third_of_the_time_and_keeps_the_best(folder):
    field = FakeField(folder)
    chosen = forecasting.Race(field, 30.0).choose("OT", 24)
    assert chosen == {name: grid[2] for name, grid in forecasting.GRIDS.items()}
    assert {given for _, _, given, _ in field.asked} == {10.0}
    field.asked.clear()
    forecasting.Race(field, 30.0).run("OT", 24, 1, chosen)
    assert sorted(field.asked, key=lambda one: one[0]) == [
        (name, chosen[name], 30.0, 1) for name in sorted(forecasting.GRIDS)
    ]


def test_race_judges_all_alike_and_another_one_begins_each_time(folder):
    field = FakeField(folder)
    race = forecasting.Race(field, 3.0)
    for seed in (0, 1):
        race.run("all", 96, seed, {name: grid[0] for name, grid in forecasting.GRIDS.items()})
    assert {(one["contestant"], round(one["mae"], 6), one["judged"]) for one in race.records} == {
        (name, off, 2785) for name, off in FakeField.off.items()
    }
    assert all(one["windows_per_s"] == 320 for one in race.records)
    count = len(forecasting.GRIDS)
    first, second = (field.asked[at : at + count] for at in (0, count))
    assert first[0][0] != second[0][0] and {one[0] for one in first} == {one[0] for one in second}


@pytest.mark.parametrize("name", ["darts-lstm", "cellerate-jax"])
def test_race_when_one_fails_leaves_a_peer_out_and_ends_for_ours(folder, monkeypatch, name):
    def write(self, who, into, task, horizon):
        if who == name:
            np.save(into, np.zeros((5, horizon, 1)))
        else:
            np.save(into, truth_at(np.zeros((ROWS, 1)), data.test_origins(horizon), horizon))

    monkeypatch.setattr(FakeField, "write", write)
    race = forecasting.Race(FakeField(folder), 3.0)
    chosen = {one: grid[0] for one, grid in forecasting.GRIDS.items()}
    if of_ours(name):
        with pytest.raises(RuntimeError, match=r"cellerate-jax: forecasts of shape \(5, 24, 1\)"):
            race.run("OT", 24, 0, chosen)
    else:
        race.run("OT", 24, 0, chosen)
        assert "expected (2857, 24, 1)" in race.refused[name]
        assert {one["contestant"] for one in race.records} == {*forecasting.GRIDS} - {name}
        count = len(race.field.asked)
        race.run("OT", 24, 1, chosen)
        assert len(race.field.asked) == count + len(forecasting.GRIDS) - 1


def test_worker_answers_and_keeps_what_libraries_print_apart():
    process = processes.Process([sys.executable, "-c", WORKER], "peer")
    assert process.answer(60) == {"versions": {"peer": "1"}}
    assert process.ask({"job": "train", "seed": 3}, 60) == {"asked": {"seed": 3}}
    with pytest.raises(processes.RefusedError, match="ValueError: no such column"):
        process.ask({"job": "fail"}, 60)


def test_environment_of_the_peers_takes_our_torch_first_and_is_made_once(tmp_path, monkeypatch):
    ran = []

    def run(command, **_):
        ran.append(command)
        (tmp_path / "peers").mkdir(exist_ok=True)
        return type("Done", (), {"returncode": 0, "stderr": ""})

    monkeypatch.setattr(forecasting_peers.subprocess, "run", run)
    monkeypatch.setattr(forecasting_peers.metadata, "version", lambda name: "2.13.0+cpu")
    for _ in range(2):
        forecasting_peers.peers_python(tmp_path / "peers")
    assert [command[-1] for command in ran][:2] == [str(tmp_path / "peers"), "torch==2.13.0"]
    assert len(ran) == 3 and "torch==2.13.0" in ran[2] and any("darts" in one for one in ran[2])


def test_environment_of_the_peers_that_cannot_be_made_says_why(tmp_path, monkeypatch):
    failed = type("Done", (), {"returncode": 1, "stderr": "first\nno matching distribution"})
    monkeypatch.setattr(forecasting_peers.subprocess, "run", lambda *_, **__: failed)
    monkeypatch.setattr(forecasting_peers.metadata, "version", lambda name: "2.13.0")
    with pytest.raises(RuntimeError, match="no matching distribution"):
        forecasting_peers.peers_python(tmp_path)


def test_folds_are_twenty_and_every_hour_and_end_with_the_test_part():
    counts = {}
    for what, stride in backtest.folds().items():
        origins = backtest.origins_of(stride)
        counts[what] = len(origins)
        assert origins[-1] + backtest.HORIZON == ROWS and origins[0] >= TRAIN + VALIDATION
    assert counts == {"20 folds": 20, "every hour": 2857}


@pytest.mark.parametrize("spoiled", ["origins", "truth", "forecast"])
def test_backtests_that_are_not_of_the_same_are_not_timed(spoiled):
    values = np.arange(ROWS, dtype=np.float64)[:, None]
    origins = backtest.origins_of(150)
    truth = truth_at(values, origins, backtest.HORIZON)
    theirs = {"origins": origins, "forecast": truth + 1}
    ours = {"origins": origins, "truth": truth, "forecast": truth + 1 + 1e-4}
    scale = np.ones(1)
    assert backtest.check("ours", ours, theirs, values, scale) == pytest.approx(1e-4, rel=1e-3)
    ours[spoiled] = ours[spoiled] + 1
    with pytest.raises(RuntimeError, match=r"ours: (forecasts|judged)"):
        backtest.check("ours", ours, theirs, values, scale)


def test_weights_of_a_peer_come_in_kerass_order():
    found = {
        "rnn.weight_ih_l0": np.full((8, 3), 1.0),
        "rnn.weight_hh_l0": np.full((8, 2), 2.0),
        "rnn.bias_ih_l0": np.full(8, 3.0),
        "rnn.bias_hh_l0": np.full(8, 4.0),
        "fc.0.weight": np.full((5, 2), 5.0),
        "fc.0.bias": np.full(5, 6.0),
    }
    shapes = [(one.shape, one.flat[0]) for one in keras_weights(found)]
    assert shapes == [((3, 8), 1.0), ((2, 8), 2.0), ((8,), 7.0), ((2, 5), 5.0), ((5,), 6.0)]


def test_table_has_the_strongest_opponent_first_then_ours():
    head, *rows = by_case.TABLES["forecasting"](planted_forecasts.forecasting())
    assert all(len(row) == len(head) for row in rows)
    names = [row[0] for row in rows]
    near = names[1 : names.index("`OT` from itself, 96 hours ahead")]
    assert near[:4] == [
        "Darts, `NLinearModel`",
        "**Cellerate** on jax",
        "**Cellerate** on torch",
        "last value",
    ]
    assert rows[1][1:3] == ["0.0270", "0.0260 to 0.0280"]
    assert rows[-1][:2] == ["NeuralForecast, `NLinear`", "KeyError: 'y'"]


def test_note_says_where_we_lose_and_by_how_much():
    result = planted_forecasts.forecasting()
    assert forecasting_table.where_we_lose(result) == (
        "Cellerate loses in mean squared error on `OT` from itself, 24 hours ahead, by 11 % to Darts, "
        "`NLinearModel`; `OT` from itself, 96 hours ahead, by 9.1 % to Darts, `NLinearModel`. "
        "Peers: darts 0.48.1, torch 2.13.0+cpu."
    )
    for one in result["records"]:
        one["scaled_mse"] *= 0.5 if one["contestant"].startswith("cellerate") else 1
    assert forecasting_table.where_we_lose(result).startswith(
        "In mean squared error Cellerate loses nowhere."
    )


def test_backtest_table_compares_with_the_fastest_of_dartss_ways():
    _, *rows = by_case.TABLES["backtest"](planted_forecasts.backtest())
    cells = dict(rows)
    assert cells["Darts, `historical_forecasts`, nothing judged"] == "40 ms, 256 at a time"
    assert cells["**Cellerate** on jax, MAE"] == "4 ms (10.0x)"
    note = by_case.NOTES["backtest"](planted.record("backtest")["result"])
    assert "2e-06 standard deviations apart" in note and "darts 0.48.1" in note


def test_grids_begin_with_the_defaults_and_name_every_contestant():
    assert {*forecasting.GRIDS} == {*forecasting_table.NAMES}
    assert {len(grid) for grid in forecasting.GRIDS.values()} == {4}
    assert HORIZONS == (24, 96)
