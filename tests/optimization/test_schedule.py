"""The order and time of stages, and the best model so far, which exists from the first stage on."""

import time
from types import SimpleNamespace

import pytest

from cellerate.optimization import clocks, schedule, workflow
from cellerate.optimization.context import OutOfTimeError
from cellerate.optimization.stages.base import NotNeededError
from cellerate.optimization.state import load_state
from cellerate.report.record import Candidate, Speed
from support.optimization.stages import Stand, statuses

pytestmark = [pytest.mark.keras, pytest.mark.usefixtures("here_probe", "quick")]


@pytest.fixture
def spent(out):
    """Set the seconds that earlier calls took."""

    def spent(seconds):
        state = load_state(out, {})
        state.seconds = seconds
        workflow.save_state(state, out)

    return spent


def test_stage_that_always_runs_comes_first_even_without_time(go, stands, spent):
    for kind in stands.values():
        kind.cost = 50.0
    # The last row of the table.
    stands["prune"].first = stands["prune"].always = True
    spent(0.0)
    found = go(time_budget=1.0)
    assert Stand.begun == ["prune"]
    assert statuses(found) == {
        "baseline": "done",
        "kernels": "skipped",
        "quantize": "skipped",
        "prune": "done",
    }
    assert [one.expected_s for one in found.passes] == [None, None, None, 50.0]
    assert [one.needs_s for one in found.passes] == [None, 50.0, 50.0, None]


@pytest.mark.parametrize(("cost", "runs"), [(39.0, True), (41.0, False)])
def test_first_stage_may_take_two_fifths_of_the_budget_even_if_none_is_left(go, stands, spent, cost, runs):
    stands["kernels"].cost = stands["quantize"].cost = 50.0
    stands["prune"].cost, stands["prune"].first = cost, True
    spent(100.0)
    found = go(time_budget=100.0)
    assert statuses(found)["prune"] == ("done" if runs else "skipped")
    assert found.passes[-1].needs_s == (None if runs else cost)
    assert Stand.begun == (["prune"] if runs else [])


def test_first_stage_precedes_more_valuable_stages(go, stands):
    stands["kernels"].cost, stands["prune"].cost, stands["prune"].first = 1.0, 20.0, True
    go()
    assert Stand.begun == ["prune", "quantize", "kernels"]


def test_stages_are_ordered_by_worth_after_their_prerequisites(go, stands):
    stands["kernels"].cost, stands["quantize"].cost, stands["prune"].cost = 30.0, 20.0, 10.0
    found = go()
    assert Stand.begun == ["prune", "quantize", "kernels"]
    # The record keeps the order of the table.
    assert [one.name for one in found.passes] == ["baseline", "kernels", "quantize", "prune"]
    Stand.begun.clear()
    stands["prune"].after = ("kernels",)
    go(restart=True)
    assert Stand.begun == ["quantize", "kernels", "prune"]


def test_pointless_stage_is_left_out_with_a_reason_and_gets_no_time(go, stands, spent):
    given = {}
    for name, kind in stands.items():
        kind.cost, kind.most = 10.0, 100_000.0
        kind.does = staticmethod(lambda context, name=name: given.__setitem__(name, context.share_s))
    stands["quantize"].pointless = lambda self, context: "the weights are rounded already"
    # The first stage gets its time before the time of the others is fixed.
    stands["kernels"].first = True
    spent(0.0)
    found = go(time_budget=1000.0)
    assert Stand.begun == ["kernels", "prune"]
    left_out = found.passes[2]
    assert (left_out.status, left_out.reason) == ("skipped", "the weights are rounded already")
    assert (left_out.needs_s, left_out.expected_s, left_out.kept) == (None, None, False)
    # Each stage gets half of the time; the second also gets the first's unused time.
    assert given["kernels"] == pytest.approx(500, abs=20)
    assert given["prune"] == pytest.approx(1000, abs=20)
    # More time would not change the result.
    assert found.verdict.warnings == ()


def test_stage_that_another_makes_pointless_is_left_out(go, stands):
    stands["prune"].cost = 10.0
    stands["prune"].pointless = lambda self, context: "there is one" if "quantize" in Stand.begun else ""
    found = go()
    assert Stand.begun == ["kernels", "quantize"]
    assert (found.passes[-1].status, found.passes[-1].reason) == ("skipped", "there is one")


@pytest.mark.parametrize(("cost", "runs"), [(250.0, True), (320.0, False)])
def test_stage_may_exceed_the_budget_by_a_tenth(go, stands, spent, cost, runs):
    stands["prune"].cost = cost
    spent(800.0)
    # 200 seconds are left of 1000, but for those of the verdict.
    found = go(time_budget=1000.0, only=["prune"])
    assert (found.passes[-1].status == "done") is runs
    assert found.passes[-1].expected_s == (cost if runs else None)


