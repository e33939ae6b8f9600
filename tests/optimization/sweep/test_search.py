"""A search with simulated points: Optuna draws, prunes and stores, and the test part is used once."""

import importlib.util
import json

import numpy as np
import pytest

import cellerate
from cellerate.errors import BackendError, ConfigError
from cellerate.listener import Callbacks
from cellerate.optimization.sweep import search
from cellerate.optimization.sweep.plan import read_settings
from cellerate.optimization.sweep.record import read_record
from cellerate.optimization.sweep.space import space_of
from support.optimization.sweeps import MadeUpProcess, made_up

pytest.importorskip("optuna")
pytestmark = pytest.mark.keras

OPTIONS = {
    "batch_size": "8..128",
    "search": True,
    "trials": 9,
    "seconds": 1.0,
    "rounds": 2,
    "backend": "torch",
}


def space(task="series", model=None, **options):
    base, _ = read_settings(task, ["data"], options, backend="torch", model=model)
    return {one.axis.name: one for one in space_of(base, options)}


class Drawn:
    """A trial that draws the lower end of a range, or the first of a list."""

    def suggest_int(self, name, low, high, *, log):
        assert log
        return low

    def suggest_float(self, name, low, high, *, log):
        self.log = log
        return low

    def suggest_categorical(self, name, values):
        return values[0]


def test_draws_come_from_lists_and_ranges():
    found = space(batch_size="30..64", units=[7, 9], learning_rate="1e-4..1e-2", dropout="0.1..0.3")
    trial = Drawn()
    assert {name: one.draw(trial) for name, one in found.items()} == {
        "batch_size": 32,  # sizes are in eights
        "units": 7,
        "dropout": 0.1,
        "learning_rate": 1e-4,
    }
    assert trial.log
    assert not found["units"].ranged


def test_without_a_range_the_usual_space_of_the_task_is_searched():
    found = space("text", optimizer="adam")
    assert {"batch_size", "units", "layers", "learning_rate"} <= {*found}
    # Given values stay fixed.
    assert "optimizer" not in found
    own = space("text", model="mine.keras")
    assert "units" not in own
    assert "learning_rate" in own


def test_search_chooses_by_validation_and_judges_once_beside_the_control(tmp_path, monkeypatch):
    asked = made_up(monkeypatch)
    found = cellerate.sweep("series", "data.csv", tmp_path / "s", **OPTIONS)
    assert found.status == "finished"
    assert len(found.points) == 1 + 9
    assert found.verdict["trials"] == 9
    # The control and the chosen point come last.
    assert [kind for _, kind in asked].count("test") == 2
    assert [kind for _, kind in asked[-2:]] == ["test", "test"]
    best = next(point for point in found.points if point.label == found.verdict["best"])
    complete = [point for point in found.points[1:] if point.status == "measured"]
    assert best.values["batch_size"] == min(point.values["batch_size"] for point in complete)
    # Its steps are quicker than those of the control, whose batches are of 64.
    assert found.verdict["chosen"] == best.label
    assert found.verdict["test"]["difference"]["high"] < 0
    assert "lower" in found.verdict["sentence"]
    assert f"--batch-size {best.values['batch_size']} " in found.verdict["command"]
    page = (tmp_path / "s" / "sweep.html").read_text()
    assert "On the test part" in page
    assert "A search of: batch size" in page
    assert json.loads((tmp_path / "s" / "sweep.json").read_text())["verdict"] == found.verdict


def test_tried_point_is_not_repeated_and_a_small_search_space_ends(tmp_path, monkeypatch):
    made_up(monkeypatch)
    said = []
    options = OPTIONS | {"batch_size": [8, 16, 32], "trials": 20}
    found = cellerate.sweep("series", "data.csv", tmp_path / "s", listener=Callbacks(said.append), **options)
    values = [point.values["batch_size"] for point in found.points[1:]]
    assert sorted(values) == [8, 16, 32]
    assert (found.status, found.verdict["trials"]) == ("finished", 3)
    assert any("no point is left that was not tried before" in line for line in said)


def test_search_without_a_gain_says_so_and_keeps_the_control(tmp_path, monkeypatch):
    asked = made_up(monkeypatch)
    options = OPTIONS | {"batch_size": "256..1024", "trials": 3}
    found = cellerate.sweep("series", "data.csv", tmp_path / "s", **options)
    assert "it bought nothing" in found.verdict["sentence"]
    assert found.verdict["chosen"] == "the control"
    assert "test" not in [kind for _, kind in asked]
    assert "--batch-size" not in found.verdict["command"]


def test_uncertain_gain_on_the_test_part_is_not_claimed(tmp_path, monkeypatch):
    made_up(monkeypatch)
    whole = MadeUpProcess.ask

    def ask(self, kind, **options):
        found = whole(self, kind, **options)
        # Both are equal except for chance.
        noise = np.random.default_rng(self._rows).normal(1, 0.3, 16)
        return [[float(one), 32.0] for one in noise] if kind == "test" else found

    monkeypatch.setattr(MadeUpProcess, "ask", ask)
    found = cellerate.sweep("series", "data.csv", tmp_path / "s", **OPTIONS)
    difference = found.verdict["test"]["difference"]
    assert difference["low"] < 0 < difference["high"]
    assert "the search bought nothing and the control stays" in found.verdict["sentence"]
    assert found.verdict["chosen"] == "the control"


