"""How long a user waits for nothing: seconds of the processor, of which a busy machine takes somewhat more."""

import resource
import subprocess
import sys
from pathlib import Path

# The least that a program like ours can take: one verb, and help with colours.
SMALLEST = """
import typer

app = typer.Typer(rich_markup_mode="rich")
app.command("one")(lambda: None)
app.callback()(lambda: None)
app(["--help"])
"""


def processor_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def least_s(*commands: list[str], runs: int = 5) -> list[float]:
    """The least time of each command, which take turns."""
    times: list[list[float]] = [[] for _ in commands]
    for _ in range(runs):
        for command, own in zip(commands, times, strict=True):
            start = processor_s()
            subprocess.run(command, check=True, capture_output=True)
            own.append(processor_s() - start)
    return [min(own) for own in times]


def test_import_cellerate_takes_less_than_300_ms():
    assert least_s([sys.executable, "-c", "import cellerate"])[0] < 0.3


def test_cellerate_help_takes_less_than_500_ms_or_two_and_a_half_times_the_smallest_program():
    program = str(Path(sys.executable).parent / "cellerate")
    smallest, ours = least_s([sys.executable, "-c", SMALLEST], [program, "--help"])
    # A slow processor whose other half is in use needs more than half a second; the library does so as well.
    assert ours < max(0.5, 2.5 * smallest)
