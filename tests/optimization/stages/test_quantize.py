"""Quantise: in 8 bits if that keeps the quality, else in 16, and trained only where neither does."""

import dataclasses

import pytest

from cellerate.optimization.stages import shrinking
from cellerate.optimization.state import load_state
from support.optimization.here import optimized

pytestmark = [pytest.mark.keras, pytest.mark.usefixtures("here_probe", "quick")]

UNTRAINED = [("int8", 0), ("bfloat16", 0)]
TRAINED = [("int8", 4), ("bfloat16", 4)]
# What a run of each attempt ends with: the model that was rounded so in the end.
CONTROL = "control-4-1e-04"


@pytest.fixture
def attempts(monkeypatch):
    """Lets only one attempt keep the quality, of those by precision and steps; gives those that were made."""
    told, quantize = [], shrinking.quantize

    def only(good):
        def rounded(*given, **named):
            told.append(named)
            attempt = named["precision"], named["steps"]
            model, record = quantize(*given, **(named | {"steps": 0}))
            if attempt != good:
                model.set_weights([-3 * weights for weights in model.get_weights()])
            kept = "fine-tuned" if named["steps"] else record.details["kept"]
            return model, dataclasses.replace(record, details=record.details | {"kept": kept})

        monkeypatch.setattr(shrinking, "quantize", rounded)
        return told

    return only


@pytest.mark.parametrize(
    ("good", "made_so", "candidates"),
    [
        (("int8", 0), UNTRAINED[:1], [("int8", None)]),
        (("bfloat16", 0), UNTRAINED, [("int8", None), ("bfloat16", None)]),
        # The first is made anew, trained and with a control.
        (("int8", 4), UNTRAINED + TRAINED[:1], [("bfloat16", None), (CONTROL, None), ("int8", CONTROL)]),
        # One control for both precisions.
        (("bfloat16", 4), UNTRAINED + TRAINED, [(CONTROL, None), ("int8", CONTROL), ("bfloat16", CONTROL)]),
        (None, UNTRAINED + TRAINED, [(CONTROL, None), ("int8", CONTROL), ("bfloat16", CONTROL)]),
    ],
    ids=["int8", "bfloat16", "int8 trained", "bfloat16 trained", "none"],
)
def test_quantize_goes_on_only_until_a_precision_keeps_the_quality(
    made, tmp_path, attempts, good, made_so, candidates
):
    told = attempts(good)
    found = optimized(
        made, tmp_path / "out", max_quality_loss=0.5, objective="size", only=["pack", "quantize"]
    )
    assert [(one["precision"], one["steps"]) for one in told] == made_so
    assert {one["learning_rate"] for one in told} == {1e-4}
    assert [(one.id, one.control) for one in found.candidates[2:]] == candidates
    passing = [one.id for one in found.candidates[2:] if one.passes_gate and not one.is_control]
    assert passing == ([] if good is None else [good[0]])
    chosen = load_state(tmp_path / "out", {}).choices.packed_precision
    stage = found.passes[-1]
    assert (stage.status, stage.kept) == ("done", good is not None)
    assert (chosen, found.verdict.chosen) == (("float32", "float32") if good is None else (good[0],) * 2)
    # Each attempt is told, in its order.
    precisions = ("int8", "bfloat16")
    assert [name for name, _ in stage.facts if name in precisions] == [name for name, _ in made_so]
    if good is None:
        assert "nothing keeps within the 50 % allowed: packed in int8" in stage.decision
    else:
        assert stage.decision.startswith(f"packed in {good[0]}: ")
    sizes = {one.id: one.file_bytes for one in found.candidates}
    assert sizes["original"] > sizes["float32"] > sizes.get("bfloat16", sizes["int8"] + 1) > sizes["int8"]
    if control := next((one for one in found.candidates if one.is_control), None):
        assert control.title == "the original trained 4 steps further from a rate of 0.0001"


def test_quantize_without_time_for_a_training_says_so(made, tmp_path, monkeypatch, attempts):
    told = attempts(None)
    monkeypatch.setattr(shrinking, "fine_tuning_steps", lambda context: 3)
    found = optimized(made, tmp_path / "out", max_quality_loss=0.5, only=["pack", "quantize"])
    assert [(one["precision"], one["steps"]) for one in told] == UNTRAINED
    stage = found.passes[-1]
    assert (stage.status, stage.kept) == ("done", False)
    assert ("int8", "there was no time to train it") in stage.facts
    assert not any(one.is_control for one in found.candidates)
