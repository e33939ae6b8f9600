"""The load of the processors: now, beside this process, and by the host."""

import pytest

from cellerate.machine.doctor import load
from support.machine.machines import LATER, PROCESSORS, processor_times


@pytest.mark.parametrize(
    ("busy", "own_s", "used", "costs"),
    [(15, 0.3, 1.5, True), (15, 0.6, 0.0, False), (0, 0.5, 0.0, False), (1, 0.0, 0.2, False), (20, 0.0, 4.0, True)],
)  # fmt: skip
def test_others_are_what_is_busy_beside_this_process(monkeypatch, busy, own_s, used, costs):
    """Of a fifth of a second on four processors."""
    texts = iter([processor_times(), processor_times(busy=busy, idle=20 - busy)])
    times = iter([(1.0, 1.0, 2.0, 1.0, 9.0), (1.0 + own_s / 2, 1.0, 2.0 + own_s / 2, 1.0, 9.0)])
    monkeypatch.setattr(load, "allowed_processors", lambda: PROCESSORS)
    monkeypatch.setattr(load, "read", lambda path: next(texts))
    monkeypatch.setattr(load.os, "times", lambda: next(times))
    others = load.Others()
    said, cost = others.told()
    assert said == f"other processes used {used} of 4 processors"
    assert bool(cost) is costs


def test_others_of_a_system_that_does_not_tell_are_not_named(monkeypatch):
    monkeypatch.setattr(load, "read", lambda path: None)
    assert load.Others().told() == ("", "")


@pytest.mark.parametrize(("before", "after"), [(None, LATER), (LATER, None)])
def test_load_that_the_system_does_not_tell_is_no_finding(tmp_path, before, after):
    assert list(load.check_load(tmp_path, before, after, PROCESSORS)) == []


@pytest.mark.parametrize(
    ("after", "line"),
    [
        (
            processor_times(busy=15, idle=5),
            "other processes use 3.0 of 4 processors now: trainings and measurements share the processors with them; "
            "figures measured now are too low",
        ),
        (
            processor_times(idle=16, stolen=4),
            "the host of this virtual machine takes 20 % of its time now: all threads of a layer wait for the one that "
            "does not run",
        ),
        # Somewhat busy, as desktops are, is not a reason to warn of every figure.
        (processor_times(busy=4, idle=16), ""),
        (processor_times(idle=20), ""),
        (None, ""),
    ],
)
def test_load_that_spoils_figures_now_is_a_line(monkeypatch, after, line):
    texts = [processor_times(), after]
    slept = []
    monkeypatch.setattr(load.os, "sched_getaffinity", lambda _: PROCESSORS, raising=False)
    monkeypatch.setattr(load.time, "sleep", slept.append)
    monkeypatch.setattr(load, "read", lambda path: texts.pop(0) if path.name == "stat" else None)
    assert load.busy_now() == line
    assert slept == [load.MOMENT_S]
