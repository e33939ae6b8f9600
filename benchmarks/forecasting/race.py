"""The errors of forecasters that all trained for the same time: Cellerate, Darts and NeuralForecast on ETTh1.

Each contestant first tries a few settings for a third of the time, on each task at the shorter horizon, and keeps the
one with the smallest error on its own validation part. Then all train from several seeds, in turns, and every window
of the test part is judged by the same code. No contestant sees the test part before.
"""

import contextlib
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.forecasting.data import (
    HORIZONS,
    TASKS,
    TEST,
    TRAIN,
    VALIDATION,
    WINDOW,
    errors,
    naive_at,
    of_ours,
    read_series,
    test_origins,
    truth_at,
    write_series,
)
from benchmarks.forecasting.peers import peers_python
from benchmarks.processes import SPINNING_S, Process, RefusedError, program

BUDGET_S, QUICK_S = 10.0, 5.0
SEEDS = (0, 1, 2)
THREADS = 2
START_S, ANSWER_S = 180.0, 300.0
"""The time limits of a contestant: to load its libraries, and to answer after its training time."""

Settings = dict[str, Any]


def _grid(fixed: Settings, *some: Settings) -> list[Settings]:
    return [fixed | one for one in some]


_OURS = _grid(
    {"batch_size": 64, "learning_rate": 1e-3},
    {},
    {"learning_rate": 3e-4},
    {"batch_size": 256},
    {"loss": "mae"},
)
GRIDS: dict[str, list[Settings]] = {
    "cellerate-torch": _OURS,
    "cellerate-jax": _OURS,
    "darts-lstm": _grid(
        {"batch_size": 32, "learning_rate": 1e-3, "hidden_dim": 25},
        {},
        {"hidden_dim": 64, "batch_size": 64, "use_reversible_instance_norm": True},
        {"hidden_dim": 64, "batch_size": 256, "use_reversible_instance_norm": True},
        {"hidden_dim": 64, "batch_size": 64},
    ),
    "darts-nlinear": _grid(
        {"batch_size": 32, "learning_rate": 1e-3},
        {},
        {"batch_size": 256},
        {"learning_rate": 1e-4},
        {"batch_size": 256, "learning_rate": 1e-4},
    ),
    "neuralforecast-lstm": _grid(
        {"windows_batch_size": 128, "learning_rate": 1e-3, "val_check_steps": 50},
        {},
        {"encoder_n_layers": 1, "encoder_hidden_size": 64},
        {"encoder_n_layers": 1, "encoder_hidden_size": 64, "scaler_type": "standard"},
        {"encoder_n_layers": 1, "encoder_hidden_size": 64, "windows_batch_size": 32},
    ),
    "neuralforecast-nlinear": _grid(
        {"windows_batch_size": 1024, "learning_rate": 1e-4},
        {},
        {"learning_rate": 1e-3},
        {"windows_batch_size": 128},
        {"windows_batch_size": 128, "learning_rate": 1e-3},
    ),
}
"""The settings that each contestant tries, its defaults first; batch size and learning rate are written out."""


