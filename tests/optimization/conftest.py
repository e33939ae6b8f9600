"""One small model of random weights for each task, with its data; and a probe that answers in this process."""

import csv
import json
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
    from cellerate.data.tokenizer import CharacterTokenizer

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
    from cellerate.data.lines import LineVocabulary
    from cellerate.models.autoencoder import build_autoencoder
    from cellerate.models.storage import TaskRecord, save_model
    from cellerate.models.text import build_text_model
    from cellerate.tasks.series import train_on_series
    from cellerate.tasks.settings import ForecastArchitecture, SeriesOptions
    from cellerate.training.settings import TrainingSettings

    (folder / "t.txt").write_text(TEXT)
    characters = len(set(TEXT))
    text = filled(build_text_model(characters, embedding=6, units=16, layers=1, dropout=0.0))
    save_model(text, folder / "text.keras", TaskRecord("text", text_payload()))

    with (folder / "s.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["load", "other"])
        table.writerows((f"{np.sin(n / 3) + n / 90:.4f}", f"{np.cos(n / 3):.4f}") for n in range(ROWS))
    train_on_series(
        SeriesOptions(
            paths=[folder / "s.csv"], target=["load"], window=WINDOW, horizon=HORIZON, batch_size=16
        ),
        folder / "series.keras",
        architecture=ForecastArchitecture(units=8, dropout=0.0),
        training=TrainingSettings(epochs=1),
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


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every figure is measured for a moment only."""
    from cellerate.optimization import clocks, hardware

    monkeypatch.setattr(clocks, "MEASURED_S", 0.01)
    monkeypatch.setattr(clocks, "_WARM_S", 0.0)
    monkeypatch.setattr(hardware, "_MEASURED_S", 0.0)


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
    """Answers as a process of its own would, in this one; trains for a few steps only."""

    asked: ClassVar[list[tuple[str, dict[str, Any]]]] = []
    opened: ClassVar[dict[str, Any]] = {}

    def __init__(self, model: Path, data: Any, *, seed: int, backend: str, patience_s: float) -> None:
        self.patience_s = patience_s
        self._question = {"model": str(model), "data": [str(path) for path in data], "seed": seed}

    def __enter__(self) -> "HereProbe":
        return self

    def __exit__(self, *_: object) -> None:
        return

    def start(self) -> None:
        return

    def close(self) -> None:
        return

    def ask(self, kind: str, *, timeout_s: float | None = None, **options: Any) -> Any:
        from cellerate.optimization.probe_process import _Work

        self.asked.append((kind, options))
        key = json.dumps(self._question)
        if key not in self.opened:
            self.opened[key] = _Work(self._question)
        if kind == "train":
            options = options | {"seconds": 0.0, "steps": None}
        if kind == "turn":
            options = options | {"steps": 1}
        question = json.loads(json.dumps({**self._question, "kind": kind, "with": options}))
        return json.loads(json.dumps(self.opened[key].answer(question)))

    def tell(self, kind: str, **options: Any) -> None:
        self._told = (kind, options)

    def answer(self, timeout_s: float | None = None) -> Any:
        kind, options = self._told
        return self.ask(kind, **options)


@pytest.fixture(scope="session", autouse=True)
def closed() -> Iterator[None]:
    """What was opened is let go before the interpreter ends."""
    yield
    HereProbe.opened.clear()


@pytest.fixture
def here_probe(monkeypatch: pytest.MonkeyPatch) -> type[HereProbe]:
    from cellerate.optimization import context, workflow

    monkeypatch.setattr(context, "Probe", HereProbe)
    monkeypatch.setattr(workflow, "Probe", HereProbe)
    monkeypatch.setattr(HereProbe, "asked", [])
    return HereProbe
