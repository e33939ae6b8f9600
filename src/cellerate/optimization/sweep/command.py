"""The command that trains the chosen point of a sweep, complete."""

from __future__ import annotations

import os
import shlex
from typing import Any

from cellerate.optimization.sweep.axes import axes_of
from cellerate.optimization.sweep.devices import CPU_WORDS
from cellerate.optimization.sweep.record import SweepRecord
from cellerate.settings import differing_options
from cellerate.tasks.settings import RECORDS

_FILE = "trained.keras"


def train_command_of(record: SweepRecord) -> str:
    """The command line that trains the point that a verdict chose; "" if it chose none."""
    chosen = next((one for one in record.points if one.label == record.verdict.get("chosen")), None)
    if chosen is None:
        return ""
    known = axes_of(record.task)
    swept: dict[str, dict[str, Any]] = {}
    for name, value in chosen.values.items():
        if (name, value) == ("implementation", "auto"):
            continue
        swept.setdefault(known[name].part, {})[name] = value
    words = ["cellerate", "train", record.task, *map(_short, record.data)]
    if record.model:
        words += ["--model", _short(record.model)]
    for part, kind in RECORDS[record.task].items():
        if part == "architecture" and record.model:
            continue
        words += differing_options(kind, record.parts.get(part, {}), swept.get(part, {}))
    words += ["--backend", record.backend, "-o", _FILE]
    on_cpu = chosen.values.get("device") == "cpu" and "gpu" in record.axes.get("device", ())
    return f"{CPU_WORDS} {shlex.join(words)}" if on_cpu else shlex.join(words)


def _short(path: str) -> str:
    """Return a path relative to the current folder if it lies in that folder."""
    relative = os.path.relpath(path)
    return path if relative.startswith("..") else relative
