import numpy as np
import pytest

from cellerate.optimization.sweep.record import PointRecord, SweepRecord
from cellerate.optimization.sweep.verdict import (
    _losses_at,
    best_of,
    difference_of_tests,
    equal_training,
    fastest_of,
    judge,
    standings,
)

BATCHES = 24


def point(label, loss, *, step_s=0.01, control=False, steps=100, items=10, spread=0.0, noise=0.2, **values):
    """A point whose loss falls linearly from 3; all points are evaluated on the same hard and easy batches."""
    hard = np.random.default_rng(0).normal(0, noise, BATCHES)
    own = np.random.default_rng(ord(label)).normal(0, spread, BATCHES) if spread else 0.0

    def judged(done, value):
        return {
            "steps": done,
            "seconds": done * step_s,
            "losses": list(value + hard + own),
            "weights": [32.0] * BATCHES,
            "train_loss": value,
        }

    found = PointRecord(label, values or {"batch_size": items}, control, "measured", items=items)
    found.turns = [
        {
            "round": n,
            "steps": steps // 4,
            "seconds": steps // 4 * step_s,
            "times_s": [step_s * (1 + n / 100)] * 5,
        }
        for n in range(4)
    ]
    found.judged = [judged(0, 3.0), judged(steps // 2, (3 + loss) / 2), judged(steps, loss)]
    return found


def record(*points, unit="loss"):
    return SweepRecord(
        "series", ["data"], "", "torch", {}, {}, {}, unit=unit, item="windows", points=list(points)
    )


def test_losses_are_compared_after_equal_time_and_after_equal_steps():
    control = point("a", 1.0, control=True)
    quick = point("b", 1.0, step_s=0.005, steps=200)
    found = record(control, quick)
    assert equal_training(found, "seconds") == pytest.approx(1.0)
    assert equal_training(found, "steps") == 100
    by_time = {one.point.label: one.loss.value for one in standings(found, "seconds")}
    by_steps = {one.point.label: one.loss.value for one in standings(found, "steps")}
    assert by_time["a"] == pytest.approx(by_time["b"])
    # After 100 of its 200 steps, it is half way.
    assert by_steps["b"] - by_steps["a"] == pytest.approx(1.0)


def test_points_of_a_number_of_steps_are_judged_after_equal_steps():
    """The quick point has hardly taken a step when the other has finished; after equal steps it is far behind."""
    slow, quick = point("a", 1.0, control=True, step_s=0.1), point("b", 2.5, step_s=0.0005)
    found = record(slow, quick)
    assert judge(found)["best"] == "b"
    found.settings["steps"] = 100
    verdict = judge(found)
    assert (verdict["best"], verdict["chosen"], verdict["as_good"]) == ("a", "a", [])
    assert "Nothing learns more than the control, a: " in verdict["sentence"]
    assert "after 100 steps" in verdict["sentence"]
    better = record(slow, point("c", 0.5, step_s=0.2))
    better.settings["steps"] = 100
    assert judge(better)["chosen"] == "c"


def test_point_with_very_few_steps_does_not_limit_the_comparison():
    slow = point("stock", 2.5, step_s=1.0, steps=4)
    found = record(point("a", 1.0, control=True), slow)
    assert equal_training(found, "steps") == 100
    assert {one.point.label: one.loss for one in standings(found, "steps")}["stock"] is None


def test_difference_is_paired_so_that_hard_batches_do_not_hide_it():
    found = record(point("a", 1.0, control=True, noise=2.0), point("b", 0.95, noise=2.0))
    one = next(one for one in standings(found, "seconds") if one.point.label == "b")
    assert one.beside_control.certain
    assert (one.beside_control.low, one.beside_control.high) == pytest.approx((-0.05, -0.05))
    # The loss itself is not known so well.
    assert one.loss.high - one.loss.low > 0.5


def test_uncertain_difference_keeps_the_control():
    found = record(point("a", 1.0, control=True, spread=0.3), point("b", 0.99, spread=0.3), point("c", 2.0))
    verdict = judge(found)
    best, alike = best_of(standings(found, "seconds"), found)
    assert {best.label, *(one.label for one in alike)} == {"a", "b"}
    assert verdict["chosen"] == "a"
    assert "not distinguishable" in verdict["sentence"]


def test_better_point_is_chosen_and_reported_with_its_interval():
    found = record(point("a", 1.0, control=True), point("b", 0.5), unit="bits/character")
    verdict = judge(found)
    assert (verdict["best"], verdict["chosen"]) == ("b", "b")
    # In bits.
    assert "0.7213 to 0.7213 lower" in verdict["sentence"]
    assert "0.6884 bits/character, beside 1.4098 of the control" in verdict["sentence"]


def test_stock_keras_is_not_chosen_over_an_equal_point():
    found = record(
        point("a", 2.0, control=True),
        point("k", 1.0, implementation="keras"),
        point("b", 1.0, implementation="auto"),
    )
    assert judge(found)["chosen"] == "b"


def test_fastest_point_is_by_items_and_ties_are_reported():
    wide = point("wide", 1.0, step_s=0.02, items=100)
    alike = point("alike", 1.0, step_s=0.0203, items=100)
    small = point("small", 1.0, step_s=0.01, items=10, control=True)
    fastest, as_fast = fastest_of([small, wide, alike])
    assert (fastest.label, [one.label for one in as_fast]) == ("wide", ["alike"])
    sentence = judge(record(small, wide, alike))["sentence"]
    assert "wide is the fastest" in sentence
    assert "not distinguishable from alike" in sentence
    assert "5 times as many as the control (small)" in sentence


def test_points_with_different_batches_are_compared_unpaired():
    other = point("b", 1.0)
    for one in other.judged:
        one["losses"], one["weights"] = one["losses"][:12], one["weights"][:12]
    one = standings(record(point("a", 1.0, control=True), other), "seconds")[1]
    assert not one.beside_control.certain
    assert one.beside_control.high - one.beside_control.low > 0.05


def test_loss_that_is_not_finite_is_not_compared():
    lost = point("b", 1.0)
    lost.judged[-1]["losses"] = [None] * BATCHES
    found = record(point("a", 1.0, control=True), lost)
    assert standings(found, "seconds")[1].loss is None
    assert judge(found)["best"] == "a"
    lost.control = True
    assert judge(record(lost))["sentence"].endswith("No point has a finite validation loss.")


def test_empty_sweep_is_reported():
    waiting = PointRecord("a", {}, True)
    assert judge(record(waiting)) == {"sentence": "No point was measured."}


def test_single_batch_gives_no_interval_so_the_control_stays():
    points = [point("a", 2.0, control=True), point("b", 1.0)]
    for one in points:
        for judged in one.judged:
            judged["losses"], judged["weights"] = judged["losses"][:1], judged["weights"][:1]
    found = judge(record(*points))
    assert (found["best"], found["as_good"], found["chosen"]) == ("b", ["a"], "a")
    assert "lower" not in found["sentence"]


def test_test_part_losses_are_compared_in_pairs():
    one, other = point("a", 1.0), point("b", 1.0)
    one.test = [[1.0 + n, 32.0] for n in range(5)]
    other.test = [[0.5 + n, 32.0] for n in range(5)]
    assert difference_of_tests(one, other, 1.0).low == pytest.approx(0.5)


@pytest.mark.parametrize(("steps", "loss"), [(5, 3.0), (10, 3.0), (15, 2.0), (18, 1.4), (20, 1.0), (40, 1.0)])
def test_loss_between_two_judgements_lies_on_the_line_between_them(steps, loss):
    found = PointRecord("a", {})
    found.judged = [
        {
            "steps": done,
            "seconds": float(done),
            "losses": [value, None if done == 10 else value],
            "weights": [1.0, 2.0],
        }
        for done, value in ((10, 3.0), (20, 1.0))
    ]
    at = _losses_at(found, "steps", steps)
    assert at[0].tolist() == pytest.approx([loss, 1.0])
    # A loss that was not finite counts only before the next judgement.
    assert np.isnan(at[1, 0]) == (steps < 20)