def test_lagging_trials_are_stopped_and_failed_trials_are_reported(tmp_path, monkeypatch):
    from cellerate.optimization.probe_client import ProbeError

    def fails(rows, kind):
        if rows > 100 and kind == "turn":
            raise ProbeError("no memory left", memory=True)

    made_up(monkeypatch, fails)
    options = OPTIONS | {"trials": 25, "rounds": 3}
    found = cellerate.sweep("series", "data.csv", tmp_path / "s", **options)
    early = [point for point in found.points if point.status == "stopped early"]
    assert early
    assert all(len(point.turns) < 3 for point in early)
    assert all(point.reason.startswith("it was behind after round") for point in early)
    broken = [point for point in found.points if point.status == "failed"]
    assert all(point.reason == "no memory left" for point in broken)
    assert found.verdict["stopped_early"] == len(early)
    assert found.verdict["failed"] == len(broken)
    # A stopped trial does not set the training length at which the others are compared.
    assert all(turn["seconds"] > 0 for point in early for turn in point.turns)


def test_second_process_joins_the_study_of_the_first(tmp_path, monkeypatch):
    helped = []

    def fails(rows, kind):
        if kind == "turn" and len(asked) > 10 and not helped:
            helped.append(None)
            # The situation of a second process: the folder is locked, and the study exists.
            said = []
            helped[0] = cellerate.sweep(
                "series", "data.csv", tmp_path / "s", listener=Callbacks(said.append), **OPTIONS
            )
            assert said == ["another process searches there already: this one helps it"]
            with pytest.raises(ConfigError, match=r"searches in .* with other settings"):
                cellerate.sweep("series", "data.csv", tmp_path / "s", **OPTIONS | {"batch_size": "8..64"})

    asked = made_up(monkeypatch, fails)
    found = cellerate.sweep("series", "data.csv", tmp_path / "s", **OPTIONS)
    assert helped[0].status == "helped"
    count = int(helped[0].verdict["sentence"].split()[0])
    assert count > 3
    # The processes never train the same point, and the first reports all points.
    assert found.verdict["trials"] == 9


def test_interrupted_search_resumes_with_its_trials(tmp_path, monkeypatch):
    def fails(rows, kind):
        if [kind for _, kind in asked].count("ready") == 5:
            raise KeyboardInterrupt

    asked = made_up(monkeypatch, fails)
    with pytest.raises(KeyboardInterrupt):
        cellerate.sweep("series", "data.csv", tmp_path / "s", **OPTIONS)
    before = read_record(tmp_path / "s")
    assert before.status == "interrupted"
    assert len([point for point in before.points if point.measured]) == 4
    with pytest.raises(ConfigError, match="holds a sweep already"):
        cellerate.sweep("series", "data.csv", tmp_path / "s", **OPTIONS)
    asked = made_up(monkeypatch)
    found = cellerate.sweep("series", "data.csv", tmp_path / "s", resume=True, **OPTIONS)
    assert found.status == "finished"
    assert found.verdict["trials"] == 9
    # The search does not retrain the control; the final evaluation trains it once.
    assert [rows for rows, kind in asked if kind == "ready"].count(64) >= 1
    assert [point.values for point in found.points[:4]] == [point.values for point in before.points[:4]]


def test_time_budget_ends_the_search_with_time_left_to_evaluate(tmp_path, monkeypatch):
    made_up(monkeypatch)
    clock = [1000.0]
    monkeypatch.setattr(search.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(search.time, "time", lambda: clock[0])
    whole = MadeUpProcess.ask

    def ask(self, kind, **options):
        # A start takes 2 s, training its set time, and evaluating a little.
        found = whole(self, kind, **options)
        clock[0] += 2.0 if kind == "ready" else found["seconds"] + 0.1 if kind == "turn" else 0.1
        return found

    monkeypatch.setattr(MadeUpProcess, "ask", ask)
    options = {name: value for name, value in OPTIONS.items() if name not in ("trials", "seconds")}
    found = cellerate.sweep("series", "data.csv", tmp_path / "s", time_budget=60.0, **options)
    assert found.status == "finished"
    assert 4 <= found.verdict["trials"] <= 12
    assert 1.0 <= found.point_s < 5.0
    assert clock[0] - 1000.0 < 60.0 + 2 * (2.0 + found.point_s)
    assert found.seconds < 66.0


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("foo", "cannot be used .*expected one that exists, as postgresql://USER@HOST/NAME"),
        ("sqlite:////nowhere/study.db", "cannot be used .unable to open database file.: expected one"),
        (
            "mssql+pymssql://host/study",
            "package that is not installed .No module named 'pymssql'.: install it",
        ),
    ],
)
def test_unusable_database_is_refused_with_a_remedy(tmp_path, monkeypatch, url, reason):
    made_up(monkeypatch)
    with pytest.raises(ConfigError, match=f"the database that study names .*{reason}"):
        cellerate.sweep("series", "data.csv", tmp_path / "s", study=url, **OPTIONS)
    assert not (tmp_path / "s").exists()


def test_search_without_optuna_names_the_package_to_install(tmp_path, monkeypatch):
    made_up(monkeypatch)
    there = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "optuna" else there(name))
    with pytest.raises(BackendError, match=r"pip install 'cellerate\[sweep\]'"):
        cellerate.sweep("series", "data.csv", tmp_path / "s", **OPTIONS)
    assert not (tmp_path / "s").exists()
