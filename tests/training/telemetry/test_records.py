"""The telemetry of a run, with simulated figures and a simulated clock."""

import csv
import json
import math

import pytest

from cellerate.errors import ConfigError
from cellerate.training.telemetry import records as telemetry, trackers
from cellerate.training.telemetry.display import Display, RunPlan
from cellerate.training.telemetry.records import Sample, Telemetry, read_telemetry

PLAN = RunPlan(epochs=2, steps_per_epoch=100, items_per_step=64, item="windows")


class Heard(Display):
    def __init__(self):
        self.heard = []

    def start(self, plan):
        self.heard.append("start")

    def step(self, epoch, step, logs):
        self.heard.append((epoch, step))

    def data_wait(self, share):
        self.heard.append(share)

    def phase(self, text):
        self.heard.append(text)

    def epoch(self, record):
        self.heard.append(record["epoch"])

    def message(self, text):
        self.heard.append(text)

    def stop(self):
        self.heard.append("stop")


class Tracked:
    """A tracker that fails from a step on."""

    key = "run 7"

    def __init__(self, fails_at=10**9):
        self.fails_at, self.logged, self.ended = fails_at, [], None

    def log(self, step, values):
        if step >= self.fails_at:
            raise RuntimeError("no route to host\nand more")
        self.logged.append((step, dict(values)))

    def close(self, status):
        self.ended = status


