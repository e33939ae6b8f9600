"""One small model of random weights for each task, with its data; and a probe that answers in this process."""

import csv
import dataclasses
import json
import shutil
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

# 804 characters, of which a quarter is held out: 20 windows of 10 and a first character.
TEXT = "".join(f"the {a} sat on the {b}.\n" for a in ("cat", "dog") for b in ("mat", "hat"))
TEXT = (TEXT * 12)[:804]
LENGTH, WINDOW, HORIZON, ROWS = 10, 6, 2, 200
LINES = [
    f"{a} {b}{c}" for a in ("red", "old", "ten") for b in ("hat", "cow") for c in ("", "s", " now", "!")
] * 5


def filled(model: Any, seed: int = 1) -> Any:
    """The same weights on every backend, of a model that is sure of what it says."""
    random = np.random.default_rng(seed)
    model.set_weights([2 / len(w) ** 0.5 * random.normal(size=w.shape) for w in model.get_weights()])
    return model


def text_payload(**changes: Any) -> dict[str, Any]:
    from cellerate.data.tokenizers.tokenizer import CharacterTokenizer

    payload = {
        "tokenizer": CharacterTokenizer("".join(sorted(set(TEXT)))).to_config(),
        "length": LENGTH,
        "batch_size": 8,
        "validation_fraction": 0.25,
        "include": [],
        "exclude": [],
        "training": {"optimizer": "adam", "learning_rate": 0.01},
    }
    return payload | changes


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a model and its data for each task, which tests only read."""
    folder = tmp_path_factory.mktemp("made")
    from cellerate.data.text.lines import LineVocabulary
    from cellerate.models.autoencoder import build_autoencoder
    from cellerate.models.storage import TaskRecord, save_model
    from cellerate.models.text import build_text_model
    from cellerate.tasks.series.train import train_on_series
    from cellerate.tasks.settings import ForecastArchitecture, SeriesOptions
    from cellerate.training.run import RunOptions
    from cellerate.training.settings import TrainingSettings

    (folder / "t.txt").write_text(TEXT)
    characters = len(set(TEXT))
    text = filled(build_text_model(characters, embedding=6, units=16, layers=1, dropout=0.0))
    save_model(text, folder / "text.keras", TaskRecord("text", text_payload()))

    with (folder / "s.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["load", "other"])
        # With noise, as a forecaster begins where its linear map ends: without, nothing is left to judge.
        noise = np.random.default_rng(3).normal(0, 0.3, ROWS)
        table.writerows(
            (f"{np.sin(n / 3) + n / 90 + noise[n]:.4f}", f"{np.cos(n / 3):.4f}") for n in range(ROWS)
        )
    train_on_series(
        SeriesOptions(
            paths=[folder / "s.csv"], target=["load"], window=WINDOW, horizon=HORIZON, batch_size=16
        ),
        RunOptions(output=folder / "series.keras", training=TrainingSettings(epochs=1)),
        architecture=ForecastArchitecture(units=8, dropout=0.0),
    )

    (folder / "l.txt").write_text("\n".join(LINES) + "\n")
    vocabulary = LineVocabulary.from_lines(LINES)
    payload = {
        "vocabulary": vocabulary.to_config(),
        "max_length": 12,
        "padding": "right",
        "batch_size": 8,
        "validation_fraction": 0.2,
        "training": {"seed": 3},
    }
    lines = filled(build_autoencoder(vocabulary.size, embedding=4, units=8, latent=5, dropout=0.0))
    save_model(lines, folder / "embed.keras", TaskRecord("embed", payload))
    return folder


def make_quick(patch: pytest.MonkeyPatch) -> None:
    """Has every figure measured for a moment only."""
    from cellerate.machine.doctor import load
    from cellerate.optimization import clocks, hardware

    patch.setattr(clocks, "MEASURED_S", 0.01)
    patch.setattr(clocks, "_WARM_S", 0.0)
    patch.setattr(hardware, "_MEASURED_S", 0.0)
    patch.setattr(hardware, "_CALL_S", 0.0)
    patch.setattr(load, "MOMENT_S", 0.0)


def answer_here(patch: pytest.MonkeyPatch, kind: type["HereProbe"]) -> None:
    """Puts a kind of probe into the place of all processes."""
    from cellerate.optimization import context, workflow

    for module in (context, workflow):
        patch.setattr(module, "Probe", kind)
    patch.setattr(HereProbe, "asked", [])
    patch.setattr(HereProbe, "running", [])


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every figure is measured for a moment only."""
    make_quick(monkeypatch)


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch) -> Callable[[Mapping[str, type]], None]:
    """Puts other passes in the place of all: a class for each name, in their order."""
    from cellerate.optimization.passes import registry

    def plant(kinds: Mapping[str, type]) -> None:
        monkeypatch.setitem(sys.modules, "planted", types.ModuleType("planted"))
        for name, kind in kinds.items():
            setattr(sys.modules["planted"], name, kind)
        monkeypatch.setattr(registry, "PASSES", {name: f"planted:{name}" for name in kinds})

    return plant


