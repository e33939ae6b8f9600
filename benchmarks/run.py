"""Measures this machine: `python benchmarks/run.py [case ...] [--quick]`; one JSON a case and run in `results/`."""

import argparse
import datetime
import json
import subprocess
import time
from pathlib import Path
from typing import Any

from cases import CASES
from cellerate.environment import machine, versions
from cellerate.files import atomic_write

RESULTS = Path(__file__).parent / "results"


def commit() -> str | None:
    """The commit of the working tree; "-dirty" at its end says that files differ from it."""
    command = ["git", "describe", "--always", "--dirty"]
    done = subprocess.run(command, cwd=RESULTS.parent, check=False, capture_output=True, text=True)
    return done.stdout.strip() or None


def measure(name: str, *, quick: bool) -> dict[str, Any]:
    """Runs one case; the record says on what, when and how long."""
    start = time.monotonic()
    record: dict[str, Any] = {
        "case": name,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "versions": versions(),
        "commit": commit(),
    }
    record["result"] = CASES[name](quick)
    record["seconds"] = time.monotonic() - start
    return record


def main() -> None:
    """Reads the arguments, runs the cases, writes their records."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("case", nargs="*", help=f"one or more of {', '.join(CASES)}; default: all")
    parser.add_argument("--quick", action="store_true", help="a shorter run that writes nothing")
    arguments = parser.parse_args()
    if unknown := set(arguments.case) - CASES.keys():
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(CASES)}")
    for name in arguments.case or CASES:
        print(f"== {name}: {CASES[name].__doc__}", flush=True)
        record = measure(name, quick=arguments.quick)
        if not arguments.quick:
            path = RESULTS / f"{name}-{record['date'][:19].replace(':', '')}.json"
            with atomic_write(path) as beside:
                beside.write_text(json.dumps(record, indent=2) + "\n")
            print(f"written: {path}")


if __name__ == "__main__":
    main()
