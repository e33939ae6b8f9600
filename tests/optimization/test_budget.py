"""The division of time: each stage gets its share, and unused time passes to the stages after it."""

from types import SimpleNamespace

import pytest

from cellerate.optimization.budget import OVERTIME, fitting, left_out, verdict_s, worth
from cellerate.optimization.context import Context, OutOfTimeError
from cellerate.optimization.listener import StageListener
from cellerate.optimization.processes import Workers
from cellerate.optimization.settings import OptimizeSettings
from cellerate.optimization.stages.base import Stage
from cellerate.optimization.state import Choices, State
from cellerate.report.record import StageRecord

pytestmark = pytest.mark.keras

BUDGET = 1000.0


class Planned(Stage):
    """A stage with a name, a cost and a possible gain."""

    def __init__(self, name, cost, most=None, gain=0.1, improves=("use",), after=()):
        self.name = self.title = name
        self._cost, self._most, self._gain = cost, most or cost, gain
        self.improves, self.after = improves, after

    def cost_s(self, context):
        return self._cost

    def most_s(self, context):
        return self._most

    def gain(self, context):
        return self._gain

    def run(self, context):
        raise NotImplementedError


@pytest.fixture
def context():
    state = State(identity={}, choices=Choices("auto", "float32", 8, 1, None, "int8"), started="")
    processes = Workers(lambda: None)
    settings = OptimizeSettings(time_budget=BUDGET)
    return Context(SimpleNamespace(), settings, None, None, (), "", state, StageListener(), processes)


def chosen(context, stages, left):
    """The seconds of each stage by name, of the time left beside the verdict's and the overtime."""
    found = fitting(context, stages, verdict_s(context) - OVERTIME * BUDGET + left)
    return {one.name: seconds for one, seconds in found.items()}


def test_stages_are_ordered_by_gain_per_second(context):
    stages = [
        Planned("slow", 100.0, gain=0.5),
        Planned("quick", 10.0, gain=0.1),
        Planned("little", 10.0, gain=0.05),
    ]
    assert list(chosen(context, stages, 200.0)) == ["quick", "slow", "little"]
    # The quick stage takes the time of the slow one, which gains less per second.
    assert list(chosen(context, stages, 105.0)) == ["quick", "little"]
    assert chosen(context, stages, 5.0) == {}


def test_gain_outside_the_objective_counts_half(context):
    training, use = Planned("t", 10.0, gain=0.3, improves=("training",)), Planned("u", 10.0, gain=0.2)
    assert list(chosen(context, [training, use], 100.0)) == ["u", "t"]
    context.settings = OptimizeSettings(objective="training", time_budget=BUDGET)
    assert list(chosen(context, [training, use], 100.0)) == ["t", "u"]
    assert worth(context, training) == pytest.approx(2 * 0.3 / (0.1 / 0.1) / 20)


def test_stage_follows_its_prerequisites_if_they_have_time(context):
    built = Planned("built", 10.0, gain=1.0, after=("base",))
    base, costly = Planned("base", 20.0), Planned("base", 2000.0)
    assert list(chosen(context, [built, base], 100.0)) == ["base", "built"]
    # A stage does not wait for a prerequisite that will not run.
    assert list(chosen(context, [built, costly], 100.0)) == ["built"]


def test_spare_time_goes_to_stages_that_can_use_it(context):
    stages = [Planned("a", 10.0), Planned("b", 20.0, 30.0), Planned("c", 30.0, 60.0)]
    over = OVERTIME * BUDGET
    assert chosen(context, stages, over + 80.0) == {"a": 10.0, "b": 25.0, "c": 45.0}
    assert chosen(context, stages, over + 500.0) == {"a": 10.0, "b": 30.0, "c": 60.0}


def test_stage_may_exceed_the_budget_by_a_tenth_before_it_is_left_out(context):
    stage = Planned("a", 100.0)
    assert fitting(context, [stage], verdict_s(context) + 100.0 - OVERTIME * BUDGET) == {stage: 100.0}
    assert fitting(context, [stage], verdict_s(context) + 99.0 - OVERTIME * BUDGET) == {}


def test_verdict_keeps_its_time_for_every_model_that_it_times(context):
    before = verdict_s(context)
    context.state.candidates = [
        SimpleNamespace(passes_gate=passes, is_control=control)
        for passes, control in ((True, False), (True, False), (False, False), (True, True))
    ]
    assert verdict_s(context) == before + 5.0
    context.state.process_s, context.state.judge_s = 10.0, 3.0
    assert verdict_s(context) == before + 5.0 + 5.0 + 3 * 3.0


def test_left_out_stages_are_named_with_their_time_and_a_sufficient_budget(context):
    context.state.seconds = 140.0
    found = [
        StageRecord(name="prune", title="Prune", status="skipped", needs_s=24.0),
        StageRecord(name="distill", title="Distil", status="skipped", needs_s=70.0),
        StageRecord(name="quantize", title="Quantise", status="skipped", reason="it cannot be packed"),
        StageRecord(name="batch", title="Batch size", status="skipped", needs_s=9.0),
    ]
    # This call did not request the last stage.
    (told,) = left_out(context, found, ["prune", "distill", "quantize"])
    assert "Prune (24 s), Distil (1 min 10 s). The same run" in told
    budget = int(told.partition("time budget of ")[2].split()[0])
    stages = [Planned("prune", 24.0), Planned("distill", 70.0)]
    found_time = fitting(context, stages, budget - context.state.seconds)
    assert {one.name for one in found_time} == {"prune", "distill"}
    assert left_out(context, found[2:3], ["quantize"]) == ()


def test_training_far_beyond_its_share_stops_and_reports_the_time_it_needs(context, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("cellerate.optimization.context.time", SimpleNamespace(perf_counter=lambda: now[0]))
    context.give(10.0)
    # What came before the training, and the first step, which compiles, are needed once only.
    now[0] = 5.0
    context._step(1, 100, 2.0)
    now[0] = 14.9
    assert not context.far_beyond()
    context._step(20, 100, 2.0)
    now[0] = 15.1
    assert context.far_beyond()
    with pytest.raises(
        OutOfTimeError, match=r"stopped after 15 s, as its share of the time was 10 s: step 20 of 100"
    ):
        context._step(20, 100, 2.0)
    with pytest.raises(OutOfTimeError) as raised:
        context._step(20, 100, 2.0)
    assert raised.value.needs_s == pytest.approx(15.1 + 80 * 10.1 / 19)
    # Unneeded time is spare for a stage that takes longer than planned.
    context.give(10.0, spare_s=100.0)
    now[0] += 114.9
    context._step(20, 100, 2.0)
    now[0] += 0.2
    with pytest.raises(OutOfTimeError, match="stopped after 1 min 55 s"):
        context._step(20, 100, 2.0)
    # The first step alone says nothing about the others.
    context.give(10.0)
    now[0] += 200.0
    context._step(1, 100, 2.0)
    # The verdict is not limited.
    context.give(None)
    now[0] = 1e6
    context._step(20, 100, 2.0)
    assert not context.far_beyond()
