import json
import os
import sys

import pytest

from cellerate.distributed.plan import (
    Check,
    Link,
    check,
    check_stages,
    measure,
    predict,
    predict_stages,
    training_command,
)
from cellerate.errors import ConfigError
from cellerate.machine.environment import PROBE_VARIABLE

MEASURED = {
    "step_s": {"1": 0.8, "2": 0.4, "8": 0.1, "64": 0.02},
    "memory_bytes": {"1": 800, "2": 700, "8": 600, "64": None},
    "gradient_bytes": 1_000_000,
    "batches": 10,
    "batch_size": 100,
    "items": 1000,
    "item": "characters",
}
FREE = Link(float("inf"), 0.0)


def test_link_takes_its_rounds_and_its_bytes():
    assert Link(1e9, 1e-3).exchange_s(10**9, 1) == 0
    assert Link(1e9, 1e-3).exchange_s(10**9, 2) == pytest.approx(2 * (1e-3 + 0.5))
    assert Link(1e9, 1e-3).exchange_s(10**9, 8) == pytest.approx(2 * (3e-3 + 7 / 8))
    assert Link(1e9, 1e-3).exchange_s(0, 9) == pytest.approx(2 * 4e-3)


def test_prediction_adds_what_is_measured_and_what_is_exchanged():
    one, two, many = predict(MEASURED, [1, 2, 64], Link(1e8, 1e-3))
    assert (one.step_s, one.exchange_s, one.efficiency, one.rows) == (0.8, 0, 1, 100)
    assert two.exchange_s == pytest.approx(0.002 + 0.01)
    assert two.step_s == pytest.approx(0.412)
    assert two.efficiency == pytest.approx(0.8 / 0.824)
    assert (two.epoch_s, two.memory_bytes) == (pytest.approx(4.12), 700)
    assert (many.rows, many.memory_bytes) == (2, None)


@pytest.mark.parametrize(("items", "steps"), [(None, 10), (1, 1), (1000, 1), (1001, 2), (10**12, 10**9)])
def test_epoch_has_as_many_steps_as_it_has_items(items, steps):
    (found,) = predict(MEASURED, [1], FREE, items)
    assert found.epoch_s == pytest.approx(0.8 * steps)


def test_error_is_negative_if_too_much_was_promised():
    assert Check(2, 0.9, 1.0, FREE).error == pytest.approx(-0.1)


def training(tmp_path) -> list[str]:
    """A training whose step takes as long as it has rows, and as it has processors."""
    code = """
import json, os
request = json.loads(os.environ["CELLERATE_PROBE"])
if os.environ.get("RANK", "0") == "0":
    cores = len(os.sched_getaffinity(0))
    seconds = {count: 1 / count / cores for count in request["shares"]}
    if "RANK" in os.environ:
        seconds = {1: 0.75}
    stages = {
        count: {
            "layers": [["a"], ["b", "c"]], "seconds": [0.2, 0.3], "bytes": [10**8], "chunks": 4, "bubble": 0.2,
        }
        for count in request["stages"]
    }
    link = {"bytes_per_s": 1e9, "latency_s": 0.001}
    found = {"step_s": seconds, "memory_bytes": {}, "gradient_bytes": 10**8, "link": link, "stages": stages}
    found["batches"] = 9
    json.dump(found, open(request["result"], "w"))
"""
    program = tmp_path / "training.py"
    program.write_text(code)
    return [sys.executable, str(program)]


def test_measuring_takes_one_process_with_all_processors(tmp_path):
    found = measure(training(tmp_path), [4, 2])
    whole = 1 / len(os.sched_getaffinity(0))
    assert found["step_s"] == pytest.approx({"1": whole, "2": whole / 2, "4": whole / 4})


def test_check_sets_one_process_with_its_processors_beside_all_of_them(tmp_path):
    found = check(training(tmp_path), 2)
    cores = max(1, len(os.sched_getaffinity(0)) // 2)
    assert found.measured_s == 0.75
    assert found.predicted_s == pytest.approx(0.5 / cores + 2 * (0.001 + 0.05))
    assert found.link == Link(1e9, 0.001)


def test_training_that_fails_ends_the_plan_as_it_ended(tmp_path):
    with pytest.raises(SystemExit) as ended:
        measure([sys.executable, "-c", "import sys; sys.exit(3)"], [1])
    assert ended.value.code == 3


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "got 'nothing'"),
        (["generate", "m.keras"], "got 'generate m.keras'"),
        (["train", "text", "--processes", "3"], "--processes is not for a plan"),
        (["train", "text", "--ray=local"], "--ray=local is not for a plan"),
    ],
)
def test_what_is_no_plain_training_is_refused(words, said):
    with pytest.raises(ConfigError, match=said):
        training_command(words, ["cellerate"])


def test_stages_take_the_most_expensive_one_the_bubble_and_the_messages():
    two = {"layers": [["a"], ["b", "c"]], "seconds": [0.2, 0.3], "bytes": [1000], "chunks": 4, "bubble": 0.2}
    (found,) = predict_stages({**MEASURED, "stages": {"2": two}}, Link(1e5, 1e-3), 2000)
    assert found.stages == 2
    # Four chunks forward and four backward, and one more of each while the other stage waits.
    assert (found.compute_s, found.bubble_s) == (0.3, pytest.approx(0.3 / 4))
    assert found.exchange_s == pytest.approx(2 * (0.004 + 0.01))
    assert found.step_s == pytest.approx(0.403)
    assert found.efficiency == pytest.approx(0.8 / (2 * 0.403))
    assert found.epoch_s == pytest.approx(2 * 0.403)


def test_check_of_stages_sets_a_prediction_beside_processes_with_a_stage_each(tmp_path):
    found = check_stages(training(tmp_path), 2)
    assert found.measured_s == 0.75
    assert found.predicted_s == pytest.approx(0.375 + 2 * (0.004 + 0.1))


@pytest.mark.keras
def test_states_that_carry_over_are_planned_for_one_device_only(monkeypatch):
    from cellerate.training.probe import check_probe

    check_probe(carry_states=True)
    monkeypatch.setenv(PROBE_VARIABLE, json.dumps({"shares": [1]}))
    check_probe(carry_states=True)
    monkeypatch.setenv(PROBE_VARIABLE, json.dumps({"shares": [1, 8, 64]}))
    check_probe(carry_states=False)
    with pytest.raises(ConfigError, match=r"all rows of a batch in one process, not in 64"):
        check_probe(carry_states=True)
