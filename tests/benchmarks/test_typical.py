"""The contest of typical models: every way takes part, all compute the same, nobody wrong is timed."""

import dataclasses
from typing import Any, ClassVar

import numpy as np
import pytest

from benchmarks import processes
from benchmarks.tables import by_case, standings
from benchmarks.training import typical, typical_contestant, typical_models
from cellerate.machine.environment import BACKENDS

TRUTH = [4.7, 4.6, 4.5]


class Fake:
    """A contestant that answers from a table, in no time."""

    started: ClassVar[list["Fake"]] = []
    losses: ClassVar[dict[str, list[float]]] = {}

    def __init__(self, **settings: Any) -> None:
        self.settings, self.timed, self.closed = settings, 0, False
        self.allocator, self.peak_bytes = "kept", 1
        Fake.started.append(self)

    def steps(
        self, count: int, *, checked: bool = False, limit_s: float | None = None
    ) -> dict[str, list[float]]:
        self.timed += not checked
        losses = self.losses.get(self.settings["implementation"], TRUTH)
        if losses == ["late"]:
            raise processes.RefusedError("did not compile in 60 s")
        return {"seconds": [0.01] * count, "losses": losses}

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> type[Fake]:
    """`Fake` instead of the contest's processes."""
    monkeypatch.setattr(Fake, "started", [])
    monkeypatch.setattr(Fake, "losses", {})
    monkeypatch.setattr(typical, "Contestant", Fake)
    return Fake


def test_race_has_every_way_and_times_each_beside_a_busy_process_too(fake):
    found = typical.run(quick=True)
    for race in found["races"]:
        ways = {(one["backend"], one["implementation"], one["jit_compile"]) for one in race}
        assert {(backend, "keras", "auto") for backend in BACKENDS} <= ways
        assert {(backend, "cellerate-cpu", "auto") for backend in BACKENDS} <= ways
        assert {("torch", "torch.nn.LSTM", "auto"), ("torch", "torch.nn.LSTM", True)} <= ways
        assert all(one["busy_median_s"] == one["median_s"] == 0.01 for one in race)
    assert all(one.closed for one in fake.started)


def test_race_when_a_peer_is_late_or_wrong_records_its_reason_untimed(fake, monkeypatch):
    monkeypatch.setattr(fake, "losses", {"torch.nn.LSTM": ["late"]})
    # What is right in float64 is then what Keras says.
    monkeypatch.setattr(typical, "_truths", lambda name, batch: {True: TRUTH, False: TRUTH})
    records, refused = typical._race("forecaster", 32, 0.1)
    assert {one["refused"] for one in refused} == {"did not compile in 60 s"}
    fake.started.clear()
    monkeypatch.setattr(fake, "losses", {"keras": [4.7, 4.6, 4.51]})
    records, refused = typical._race("forecaster", 32, 0.1)
    assert {one["implementation"] for one in records} == {"cellerate-cpu", "torch.nn.LSTM"}
    assert all("away from" in one["refused"] for one in refused)
    assert not any(one.timed for one in fake.started if one.settings["implementation"] == "keras")
    result = {"races": [records], "refused": refused, "peak_operations_per_s": 1e12}
    head, row = by_case.typical(result)
    assert row[0].endswith("B=32")
    assert "away from" in row[head.index("Keras on jax")]
    assert row[head.index("**Cellerate** on jax")] == "10.0 (10.0)"


@pytest.mark.parametrize("losses", [[4.7, 4.6, 4.6], [4.7, 4.6], [4.7, 4.6, float("nan")]])
def test_race_when_ours_is_wrong_ends_untimed(fake, monkeypatch, losses):
    monkeypatch.setattr(fake, "losses", {"cellerate-cpu": losses})
    with pytest.raises(RuntimeError, match="losses"):
        typical._race("forecaster", 32, 0.1)
    assert not any(one.timed for one in fake.started)
    assert all(one.closed for one in fake.started)


def test_products_are_those_that_have_to_be_computed():
    models = typical_models.MODELS
    assert models["forecaster"].products == 60 * 200 * (50 + 1) + 60 * 200 * (50 + 50) + 50
    # Both directions; what the embedding gives is looked up.
    assert models["imdb"].products == 2 * 200 * 256 * 64 + 2 * 200 * 256 * (64 + 128) + 128
    assert models["characters-128"].products == 100 * 512 * 128 + 100 * 128 * 96


def test_case_of_avx2_keeps_every_contestant_to_it_and_has_the_small_models(monkeypatch):
    given: dict[str, Any] = {}
    monkeypatch.setattr(typical, "run", lambda *, quick, names: given.update(names=names) or {"races": []})
    monkeypatch.setattr(typical.os, "environ", {"PATH": "/bin"})
    found = typical.with_avx2(quick=True)
    assert found == {"environment": dict(typical.AVX2), "races": []}
    assert typical.os.environ == {"PATH": "/bin", **typical.AVX2}
    assert set(given["names"]) == set(typical_models.MODELS) - {"normalized", "characters-512", "lines"}


def test_worst_pair_is_of_the_times():
    result = {"races": [[_timed("keras", "jax", 1.0), _timed("cellerate-cpu", "torch", 2.0)]]}
    found = standings.worst("typical", result)
    assert found is not None and found.ratio == 0.5


def _timed(implementation: str, backend: str, seconds: float) -> dict[str, Any]:
    named = {"implementation": implementation, "backend": backend, "policy": "float32"}
    return {**named, "title": "model", "batch": 1, "median_s": seconds}


def smaller(model: typical_models.Typical) -> typical_models.Typical:
    """The model with a quarter of its widths and 5 steps: drawing its orthogonal weights would take longest."""
    if isinstance(model, typical_models.Lines):
        widths = {name: getattr(model, name) // 4 for name in ("embedding", "units", "latent")}
        return dataclasses.replace(model, steps=5, **widths)
    layers = tuple(
        (name, rest[0] // 4, *rest[1:]) if name in ("embedding", "lstm") else (name, *rest)
        for name, *rest in model.layers
    )
    return dataclasses.replace(model, steps=5, layers=layers)


@pytest.mark.keras
@pytest.mark.parametrize("name", [name for name, model in typical_models.MODELS.items() if model.in_torch])
def test_torch_loop_has_the_losses_of_keras(name, monkeypatch):
    keras = pytest.importorskip("keras")
    model = smaller(typical_models.MODELS[name])
    monkeypatch.setitem(typical_models.MODELS, name, model)
    random = np.random.default_rng(0)
    batches = [model.data(3, random) for _ in range(3)]
    backend = keras.backend.backend()
    found = {}
    for implementation, where in (("keras", backend), ("cellerate-cpu", backend), ("torch.nn.LSTM", "torch")):
        settings = typical.settings_of(name, 3, where, implementation, "auto")
        found[implementation] = typical_contestant.steps_of(settings, dropout=False)(batches)[1]
    # On TensorFlow Keras's Adam takes other steps with the rows of an embedding, so only the first loss is torch's.
    like_torch = 1 if backend == "tensorflow" and model.vocabulary else None
    assert found["keras"][:like_torch] == pytest.approx(found["torch.nn.LSTM"][:like_torch], rel=1e-4)
    assert found["cellerate-cpu"] == pytest.approx(found["keras"], rel=1e-4)
