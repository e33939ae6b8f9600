"""Measures this machine: `python benchmarks/run.py [case ...] [--quick]`; one JSON a case and run in `results/`."""

import argparse
import time
from typing import Any

from cases import CASES
from records import new_record, write_record


def measure(name: str, *, quick: bool) -> dict[str, Any]:
    """Runs one case; the record says on what, when and how long."""
    start = time.monotonic()
    record = new_record(name)
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
            print(f"written: {write_record(record)}")


if __name__ == "__main__":
    main()
