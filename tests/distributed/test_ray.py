"""Training on a Ray cluster of this machine, through the command line."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from cellerate.machine.environment import installed_backends

pytest.importorskip("ray", reason="Ray is not installed: pip install --group cluster")
pytestmark = pytest.mark.slow
# Longer than anything takes, beside other programs too: what hangs ends.
PATIENCE_S = 900
CELLERATE = str(Path(sys.executable).with_name("cellerate"))
OPTIONS = [
    "--units",
    "48",
    "--length",
    "40",
    "--batch-size",
    "30",
    "--checkpoint-every-s",
    "0.5",
    "--log-every",
    "5",
]


@pytest.fixture
def text(tmp_path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("".join(f"{n} mice have {n * n} cats. " for n in range(8000)))
    return path


def command(text: Path, output: str, backend: str, *more: str) -> list[str]:
    return [
        CELLERATE,
        "train",
        "text",
        str(text),
        "-o",
        output,
        "--backend",
        backend,
        "--json",
        *OPTIONS,
        *more,
    ]


def history(done: str) -> list[dict]:
    return json.loads(done)["training"]["history"]


@pytest.mark.parametrize("backend", [name for name in ("jax", "torch") if name in installed_backends()])
def test_worker_that_is_killed_costs_nothing_but_time(text, tmp_path, backend):
    alone = subprocess.run(
        command(text, "alone.keras", backend, "--epochs", "6"),
        cwd=tmp_path,
        check=True,
        capture_output=True,
        text=True,
    )
    on_ray = ["--epochs", "6", "--ray", "local", "--processes", "2", "--min-processes", "1", "--no-probe"]
    with subprocess.Popen(
        command(text, "ray.keras", backend, *on_ray),
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as running:
        epochs = tmp_path / "ray.run" / "history.jsonl"
        wait_for(lambda: epochs.exists() and running.poll() is None)
        killed = [
            process
            for process in psutil.Process(running.pid).children(recursive=True)
            if "RayTrainWorker" in " ".join(process.cmdline())
        ]
        assert len(killed) == 2
        os.kill(killed[-1].pid, signal.SIGKILL)
        said, told = running.communicate(timeout=PATIENCE_S)
    assert running.returncode == 0, told
    found, expected = history(said), history(alone.stdout)
    assert [record["epoch"] for record in found] == [1, 2, 3, 4, 5, 6]
    for ours, theirs in zip(found, expected, strict=True):
        assert ours["steps"] == theirs["steps"]
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-4)
        assert ours["val_loss"] == pytest.approx(theirs["val_loss"], rel=1e-4)
    # The output of the first attempt and of the second: epochs that were shown before come only once.
    assert told.count("epoch 1/6") >= 1
    assert "epoch 6/6" in told


def test_one_worker_trains_and_a_probe_comes_first(text, tmp_path):
    one = command(text, "one.keras", "torch", "--epochs", "1", "--ray", "local")
    done = subprocess.run(one, cwd=tmp_path, check=False, capture_output=True, text=True, timeout=PATIENCE_S)
    assert (done.returncode, len(history(done.stdout))) == (0, 1)
    two = command(text, "two.keras", "torch", "--epochs", "1", "--ray", "local", "--processes", "2")
    done = subprocess.run(two, cwd=tmp_path, check=False, capture_output=True, text=True, timeout=PATIENCE_S)
    assert "an efficiency of" in done.stderr
    assert (done.returncode, bool(done.stdout)) in ((0, True), (2, False))


def test_what_cannot_be_trained_is_said_once_and_not_tried_again(text, tmp_path):
    wrong = command(
        text, "ray.keras", "torch", "--ray", "local", "--processes", "2", "--no-probe", "--length", "999999"
    )
    done = subprocess.run(wrong, cwd=tmp_path, check=False, capture_output=True, text=True)
    assert done.returncode == 3
    assert done.stderr.count("a window needs 1,000,000") == 1
    assert "Traceback" not in done.stderr


def test_cluster_that_is_too_small_is_refused(text, tmp_path):
    many = command(text, "ray.keras", "torch", "--ray", "local", "--processes", "500", "--no-probe")
    done = subprocess.run(many, cwd=tmp_path, check=False, capture_output=True, text=True)
    assert done.returncode == 2
    assert "500 processes need one each" in done.stderr


def test_cluster_that_is_not_there_is_an_error(text, tmp_path):
    gone = command(text, "ray.keras", "torch", "--ray", "127.0.0.1:1", "--processes", "2", "--no-probe")
    done = subprocess.run(gone, cwd=tmp_path, check=False, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 5
    assert "127.0.0.1:1 cannot be reached" in done.stderr
    assert "Traceback" not in done.stderr


def wait_for(condition) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
