"""Two records beside each other: noise is not a regression, and a real slowdown is found in it."""

import dataclasses

import pytest

from cellerate.errors import DataError
from cellerate.observe.bench.compare import compare
from cellerate.observe.bench.record import LeftOut, Load

SLOWER = {("infer", "Cellerate"): 1.08}


def test_same_code_in_fifty_noisy_pairs_never_regresses(made):
    found = [compare(*(made(2 * seed + n, only_ours=True) for n in (0, 1))) for seed in range(50)]
    assert [one.regressions for one in found] == [0] * 50
    assert all(one.judged for one in found)


@pytest.mark.parametrize("start", [0.03, 0.1, 0.15])
def test_same_code_never_regresses_where_processes_differ_by_much(made, start):
    noise = {"start": start}
    found = [compare(*(made(300 + 2 * seed + n, noise=noise) for n in (0, 1))) for seed in range(30)]
    assert [one.regressions for one in found] == [0] * 30
    # And a program of half the speed is found all the same where they differ by a tenth.
    if start <= 0.1:
        slower = {("infer", "Cellerate"): 2.0}
        pairs = [
            (made(400 + 2 * n, noise=noise), made(401 + 2 * n, noise=noise, slower=slower)) for n in range(10)
        ]
        assert sum(compare(*pair).regressions > 0 for pair in pairs) >= 9


def test_planted_slowdown_of_eight_percent_is_found_in_nineteen_of_twenty_noisy_pairs(made):
    times = {"float32": 0, "int8": 0}
    for seed in range(20):
        before = made(100 + 2 * seed, only_ours=True)
        found = compare(before, made(101 + 2 * seed, only_ours=True, slower=SLOWER))
        for effect in found.effects:
            if effect.regression:
                assert (effect.entry.case, effect.entry.title) in SLOWER
                times[effect.entry.precision] += 1
    assert min(times.values()) >= 19


def test_slowdown_below_the_threshold_is_no_regression_and_a_lower_threshold_finds_it(made):
    quiet = {"wander": 0.001, "start": 0.001, "memory": 0.001, "bursts": 0.0, "call": 0.001}
    a, b = made(1, noise=quiet), made(2, noise=quiet, slower={("train", "Cellerate on jax"): 1.04})
    assert compare(a, b).regressions == 0
    found = compare(a, b, threshold=0.02)
    assert [one.entry.title for one in found.effects if one.regression] == ["Cellerate on jax"]


def test_drift_of_the_whole_machine_is_none_of_the_code(made):
    a, b = made(3), made(4)
    slow = tuple(
        dataclasses.replace(
            entry,
            turns=tuple(
                dataclasses.replace(
                    turn, yardstick_s=1.5 * turn.yardstick_s, seconds=tuple(1.5 * one for one in turn.seconds)
                )
                for turn in entry.turns
            ),
        )
        for entry in b.entries
    )
    before, after = compare(a, b), compare(a, dataclasses.replace(b, entries=slow))
    assert after.regressions == before.regressions == 0
    assert after.drift == pytest.approx(1.5 * before.drift)
    assert [one.ratio for one in after.effects] == pytest.approx([one.ratio for one in before.effects])


def test_slower_peer_is_told_and_is_no_regression(made):
    found = compare(
        made(5), made(6, slower={("train", "Keras on jax"): 1.5, ("train", "torch.nn.LSTM"): 1.5})
    )
    assert {one.verdict for one in found.effects if one.entry.title == "Keras on jax"} == {"slower"}
    assert found.regressions == 0
    assert any("Peers are slower too" in warning for warning in found.warnings)


def test_faster_program_is_an_improvement(made):
    found = compare(made(7), made(8, slower={("train", "Cellerate on jax"): 0.5}))
    (effect,) = [one for one in found.effects if one.entry.title == "Cellerate on jax"]
    assert effect.verdict == "faster"
    assert effect.high < 0.6 and effect.low < effect.ratio < effect.high
    assert "1 became faster" in found.sentence