@pytest.fixture
def clock(monkeypatch):
    """A clock that a test advances."""
    now = [1000.0]
    monkeypatch.setattr(telemetry.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(
        telemetry, "MachineReadings", lambda: type("M", (), {"read": lambda _: {"cpu": 0.5}})()
    )
    return now


@pytest.fixture
def tracked(monkeypatch):
    made = Tracked()
    monkeypatch.setitem(trackers._TRACKERS, "wandb", lambda folder, settings, known: made)
    return made


def trained(told, clock, *, from_step=1, to_step=100):
    """An epoch of steps of 0.1 seconds, every 5th of which is looked at."""
    for step in range(from_step, to_step + 1):
        clock[0] += 0.1
        if step % 5 == 0 or step == 1:
            told.data_wait(0.25)
            told.step(0, step, {"loss": 1.0 / step})


def test_figures_are_recorded_once_a_second_and_all_reach_the_trackers(tmp_path, clock):
    display = Heard()
    with Telemetry(display, tmp_path / "run") as told:
        told.start(PLAN)
        trained(told, clock)
        assert len(read_telemetry(tmp_path / "run")) == 10  # while the run continues
        told.phase("validating")
        told.epoch({"epoch": 1, "steps": 100, "loss": 0.5, "val_loss": 0.7, "best": True, "seconds": 10.0})
        told.message("so far")
        told.stop()
        told.status = "finished"
    first, second, *_, epoch = rows = read_telemetry(tmp_path / "run")
    assert (first["epoch"], first["step"], first["loss"]) == (1, 1, 1.0)
    assert "items_per_s" not in first  # its time is that of the compilation
    assert (second["step"], second["items_per_s"]) == (15, pytest.approx(640))
    assert second["data_wait"] == 0.25
    assert second["machine/cpu"] == 0.5
    assert [row["step"] for row in rows] == [1, *range(15, 96, 10), 100]
    assert {name: epoch[name] for name in epoch if "/" in name} == {
        "epoch/loss": 0.5, "epoch/val_loss": 0.7, "epoch/seconds": 10.0
    }  # fmt: skip
    with (tmp_path / "run" / "telemetry.csv").open() as file:
        table = list(csv.DictReader(file))
    assert [int(row["step"]) for row in table] == [row["step"] for row in rows]
    assert float(table[1]["items_per_s"]) == second["items_per_s"]
    assert table[0]["items_per_s"] == ""
    assert display.heard[:3] == ["start", 0.25, (0, 1)]
    assert display.heard[-4:] == ["validating", 1, "so far", "stop"]


def test_samples_stand_beside_the_figures_and_end_with_their_first_failure(tmp_path, clock):
    asked = []

    def sample():
        asked.append(len(asked))
        if len(asked) == 3:
            raise RuntimeError("out of memory")
        return Sample("Once <b>", f"upon {len(asked)}")

    display = Heard()
    with Telemetry(display, tmp_path, sample=sample) as told:
        told.start(PLAN)
        for epoch in range(1, 6):
            told.epoch({"epoch": epoch, "steps": 100, "loss": 0.5})
    lines = [json.loads(line) for line in (tmp_path / "telemetry.jsonl").read_text().splitlines()]
    samples = [(line["epoch"], line["step"], line["sample"]) for line in lines if "sample" in line]
    assert samples == [
        (1, 100, {"given": "Once <b>", "made": "upon 1"}),
        (2, 200, {"given": "Once <b>", "made": "upon 2"}),
    ]
    assert len(asked) == 3
    assert sum("a sample fails" in str(said) for said in display.heard) == 1
    # Tables hold figures alone.
    assert len(read_telemetry(tmp_path)) == 5
    assert "sample" not in (tmp_path / "telemetry.csv").read_text()


def test_figures_that_are_not_finite_become_null(tmp_path, clock):
    with Telemetry(Display(), tmp_path) as told:
        told.start(PLAN)
        told.epoch({"epoch": 1, "steps": 100, "loss": 0.5, "val_loss": math.nan, "seconds": math.inf})
    (line, _) = (tmp_path / "telemetry.jsonl").read_text().splitlines()
    assert "NaN" not in line
    assert json.loads(line)["epoch/val_loss"] is None
    assert json.loads(line)["epoch/seconds"] is None


def test_speed_excludes_the_time_between_epochs(tmp_path, clock):
    with Telemetry(Display(), tmp_path) as told:
        told.start(PLAN)
        trained(told, clock)
        clock[0] += 500
        told.epoch({"epoch": 1, "steps": 100, "loss": 0.5})
        for step in (1, 11, 21):
            clock[0] += 1
            told.step(1, step, {"loss": 0.1})
    rows = read_telemetry(tmp_path)
    assert [row.get("items_per_s") for row in rows[-3:]] == [None, pytest.approx(640), pytest.approx(640)]
    assert [row["step"] for row in rows[-3:]] == [101, 111, 121]


def test_resumed_run_appends_and_a_new_run_starts_over(tmp_path, clock):
    with Telemetry(Display(), tmp_path) as told:
        told.start(PLAN)
        trained(told, clock, to_step=10)
    path = tmp_path / "telemetry.jsonl"
    path.write_text(path.read_text() + '{"time": 17, "epo')  # the run was killed
    with Telemetry(Display(), tmp_path, resumed=True) as told:
        told.start(PLAN)
        trained(told, clock, from_step=11)
    assert [row["step"] for row in read_telemetry(tmp_path)][:3] == [1, 15, 25]
    with Telemetry(Display(), tmp_path):
        pass
    assert read_telemetry(tmp_path) == []
    assert read_telemetry(tmp_path / "nowhere") == []


def test_trackers_get_the_figures_and_the_final_status(tmp_path, clock, tracked):
    with Telemetry(Display(), tmp_path, ["wandb"]) as told:
        told.start(PLAN)
        trained(told, clock)
        told.status = "interrupted"
    rows = read_telemetry(tmp_path)
    assert [(step, values["loss"]) for step, values in tracked.logged] == [
        (row["step"], row["loss"]) for row in rows
    ]
    assert tracked.ended == "interrupted"
    assert json.loads((tmp_path / "trackers.json").read_text()) == {"wandb": "run 7"}


def test_run_that_raises_has_failed(tmp_path, clock, tracked):
    with pytest.raises(ZeroDivisionError), Telemetry(Display(), tmp_path, ["wandb"]):
        raise ZeroDivisionError
    assert tracked.ended == "failed"


def test_run_continues_without_a_failed_tracker(tmp_path, clock, tracked):
    display = Heard()
    tracked.fails_at = 30
    with Telemetry(display, tmp_path, ["wandb"]) as told:
        told.start(PLAN)
        trained(told, clock)
    said = [text for text in display.heard if isinstance(text, str) and "fails" in text]
    assert said == ["Tracked fails, and the run goes on without it: no route to host"]
    assert [step for step, _ in tracked.logged] == [1, 15, 25]
    assert len(read_telemetry(tmp_path)) == 10
    assert tracked.ended == "failed"


def test_run_continues_if_telemetry_cannot_be_written(tmp_path, clock, tracked):
    display = Heard()
    (tmp_path / "telemetry.jsonl").mkdir()
    with Telemetry(display, tmp_path, ["wandb"]) as told:
        told.start(PLAN)
        trained(told, clock)
    said = [text for text in display.heard if isinstance(text, str) and "fails" in text]
    assert len(said) == 1
    assert said[0].startswith("telemetry.jsonl fails, and the run goes on without it: ")
    assert len(tracked.logged) == 10


def test_full_disk_at_the_end_leaves_the_run_and_its_trackers_whole(tmp_path, clock, tracked):
    display = Heard()
    with Telemetry(display, tmp_path, ["wandb"]) as told:
        told.start(PLAN)
        told._file.close()
        with open("/dev/full", "w") as told._file:  # noqa: PTH123 (every write into it fails)
            told.status = "finished"
            told.__exit__(None, None, None)
        told._file = None
    assert any("No space left" in text for text in display.heard if isinstance(text, str))
    assert tracked.ended == "finished"


def test_unreadable_machine_figures_do_not_end_the_run(tmp_path, clock, monkeypatch):
    class Broken:
        def read(self):
            raise RuntimeError("the driver was updated")

    monkeypatch.setattr(telemetry, "MachineReadings", Broken)
    display = Heard()
    with Telemetry(display, tmp_path) as told:
        told.start(PLAN)
        trained(told, clock)
    rows = read_telemetry(tmp_path)
    assert len(rows) == 10
    assert not any(name.startswith("machine/") for row in rows for name in row)
    assert len([text for text in display.heard if isinstance(text, str) and "driver" in text]) <= 2


def test_tracker_that_cannot_start_ends_the_started_ones(tmp_path, clock, tracked, monkeypatch):
    def fail(*_):
        raise OSError("connection refused.")

    monkeypatch.setitem(trackers._TRACKERS, "mlflow", fail)
    with (
        pytest.raises(
            ConfigError, match=r"mlflow cannot track this run: connection refused\. .*MLFLOW_TRACKING_URI"
        ),
        Telemetry(Display(), tmp_path, ["wandb", "mlflow"]),
    ):
        pass
    assert tracked.ended == "failed"


def test_resumed_run_keeps_its_tracker_key(tmp_path, monkeypatch):
    known = []
    monkeypatch.setitem(
        trackers._TRACKERS, "wandb", lambda folder, settings, key: known.append(key) or Tracked()
    )
    for resumed in (False, True, False):
        with Telemetry(Display(), tmp_path, ["wandb"], resumed=resumed):
            pass
    assert known == [None, "run 7", None]
