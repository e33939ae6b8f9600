"""Result files: what is recorded beside every figure, and how a record is written; needs no peer and no framework."""

import datetime
import json
import subprocess
from pathlib import Path
from typing import Any

from cellerate.environment import machine, versions
from cellerate.files import atomic_write

RESULTS = Path(__file__).parent / "results"


def new_record(case: str) -> dict[str, Any]:
    """The beginning of a record: of what, when, on what, of which commit."""
    return {
        "case": case,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "versions": versions(),
        "commit": _commit(),
    }


def write_record(record: dict[str, Any], folder: Path = RESULTS) -> Path:
    """Writes a record into a file of its own, whole or not at all, and gives its path."""
    path = folder / f"{record['case']}-{record['date'][:19].replace(':', '')}.json"
    with atomic_write(path) as beside:
        beside.write_text(json.dumps(record, indent=2) + "\n")
    return path


def _commit() -> str | None:
    """The commit of the working tree; "-dirty" at its end says that files differ from it."""
    command = ["git", "describe", "--always", "--dirty"]
    done = subprocess.run(command, cwd=RESULTS.parent, check=False, capture_output=True, text=True)
    return done.stdout.strip() or None