def test_interval_holds_the_true_ratio_in_most_pairs(made):
    held = 0
    for seed in range(20):
        before = made(200 + 2 * seed, only_ours=True)
        found = compare(before, made(201 + 2 * seed, only_ours=True, slower=SLOWER))
        held += sum(
            one.low < SLOWER.get((one.entry.case, one.entry.title), 1.0) < one.high for one in found.effects
        )
    # Of 100 intervals of 99.8 %.
    assert held >= 98


def test_records_of_one_run_are_compared_turn_by_turn(made):
    noise_of_turns = made(9)
    slower = dataclasses.replace(
        noise_of_turns,
        entries=tuple(
            dataclasses.replace(
                entry,
                turns=tuple(
                    dataclasses.replace(turn, seconds=tuple(1.08 * one for one in turn.seconds))
                    for turn in entry.turns
                ),
            )
            for entry in noise_of_turns.entries
        ),
    )
    found = compare(noise_of_turns, slower)
    assert all(one.low == pytest.approx(1.08) == one.high for one in found.effects)
    # Peers have the same turns in both.
    assert found.regressions == len(found.effects) == 5
    # The same turns as if of two runs: the noise between sessions comes back.
    apart = compare(noise_of_turns, dataclasses.replace(slower, run="another"))
    assert all(one.low < 1.08 < one.high for one in apart.effects)


def test_one_session_is_too_few_to_judge(made):
    found = compare(made(10, sessions=1), made(11, sessions=1, slower={("train", "Cellerate on jax"): 2.0}))
    assert {one.verdict for one in found.effects} == {"unknown"}
    assert not found.judged and found.regressions == 0
    assert found.sentence == "Nothing could be judged."
    assert any("has 1 session; 3 are needed" in warning for warning in found.warnings)


def test_what_is_wrong_or_cannot_run_any_more_is_lost(made):
    a, b = made(12), made(13)
    gone = LeftOut(
        "train", "Cellerate on jax", True, "training, float32", True, "off by 1e-01; 1e-04 is allowed"
    )
    kept = tuple(entry for entry in b.entries if entry.title != "Cellerate on jax")
    found = compare(a, dataclasses.replace(b, entries=kept, left_out=(gone,)))
    assert found.lost == (
        "train, training, float32, Cellerate on jax, a batch of fit: off by 1e-01; 1e-04 is allowed",
    )
    assert found.regressions == 1 and found.sentence.startswith("1 regression;")


def test_case_that_was_not_asked_for_again_is_not_lost(made):
    a, b = made(14), made(15)
    found = compare(a, dataclasses.replace(b, entries=tuple(one for one in b.entries if one.case == "infer")))
    assert found.lost == ()
    assert {one.entry.case for one in found.effects} == {"infer"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"machine": {"cpu": "another", "processor": "fast, AVX-512", "cores": 2}}, "different machines"),
        ({"machine": {"cpu": "one", "processor": "fast, AVX-512", "cores": 4}}, "cores: 2 and 4"),
        ({"sizes": {"units": 512}}, "different sizes"),
        ({"quick": True}, "different sizes"),
    ],
)
def test_records_of_other_machines_or_sizes_are_refused(made, changes, message):
    with pytest.raises(DataError, match=message):
        compare(made(0), made(1, **changes))


def test_busy_machine_and_other_versions_are_told(made):
    b = made(1, load=Load(0.0, 0.4, 0.2), versions={"cellerate": "0.2.0", "keras": "3.16.0"})
    said = " ".join(compare(made(0), b).warnings)
    assert "During the second run other processes took 40% of the processors." in said
    assert "other virtual machines took 20% of the processors" in said
    assert "More than Cellerate differs: keras 3.15.1 and 3.16.0." in said


def test_json_of_a_comparison_says_what_was_judged_and_how(made):
    told = compare(made(0), made(1, slower={("train", "Cellerate on jax"): 1.5})).to_json()
    assert told["regressions"] == 1 and told["judged"] and told["confidence"] == 0.998
    (effect,) = [one for one in told["effects"] if one["regression"]]
    assert (effect["case"], effect["contestant"], effect["verdict"]) == ("train", "cellerate-jax", "slower")
    assert effect["low"] < effect["ratio"] < effect["high"]
