"""Races: the order and number of turns, and a contestant that fails."""

import dataclasses
import math
from types import SimpleNamespace

import pytest

from cellerate.optimization import clocks
from cellerate.optimization.listener import StageListener
from cellerate.optimization.probe_client import ProbeError
from cellerate.optimization.processes import TrainingWay
from cellerate.optimization.stages import racing
from cellerate.optimization.stages.racing import race_trainings, race_uses
from cellerate.report.record import TrainingStep
from support.optimization.processes import Noted, usual

pytestmark = pytest.mark.keras

WAYS = [TrainingWay(implementation, "float32", 8, 10) for implementation in ("keras", "auto")]


def raced(rule=usual, *, late=False, ways=WAYS, context=None):
    """The result of a race, the names and options of its turns, and its processes."""
    turns = []

    def noting(number, kind, options):
        if kind == "turn":
            turns.append((number, options))
        return rule(number, kind, options)

    noted = Noted(noting)
    context = context or SimpleNamespace(
        processes=noted.processes(),
        listener=StageListener(),
        state=SimpleNamespace(compile_s=99.0, process_s=0.0),
        far_beyond=lambda: late,
    )
    return race_trainings(context, "race", ways), turns, noted, context


def taking(*ratios):
    """A rule: the first contestant takes one second a step, and the second is faster by a factor."""
    left = list(ratios)

    def rule(number, kind, options):
        if kind == "turn":
            return usual(number, kind, options) | {"seconds": [1.0 if number == 0 else 1.0 / left.pop(0)]}
        return usual(number, kind, options)

    return rule


def test_race_alternates_in_both_orders_from_the_same_weights_and_steps():
    def rule(number, kind, options):
        found = usual(number, kind, options)
        # The slower contestant determines the number of steps of a turn.
        return found | {"step_s": (0.15, 0.05)[number]} if kind == "trainer" else found

    found, turns, _, _ = raced(rule)
    assert [number for number, _ in turns][:8] == [0, 1, 1, 0, 0, 1, 1, 0]
    assert [options["restart"] for _, options in turns] == [True, True] + [False] * (len(turns) - 2)
    assert {options["steps"] for _, options in turns} == {2}
    assert [one.step.race for one in found] == ["race"] * 2
    assert [len(one.turns) for one in found] == [len(turns) // 2] * 2


@pytest.mark.parametrize(
    ("ratios", "late", "turns", "certain"),
    [
        ((2.0,) * 6, False, 6, True),
        ((0.5,) * 6, False, 6, True),
        # Six contradicting turns add six more, all of which run.
        ((0.5, *(2.0,) * 11), False, 12, True),
        ((0.5, 2.0) * 6, False, 12, False),
        # A race far beyond its time takes six only.
        ((0.5, 2.0) * 6, True, 6, False),
    ],
)
def test_race_takes_more_turns_only_if_they_contradict(ratios, late, turns, certain):
    found, _, _, _ = raced(taking(*ratios), late=late)
    assert [len(one.turns) for one in found] == [turns, turns]
    order = found[0].order(found[1])
    assert order.ratios == pytest.approx(ratios[:turns])
    assert order.certain is certain


def test_failed_contestant_is_reported_and_the_others_continue():
    def rule(number, kind, options):
        if kind == "turn" and number == 1 and len(turned) == 2:
            return ProbeError("no memory left", memory=True)
        turned.extend([number] * (kind == "turn" and number == 1))
        return usual(number, kind, options)

    turned = []
    ways = [*WAYS, TrainingWay("auto", "mixed_bfloat16", 8, 10)]
    found, turns, noted, context = raced(rule, ways=ways)
    assert isinstance(found[1], ProbeError)
    assert len(found[0].turns) == len(found[2].turns) >= 6
    assert [number for number, _ in turns].count(1) == 3
    assert noted.of("close") == [1]
    # The others are ready for the next race, which begins with the model's weights again.
    del turns[:]
    race_trainings(context, "next", [ways[0], ways[2]])
    assert noted.of("start") == [0, 1, 2]
    assert [options["restart"] for _, options in turns][:4] == [True, True, False, False]


def test_compile_time_is_learnt_from_new_trainings():
    def rule(number, kind, options):
        found = usual(number, kind, options)
        return found | {"compile_s": (7.0, 5.0, 3.0)[number]} if kind == "trainer" else found

    _, _, _, context = raced(rule)
    assert context.state.compile_s == 5.0
    context.state.compile_s = 99.0
    race_trainings(context, "again", WAYS)
    assert context.state.compile_s == 99.0
    race_trainings(context, "another", [WAYS[1], TrainingWay("auto", "mixed_bfloat16", 8, 10)])
    assert context.state.compile_s == 3.0


def test_verdict_reserves_time_for_a_race_only_if_none_ran():
    state = SimpleNamespace(
        training_steps=[TrainingStep("Keras, float32", 8, 10, 100.0, 1.0, 1.0, 1.0)],
        process_s=2.0,
        compile_s=3.0,
    )
    context = SimpleNamespace(state=state, first_way=WAYS[0], chosen_way=WAYS[0])
    assert racing.verdict_race_s(context) == 0.0
    context.chosen_way = WAYS[1]
    assert racing.verdict_race_s(context) == pytest.approx(2.0 + 3.0 + 6 * 2 * 0.3)
    state.training_steps += [
        TrainingStep(str(way), 8, 10, 100.0, 1.0, 1.0, 1.0, race="kernels") for way in WAYS
    ]
    assert racing.verdict_race_s(context) == 0.0
    # Contestants of another race do not count.
    state.training_steps[-1] = dataclasses.replace(state.training_steps[-1], race="batch")
    assert racing.verdict_race_s(context) > 5.0


def test_race_takes_about_its_predicted_time():
    steps = [SimpleNamespace(step_ms=100.0), SimpleNamespace(step_ms=20.0)]
    context = SimpleNamespace(state=SimpleNamespace(training_steps=steps))
    assert racing.race_s(context, 2) == pytest.approx(6 * 2 * 0.3)
    steps[0].step_ms = 2000.0
    assert racing.race_s(context, 2) == pytest.approx(6 * 2 * 2.0)


@pytest.mark.parametrize(("until", "most"), [(0.0, 6), (math.inf, 12)])
def test_uses_share_the_turn_time_equally(until, most):
    asked = []

    def rule(number, kind, options):
        if kind != "use":
            return True
        asked.append((number, options["files"], options["seconds"]))
        return [vars(clocks.Speed(str(number), 1.0, 1.0, 1.0, None, 1))] * max(1, len(options["files"]))

    noted = Noted(rule)
    packed = noted.probe()
    packed.start()
    packed.tell("open", files=["a", "b"])
    context = SimpleNamespace(processes=noted.processes())
    turns = list(race_uses(context, packed, ["a", "b"], until=until))
    # Keras in one process, what is packed in the other; a second in all at least.
    each = clocks.MEASURED_S / clocks.TURNS
    assert asked == [(1, [], each), (0, ["a", "b"], each)] * most
    assert [[speed.way for speed in there] for there, _ in turns] == [["1"]] * most
    assert [[speed.way for speed in here] for _, here in turns] == [["0", "0"]] * most
    assert each * 6 == pytest.approx(clocks.MEASURED_S)
