"""Sweeps without processes: points with made-up figures, and plans of them."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from cellerate.listener import Callbacks
from cellerate.optimization.probe_client import ProbeError
from cellerate.optimization.sweep.plan import Plan, plan, read_settings
from cellerate.optimization.sweep.record import PointRecord, SweepRecord
from cellerate.optimization.sweep.run import Sweep
from cellerate.optimization.sweep.settings import SweepSettings

BATCHES = 16
# The questions to the processes of a test, in order: the batch size and the question.
Asked = list[tuple[int, str]]


class MadeUpProcess:
    """Stands in for the process of a point: a step takes a millisecond a row, and the loss falls with the steps.

    Attributes:
        asked: The questions to all of them.
        fails: Called with the batch size and the question before each answer; raises the process's error.
    """

    asked: ClassVar[Asked] = []
    fails: ClassVar[Callable[[int, str], None]] = staticmethod(lambda rows, kind: None)

    def __init__(self, module: str, opened: Mapping[str, Any], **options: Any) -> None:
        self._rows = opened["parts"].get("data", {}).get("batch_size", 64)
        self.environment = options["environment"]
        self._steps = 0
        self.alive = False

    def start(self) -> None:
        self.alive = True

    def close(self) -> None:
        self.alive = False

    def ask(self, kind: str, *, timeout_s: float, **options: Any) -> Any:
        assert self.alive
        self.asked.append((self._rows, kind))
        self.fails(self._rows, kind)
        if kind == "test":
            return self._judged()["pairs"]
        if kind == "ready":
            if options["state"] is not None:
                self._steps = int(Path(options["state"]).read_text())
            return {
                "batch_size": self._rows,
                "items": self._rows,
                "item": "windows",
                "bits": None,
                "step_s": self._rows / 1000,
                "ready_s": 0.5,
                "weights": 100,
                "messages": ["read"],
                "judged": [] if options["state"] else [self._judged()],
                "steps": self._steps,
            }
        self._steps += options["steps"]
        if options.get("state"):
            Path(options["state"]).write_text(str(self._steps))
        return {
            "steps": options["steps"],
            "seconds": options["steps"] * self._rows / 1000,
            "times_s": [self._rows / 1000] * min(options["steps"], 5),
            "train_loss": 1.0,
            "judged": [{**self._judged(), "train_loss": 1.0}],
            "peak_memory_bytes": 10**8,
            "peak_gpu_memory_bytes": None,
        }

    def _judged(self) -> dict[str, Any]:
        noise = np.random.default_rng(self._rows).normal(0, 0.001, BATCHES)
        loss = 1 / (1 + self._steps) + self._rows / 1000
        losses = [float(loss + one) for one in noise]
        return {
            "steps": self._steps,
            "seconds": self._steps * self._rows / 1000,
            "losses": losses,
            "weights": [32.0] * BATCHES,
            "pairs": [[one, 32.0] for one in losses],
        }


def made_up(monkeypatch: Any, fails: Callable[[int, str], None] | None = None) -> Asked:
    """Run points in made-up processes, and return the list of the questions to them."""
    asked: Asked = []
    monkeypatch.setattr(MadeUpProcess, "asked", asked)
    monkeypatch.setattr(MadeUpProcess, "fails", staticmethod(fails or (lambda rows, kind: None)))
    monkeypatch.setattr("cellerate.optimization.sweep.points.MeasuringProcess", MadeUpProcess)
    return asked


def plan_of(settings: SweepSettings | None = None, task: str = "series", **options: Any) -> Plan:
    """A plan of a task with made-up files."""
    base, several = read_settings(task, ["data"], options, backend="torch")
    return plan(base, several, settings or SweepSettings(beside_stock=False))


def record_of_plan(made: Plan) -> SweepRecord:
    """The record of a plan before it runs."""
    return SweepRecord(
        task=made.base.task,
        data=["data"],
        model="",
        backend="torch",
        parts={part: dict(fields) for part, fields in made.base.parts.items()},
        axes={name: list(values) for name, values in made.axes.items()},
        settings={"rounds": 4},
        points=[PointRecord(one.label, dict(one.values), one.control) for one in made.points],
    )


def run_made_up(
    folder: Path, settings: SweepSettings, *, said: list[str] | None = None, **options: Any
) -> SweepRecord:
    """Run a sweep of made-up points and return its record."""
    made = plan_of(settings, **options)
    record = record_of_plan(made)
    folder.mkdir(exist_ok=True)
    Sweep(made, settings, record, folder, Callbacks((said if said is not None else []).append)).run()
    return record


def failing(rows: Sequence[int], kind: str, *, memory: bool = False) -> Callable[[int, str], None]:
    """A function that makes points with some batch sizes fail at one kind of question."""

    def fails(asked: int, question: str) -> None:
        if asked in rows and question == kind:
            raise ProbeError("out of memory" if memory else "it broke", memory=memory)

    return fails
