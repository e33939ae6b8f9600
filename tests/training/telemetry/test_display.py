"""The progress lines of a run without a terminal at stderr."""

import pytest

from cellerate.training.telemetry import display
from cellerate.training.telemetry.display import Notebook, RunPlan, TerminalProgress

RECORD = {"epoch": 1, "loss": 0.5, "items_per_s": 2e5, "seconds": 3.0, "data_wait": 0.0}


@pytest.fixture
def terminal(monkeypatch):
    readings = {"cpu": 0.9, "memory_bytes": 1.25e9, "gpu0_use": 0.75, "gpu0_power_w": 300.0, "gpu1_use": 0.5}
    monkeypatch.setattr(display, "MachineReadings", lambda: type("M", (), {"read": lambda _: readings})())
    made = TerminalProgress(every_s=0.0)
    made.start(
        RunPlan(epochs=2, steps_per_epoch=100, items_per_step=64, item="windows", bits="bits/character")
    )
    return made


@pytest.mark.parametrize(("wait", "told"), [(0.049, False), (0.05, True), (0.3, True), (1.0, True)])
def test_epoch_reports_a_notable_wait_for_data(terminal, capsys, wait, told):
    terminal.epoch(RECORD | {"data_wait": wait, "best": True})
    said = capsys.readouterr().err
    assert (f"waited for data {wait:.0%} of the time" in said) == told
    assert said.startswith("epoch 1/2  loss 0.5000  0.721 bits/character  200 k windows/s  3 s")
    assert said.rstrip().endswith("best so far, saved")


def test_epoch_of_a_single_step_shows_no_speed(terminal, capsys):
    terminal.epoch(RECORD | {"items_per_s": 0.0})
    assert capsys.readouterr().err == "epoch 1/2  loss 0.5000  0.721 bits/character  3 s\n"


@pytest.mark.parametrize(("wait", "told"), [(0.049, False), (0.05, True)])
def test_step_shows_the_load_of_the_machine(terminal, capsys, wait, told):
    terminal.data_wait(wait)
    terminal.step(0, 1, {"loss": 2.0})
    terminal.step(0, 11, {"loss": 1.0})
    said = capsys.readouterr().err
    assert said.startswith("epoch 1/2 step 11/100  loss 1.0000  1.443 bits/character  ")
    assert said.rstrip().endswith("1.2 GB  CPU 90%  GPU 75%  GPU 50%")
    assert (f"waits for data {wait:.0%} of the time" in said) == told


def test_notebook_updates_one_line_and_keeps_one_per_epoch(monkeypatch, capsys):
    readings = {"cpu": 0.9, "memory_bytes": 1.25e9}
    monkeypatch.setattr(display, "MachineReadings", lambda: type("M", (), {"read": lambda _: readings})())
    shown = Notebook()
    shown.message("jax, Keras's own kernels")
    shown.start(RunPlan(epochs=2, steps_per_epoch=100, items_per_step=64, item="windows"))
    shown.step(0, 1, {"loss": 2.0})
    shown.step(0, 11, {"loss": 1.0})
    shown.phase("validating")
    shown.step(0, 12, {"loss": 1.0})
    shown.epoch(RECORD)
    shown.stop()
    out, err = capsys.readouterr()
    assert err == ""
    first, epoch, *rest = out.split("\n")
    assert first == "\rjax, Keras's own kernels"
    assert rest == ["\r\r"]
    assert [line.rstrip() for line in epoch.split("\r")][1:2] == ["the first step compiles"]
    assert epoch.split("\r")[2].startswith("epoch 1/2 step 11/100  loss 1.0000  ")
    assert epoch.split("\r")[3].startswith("epoch 1/2 step 12/100  validating ")
    last, before = epoch.split("\r")[-1], epoch.split("\r")[-2]
    assert last.startswith("epoch 1/2  loss 0.5000  200 k windows/s  3 s")
    assert len(last) >= len(before.rstrip()), "something of the line before can still be seen"
