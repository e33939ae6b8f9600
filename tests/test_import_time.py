"""How long a user waits for nothing: the best of several runs, so that a busy machine does not decide."""

import subprocess
import sys
import time
from pathlib import Path


def fastest(command: list[str], runs: int = 5) -> float:
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        times.append(time.perf_counter() - start)
    return min(times)


def test_import_cellerate_takes_less_than_300_ms():
    assert fastest([sys.executable, "-c", "import cellerate"]) < 0.3


def test_cellerate_help_takes_less_than_500_ms():
    assert fastest([str(Path(sys.executable).parent / "cellerate"), "--help"]) < 0.5
