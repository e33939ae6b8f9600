"""Processors that share cores."""

import dataclasses

from support.machine.machines import CORE, HALF_CORES, said


def test_processors_that_share_cores_are_said_to(machine):
    core = dataclasses.replace(CORE, threads=2)
    shown = [one.found for one in machine.examine(files=HALF_CORES, core=core) if one.topic == "threads"]
    assert shown == ["4 processors of 2 cores, all open to this process"]
    shown = [one.found for one in machine.examine() if one.topic == "threads"]
    assert shown == ["4 processors, all open to this process"]


def test_threads_are_compared_with_cores_where_two_processors_share_one(machine):
    core = dataclasses.replace(CORE, threads=2)
    (found,) = said(machine.examine(files=HALF_CORES, core=core, environ={"OMP_NUM_THREADS": "1"}))
    assert "compute on 1 of 2 cores: 100 GFLOP/s of 200 GFLOP/s" in found.cost
    assert found.fix.endswith("export OMP_NUM_THREADS=2")