class HereProbe:
    """Answers as a process of its own would, in this one; trains for a step a turn only.

    All probes share the model and the data, which are opened once; each has its own trainings, as a process has.
    """

    asked: ClassVar[list[tuple[str, dict[str, Any]]]] = []
    opened: ClassVar[dict[str, Any]] = {}
    running: ClassVar[list["HereProbe"]] = []

    def __init__(self, model: Path, data: Any, *, seed: int, backend: str, patience_s: float) -> None:
        self.patience_s = patience_s
        self._question = {"model": str(model), "data": [str(path) for path in data], "seed": seed}
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
        # This process has done more than to open a model.
        return 0.1 if kind == "open" else answer

    def tell(self, kind: str, **options: Any) -> None:
        self._told.append((kind, options))

    def answer(self, timeout_s: float | None = None) -> Any:
        kind, options = self._told.pop(0)
        return self.ask(kind, timeout_s=timeout_s, **options)


@pytest.fixture(scope="session", autouse=True)
def closed() -> Iterator[None]:
    """What was opened is let go before the interpreter ends."""
    yield
    HereProbe.opened.clear()


@pytest.fixture
def here_probe(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[HereProbe]]:
    """Probes that answer in this process; a test fails if one is left behind."""
    answer_here(monkeypatch, HereProbe)
    yield HereProbe
    assert HereProbe.running == [], "a process was left behind"


def optimized(
    made: Path,
    folder: Path,
    task: str = "text",
    data: str = "t.txt",
    *,
    model: Path | None = None,
    **settings: Any,
) -> Any:
    """A run with all the time it takes, few steps of training, and a gate that lets nearly anything through."""
    from cellerate.optimization import workflow
    from cellerate.optimization.settings import OptimizeSettings

    given = {"time_budget": 100_000.0, "steps": 4, "max_quality_loss": 10.0} | settings
    return workflow.run(model or made / f"{task}.keras", made / data, folder, OptimizeSettings(**given))


# --- runs of stand-ins, after a baseline that was measured once

LONG = {"time_budget": 100_000.0}


@pytest.fixture
def stands(plant: Any, monkeypatch: pytest.MonkeyPatch) -> dict[str, type]:
    """Three stand-ins, and a verdict that looks at nothing."""
    from cellerate.optimization import workflow
    from cellerate.report.record import Verdict
    from support.optimization.stages import Stand

    kinds = {
        name: type(name, (Stand,), {"name": name, "title": name.title()})
        for name in ("kernels", "quantize", "prune")
    }
    monkeypatch.setattr(Stand, "begun", [])
    plant(kinds)
    # It asks a process of its own, which starts the backend.
    monkeypatch.setattr(
        workflow,
        "verdict",
        lambda _: Verdict(sentence="So.", chosen="original", rows=(), files=(), training=""),
    )
    return kinds


@pytest.fixture(scope="module")
def after_baseline(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that has measured its baseline."""
    from cellerate.optimization import workflow
    from cellerate.optimization.passes import registry
    from cellerate.optimization.settings import OptimizeSettings
    from cellerate.report.record import Verdict

    folder = tmp_path_factory.mktemp("after_baseline") / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CELLERATE_CACHE", str(folder.parent / "cache"))
        answer_here(patch, HereProbe)
        make_quick(patch)
        patch.setattr(registry, "PASSES", {})
        patch.setattr(
            workflow,
            "verdict",
            lambda _: Verdict(sentence="", chosen="original", rows=(), files=(), training=""),
        )
        workflow.run(made / "text.keras", made / "t.txt", folder, OptimizeSettings(**LONG))
    return folder


@pytest.fixture
def out(after_baseline: Path, tmp_path: Path) -> Path:
    return shutil.copytree(after_baseline, tmp_path / "out")


@pytest.fixture
def go(made: Path, out: Path) -> Callable[..., Any]:
    """Goes on with the run after the baseline; settings and arguments of `workflow.run` by name."""
    from cellerate.optimization import workflow
    from cellerate.optimization.settings import OptimizeSettings

    known = {field.name for field in dataclasses.fields(OptimizeSettings)}

    def go(*, folder: Path = out, model: Any = None, data: Path | None = None, **options: Any) -> Any:
        settings = {name: options.pop(name) for name in list(options) if name in known}
        return workflow.run(
            model or made / "text.keras",
            data or made / "t.txt",
            folder,
            OptimizeSettings(**(LONG | settings)),
            **options,
        )

    return go
