"""What all passes share: a candidate is compared with the original, in the direction of its metric."""

import dataclasses
from types import SimpleNamespace

import pytest

from cellerate.optimization.context import ORIGINAL, Context
from cellerate.optimization.judging import Judged
from cellerate.optimization.settings import OptimizeSettings
from cellerate.report.record import Candidate, Metric

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
    """A context whose workload judges every model the same."""
    metric = Metric(name="m", unit="", higher_is_better=higher_is_better, source="")
    workload = SimpleNamespace(metric=metric, judge=lambda model: Judged((mean,), (1.0,)))
    state = SimpleNamespace(judged={}, candidates=[])
    settings = OptimizeSettings(max_quality_loss=0.01)
    return Context(workload, settings, None, None, (), "", state, None, 0.0)


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
def test_gate_lets_a_metric_get_worse_by_its_share_and_better_by_any(higher_is_better, after, loss, passes):
    here = context(higher_is_better)
    original = here.add(dataclasses.replace(MADE, id=ORIGINAL), Judged((1.0, 3.0), (1.0, 1.0)))
    assert (original.loss, original.passes_gate) == (None, True)
    found = here.add(MADE, Judged((after - 1.0, after + 1.0), (1.0, 1.0)))
    assert found.loss.value == pytest.approx(loss)
    assert found.passes_gate is passes
    assert here.before == original
    assert here.candidate("made") == found


@pytest.mark.parametrize(("higher_is_better", "sign"), [(False, 1), (True, -1)])
def test_what_compressions_judge_by_is_less_for_the_better(monkeypatch, higher_is_better, sign):
    monkeypatch.setattr("cellerate.optimization.context.accelerate", lambda model: model)
    better, worse = (context(higher_is_better, mean).judge(None) for mean in ((0.2, 0.4)[::sign]))
    assert better < worse
