"""One small model for each task with its data, and runs over them in this process."""

import csv
import dataclasses
import shutil
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.optimization.here import LONG, HereProbe, answer_here, make_quick
from support.optimization.small_models import HORIZON, LINES, ROWS, TEXT, WINDOW, filled, text_payload


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
        # A forecaster starts from its linear map, so data without noise would leave no error to measure.
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


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure every figure only briefly."""
    make_quick(monkeypatch)


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch) -> Callable[[Mapping[str, type]], None]:
    """Replace all stages by these classes, by name and in order."""
    from cellerate.optimization.stages import registry

    def plant(kinds: Mapping[str, type]) -> None:
        monkeypatch.setitem(sys.modules, "planted", types.ModuleType("planted"))
        for name, kind in kinds.items():
            setattr(sys.modules["planted"], name, kind)
        monkeypatch.setattr(registry, "STAGES", {name: f"planted:{name}" for name in kinds})

    return plant


@pytest.fixture(scope="session", autouse=True)
def closed() -> Iterator[None]:
    """Release every open model before the interpreter ends."""
    yield
    HereProbe.opened.clear()


@pytest.fixture
def here_probe(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[HereProbe]]:
    """Probes that answer in this process; a test fails if one is left behind."""
    answer_here(monkeypatch, HereProbe)
    yield HereProbe
    assert HereProbe.running == [], "a process was left behind"


@pytest.fixture
def stands(plant: Any, monkeypatch: pytest.MonkeyPatch) -> dict[str, type]:
    """Three stand-in stages, and a verdict without measurements."""
    from cellerate.optimization import workflow
    from cellerate.report.record import Verdict
    from support.optimization.stages import Stand

    kinds = {
        name: type(name, (Stand,), {"name": name, "title": name.title()})
        for name in ("kernels", "quantize", "prune")
    }
    monkeypatch.setattr(Stand, "begun", [])
    plant(kinds)
    # The real one asks a separate process, which starts the backend.
    monkeypatch.setattr(
        workflow,
        "verdict",
        lambda _: Verdict(sentence="So.", chosen="original", rows=(), files=(), training=""),
    )
    # The files of the stand-ins hold their names, no models.
    monkeypatch.setattr(workflow, "_write_model_card", lambda *_: None)
    return kinds


@pytest.fixture(scope="module")
def after_baseline(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that has measured its baseline."""
    from cellerate.optimization import workflow
    from cellerate.optimization.settings import OptimizeSettings
    from cellerate.optimization.stages import registry
    from cellerate.report.record import Verdict

    folder = tmp_path_factory.mktemp("after_baseline") / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CELLERATE_CACHE", str(folder.parent / "cache"))
        answer_here(patch, HereProbe)
        make_quick(patch)
        patch.setattr(registry, "STAGES", {})
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
    """Continue the run after the baseline; takes settings and arguments of `workflow.run` by name."""
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
