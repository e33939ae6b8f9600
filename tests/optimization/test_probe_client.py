"""Processes that measure, as the process that asks them sees them; their answers are in `test_probe_process.py`."""

import pytest

from cellerate.optimization import probe_client
from cellerate.optimization.probe_client import MeasuringProcess


def test_ctrl_c_while_a_process_is_being_started_stays_ctrl_c_when_it_is_closed(monkeypatch):
    def interrupted(*words, **options):
        raise KeyboardInterrupt

    process = MeasuringProcess("a.module", {}, backend="torch")
    monkeypatch.setattr(probe_client.subprocess, "Popen", interrupted)
    try:
        with pytest.raises(KeyboardInterrupt):
            process.start()
    finally:
        process.close()


def test_process_that_was_never_started_can_be_closed():
    MeasuringProcess("a.module", {}, backend="torch").close()
