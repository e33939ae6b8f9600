import signal
import subprocess
import sys

import pytest

from cellerate.observe.bench import process


def test_ctrl_c_while_a_process_starts_ends_it_too(monkeypatch):
    started = []
    start = subprocess.Popen

    def interrupted(*arguments, **options):
        started.append(start(*arguments, **options))
        signal.raise_signal(signal.SIGINT)
        return started[0]

    monkeypatch.setattr(process.subprocess, "Popen", interrupted)
    try:
        with pytest.raises(KeyboardInterrupt):
            process.Process([sys.executable, "-c", "import time; time.sleep(60)"])
        assert started[0].poll() == -signal.SIGKILL
    finally:
        started[0].kill()
        started[0].communicate()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
