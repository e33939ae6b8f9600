"""Stages that shrink a small text model: shares, time, controls and students."""

import types

import keras
import pytest

from cellerate.compress.student import smaller
from cellerate.optimization import workflow
from cellerate.optimization.stages import shrinking
from cellerate.report.record import Verdict
from support.optimization.here import optimized

pytestmark = [pytest.mark.keras, pytest.mark.usefixtures("here_probe", "quick")]


def test_control_is_trained_once_and_survives_an_interruption(made, tmp_path, monkeypatch):
    from cellerate.optimization import context as module
    from cellerate.optimization.stages import shrinking
    from cellerate.optimization.state import load_state

    out, trained = tmp_path / "out", []

    def train(model, data, tuning, **named):
        trained.append(tuning.steps)
        return train_further(model, data, tuning, **named)

    def interrupt(*_, **__):
        # Before the run itself writes anything: a crash here would find it on disk, too.
        trained.append([one.id for one in load_state(out, {}).candidates])
        raise KeyboardInterrupt

    train_further = module.train_further
    monkeypatch.setattr(module, "train_further", train)
    again = {"only": ["pack", "prune"], "keep": [0.5]}
    with monkeypatch.context() as patch:
        patch.setattr(shrinking, "prune", interrupt)
        assert optimized(made, out, **again).status == "interrupted"
    assert trained == [4, ["original", "float32", "control-4-4e-03"]]
    found = optimized(made, out, **again)
    assert found.status == "finished"
    assert trained[2:] == []
    assert found.candidates[-1].control == "control-4-4e-03"
    (note, *_) = found.passes[-1].notes
    assert note.startswith("Each model is compared with the original and with a control")


def no_verdict(context):
    return Verdict(sentence="", chosen="original", rows=(), files=(), training="")


@pytest.fixture
def pruned(monkeypatch):
    """The shares pruned to; each pruned model is damaged so that no gate passes it."""
    from cellerate.optimization.stages import shrinking

    shares, prune = [], shrinking.prune

    def spoilt(*given, keep, **named):
        model, record = prune(*given, keep=keep, **named)
        shares.append(keep)
        model.set_weights([-3 * weights for weights in model.get_weights()])
        return model, record

    monkeypatch.setattr(shrinking, "prune", spoilt)
    return shares


def test_rounded_models_are_judged_as_the_files_that_they_become(made, tmp_path, monkeypatch):
    from cellerate.optimization.stages import shrinking

    records, quantize = [], shrinking.quantize

    def noted(*given, **named):
        model, record = quantize(*given, **named)
        records.append(record)
        return model, record

    monkeypatch.setattr(shrinking, "quantize", noted)
    found = optimized(made, tmp_path / "out", only=["quantize"])
    for record in records:
        precision = record.settings["precision"]
        candidate = next(one for one in found.candidates if one.id == precision)
        assert record.quality_after == pytest.approx(candidate.quality.value, rel=1e-6)
        loss = (record.quality_after - record.quality_before) / record.quality_before
        assert loss == pytest.approx(candidate.loss.value, abs=1e-5)
    assert records


@pytest.mark.slow
def test_prune_skips_shares_that_round_to_no_pruning(made, tmp_path, pruned):
    # 16 units: 90 % of them are 16 again, in whole eights.
    options = {"only": ["pack", "prune"], "max_quality_loss": 0.0}
    found = optimized(made, tmp_path / "out", keep=[0.5, 0.9], **options)
    prune = found.passes[-1]
    assert pruned == [0.5]
    assert (prune.status, prune.reason) == ("done", "")
    assert [name for name, _ in prune.facts] == [
        "50 % of the units",
        "90 % of the units",
        "control: the original trained 4 steps further",
    ]
    assert "leave all units" in prune.facts[1][1]
    found = optimized(made, tmp_path / "all", keep=[0.9], **options)
    assert found.passes[-1].status == "skipped"
    assert "leave all units" in found.passes[-1].reason


@pytest.mark.slow
def test_prune_out_of_time_resumes_with_the_remaining_shares(made, tmp_path, monkeypatch, pruned):
    from cellerate.optimization.context import OutOfTimeError
    from cellerate.optimization.stages import shrinking

    def steps(*_):
        if len(pruned) == 1 and not time:
            raise OutOfTimeError("there was no time for 50 steps of training", 12.0)
        return 4

    time = []
    monkeypatch.setattr(shrinking, "further_steps", steps)
    again = {"only": ["pack", "prune"], "keep": [0.3, 0.5], "max_quality_loss": 0.0}
    found = optimized(made, tmp_path / "out", **again)
    assert found.passes[-1].status == "skipped"
    assert "no time" in found.passes[-1].reason
    assert pruned == [0.3]
    time.append("enough")
    found = optimized(made, tmp_path / "out", **again)
    assert found.passes[-1].status == "done"
    assert pruned == [0.3, 0.5]
    assert [name for name, _ in found.passes[-1].facts][:2] == ["30 % of the units", "50 % of the units"]


def test_distill_needs_a_packed_model_and_quantize_does_not(made, tmp_path, monkeypatch):
    monkeypatch.setattr(workflow, "verdict", no_verdict)
    found = optimized(made, tmp_path / "out", only=["distill"])
    assert found.passes[1].status == "skipped"
    assert "run the stage pack, too" in found.passes[1].reason
    found = optimized(made, tmp_path / "out", only=["quantize"])
    assert [one.id for one in found.candidates] == ["original", "int8"]


def test_student_without_a_goal_halves_the_computation():
    teacher = keras.Sequential(
        [keras.Input((5, 3)), keras.layers.LSTM(64, return_sequences=True), keras.layers.Dense(2)]
    )
    # Of 3 ms a call, 2 ms are for computing.
    speed = types.SimpleNamespace(way="packed", latency_p50_ms=3.0, per_s=500.0)
    now = types.SimpleNamespace(error="", speeds=[speed], is_control=False, parameters=7, precision="float32")
    context = types.SimpleNamespace(
        state=types.SimpleNamespace(
            candidates=[now], choices=types.SimpleNamespace(packed_precision="float32")
        ),
        before=types.SimpleNamespace(parameters=7),
        settings=types.SimpleNamespace(latency_goal_ms=None, seed=0),
        candidate=lambda _: None,
    )
    student, goal = shrinking._student(context, teacher)
    assert goal == 2.0
    # Sixteenths of 64 units, a multiple of 8 each.
    sizes = [smaller(teacher, part / 16, seed=0).count_params() for part in range(2, 15)]
    assert student.count_params() == min(sizes, key=lambda size: abs(size - teacher.count_params() / 2))
