import json

import pytest

from cellerate.distributed import plan
from cellerate.distributed.plan import Check, Link

MEASURED = {
    "step_s": {"1": 0.8, "2": 0.4, "8": 0.1, "64": 0.02},
    "memory_bytes": {"1": 800, "2": 700, "8": 600, "64": None},
    "gradient_bytes": 1_000_000,
    "batches": 10,
    "batch_size": 100,
    "items": 1000,
    "item": "characters",
}


def test_plan_prints_a_row_for_each_number_of_devices(cellerate, monkeypatch):
    asked = []
    monkeypatch.setattr(
        plan,
        "measure",
        lambda command, devices, stages: asked.append((command[2:], devices, stages)) or MEASURED,
    )
    monkeypatch.setattr(plan, "check", lambda command, devices: Check(devices, 0.09, 0.1, Link(2e9, 5e-5)))
    words = [
        "--devices",
        "2,8",
        "--bandwidth",
        "1",
        "--latency",
        "50",
        "--check",
        "2",
        "--",
        "train",
        "text",
        "t.txt",
    ]
    code, out, err = cellerate("plan", *words)
    assert (code, err) == (0, "")
    assert asked == [(["train", "text", "t.txt"], [2, 8], [])]
    first, assumed, head, two, eight, checked = out.splitlines()
    assert first == "10,000 characters an epoch, 1,000 a step; 1 MB of gradients a step"
    assert "1 GB/s and 50 µs" in assumed
    assert head.split()[0] == "devices"
    assert two.split() == [
        "2",
        "50",
        "400",
        "ms",
        "1.10",
        "ms",
        "401",
        "ms",
        "100%",
        "4.01",
        "s",
        "700",
        "bytes",
    ]
    assert eight.split()[:2] == ["8", "13"]
    assert checked.endswith("predicted 90.0 ms a step, measured 100 ms, -10%")

    code, out, _ = cellerate("plan", "--json", "--items", "1e12", *words)
    found = json.loads(out)
    assert found["items"] == 10**12
    assert [each["devices"] for each in found["predictions"]] == [2, 8]
    assert found["check"]["error"] == pytest.approx(-0.1)


def test_plan_of_stages_prints_the_layers_of_each(cellerate, monkeypatch):
    two = {"layers": [["a"], ["b", "c"]], "seconds": [0.2, 0.3], "bytes": [1000], "chunks": 4, "bubble": 0.2}
    monkeypatch.setattr(plan, "measure", lambda *_: {**MEASURED, "stages": {"2": two}})
    monkeypatch.setattr(plan, "check_stages", lambda _, stages: Check(stages, 0.09, 0.1, Link(2e9, 5e-5)))
    words = ["--stages", "2", "--devices", "1", "--check", "2", "--", "train", "text", "t.txt"]
    code, out, err = cellerate("plan", *words)
    assert (code, err) == (0, "")
    *_, stages, checked = out.splitlines()
    assert stages.startswith(
        "2 stages, 4 chunks of time: 375 ms a step (300 ms of the most expensive stage, 75.0 ms"
    )
    assert stages.endswith("a | b, c")
    assert checked.startswith("checked with 2 stages in processes here, 2.00 GB/s")
    code, out, _ = cellerate("plan", "--json", *words)
    assert json.loads(out)["stages"][0]["layers"] == [["a"], ["b", "c"]]
    code, _, err = cellerate("plan", "--stages", "two", "--", "train", "text", "t.txt")
    assert code == 2
    assert "--stages is 'two'" in err


@pytest.mark.parametrize("devices", ["", "0", "1,x", "2,-1", "1.5"])
def test_impossible_device_numbers_are_refused(cellerate, devices):
    code, _, err = cellerate("plan", "--devices", devices, "--", "train", "text", "t.txt")
    assert code == 2
    assert "expected whole numbers from 1 on" in err


@pytest.mark.parametrize("name", ["--items", "--bandwidth", "--latency"])
@pytest.mark.parametrize("value", ["inf", "nan"])
def test_numbers_that_are_not_finite_are_refused_before_measuring(cellerate, monkeypatch, name, value):
    monkeypatch.setattr(plan, "measure", None)
    code, _, err = cellerate("plan", name, value, "--", "train", "text", "t.txt")
    assert code == 2
    assert name in err
