"""How the time is divided: no stage takes what the others need, and what one leaves goes to those that follow."""

from types import SimpleNamespace

import pytest

from cellerate.optimization.budget import left_out, shares, verdict_s
from cellerate.optimization.context import Context, OutOfTimeError
from cellerate.optimization.listener import Listener
from cellerate.optimization.settings import OptimizeSettings
from cellerate.optimization.state import Choices, State
from cellerate.report.record import Pass

pytestmark = pytest.mark.keras


class Stage:
    def __init__(self, name, cost, weight=0.0):
        self.name, self._cost, self._weight = name, cost, weight

    def cost_s(self, context):
        return self._cost

    def weight(self, context):
        return self._weight


@pytest.fixture
def context():
    state = State(identity={}, choices=Choices("auto", "float32", 8, 1, None, "int8"), started="")
    return Context(SimpleNamespace(), OptimizeSettings(), None, None, (), "", state, Listener())


def test_each_stage_gets_what_it_needs_and_a_share_of_the_rest_by_its_weight(context):
    stages = [Stage("a", 10.0), Stage("b", 20.0, 1.0), Stage("c", 30.0, 3.0)]
    found = shares(context, stages, verdict_s(context) + 100.0)
    assert found == {"a": 10.0, "b": 30.0, "c": 60.0}


def test_a_stage_that_could_use_everything_leaves_the_others_what_they_need(context):
    # One took 101 of 150 seconds, and five got none.
    stages = [Stage("greedy", 10.0, 100.0), *(Stage(f"s{n}", 10.0) for n in range(5))]
    found = shares(context, stages, verdict_s(context) + 70.0)
    assert found.pop("greedy") == pytest.approx(20.0)
    assert found == {f"s{n}": 10.0 for n in range(5)}


def test_where_time_is_short_the_stages_that_need_least_get_theirs(context):
    stages = [Stage("long", 60.0), Stage("short", 10.0), Stage("middle", 30.0)]
    assert shares(context, stages, verdict_s(context) + 50.0) == {"short": 10.0, "middle": 30.0}
    assert shares(context, stages, verdict_s(context) + 5.0) == {}


def test_verdict_keeps_its_time_for_every_model_that_it_times(context):
    before = verdict_s(context)
    context.state.candidates = [
        SimpleNamespace(passes_gate=passes, is_control=control)
        for passes, control in ((True, False), (True, False), (False, False), (True, True))
    ]
    assert verdict_s(context) == before + 4.0
    context.state.process_s, context.state.judge_s = 10.0, 3.0
    assert verdict_s(context) == before + 4.0 + 3 * 5.0 + 2 * 3.0


def test_what_was_left_out_is_named_with_what_it_needs_and_a_budget_that_is_enough(context):
    context.state.seconds = 140.0
    found = [
        Pass(name="prune", title="Prune", status="skipped", needs_s=24.0),
        Pass(name="distill", title="Distil", status="skipped", needs_s=70.0),
        Pass(name="quantize", title="Quantise", status="skipped", reason="it cannot be packed"),
        Pass(name="batch", title="Batch size", status="skipped", needs_s=9.0),
    ]
    # The last was not asked for in this call.
    (told,) = left_out(context, found, ["prune", "distill", "quantize"])
    assert "Prune (24 s), Distil (1 min 10 s). The same command" in told
    budget = int(told.partition("--time-budget ")[2].split()[0])
    stages = [Stage("prune", 24.0), Stage("distill", 70.0)]
    assert set(shares(context, stages, budget - context.state.seconds)) == {"prune", "distill"}
    assert left_out(context, found[2:3], ["quantize"]) == ()


def test_a_training_far_beyond_its_share_is_stopped_and_says_what_it_needs(context, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("cellerate.optimization.context.time", SimpleNamespace(perf_counter=lambda: now[0]))
    context.give(10.0)
    now[0] = 14.9
    context._step(20, 100, 2.0)
    now[0] = 15.1
    with pytest.raises(
        OutOfTimeError, match=r"stopped after 15 s, as its share of the time was 10 s: step 20 of 100"
    ):
        context._step(20, 100, 2.0)
    with pytest.raises(OutOfTimeError) as raised:
        context._step(20, 100, 2.0)
    assert raised.value.needs_s == pytest.approx(75.5)
    # The verdict takes what it takes.
    context.give(None)
    now[0] = 1e6
    context._step(20, 100, 2.0)
