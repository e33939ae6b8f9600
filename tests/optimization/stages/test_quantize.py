"""Quantise: in 8 bits if that keeps the quality, else in 16, trained only where neither does; in 4 where it may pay."""

import dataclasses
import types

import pytest

from cellerate.optimization import clocks
from cellerate.optimization.stages import shrinking
from cellerate.optimization.state import load_state
from support.optimization.here import optimized

pytestmark = [pytest.mark.keras, pytest.mark.usefixtures("here_probe", "quick")]

UNTRAINED = [("int8", 0), ("bfloat16", 0)]
TRAINED = [("int8", 4), ("bfloat16", 4)]
INT4 = [("int4", 0), ("int4", 4)]
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
        # If the file should be small, int4 is tried as well, and trained.
        (("int8", 0), [UNTRAINED[0], *INT4], [("int8", None), (CONTROL, None), ("int4", CONTROL)]),
        (("bfloat16", 0), UNTRAINED, [("int8", None), ("bfloat16", None)]),
        # The first precision is tried again with training and a control.
        (("int8", 4), UNTRAINED + TRAINED[:1], [("bfloat16", None), (CONTROL, None), ("int8", CONTROL)]),
        # One control for both precisions.
        (("bfloat16", 4), UNTRAINED + TRAINED, [(CONTROL, None), ("int8", CONTROL), ("bfloat16", CONTROL)]),
        (None, UNTRAINED + TRAINED, [(CONTROL, None), ("int8", CONTROL), ("bfloat16", CONTROL)]),
    ],
    ids=["int8", "bfloat16", "int8 trained", "bfloat16 trained", "none"],
)
def test_quantize_stops_at_the_first_precision_that_keeps_the_quality(
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
    # The stage reports each attempt in order.
    told_of = [(name, words) for name, words in stage.facts if name in ("int8", "bfloat16", "int4")]
    if told_of[-1][0] == "int4" and told_of[-1][1].startswith("not tried: "):
        # One line is enough: int8 weights are already too coarse.
        assert told_of.pop()[1].endswith("rounding to int8 loses too much, and int4 rounds more coarsely")
    assert [name for name, _ in told_of] == [name for name, _ in made_so]
    if good is None:
        assert "nothing keeps within the 50 % allowed: packed in int8" in stage.decision
    else:
        assert stage.decision.startswith(f"packed in {good[0]}: ")
    sizes = {one.id: one.file_bytes for one in found.candidates}
    assert sizes["original"] > sizes["float32"] > sizes.get("bfloat16", sizes["int8"] + 1) > sizes["int8"]
    if control := next((one for one in found.candidates if one.is_control), None):
        assert control.title == "the original trained 4 steps further from a rate of 0.0001"


def test_quantize_reports_that_training_does_not_fit_the_time(made, tmp_path, monkeypatch, attempts):
    told = attempts(None)
    monkeypatch.setattr(shrinking, "fine_tuning_steps", lambda context: 3)
    found = optimized(made, tmp_path / "out", max_quality_loss=0.5, only=["pack", "quantize"])
    assert [(one["precision"], one["steps"]) for one in told] == UNTRAINED
    stage = found.passes[-1]
    assert (stage.status, stage.kept) == ("done", False)
    assert ("int8", "there was no time to train it") in stage.facts
    assert not any(one.is_control for one in found.candidates)


def test_int4_within_the_allowed_loss_is_chosen_by_size(made, tmp_path):
    found = optimized(made, tmp_path / "out", objective="size", only=["pack", "quantize"])
    assert [one.id for one in found.candidates] == ["original", "float32", "int8", "int4"]
    assert found.verdict.chosen == "int4"
    assert found.passes[-1].decision.startswith("packed in int4: ")
    *_, int8, int4 = found.candidates
    assert int4.file_bytes < int8.file_bytes
    assert int4.loss is not None and int4.passes_gate
    # A further trained model is rounded only at the end, and int4 is too coarse for that.
    assert load_state(tmp_path / "out", {}).choices.packed_precision == "int8"


def test_int4_reports_that_training_does_not_fit_the_time(made, tmp_path, monkeypatch, attempts):
    told = attempts(("int8", 0))
    monkeypatch.setattr(shrinking, "fine_tuning_steps", lambda context: 3)
    found = optimized(
        made, tmp_path / "out", max_quality_loss=0.5, objective="size", only=["pack", "quantize"]
    )
    assert [(one["precision"], one["steps"]) for one in told] == [UNTRAINED[0], INT4[0]]
    assert found.passes[-1].facts[-1] == ("int4", "there was no time to train it")
    assert found.verdict.chosen == "int8"


def test_int4_is_skipped_for_speed_if_the_model_fits_the_caches(made, tmp_path, monkeypatch):
    monkeypatch.setattr(shrinking, "packed", None)  # not even timed
    found = optimized(made, tmp_path / "out", only=["pack", "quantize"])
    assert [one.id for one in found.candidates] == ["original", "float32", "int8"]
    (words,) = [words for name, words in found.passes[-1].facts if name == "int4"]
    assert words.startswith(
        "not tried: int4 pays for weights that outgrow the caches or for a small file, but "
    )


@pytest.mark.parametrize(("objective", "factor"), [("latency", 0.5), ("throughput", 2.0)])
def test_int4_of_large_weights_is_tried_if_not_slower_than_int8(
    made, tmp_path, monkeypatch, objective, factor
):
    timed, turns = [], ["int8", "int4"] * 3

    def speed(use, seconds):
        timed.append(turns[len(timed)])
        per_s = factor if timed[-1] == "int4" else 1.0
        found = clocks.speed(use, seconds)
        return dataclasses.replace(found, latency_p50_ms=1 / per_s, throughput_per_s=per_s)

    monkeypatch.setattr(shrinking, "_LEAST_WEIGHTS", 1)
    steered = types.SimpleNamespace(BRIEFLY_S=0.01, middle=clocks.middle, speed=speed)
    monkeypatch.setattr(shrinking, "clocks", steered)
    found = optimized(made, tmp_path / "out", objective=objective, only=["pack", "quantize"])
    tried = ["int4"] if factor > 1 else []
    assert timed == turns
    assert [one.id for one in found.candidates] == ["original", "float32", "int8", *tried]
    (words,) = [words for name, words in found.passes[-1].facts if name == "int4"]
    assert (words == f"not tried: its {objective} is 50 % worse than that of int8") == (factor < 1)
