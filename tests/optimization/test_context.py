"""The context of all stages: it compares a candidate with the original, in the direction of the metric."""

import dataclasses
from types import SimpleNamespace

import pytest

from cellerate.optimization.context import ORIGINAL, Context
from cellerate.optimization.judging import Judged
from cellerate.optimization.settings import OptimizeSettings
from cellerate.report.quality import Metric
from cellerate.report.record import Candidate

pytestmark = pytest.mark.keras

MADE = Candidate(
    id="made",
    title="made",
    made_by="prune",
    precision="float32",
    parameters=1,
    file_bytes=1,
    quality=None,
    loss=None,
    passes_gate=False,
    speeds=(),
)


def context(higher_is_better, mean=0.0):
    """A context whose workload gives every model the same score."""
    metric = Metric(name="m", unit="", higher_is_better=higher_is_better, source="")
    workload = SimpleNamespace(metric=metric, judge=lambda model, part: Judged((mean,), (1.0,)))
    state = SimpleNamespace(judged={}, candidates=[])
    settings = OptimizeSettings(max_quality_loss=0.01)
    return Context(workload, settings, None, None, (), "", state, None, None)


@pytest.mark.parametrize(
    ("higher_is_better", "after", "loss", "passes"),
    [
        (False, 2.03, 0.015, False),
        (False, 2.01, 0.005, True),
        (False, 1.90, -0.05, True),
        (True, 1.97, 0.015, False),
        (True, 1.99, 0.005, True),
        (True, 2.10, -0.05, True),
    ],
)
def test_gate_passes_any_gain_and_a_loss_up_to_its_share(higher_is_better, after, loss, passes):
    here = context(higher_is_better)
    original = here.add(dataclasses.replace(MADE, id=ORIGINAL), Judged((1.0, 3.0), (1.0, 1.0)))
    assert (original.loss, original.passes_gate) == (None, True)
    found = here.add(MADE, Judged((after - 1.0, after + 1.0), (1.0, 1.0)))
    assert found.loss.value == pytest.approx(loss)
    assert found.passes_gate is passes
    assert here.before == original
    assert here.candidate("made") == found


@pytest.mark.parametrize(
    ("higher_is_better", "control", "after", "loss", "control_loss", "passes"),
    [
        # Better than the original only through longer training.
        (False, 1.80, 1.90, -0.05, 1 / 18, False),
        (True, 2.20, 2.10, -0.05, 1 / 22, False),
        # Equal to the better of the two.
        (False, 1.80, 1.81, -0.095, 1 / 180, True),
        (True, 2.20, 2.19, -0.095, 1 / 220, True),
        # Training spoilt the control: the original is the better of the two.
        (False, 2.20, 2.10, 0.05, -1 / 22, False),
        (True, 1.80, 1.90, 0.05, -1 / 18, False),
        (False, 2.20, 2.01, 0.005, -0.19 / 2.2, True),
        (True, 1.80, 1.99, 0.005, -0.19 / 1.8, True),
    ],
)
def test_gate_takes_the_larger_loss_against_original_and_control(
    higher_is_better, control, after, loss, control_loss, passes
):
    here = context(higher_is_better)
    for name, value in ((ORIGINAL, 2.0), ("control", control)):
        here.add(dataclasses.replace(MADE, id=name), Judged((value,), (1.0,)))
    found = here.add(dataclasses.replace(MADE, control="control"), Judged((after,), (1.0,)))
    assert found.loss.value == pytest.approx(loss)
    assert found.control_loss.value == pytest.approx(control_loss)
    assert found.worst_loss == max(found.loss.value, found.control_loss.value)
    assert found.passes_gate is passes
    # Without its control it passes wherever it is close to the original.
    assert here.add(MADE, Judged((after,), (1.0,))).passes_gate is (loss <= 0.01)


@pytest.mark.parametrize(("higher_is_better", "sign"), [(False, 1), (True, -1)])
def test_compression_score_is_lower_for_the_better_model(monkeypatch, higher_is_better, sign):
    monkeypatch.setattr("cellerate.optimization.context.accelerate", lambda model: model)
    better, worse = (context(higher_is_better, mean).judge(None) for mean in ((0.2, 0.4)[::sign]))
    assert better < worse
    assert abs(better) == (0.2, 0.4)[::sign][0]


def test_compression_score_uses_the_validation_part(monkeypatch):
    monkeypatch.setattr("cellerate.optimization.context.accelerate", lambda model: model)
    here, parts = context(False), []
    here.workload.judge = lambda model, part: parts.append(part) or Judged((1.0,), (1.0,))
    here.judge(None)
    assert parts == ["validation"]
