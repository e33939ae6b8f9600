"""One model trained by several processes: what one process would have made."""

import json
import time
import types
from pathlib import Path

import keras
import numpy as np
import pytest

from cellerate.errors import CheckpointError, ConfigError
from cellerate.training.checkpoint import Position
from cellerate.training.parallel import Processes
from cellerate.training.telemetry.records import read_telemetry
from support.runs import joint_training
from support.runs.in_processes import launched, together

pytestmark = [pytest.mark.keras, pytest.mark.backends]
BACKEND = keras.config.backend()
needs_processes = pytest.mark.skipif(BACKEND == "tensorflow", reason="TensorFlow has no such processes")


def alone(job: str, folder: Path) -> dict:
    """A job in this process."""
    folder.mkdir(exist_ok=True)
    return json.loads(json.dumps(joint_training.JOBS[job](folder)))


def assert_same_curve(found: dict, expected: dict, tolerance: float = 1e-4) -> None:
    assert len(found["history"]) == len(expected["history"])
    for ours, theirs in zip(found["history"], expected["history"], strict=True):
        assert ours == pytest.approx(theirs, rel=tolerance)


@needs_processes
def test_two_processes_make_what_one_makes(tmp_path):
    names = ["divided", "odd", "begun", "lines", "drawn", "diverging", "interrupted", "link"]
    found = dict(zip(names, together(joint_training.__file__, names, 2, tmp_path / "two"), strict=True))
    for first, _ in [found.pop("link")]:
        assert 1e-6 < first["latency_s"] < 0.1
        assert 1e6 < first["bytes_per_s"] < 1e12
    assert "training diverged" in found["diverging"][0]["history"]
    for first, second in found.values():
        assert first["history"] == second["history"]
    # What the first has begun with, all have, and what is fixed stays.
    assert (
        found["begun"][0]["fixed"]
        == found["begun"][1]["fixed"]
        == [[[pytest.approx(0.1)] * 2] * 8, [0.0] * 2]
    )
    assert found["begun"][0]["best_epoch"] == found["begun"][1]["best_epoch"]
    of_one = {name: alone(name, tmp_path / name) for name in ("divided", "odd", "begun")}
    for name, expected in of_one.items():
        first, second = found[name]
        assert_same_curve(first, expected)
        np.testing.assert_allclose(first["predicted"], expected["predicted"], atol=1e-4)
        np.testing.assert_allclose(first["curve"], expected["curve"], rtol=1e-4)
        assert (first["here"], second["here"], second["predicted"]) == (True, False, None)
        # One of them writes what it sees.
        steps = [row["step"] for row in read_telemetry(tmp_path / "two" / f"{name}.run") if "loss" in row]
        assert steps
        assert len(set(steps)) == len(steps)
    assert_same_curve(found["lines"][0], alone("lines", tmp_path / "lines"), 1e-3)
    assert found["lines"][0]["judged"] is not None
    assert found["lines"][1]["judged"] is None
    # On JAX the processes compute one model; on torch each has one and draws for itself.
    first, second = found["drawn"]
    assert (first["states"][0][0] == second["states"][0][0]) == (BACKEND == "jax")
    np.testing.assert_allclose(first["statistics"], second["statistics"], rtol=1e-6)

    first, second = found["interrupted"]
    assert first["status"] == second["status"] == "interrupted"
    expected = of_one["divided"]
    assert_same_curve(first, {"history": expected["history"][:1]})
    # What two have begun, one goes on with.
    resumed = alone("interrupted", tmp_path / "two")
    assert resumed["status"] == "finished"
    assert_same_curve(resumed, expected)


@needs_processes
def test_error_of_one_process_ends_all_at_once(tmp_path):
    began = time.monotonic()
    code, said = launched(joint_training.__file__, ["failing"], 2, tmp_path)
    assert code == 6
    assert "error: the disk is full" in said
    assert time.monotonic() - began < 60


@needs_processes
@pytest.mark.slow
def test_processes_that_come_and_go_make_the_curve_of_one(tmp_path, monkeypatch):
    plan = [
        (2, [0, 6], "interrupted"),
        (1, [1, 2], "interrupted"),
        (2, [1, 10], "interrupted"),
        (3, [9, 9], "finished"),
    ]
    for count, stop, status in plan:
        monkeypatch.setenv("STOP_AT", json.dumps(stop))
        ((first, *_),) = together(joint_training.__file__, ["elastic"], count, tmp_path / "elastic")
        assert first["status"] == status
    assert [record["steps"] for record in first["history"]] == [17] * 3
    assert_same_curve(first, alone("divided", tmp_path / "divided"))


