"""The load of the machine is told by what others took of the processors that we may use."""

import os
import subprocess
import sys

import pytest

from benchmarks import conditions
from benchmarks.conditions import Times, shares
from cellerate.observe.bench import load


def test_load_is_what_is_neither_idle_nor_ours():
    before = Times(busy=100.0, stolen=1.0, own=40.0, all=1000.0)
    after = Times(busy=130.0, stolen=1.5, own=60.0, all=1050.0)
    assert shares(before, after) == {"others": 10 / 50, "stolen": 0.5 / 50}


def test_load_is_never_below_0_and_unknown_without_a_clock():
    before, after = Times(10, 0, 10, 10), Times(11, 0, 12, 20)
    assert shares(before, after) == {"others": 0.0, "stolen": 0.0}
    assert shares(before, None) == shares(None, after) == {"others": None, "stolen": None}


def test_times_are_those_of_the_processors_that_we_may_use(tmp_path, monkeypatch):
    stat = tmp_path / "stat"
    stat.write_text(
        "cpu  9 9 9 9 9 9 9 9 9 9\ncpu0 100 20 30 999 999 4 6 50 7 7\ncpu1 1 1 1 1 1 1 1 1 1 1\n"
        "cpu10 200 0 0 0 0 0 0 10 0 0\nintr 5\n"
    )
    monkeypatch.setattr(load, "STAT", stat)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 10}, raising=False)
    monkeypatch.setattr(os, "sysconf", lambda _: 100)
    found = conditions.times()
    assert (found.busy, found.stolen) == pytest.approx((3.6, 0.6))
    monkeypatch.setattr(load, "STAT", tmp_path / "none")
    assert conditions.times() is None


@pytest.mark.skipif(not load.STAT.exists(), reason="the system has no /proc/stat")
def test_work_of_a_child_counts_as_ours():
    work = "import time\nwhile time.process_time() < 0.3: pass"
    before = conditions.times()
    subprocess.run([sys.executable, "-c", work], check=True)
    # The clock ticks a hundred times a second.
    assert 0.25 <= conditions.times().own - before.own < 3


def test_preloaded_allocator_is_told_without_its_folder(monkeypatch):
    monkeypatch.setenv("LD_PRELOAD", "/opt/somewhere/libjemalloc.so.2")
    monkeypatch.setenv("MALLOC_CONF", "background_thread:true")
    monkeypatch.setenv("MALLOCATED", "no setting")
    # polars sets it for an allocator of its own.
    monkeypatch.setenv("_RJEM_MALLOC_CONF", "dirty_decay_ms:500")
    found = conditions.allocator()
    assert found["preloaded"] == ["libjemalloc.so.2"]
    assert found["environment"] == {"MALLOC_CONF": "background_thread:true"}
    assert found["library"]
