"""The case of stages: equal curves are asked for, and the table says what each way took."""

import copy

import pytest

from benchmarks.training import stages
from support.benchmarks import planted


@pytest.fixture
def result():
    return copy.deepcopy(planted.record("stages")["result"])


@pytest.mark.parametrize(
    "spoil", [lambda curve: curve.__setitem__(2, 1.001 * curve[2]), list.pop, list.clear]
)
def test_curve_that_is_not_that_of_one_process_ends_the_case(result, spoil):
    ways = result["backends"]["jax"]
    stages.check("jax", ways)
    spoil(ways["two stages"]["curve"])
    with pytest.raises(SystemExit, match="jax, two stages: the curve is not that of one process"):
        stages.check("jax", ways)


def test_curve_that_is_not_a_number_ends_the_case(result):
    ways = result["backends"]["torch"]
    for found in ways.values():
        found["curve"][0] = float("nan")
    with pytest.raises(SystemExit, match="torch, one process"):
        stages.check("torch", ways)


def test_table_has_speed_relative_to_one_process_and_the_memory_of_each(result):
    ways = result["backends"]["jax"]
    ways[stages.ALONE]["step_s"], ways["two stages"]["step_s"] = [0.2, 0.19, 0.21], [0.1, 0.1, 0.1]
    ways["two stages"] |= {"memory_bytes": [3 * 10**8, 4 * 10**8], "bubble": 0.125, "waiting": [0.25, 0.5]}
    rows = {row[0]: row[1:] for row in stages.staged(result)}
    step, speed, factor, bubble, memory = rows["jax, two stages"]
    assert (factor, rows["jax, one process"][2]) == ("2.00x", "1.00x")
    assert step.startswith("100 ms")
    assert speed == "20.5 k"
    assert (bubble, memory) == ("12 %; waited 25 %, 50 %", "300 MB, 400 MB")
    assert {len(row) for row in stages.staged(result)} == {6}