class Field:
    """The contestants' processes, each of which is started at its first request.

    Args:
        folder: Where `write_series` wrote the tasks.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.about: dict[str, Any] = {}
        self._processes: dict[str, Process] = {}

    def ask(self, contestant: str, job: str, given_s: float = 0.0, **question: Any) -> Any:
        """The answer of a contestant; raises like `Process.ask`, and the next question restarts the process."""
        name = process_of(contestant)
        if name not in self._processes:
            self._processes[name] = self._start(name)
        time.sleep(SPINNING_S)
        try:
            return self._processes[name].ask({"job": job, **question}, given_s + ANSWER_S, "answer")
        except RuntimeError:
            with contextlib.suppress(OSError, ValueError):
                self._processes[name].close()
            del self._processes[name]
            raise

    def close(self) -> None:
        """End all processes."""
        for process in self._processes.values():
            process.close()

    def _start(self, name: str) -> Process:
        library, _, backend = name.partition("-")
        ours = library == "cellerate"
        python = sys.executable if ours else peers_python()
        module = {"cellerate": "ours", "darts": "darts", "neuralforecast": "neural"}[library]
        arguments = [backend] if ours else []
        own = {} if ours else {"PYTHONPATH": ""}
        process = Process(
            program(f"forecasting.{module}", *arguments, str(self.folder), python=python),
            name,
            OMP_NUM_THREADS=str(THREADS),
            MKL_NUM_THREADS=str(THREADS),
            **own,
        )
        self.about[name] = process.answer(START_S, "load")
        return process


@contextlib.contextmanager
def open_field(source: Path) -> Iterator[Field]:
    """The contestants, with the task files of a series; the processes end with the block.

    Raises:
        RefusedError: The environment of the peers cannot be made.
    """
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as held:
        folder = Path(name)
        write_series(source, folder)
        try:
            peers_python()
        except RuntimeError as error:
            raise RefusedError(str(error)) from error
        field = Field(folder)
        held.callback(field.close)
        yield field


def process_of(contestant: str) -> str:
    """The process of a contestant; Darts and NeuralForecast each run both models in one process."""
    return contestant if of_ours(contestant) else contestant.partition("-")[0]


class Race:
    """Train the contestants for the same time, and judge them.

    Args:
        field: The contestants' processes.
        budget_s: Seconds of training.
        contestants: The names of the contestants.
    """

    def __init__(self, field: Field, budget_s: float, contestants: Sequence[str] = tuple(GRIDS)) -> None:
        self.field, self.budget_s = field, budget_s
        self.contestants = [*contestants]
        self.refused: dict[str, str] = {}
        self.tried: list[dict[str, Any]] = []
        self.records: list[dict[str, Any]] = []
        self._turn = 0

    def choose(self, task: str, horizon: int) -> dict[str, Settings]:
        """The settings of each contestant with the smallest validation error."""
        best: dict[str, tuple[float, Settings]] = {}
        for place in range(max(map(len, GRIDS.values()))):
            for name in self._in_turn():
                if place < len(GRIDS[name]):
                    settings = GRIDS[name][place]
                    told = self._train(name, task, horizon, 0, self.budget_s / 3, settings)
                    if told is not None:
                        loss = told["best_validation"]
                        keep = ("best_validation", "steps", "seconds")
                        one = {"task": task, "contestant": name, "settings": settings}
                        self.tried.append(one | {key: told[key] for key in keep})
                        if name not in best or loss < best[name][0]:
                            best[name] = loss, settings
        return {name: settings for name, (_, settings) in best.items()}

    def run(self, task: str, horizon: int, seed: int, chosen: dict[str, Settings]) -> None:
        """Train every contestant once and judge all windows of the test part."""
        series = read_series(self.field.folder, task)
        truth = truth_at(series.values, test_origins(horizon), horizon)
        into = self.field.folder / "forecasts.npy"
        for name in self._in_turn():
            told = self._train(name, task, horizon, seed, self.budget_s, chosen.get(name), into)
            if told is None:
                continue
            try:
                judged = errors(np.load(into), truth, series.scale)
            except ValueError as error:
                self._refuse(name, str(error))
                continue
            finally:
                into.unlink(missing_ok=True)
            about = {"task": task, "horizon": horizon, "contestant": name, "seed": seed}
            speed = {"windows_per_s": told["windows"] / told["trained_s"]}
            self.records.append(about | told | speed | judged | {"judged": len(truth)})
            print(
                f"{task:<4} {horizon:>3} {name:<23} seed {seed}: MSE {judged['scaled_mse']:.4f}, MAE "
                f"{judged['scaled_mae']:.4f}; {told['steps']} steps in {told['trained_s']:.1f} s, best after "
                f"{told['best_step']}",
                flush=True,
            )

    def _train(
        self,
        name: str,
        task: str,
        horizon: int,
        seed: int,
        budget_s: float,
        settings: Settings | None,
        into: Path | None = None,
    ) -> dict[str, Any] | None:
        if name in self.refused or settings is None:
            return None
        question = {"kind": name.rpartition("-")[2], "task": task, "horizon": horizon, "seed": seed}
        try:
            told: dict[str, Any] = self.field.ask(
                name,
                "train",
                budget_s,
                budget_s=budget_s,
                settings=settings,
                into=None if into is None else str(into),
                **question,
            )
        except RuntimeError as error:
            self._refuse(name, str(error))
            return None
        return told

    def _refuse(self, name: str, reason: str) -> None:
        """Remove a failed contestant; end the run if the contestant is Cellerate."""
        if of_ours(name):
            raise RuntimeError(f"{name}: {reason}")
        self.refused[name] = reason
        self.records = [one for one in self.records if one["contestant"] != name]
        print(f"{name} is left out: {reason}", flush=True)

    def _in_turn(self) -> list[str]:
        """The contestants, starting with another one each time."""
        self._turn = (self._turn + 1) % len(self.contestants)
        return self.contestants[self._turn :] + self.contestants[: self._turn]


def naive(folder: Path) -> list[dict[str, Any]]:
    """The errors of forecasts without a model."""
    found = []
    for task in TASKS:
        series = read_series(folder, task)
        for horizon in HORIZONS:
            origins = test_origins(horizon)
            truth = truth_at(series.values, origins, horizon)
            for name, made in naive_at(series.values, origins, horizon).items():
                judged = errors(made, truth, series.scale)
                found.append({"task": task, "horizon": horizon, "contestant": name} | judged)
    return found


def run(source: Path, *, quick: bool) -> dict[str, Any]:
    """The whole contest; a quick one trains the defaults for some seconds, from one seed, on one column only.

    Raises:
        RefusedError: The environment of the peers cannot be made.
        RuntimeError: Ours cannot train, or makes no forecasts that can be judged.
    """
    with open_field(source) as field:
        race = Race(field, QUICK_S if quick else BUDGET_S)
        chosen: dict[str, dict[str, Settings]] = {}
        for task in TASKS[:1] if quick else TASKS:
            chosen[task] = (
                {one: GRIDS[one][0] for one in race.contestants} if quick else race.choose(task, HORIZONS[0])
            )
            for one, settings in chosen[task].items():
                print(f"{task:<4} {one:<23} {settings}", flush=True)
            for seed in SEEDS[:1] if quick else SEEDS:
                for horizon in HORIZONS:
                    race.run(task, horizon, seed, chosen[task])
        return {
            "series": source.name,
            "split": [TRAIN, VALIDATION, TEST],
            "window": WINDOW,
            "horizons": [*HORIZONS],
            "budget_s": race.budget_s,
            "seeds": [*SEEDS],
            "about": field.about,
            "settings": chosen,
            "tried": race.tried,
            "records": race.records,
            "naive": naive(field.folder),
            "refused": race.refused,
        }
