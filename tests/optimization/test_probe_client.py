"""Measuring processes from the caller's side; `test_probe_process.py` tests their answers."""

import pytest

from cellerate.optimization import probe_client
from cellerate.optimization.probe_client import MeasuringProcess


def test_ctrl_c_during_a_process_start_stays_ctrl_c_on_close(monkeypatch):
    def interrupted(*words, **options):
        raise KeyboardInterrupt

    process = MeasuringProcess("a.module", {}, backend="torch")
    monkeypatch.setattr(probe_client.subprocess, "Popen", interrupted)
    try:
        with pytest.raises(KeyboardInterrupt):
            process.start()
    finally:
        process.close()


def test_unstarted_process_can_be_closed():
    MeasuringProcess("a.module", {}, backend="torch").close()
