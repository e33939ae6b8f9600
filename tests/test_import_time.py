"""How long a user waits for nothing: seconds of the processor, which other programs of a busy machine do not add to."""

import resource
import subprocess
import sys
from pathlib import Path


def processor_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def least_s(command: list[str], runs: int = 5) -> float:
    times = []
    for _ in range(runs):
        start = processor_s()
        subprocess.run(command, check=True, capture_output=True)
        times.append(processor_s() - start)
    return min(times)


def test_import_cellerate_takes_less_than_300_ms():
    assert least_s([sys.executable, "-c", "import cellerate"]) < 0.3


def test_cellerate_help_takes_less_than_500_ms():
    assert least_s([str(Path(sys.executable).parent / "cellerate"), "--help"]) < 0.5
