"""Sends the figures of a run to experiment trackers: TensorBoard files, Weights & Biases, MLflow.

Each keeps to its own settings: who you are and where figures go is what its environment variables and files say.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import queue
import shutil
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

from cellerate.errors import ConfigError
from cellerate.files import atomic_write
from cellerate.machine.environment import require

Ending = Literal["finished", "stopped early", "time limit", "interrupted", "failed"]

_WELL = ("finished", "stopped early", "time limit")
_KNOWN = "trackers.json"
_PROJECT = "cellerate"
# How long the end of a run waits for figures that are still on their way.
_PATIENCE_S = 60.0


class Tracker(Protocol):
    """Where the figures of a run go."""

    key: str
    """The tracker's name for the run."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Takes the figures of a step of the run."""

    def close(self, status: Ending) -> None:
        """Ends the run."""


def check_trackers(names: Sequence[str]) -> None:
    """Raises `BackendError`, which says what to install, if the package of a tracker is missing."""
    for name in names:
        require(name, name, f"tracking with {name}")


def open_trackers(
    names: Sequence[str], folder: Path, settings: Mapping[str, Any], *, resumed: bool
) -> list[Tracker]:
    """Begins a run with trackers, or goes on with the one that the run's folder names.

    Args:
        names: Which of "tensorboard", "wandb" and "mlflow".
        folder: The run's folder.
        settings: The settings and data of the run, as plain values.
        resumed: Whether the run goes on.

    Raises:
        ConfigError: A tracker cannot begin: no login, no server.
    """
    path = folder / _KNOWN
    known: dict[str, str] = {}
    if resumed and path.exists():
        known = json.loads(path.read_text())
    found: list[Tracker] = []
    for name in names:
        try:
            found.append(_TRACKERS[name](folder, settings, known.get(name)))
        except Exception as error:
            # Each has exceptions of its own, and any other package may be behind them.
            for tracker in found:
                tracker.close("failed")
            reason = next(iter(str(error).splitlines()), "").rstrip(".") or type(error).__name__
            raise ConfigError(f"{name} cannot track this run: {reason}. {_HINTS[name]}") from error
        known[name] = found[-1].key
    if found:
        with atomic_write(path) as beside:
            beside.write_text(json.dumps(known))
    return found


class TensorBoardTracker:
    """Writes TensorBoard event files into the run's folder, on every backend and without TensorFlow."""

    def __init__(self, folder: Path, settings: Mapping[str, Any], known: str | None) -> None:
        from tensorboard.summary import Writer

        self.key = str(folder / "tensorboard")
        if known is None:
            # Otherwise the curves of an earlier run would mix with this run's.
            shutil.rmtree(self.key, ignore_errors=True)
        self._writer = Writer(self.key)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """See `Tracker`."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self, status: Ending) -> None:
        """See `Tracker`."""
        self._writer.close()


class WandbTracker:
    """Logs to Weights & Biases; `WANDB_MODE=offline` keeps it in the run's folder."""

    def __init__(self, folder: Path, settings: Mapping[str, Any], known: str | None) -> None:
        import wandb

        self._run = wandb.init(
            # WANDB_PROJECT and the user's settings have the first word.
            project=wandb.setup().settings.project or _PROJECT,
            name=folder.stem,
            id=known,
            resume="allow" if known else None,
            # The program may have a run of its own, which is not to be had back here.
            reinit="create_new",
            dir=str(folder),
            config=dict(settings),
            # Stdout is for results, and the run already shows what wandb would print.
            settings=wandb.Settings(console="off", silent=True),
        )
        # A run that goes on from its last checkpoint repeats steps, and wandb's own count must not go back.
        self._run.define_metric("*", step_metric="step")
        self.key = self._run.id

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """See `Tracker`."""
        self._run.log({"step": step, **values})

    def close(self, status: Ending) -> None:
        """See `Tracker`."""
        self._run.finish(exit_code=0 if status in _WELL else 1)


class MlflowTracker:
    """Logs to MLflow: to `MLFLOW_TRACKING_URI`, else into mlflow.db in this folder, under `MLFLOW_EXPERIMENT_NAME`.

    A server may be slow or away for a while, so a thread waits for it, and not the training.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any], known: str | None) -> None:
        from mlflow.entities import Param
        from mlflow.environment_variables import MLFLOW_EXPERIMENT_NAME
        from mlflow.tracking import MlflowClient

        logging.getLogger("mlflow").setLevel(logging.WARNING)
        self._client = client = MlflowClient()
        with _impatient():
            if known is not None:
                client.update_run(known, status="RUNNING")
                self.key = known
            else:
                name = MLFLOW_EXPERIMENT_NAME.get() or _PROJECT
                experiment = client.get_experiment_by_name(name)
                number = experiment.experiment_id if experiment else client.create_experiment(name)
                self.key = client.create_run(number, run_name=folder.stem).info.run_id
                client.log_batch(self.key, params=[Param(key, str(value)) for key, value in settings.items()])
        self._error: Exception | None = None
        self._left: queue.SimpleQueue[list[Any] | None] = queue.SimpleQueue()
        self._sender = threading.Thread(target=self._send, daemon=True)
        self._sender.start()

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """See `Tracker`."""
        from mlflow.entities import Metric

        if self._error is not None:
            raise self._error
        now = round(1000 * time.time())
        self._left.put([Metric(name, value, now, step) for name, value in values.items()])

    def close(self, status: Ending) -> None:
        """See `Tracker`."""
        self._left.put(None)
        self._sender.join(_PATIENCE_S)
        error = self._error
        if error is None and self._sender.is_alive():
            error = TimeoutError(f"the last figures did not arrive within {_PATIENCE_S:.0f} s")
        words = {"failed": "FAILED", "interrupted": "KILLED"}
        with _impatient():
            self._client.set_terminated(self.key, words.get(status, "FINISHED"))
        if error is not None:
            raise error

    def _send(self) -> None:
        try:
            while (metrics := self._left.get()) is not None:
                self._client.log_batch(self.key, metrics)
        except Exception as error:
            self._error = error


@contextlib.contextmanager
def _impatient() -> Iterator[None]:
    """Hears soon that a server of MLflow does not answer; its default is to try for minutes."""
    name = "MLFLOW_HTTP_REQUEST_MAX_RETRIES"
    before = os.environ.get(name)
    os.environ.setdefault(name, "2")
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]


_TRACKERS: dict[str, Any] = {
    "tensorboard": TensorBoardTracker,
    "wandb": WandbTracker,
    "mlflow": MlflowTracker,
}
_HINTS = {
    "tensorboard": "See that the folder can be written.",
    "wandb": "WANDB_MODE=offline keeps the run on this machine.",
    "mlflow": "See that MLFLOW_TRACKING_URI names a server or a database that answers.",
}
