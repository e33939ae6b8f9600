"""A real measuring process: its answers, its end and its restart."""

import os
import signal
import threading
import time

import pytest

from cellerate.optimization.probe_client import Probe, ProbeError

pytestmark = pytest.mark.keras


@pytest.mark.backends
def test_probe_answers_reports_errors_and_restarts_after_its_end(made):
    import keras

    from cellerate.optimization.judging import Judged
    from cellerate.optimization.workloads.opening import open_workload

    work = open_workload(made / "text.keras", [made / "t.txt"], seed=0)
    with Probe(
        made / "text.keras", [made / "t.txt"], seed=0, backend=keras.config.backend()
    ) as probe_process:
        assert 0 < probe_process.ask("open", timeout_s=120) < 120
        first = probe_process._process.pid
        found = Judged(**probe_process.ask("judge", part="validation", timeout_s=120))
        assert found.mean == pytest.approx(work.judge(work.model, "validation").mean, rel=1e-5)

        # An error is an answer, and the next question has its own.
        with pytest.raises(ProbeError, match=r"there is no file .*missing\.cell") as raised:
            probe_process.ask("use", files=[str(made / "missing.cell")])
        assert not raised.value.memory
        assert probe_process.ask("open") > 0
        assert probe_process._process.pid == first

        # The process is stopped, so it cannot answer, and is killed in the middle of the question.
        os.kill(first, signal.SIGSTOP)
        threading.Timer(0.2, os.kill, (first, signal.SIGKILL)).start()
        with pytest.raises(ProbeError, match="no memory left") as raised:
            probe_process.ask("judge", part="validation", timeout_s=120)
        assert raised.value.memory

        # The new process takes longer than the wait to open the model; its late answer is never read.
        began = time.monotonic()
        with pytest.raises(ProbeError, match="more than 0 s") as raised:
            probe_process.ask("judge", part="validation", timeout_s=0.1)
        assert time.monotonic() - began < 5
        assert not raised.value.memory
        assert 0 < probe_process.ask("open", timeout_s=120) < 120
        assert probe_process._process.pid != first
        last = probe_process._process.pid
    with pytest.raises(ProcessLookupError):
        os.kill(last, 0)


def test_batches_are_timed_in_order_across_epochs(made, monkeypatch):
    from cellerate.optimization import clocks
    from cellerate.optimization.probe_process import _Work

    class Source:
        def __len__(self):
            return 3

        def batch(self, epoch, index):
            asked.append((epoch, index))
            return (epoch, index)

    asked = []
    work = _Work(Probe(made / "text.keras", [made / "t.txt"], seed=0, backend="")._opened)
    monkeypatch.setattr(work._workload, "source", lambda *_: Source())
    monkeypatch.setattr(clocks, "timed_calls", lambda call: [call() or 0.002 for _ in range(7)])
    assert work.answer({"kind": "load", "with": {"batch_size": 4, "length": None}}) == {"batch_ms": 2.0}
    assert asked == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (2, 0)]


@pytest.mark.parametrize(
    ("error", "memory"),
    [
        (MemoryError(), True),
        (RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 99 bytes"), True),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), True),
        (ValueError("a wrong shape\nwith details"), False),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else str(value),
)
def test_probe_program_distinguishes_lack_of_memory_from_other_errors(monkeypatch, tmp_path, error, memory):
    import io
    import json
    import sys

    from cellerate.optimization import probe_process

    def fail(self, opened):
        raise error

    # The program writes to the descriptor of stdout.
    answers = tmp_path / "answers"
    monkeypatch.setattr(probe_process._Work, "__init__", fail)
    monkeypatch.setattr(probe_process, "_offer_to_the_memory_killer", lambda: None)
    monkeypatch.setattr(probe_process.os, "dup", lambda _: os.open(answers, os.O_WRONLY | os.O_CREAT))
    moved = []
    monkeypatch.setattr(probe_process.os, "dup2", lambda *descriptors: moved.append(descriptors))
    monkeypatch.setattr(sys, "stdin", io.StringIO('{"kind": "open"}\n'))
    monkeypatch.delenv("CELLERATE_TRACEBACK", raising=False)
    probe_process.main()
    found = json.loads(answers.read_text())
    assert moved == [(2, 1)], "what a framework prints goes to stderr"
    assert found["memory"] is memory
    assert found["error"].split(":")[0] == type(error).__name__
    assert "details" not in found["error"]