@pytest.mark.parametrize(("budget", "again"), [(1000.0, True), (300.0, False)])
def test_stage_short_of_time_runs_again_if_others_leave_enough(go, stands, spent, budget, again):
    def short_once(context):
        if context.share_s < 400.0:
            raise OutOfTimeError("there was no time for 50 steps", 400.0)

    for kind in stands.values():
        kind.cost = 10.0
    stands["prune"].does, stands["prune"].first = staticmethod(short_once), True
    spent(0.0)
    found = go(time_budget=budget)
    assert Stand.begun == ["prune", "kernels", "quantize"] + ["prune"] * again
    assert statuses(found)["prune"] == ("done" if again else "skipped")
    assert found.passes[-1].needs_s == (None if again else 400.0)


def test_stage_short_of_time_twice_is_left_out(go, stands, spent):
    def short(context):
        raise OutOfTimeError("there was no time for 50 steps", 1.0)

    stands["prune"].does = staticmethod(short)
    spent(0.0)
    found = go(time_budget=1000.0)
    assert Stand.begun.count("prune") == 2
    assert (found.passes[-1].status, found.passes[-1].needs_s) == ("skipped", 1.0)


def test_only_one_of_two_stages_short_of_time_runs_again_if_time_is_for_one(go, stands, spent, monkeypatch):
    slept = [0.0]
    clock = SimpleNamespace(perf_counter=lambda: time.perf_counter() + slept[0])
    monkeypatch.setattr(schedule, "time", clock)

    def short(context):
        slept[0] += context.share_s
        raise OutOfTimeError("there was no time for 50 steps", 500.0)

    for kind in stands.values():
        kind.cost = 10.0
    stands["kernels"].does = stands["prune"].does = staticmethod(short)
    spent(0.0)
    go(time_budget=1000.0)
    assert Stand.begun == ["kernels", "quantize", "prune", "kernels"]


def test_expected_time_of_a_stage_is_the_usable_part_of_its_share(go, stands):
    def nothing(context):
        raise NotNeededError("there are no units")

    stands["kernels"].cost = stands["quantize"].cost = stands["prune"].cost = 10.0
    stands["quantize"].most = 70.0
    stands["prune"].does = staticmethod(nothing)
    found = go()
    assert [one.expected_s for one in found.passes] == [None, 10.0, 70.0, None]
    assert all(0 <= one.seconds < 10 for one in found.passes[1:])


def making(name, latency, *, passes=True):
    """The work of a stage that makes a model of a given latency, as good as the original."""

    def does(context):
        candidates = context.folder / "candidates"
        candidates.mkdir(exist_ok=True)
        for suffix in (".cell", ".keras"):
            (candidates / name).with_suffix(suffix).write_text(name + suffix)
        original = context.state.judged["original"]
        values = tuple(value * (1 if passes else 2) for value in original.values)
        context.add(
            Candidate(
                id=name,
                title=name,
                made_by="quantize",
                precision="int8",
                parameters=1,
                file_bytes=1,
                quality=None,
                loss=None,
                passes_gate=False,
                speeds=(Speed("packed", latency, latency, 1e3 / latency, None, 1),),
                file=f"candidates/{name}.cell",
            ),
            type(original)(values, original.weights),
        )

    return does


def test_stopped_run_leaves_the_best_model_so_far(go, stands, out):
    seen = []

    def interrupt(context):
        raise KeyboardInterrupt

    def files():
        return [path.read_text() for path in sorted(out.glob("optimized.*"))]

    def then(does):
        def both(context):
            seen.append(files())
            does(context)

        return staticmethod(both)

    fast, faster, slow = (
        making(name, latency) for name, latency in (("fast", 1e-6), ("faster", 1e-7), ("slow", 1e-5))
    )
    for kind, does in zip(stands.values(), (fast, faster, interrupt), strict=True):
        kind.does = then(does)
    assert go().status == "interrupted"
    # After a third, and after two thirds, of the stages.
    assert seen == [[], ["fast.cell", "fast.keras"], ["faster.cell", "faster.keras"]]
    assert files() == ["faster.cell", "faster.keras"]
    # A slower model does not replace the best one, and neither does a model of lower quality.
    stands["prune"].does = then(slow)
    go()
    assert files() == ["faster.cell", "faster.keras"]
    stands["prune"].does = then(making("bad", 1e-9, passes=False))
    go(restart=True, only=["prune"])
    assert not any("bad" in text for text in files())


def test_stage_without_a_kept_candidate_writes_no_model(go, stands, out):
    stands["kernels"].does = staticmethod(making("fast", 1e-6))
    stands["kernels"].keeps = False
    go(only=["kernels"])
    assert list(out.glob("optimized.*")) == []


def test_verdict_gets_the_time_it_needs_and_the_spare_time(go, stands, monkeypatch):
    given = []
    found = workflow.verdict
    monkeypatch.setattr(
        workflow,
        "verdict",
        lambda context: given.append((context.share_s, context.spare_s)) or found(context),
    )
    go(time_budget=1000.0)
    go(time_budget=1.0)
    (share, spare), (_, none) = given
    assert share is None
    assert 900 < spare < 1000 - 5 * clocks.MEASURED_S
    assert none == 0.0
