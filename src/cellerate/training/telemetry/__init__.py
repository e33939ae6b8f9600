"""Telemetry: a run as people see it, in the terminal, a notebook, its files and the trackers of other projects.

Nothing here needs Keras: the loop hands over figures.
"""

from cellerate.training.telemetry.display import Display, Notebook, RunPlan, TerminalProgress
from cellerate.training.telemetry.history import write_history
from cellerate.training.telemetry.records import LIVE, Sample, Telemetry, telemetry_lines
from cellerate.training.telemetry.trackers import check_trackers

__all__ = [
    "LIVE",
    "Display",
    "Notebook",
    "RunPlan",
    "Sample",
    "Telemetry",
    "TerminalProgress",
    "check_trackers",
    "telemetry_lines",
    "write_history",
]
