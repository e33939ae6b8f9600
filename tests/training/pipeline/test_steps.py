"""A model divided into stages gives the results of one process."""

import dataclasses
import json
import time
from pathlib import Path

import keras
import numpy as np
import pytest

from cellerate.errors import ConfigError, ModelError
from cellerate.training.parallel import Processes
from cellerate.training.pipeline import divisible
from cellerate.training.pipeline.division import StageLayout
from support.runs import stage_training
from support.runs.in_processes import launched, results, together

pytestmark = [pytest.mark.keras, pytest.mark.backends]
BACKEND = keras.config.backend()
needs_processes = pytest.mark.skipif(BACKEND == "tensorflow", reason="TensorFlow has no such processes")
PROGRAM = stage_training.__file__


def alone(job: str, folder: Path) -> dict:
    """A job in this process."""
    folder.mkdir(exist_ok=True)
    return json.loads(json.dumps(stage_training.JOBS[job](folder)))


def assert_same(found: dict, expected: dict) -> None:
    assert len(found["history"]) == len(expected["history"])
    for ours, theirs in zip(found["history"], expected["history"], strict=True):
        assert ours == pytest.approx(theirs, rel=1e-4)
    np.testing.assert_allclose(found["curve"], expected["curve"], rtol=1e-4)
    np.testing.assert_allclose(found["predicted"], expected["predicted"], atol=1e-4)


@pytest.fixture(scope="module")
def forecast_alone(tmp_path_factory) -> dict:
    """The job "forecast" in this process."""
    return alone("forecast", tmp_path_factory.mktemp("alone"))


@dataclasses.dataclass(frozen=True)
class TwoStages:
    """The results of several jobs from one start of two stages; the last job ends the processes."""

    folder: Path
    jobs: dict[str, list[dict]]
    code: int
    said: str
    dying_s: float


@pytest.fixture(scope="module")
def two_stages(tmp_path_factory) -> TwoStages:
    folder = tmp_path_factory.mktemp("two")
    variables = {"CELLERATE_STAGES": "2", "CELLERATE_CHUNKS": "4", "STOP_AT": "[1, 4]"}
    names = ["text", "forecast", "begun", "interrupted"]
    code, said = launched(PROGRAM, [*names, "dying"], 2, folder, variables)
    ended = time.time()
    last = folder / f"{names[-1]}-1.json"
    assert last.exists(), said
    return TwoStages(folder, results(folder, names, 2), code, said, ended - last.stat().st_mtime)


@needs_processes
def test_two_stages_train_like_one_process(tmp_path, two_stages, forecast_alone):
    found = two_stages.jobs
    for name in ("text", "forecast", "begun"):
        first, second = found[name]
        assert_same(first, forecast_alone if name == "forecast" else alone(name, tmp_path / name))
        assert first["history"] == second["history"]
        assert (first["here"], second["here"], second["predicted"]) == (True, False, None)
        assert len(first["stages"]) == 2
        assert all(first["stages"])
        assert first["chunks"] == [4, 4]
        assert all(0 <= share < 1 for share in first["waiting"])
        assert all(size > 1e7 for size in first["memory"])
    assert found["forecast"][0]["stages"] in (
        [["lstm_1"], ["lstm_2", "lstm_3"]],
        [["lstm_1", "lstm_2"], ["lstm_3"]],
    )

    first, second = found["interrupted"]
    assert first["status"] == second["status"] == "interrupted"
    # One process resumes the training of two stages.
    resumed = alone("interrupted", two_stages.folder)
    assert resumed["status"] == "finished"
    expected = alone("interrupted", tmp_path / "whole")
    for ours, theirs in zip(resumed["history"], expected["history"], strict=True):
        assert ours == pytest.approx(theirs, rel=1e-4)


@needs_processes
def test_copies_of_three_stages_share_rows(tmp_path, forecast_alone):
    variables = {"CELLERATE_STAGES": "3", "CELLERATE_CHUNKS": "3"}
    ((first, *others),) = together(PROGRAM, ["forecast"], 6, tmp_path / "six", variables)
    assert_same(first, forecast_alone)
    assert all(other["history"] == first["history"] for other in others)
    assert [len(stage) for stage in first["stages"]] == [1, 1, 1]


@needs_processes
def test_dead_stage_ends_all_stages_with_one_message(two_stages):
    assert two_stages.code == 137
    assert two_stages.said.count("process 1 was ended by SIGKILL") == 1
    assert two_stages.dying_s < 90


@needs_processes
@pytest.mark.slow
def test_four_layers_of_512_units_have_the_curve_of_one_process(tmp_path):
    ((first, _),) = together(PROGRAM, ["large"], 2, tmp_path / "two", {"CELLERATE_STAGES": "2"})
    assert_same(first, alone("large", tmp_path / "one"))
    assert [sum("lstm" in name for name in stage) for stage in first["stages"]] == [2, 2]


@needs_processes
def test_models_that_cannot_be_divided_are_refused(monkeypatch):
    layout = StageLayout(0, 2, 2)
    layers = keras.layers
    with pytest.raises(ConfigError, match="stages is 5, but the model has 2 layers to divide"):
        divisible(
            keras.Sequential([keras.Input((6, 2)), layers.LSTM(3, return_sequences=True), layers.LSTM(3)]),
            5,
        )
    regular = keras.Sequential(
        [
            keras.Input((6, 2)),
            layers.LSTM(3, return_sequences=True, kernel_regularizer="l2"),
            layers.LSTM(3),
        ]
    )
    with pytest.raises(ModelError, match="regularizers"):
        divisible(regular, 2)
    processes = Processes()
    monkeypatch.setattr(processes, "count", 2)
    monkeypatch.setattr(processes, "layout", layout)
    both = keras.Sequential([keras.Input((6, 2)), layers.Bidirectional(layers.LSTM(3))])
    with pytest.raises(ModelError, match=r"'bidirectional.*' is Bidirectional"):
        processes.check(both, carry_states=False)
    if BACKEND == "jax":
        with monkeypatch.context() as patched:
            patched.setattr(keras.distribution, "distribution", lambda: "one")
            with pytest.raises(ConfigError, match="the arrays of a stage live"):
                processes.check(stage_training.stack(), carry_states=False)
    with pytest.raises(ConfigError, match="carry_states"):
        processes.check(stage_training.stack(), carry_states=True)
