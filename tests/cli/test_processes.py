"""Trainings in several processes, as the command line starts them."""

import json
from pathlib import Path

import pytest
import typer

from cellerate.cli import output, running
from cellerate.distributed.settings import ProcessSettings
from cellerate.errors import BackendError, ConfigError

NEW = {"resume": False, "overwrite": False}


@pytest.fixture(autouse=True)
def there(monkeypatch, tmp_path):
    """Create the text file, which the command checks first."""
    (tmp_path / "t.txt").write_text("A text.")
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--processes", "0"], "processes must be a whole number at least 1, not 0"),
        (["--min-processes", "1"], "--min-processes is for a Ray cluster"),
        (
            ["--ray", "local", "--processes", "2", "--min-processes", "3"],
            "--min-processes is 3, but --processes only 2",
        ),
        (["--stages", "0"], "stages must be a whole number at least 1, not 0"),
        (["--chunks", "4"], "--chunks divides time for stages: add --stages 2"),
        (
            ["--ray", "local", "--stages", "2", "--min-processes", "1"],
            "--min-processes lets processes be missing",
        ),
    ],
)
def test_impossible_process_numbers_are_refused(cellerate, tmp_path, words, said):
    code, out, err = cellerate("train", "text", "t.txt", "-o", tmp_path / "m.keras", *words)
    assert (code, out) == (2, "")
    assert said in err


def test_tensorflow_is_refused_before_any_process_starts(monkeypatch, tmp_path):
    monkeypatch.setattr(running, "select_backend", lambda _: "tensorflow")
    with pytest.raises(BackendError, match="backend='jax' or 'torch'"):
        running.start_training(
            "tensorflow", ProcessSettings(processes=2), ["t.txt"], tmp_path / "m.keras", quiet=True, **NEW
        )


@pytest.fixture
def started(monkeypatch):
    """Do not start the backend, and record every launch."""
    launched = []

    def launch(command, count, extra=None):
        launched.append((count, sorted(extra)))
        if "CELLERATE_PROBE" in extra:
            Path(json.loads(extra["CELLERATE_PROBE"])["result"]).write_text(
                json.dumps({"step_s": {"1": 1 / count}})
            )
        return 0

    monkeypatch.setattr("cellerate.distributed.launch.launch", launch)
    monkeypatch.setattr(running, "select_backend", lambda _: "torch")
    monkeypatch.setattr(running, "start_backend", lambda *_: launched.append("backend"))
    monkeypatch.setattr(output, "_silent", False)
    return launched


def test_several_processes_are_measured_then_started(started, monkeypatch, tmp_path, capsys):
    with pytest.raises(typer.Exit) as ended:
        running.start_training(
            None, ProcessSettings(processes=2), ["t.txt"], tmp_path / "m.keras", quiet=False, **NEW
        )
    assert ended.value.exit_code == 0
    assert started == [(1, ["CELLERATE_PROBE"]), (2, ["CELLERATE_PROBE"]), (2, [])]
    assert "2.00 times as fast, an efficiency of 100%" in capsys.readouterr().err


def test_stages_and_copies_are_started_together_and_measured_beside_one_process(
    started, monkeypatch, tmp_path
):
    parallel = ProcessSettings(processes=2, stages=3, chunks=5)
    with pytest.raises(typer.Exit):
        running.start_training(None, parallel, ["t.txt"], tmp_path / "m.keras", quiet=True, **NEW)
    divided = ["CELLERATE_CHUNKS", "CELLERATE_STAGES"]
    assert started == [(1, ["CELLERATE_PROBE"]), (6, sorted([*divided, "CELLERATE_PROBE"])), (6, divided)]


def test_measurement_of_processes_can_be_skipped(started, tmp_path):
    with pytest.raises(typer.Exit):
        running.start_training(
            None,
            ProcessSettings(processes=3, probe=False),
            ["t.txt"],
            tmp_path / "m.keras",
            quiet=False,
            **NEW,
        )
    assert started == [(3, [])]


@pytest.mark.parametrize("settings", [{"processes": 2}, {"ray": "local"}, {"processes": 2, "ray": "auto"}])
def test_launched_process_starts_no_other_processes(started, monkeypatch, tmp_path, settings):
    monkeypatch.setenv("CELLERATE_LAUNCHED", "1")
    assert not running.start_training(
        None, ProcessSettings(**settings), ["t.txt"], tmp_path / "m.keras", quiet=False, **NEW
    )
    assert started == ["backend"]


def test_incomplete_group_is_an_error(started, monkeypatch, tmp_path):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="RANK, MASTER_ADDR, MASTER_PORT is not set"):
        running.start_training(None, ProcessSettings(), ["t.txt"], tmp_path / "m.keras", quiet=False, **NEW)


def test_only_the_first_process_prints(started, monkeypatch, capsys):
    output.silence()
    output.notify("a")
    output.print_result("b")
    assert capsys.readouterr() == ("", "")
