"""Runs that are tracked by the real packages, on this machine alone, and read back: every figure must be there."""

import importlib.util
import json
import struct
import time

import keras
import numpy as np
import pytest

from cellerate.data.windows.text_windows import TextBatches
from cellerate.errors import BackendError, ConfigError
from cellerate.models.text import build_text_model
from cellerate.training.loop import train
from cellerate.training.run import RunOptions, TrainingRun
from cellerate.training.settings import TrainingSettings
from cellerate.training.telemetry import records as telemetry
from cellerate.training.telemetry.display import Display
from cellerate.training.telemetry.records import read_telemetry

pytestmark = [
    pytest.mark.keras,
    # MLflow uses functions that SQLAlchemy has deprecated.
    pytest.mark.filterwarnings("ignore:.*noload.*loader strategy is deprecated"),
]

IDS = np.random.default_rng(3).integers(1, 3, 1200).cumsum().astype(np.int64) % 7


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Trains for two epochs of 12 steps, all of which are written."""
    monkeypatch.setattr(telemetry, "_EVERY_S", 0.0)
    monkeypatch.chdir(tmp_path)
    for name in ("WANDB_PROJECT", "MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")

    def run(track, **settings):
        return train(
            build_text_model(7, embedding=4, units=6, seed=5),
            TextBatches(IDS[:1000], length=10, batch_size=8, seed=1),
            TrainingRun(
                options=RunOptions(
                    output=tmp_path / "m.keras",
                    resume=settings.pop("resume", False),
                    display=settings.pop("display", None),
                    training=TrainingSettings(
                        **{"epochs": 2, "learning_rate": 0.01, "log_every": 1, "track": track} | settings
                    ),
                ),
                loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
                validation=TextBatches(IDS[1000:], length=10, batch_size=8, drop_last=False),
            ),
        )

    return run


def expected(folder):
    """What every tracker must hold: by name, the steps and values."""
    found = {}
    for row in read_telemetry(folder):
        for name, value in row.items():
            if name not in ("time", "epoch", "step"):
                found.setdefault(name, []).append((row["step"], pytest.approx(value, rel=1e-6)))
    assert {"loss", "items_per_s", "data_wait", "machine/cpu", "machine/memory_bytes"} <= found.keys()
    assert {"epoch/val_loss", "epoch/loss", "epoch/items_per_s", "epoch/learning_rate"} <= found.keys()
    assert [step for step, _ in found["epoch/val_loss"]] == [12, 24]
    return found


@pytest.mark.backends
def test_tensorboard_holds_every_figure(run):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    result = run(["tensorboard"])
    events = EventAccumulator(str(result.folder / "tensorboard"), size_guidance={"tensors": 0})
    events.Reload()
    found = {
        name: [(event.step, event.tensor_proto.float_val[0]) for event in events.Tensors(name)]
        for name in events.Tags()["tensors"]
    }
    assert found == expected(result.folder)


def test_mlflow_holds_every_figure_and_setting(run, tmp_path):
    from mlflow.tracking import MlflowClient

    result = run("mlflow")
    client = MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
    experiment = client.get_experiment_by_name("cellerate")
    (found,) = client.search_runs([experiment.experiment_id])
    assert (found.info.run_name, found.info.status) == ("m", "FINISHED")
    assert found.data.params["learning_rate"] == "0.01"
    assert found.data.params["backend"] == keras.config.backend()
    for name, values in expected(result.folder).items():
        history = client.get_metric_history(found.info.run_id, name)
        assert sorted((one.step, one.value) for one in history) == values, name


def test_mlflow_continues_the_run_of_the_checkpoint(run, tmp_path, monkeypatch):
    from mlflow.tracking import MlflowClient

    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/own.db")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "mine")
    assert run("mlflow", max_seconds=1e-6).status == "time limit"
    run("mlflow", resume=True)
    client = MlflowClient()
    (found,) = client.search_runs([client.get_experiment_by_name("mine").experiment_id])
    assert found.info.status == "FINISHED"
    steps = [one.step for one in client.get_metric_history(found.info.run_id, "epoch/val_loss")]
    assert steps[-1] == 24


def test_lost_tracking_server_does_not_end_the_run(run, monkeypatch):
    from mlflow.tracking import MlflowClient

    class Heard(Display):
        def __init__(self):
            self.said = []

        def message(self, text):
            self.said.append(text)

    sent = []

    def log(client, key, metrics=(), params=()):
        sent.append(len(metrics))
        if len(sent) > 3:
            raise ConnectionError("the server is gone")

    monkeypatch.setattr(MlflowClient, "log_batch", log)
    heard = Heard()
    result = run("mlflow", display=heard)
    assert result.status == "finished"
    assert len(sent) == 4  # the settings, and three times figures
    assert heard.said.count("MlflowTracker fails, and the run goes on without it: the server is gone") == 1
    assert len(expected(result.folder)["loss"]) == 24


def offline_records(folder):
    """The records of the run that wandb keeps offline: a log of LevelDB, in blocks of 32 KiB, after 7 bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    (path,) = folder.glob("wandb/offline-run-*/*.wandb")
    content, place, whole = path.read_bytes(), 7, b""
    while place + 7 <= len(content):
        if (left := 32768 - place % 32768) < 7:
            place += left
            continue
        _, length, kind = struct.unpack("<IHB", content[place : place + 7])
        if place + 7 + length > len(content):
            return
        whole = (whole if kind in (3, 4) else b"") + content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):
            record = Record()
            record.ParseFromString(whole)
            yield record


def test_wandb_offline_holds_every_figure_and_setting(run, monkeypatch):
    monkeypatch.setenv("WANDB_PROJECT", "mine")
    result = run(["wandb"])
    found, config, ended = {}, {}, None
    # Another process writes the records, perhaps still.
    deadline = time.monotonic() + 30
    while not any(one.HasField("exit") for one in offline_records(result.folder)):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    for record in offline_records(result.folder):
        kind = record.WhichOneof("record_type")
        if kind == "history":
            row = {
                item.key or "/".join(item.nested_key): json.loads(item.value_json)
                for item in record.history.item
            }
            for name, value in row.items():
                if name != "step" and not name.startswith("_"):
                    found.setdefault(name, []).append((row["step"], value))
        elif kind == "run":
            config |= {item.key: item.value_json for item in record.run.config.update}
            project = record.run.project
            assert record.run.display_name == "m"
        elif kind == "exit":
            ended = record.exit.exit_code
    assert found == expected(result.folder)
    assert project == "mine"
    assert json.loads(config["learning_rate"]) == 0.01
    assert ended == 0
    known = json.loads((result.folder / "trackers.json").read_text())
    assert list(result.folder.glob(f"wandb/offline-run-*-{known['wandb']}"))


def test_missing_package_is_named_before_training(run, monkeypatch, tmp_path):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "wandb" else find(name))
    with pytest.raises(BackendError, match=r"pip install 'cellerate\[wandb\]'"):
        run("mlflow,wandb")
    assert list(tmp_path.iterdir()) == []


def test_unknown_trackers_are_refused():
    assert TrainingSettings(track="wandb,mlflow").track == ("wandb", "mlflow")
    assert TrainingSettings(track=["mlflow,wandb", "mlflow"]).track == ("mlflow", "wandb")
    with pytest.raises(ConfigError, match="track must be one of tensorboard, wandb, mlflow, not 'neptune'"):
        TrainingSettings(track=["neptune"])
