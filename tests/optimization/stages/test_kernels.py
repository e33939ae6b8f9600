"""The kernels stage: it times training on our kernels and Keras's, and chooses ours if consistently faster."""

import json
from collections.abc import Iterator
from typing import ClassVar

import keras
import pytest

from cellerate.models.storage import load_model, save_model
from support.optimization.here import HereProbe, answer_here, optimized
from support.optimization.small_models import filled

pytestmark = [pytest.mark.keras, pytest.mark.usefixtures("here_probe", "quick")]


def test_layers_inside_a_bidirectional_are_accelerated(made, tmp_path):
    model, record = load_model(made / "series.keras")
    inputs = keras.Input(tuple(model.inputs[0].shape[1:]))
    x = keras.layers.Bidirectional(keras.layers.LSTM(4))(inputs)
    built = filled(keras.Model(inputs, keras.layers.Dense(2)(x)))
    save_model(built, tmp_path / "b.keras", record)
    found = optimized(
        made,
        tmp_path / "out",
        "series",
        "s.csv",
        model=tmp_path / "b.keras",
        only=["kernels"],
    )
    assert dict(found.passes[1].facts)["fused layers"] == "2"
    # The baseline's, and those of the kernels' turns.
    assert [(step.way, step.race) for step in found.training_steps] == [
        ("Keras, float32", ""),
        ("Keras, float32", "kernels"),
        ("fused kernels, float32", "kernels"),
    ]


class Fused(HereProbe):
    """Answers that a step on the fused kernels takes so many ms in each turn, and on Keras's 10."""

    turns: ClassVar[list[float]] = []
    left: ClassVar[Iterator[float]] = iter(())

    def ask(self, kind, **options):
        found = super().ask(kind, **options)
        if kind == "trainer" and options["implementation"] != "keras":
            Fused.left = iter(self.turns)
        if kind == "turn":
            found |= {"seconds": [(10.0 if "Keras" in options["name"] else next(Fused.left)) / 1e3]}
        return found


@pytest.mark.parametrize(
    ("turns", "kept", "said"),
    [
        ([2.0] * 6, True, "a training step in 2.00 ms on them, in 10.0 ms on Keras's"),
        # Six more turns, because two of twelve may contradict the others.
        ([2.0] * 5 + [30.0] + [2.0] * 6, True, "a training step in 2.00 ms on them"),
        ([12.5] * 6, False, "in 10.0 ms on Keras's, which stay"),
        # Other load slowed some turns: the faster median means nothing.
        ([2.0, 2.0, 2.0, 2.0, 30.0, 30.0] * 2, False, "they were faster in 8 of 12 turns, which is noise"),
    ],
    ids=["faster", "one spoiled turn", "slower", "noise"],
)
def test_kernels_train_only_if_consistently_faster(made, tmp_path, monkeypatch, turns, kept, said):
    answer_here(monkeypatch, Fused)
    monkeypatch.setattr(Fused, "turns", turns)
    found = optimized(made, tmp_path / "out", only=["kernels"])
    # Only as many turns as needed.
    assert list(Fused.left) == []
    assert said in found.passes[1].decision
    gains = [gain for gain in found.passes[1].gains if gain.quantity == "training"]
    assert len(gains) == kept
    assert ("--implementation keras" in found.verdict.training) is not kept
    assert any(row.quantity == "training" for row in found.verdict.rows) is kept


def test_kernels_are_always_measured_on_the_baseline_batch_size(made, tmp_path, here_probe):
    out = tmp_path / "out"
    optimized(made, out, only=["pipeline"])
    state = json.loads((out / "state.json").read_text())
    state["choices"]["batch_size"] = 32
    (out / "state.json").write_text(json.dumps(state))
    here_probe.asked.clear()
    found = optimized(made, out, only=["kernels"])
    # The verdict is on both: the way of the baseline, which is ready still, and what was chosen since.
    assert [options["batch_size"] for kind, options in here_probe.asked if kind == "trainer"] == [8, 8, 32]
    raced = [(step.race, step.batch_size) for step in found.training_steps[1:]]
    assert raced == [("kernels", 8), ("kernels", 8), ("verdict", 8), ("verdict", 32)]