@needs_processes
def test_training_that_cannot_be_shared_is_refused(monkeypatch):
    processes = Processes()
    assert (processes.first, processes.several) == (True, False)
    fixed = keras.Sequential([keras.Input(batch_shape=(4, 6, 2)), keras.layers.LSTM(3)])
    processes.check(fixed, carry_states=True)
    monkeypatch.setattr(processes, "count", 3)
    if BACKEND == "jax":
        with pytest.raises(ConfigError, match="3 processes have met, but Keras has no distribution"):
            processes.check(fixed, carry_states=False)
        monkeypatch.setattr(keras.distribution, "distribution", lambda: "one")
    with pytest.raises(ConfigError, match="in one process, not in 3: train without carry_states"):
        processes.check(fixed, carry_states=True)
    with pytest.raises(ConfigError, match="takes batches of 4 only"):
        processes.check(fixed, carry_states=False)
    processes.check(joint_training.forecaster(), carry_states=False)


@needs_processes
@pytest.mark.parametrize("other", [[-1, -1, 5], [2, 7, 5], [2, 8, 6]])
def test_processes_that_do_not_see_the_same_are_refused(monkeypatch, other):
    processes, seen = Processes(), []
    monkeypatch.setattr(processes, "count", 2)
    monkeypatch.setattr(
        processes,
        "_bridge",
        types.SimpleNamespace(gathered=lambda values: seen.append(values) or np.array([values] * 2)),
    )
    processes.check_same({"a": 1}, Position(2, 8))
    processes.check_same({"a": 2}, None)
    assert seen[0][:2] == [2, 8]
    assert seen[1][:2] == [-1, -1]
    assert seen[0][2] != seen[1][2]
    mine = [2, 8, 5]
    monkeypatch.setattr(
        processes, "_bridge", types.SimpleNamespace(gathered=lambda _: np.array([mine, other]))
    )
    with pytest.raises(CheckpointError, match="the processes differ"):
        processes.check_same({"a": 1}, Position(2, 8))


def test_probe_times_the_rows_of_each_number_of_processes_and_writes_no_model(tmp_path, monkeypatch):
    result = tmp_path / "probe.json"
    monkeypatch.setenv("CELLERATE_PROBE", json.dumps({"result": str(result), "shares": [1, 4, 100]}))
    with pytest.raises(SystemExit) as ended:
        joint_training.divided(tmp_path)
    assert ended.value.code == 0
    found = json.loads(result.read_text())
    assert [*found["step_s"]] == [*found["memory_bytes"]] == ["100", "4", "1"]
    assert all(0 < seconds < 10 for seconds in found["step_s"].values())
    assert all(size > 1e7 for size in found["memory_bytes"].values())
    # Of 2 inputs and 8 units, and of 2 outputs.
    assert found["gradient_bytes"] == 4 * (4 * 8 * (2 + 8 + 1) + 8 * 2 + 2)
    assert (found["batches"], found["batch_size"], found["items"], found["item"]) == (17, 12, 12, "windows")
    assert found["link"] is None
    assert [*tmp_path.iterdir()] == [result]


@pytest.mark.skipif(BACKEND != "tensorflow", reason="the others have such processes")
def test_tensorflow_trains_alone():
    processes = Processes()
    assert (processes.number, processes.count) == (0, 1)


@needs_processes
def test_link_is_what_short_and_long_exchanges_take(monkeypatch):
    taken = []

    def add_up(array):
        taken.append(array.nbytes)
        time.sleep(0.01 + array.nbytes / 4e9)

    processes = Processes()
    monkeypatch.setattr(processes, "count", 4)
    monkeypatch.setattr(processes, "_bridge", types.SimpleNamespace(add_up=add_up))
    found = processes.measure_link()
    # Two rounds there and two back, and each byte 2 · 3/4 times.
    assert found["latency_s"] == pytest.approx(0.01 / 4, rel=0.2)
    assert found["bytes_per_s"] == pytest.approx(1.5 * 4e9, rel=0.3)
    assert taken[0] == 4
    assert taken[-1] == 16 << 20


@needs_processes
def test_numbers_are_the_most_of_all_processes_or_the_first_ones(monkeypatch):
    processes = Processes()
    assert (processes.most([3, 0]), processes.of_first(7)) == ([3, 0], 7)
    monkeypatch.setattr(processes, "count", 3)
    gathered = np.array([[4, 0], [2, 9], [3, 1]])
    monkeypatch.setattr(processes, "_bridge", types.SimpleNamespace(gathered=lambda _: gathered))
    assert (processes.most([4, 0]), processes.of_first(5)) == ([4, 9], 4)
