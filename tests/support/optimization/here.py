"""A probe that answers in this process, and runs of `optimize` with it."""

import json
from pathlib import Path
from typing import Any, ClassVar

import pytest


def make_quick(patch: pytest.MonkeyPatch) -> None:
    """Measure every figure for a moment only."""
    from cellerate.machine.doctor import load
    from cellerate.optimization import clocks, hardware

    patch.setattr(clocks, "MEASURED_S", 0.01)
    patch.setattr(clocks, "_WARM_S", 0.0)
    patch.setattr(hardware, "_MEASURED_S", 0.0)
    patch.setattr(hardware, "_CALL_S", 0.0)
    patch.setattr(load, "MOMENT_S", 0.0)


def answer_here(patch: pytest.MonkeyPatch, kind: type["HereProbe"]) -> None:
    """Replace all processes with a kind of probe."""
    from cellerate.optimization import context, workflow

    for module in (context, workflow):
        patch.setattr(module, "Probe", kind)
    patch.setattr(HereProbe, "asked", [])
    patch.setattr(HereProbe, "running", [])


class HereProbe:
    """Answer in this process as a separate process would, but train only one step a turn.

    All probes share the model and the data, which are opened once; each has its own trainings, as a process has.
    """

    asked: ClassVar[list[tuple[str, dict[str, Any]]]] = []
    opened: ClassVar[dict[str, Any]] = {}
    running: ClassVar[list["HereProbe"]] = []

    def __init__(self, model: Path, data: Any, **options: Any) -> None:
        from cellerate.optimization.probe_client import Probe

        probe = Probe(model, data, **options)
        self.patience_s, self._question = probe.patience_s, probe._opened
        self._told: list[tuple[str, dict[str, Any]]] = []
        self._trainers: dict[str, Any] = {}
        self._uses: dict[tuple[str, ...], Any] = {}

    def __enter__(self) -> "HereProbe":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        self.running.append(self)

    def close(self) -> None:
        self.running.remove(self)
        self._trainers.clear()
        self._uses.clear()

    @property
    def has_ended(self) -> bool:
        return self not in self.running

    def ask(self, kind: str, *, timeout_s: float | None = None, **options: Any) -> Any:
        assert self in self.running, "it has not begun, or has ended"
        from cellerate.optimization.probe_process import _Work

        self.asked.append((kind, options))
        key = json.dumps(self._question)
        if key not in self.opened:
            self.opened[key] = _Work(self._question)
        work = self.opened[key]
        work._trainers, work._uses = self._trainers, self._uses
        if kind == "train":
            options = options | {"seconds": 0.0, "steps": None}
        if kind == "turn":
            options = options | {"steps": 1}
        question = json.loads(json.dumps({**self._question, "kind": kind, "with": options}))
        answer = json.loads(json.dumps(work.answer(question)))
        # A made-up answer, because this process did more than open a model.
        return 0.1 if kind == "open" else answer

    def tell(self, kind: str, **options: Any) -> None:
        self._told.append((kind, options))

    def answer(self, timeout_s: float | None = None) -> Any:
        kind, options = self._told.pop(0)
        return self.ask(kind, timeout_s=timeout_s, **options)


def optimized(
    made: Path,
    folder: Path,
    task: str = "text",
    data: str = "t.txt",
    *,
    model: Path | None = None,
    **settings: Any,
) -> Any:
    """A run without a time limit, with few training steps and a gate that lets nearly anything through."""
    from cellerate.optimization import workflow
    from cellerate.optimization.settings import OptimizeSettings

    given = {"time_budget": 100_000.0, "steps": 4, "max_quality_loss": 10.0} | settings
    return workflow.run(model or made / f"{task}.keras", made / data, folder, OptimizeSettings(**given))


LONG = {"time_budget": 100_000.0}
