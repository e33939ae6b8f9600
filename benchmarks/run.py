"""Measure this machine: `python benchmarks/run.py [case ...]`; one JSON a case and run in `results/`.

Without cases it runs all but those that train models to the end, for at most 40 minutes. Each case runs in a separate
process, which is ended at the case's time limit. A case that fails or takes too long writes nothing, and the next one
runs.
"""

import argparse
import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    # Started by its path, Python looks for modules in this folder instead of the project's.
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks import conditions
from benchmarks.cases import BENCH, CASES
from benchmarks.publishing import unpublishable
from benchmarks.records import ROOT, new_record, state_of, write_record
from cellerate.format import duration

BUDGET_S = 40 * 60
"""The time limit of all cases of `BENCH` together."""
SLACK = 1.5
"""The limit of a case, as a multiple of its expected time."""


class CaseError(Exception):
    """A case without a result; the message is the reason."""


def limit_of(case: str) -> int:
    """The time limit of a case, in seconds."""
    return round(SLACK * CASES[case].expected_s)


def measure(name: str, *, quick: bool, limit_s: float) -> dict[str, Any]:
    """Run one case; its record has the machine, time, duration and other load.

    Raises:
        CaseError: It failed, or took longer than `limit_s`.
    """
    record = new_record(name)
    load: dict[str, Any] = {"before": conditions.idle()}
    begin, start = conditions.times(), time.monotonic()
    result = in_process(name, quick=quick, limit_s=limit_s)
    seconds = time.monotonic() - start
    load |= {"during": conditions.shares(begin, conditions.times()), "after": conditions.idle()}
    return record | {"load": load, "result": result, "seconds": seconds}


def in_process(name: str, *, quick: bool, limit_s: float, program: str | Path = __file__) -> dict[str, Any]:
    """The result of a case run in a separate process, which ends with all its children.

    Raises:
        CaseError: It failed, or took longer than `limit_s`.
    """
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        into = Path(folder) / "result.json"
        command = [sys.executable, str(program), name, "--into", str(into), *["--quick"][: int(quick)]]
        # The folder, and with it the files of an ended case, is removed.
        environment = os.environ | {"TMPDIR": folder}
        process = subprocess.Popen(command, env=environment, start_new_session=True)
        try:
            code = process.wait(timeout=limit_s)
        except subprocess.TimeoutExpired:
            raise CaseError(f"took longer than {limit_s:.0f} s and was ended") from None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            # The rest of the group are now our children (`adopt_orphans`); waiting for them counts their time.
            with contextlib.suppress(ChildProcessError):
                while True:
                    os.waitpid(-process.pid, 0)
        if code:
            raise CaseError(f"ended with {code}")
        found: dict[str, Any] = json.loads(into.read_text())
        return found


def finished(record: dict[str, Any], *, anyway: bool) -> dict[str, Any]:
    """The record with the facts known at its end: whether the user forced it, and changes of the code meanwhile."""
    commit, clean = state_of(ROOT)
    if (commit, clean) != (record["commit"], record["clean"]):
        record |= {"commit": f"{record['commit'].removesuffix('-dirty')}-dirty", "clean": False}
    return record | {"anyway": anyway}


def run(
    names: list[str],
    *,
    quick: bool = False,
    anyway: bool = False,
    limit_s: float | None = None,
    budget_s: float = math.inf,
    write: Callable[[dict[str, Any]], Path] = write_record,
) -> int:
    """Run cases, write their records and print the time of each.

    Args:
        names: The cases.
        quick: Shorter runs that write nothing.
        anyway: Whether records of changed code are written, too.
        limit_s: The time limit of each case, in place of `limit_of`.
        budget_s: The time limit of all cases; a case for which no time is left writes nothing.
        write: Writes a record and returns its path.

    Returns:
        The exit status: 0, or 1 if a case gave no record.
    """
    took: dict[str, str] = {}
    began, failed = time.monotonic(), False
    for name in names:
        left = budget_s - (time.monotonic() - began) - 2 * conditions.WATCHED_S
        most = max(0.0, min(left, limit_of(name) if limit_s is None else limit_s))
        print(f"== {name}, at most {duration(most)}: {CASES[name].says}", flush=True)
        start = time.monotonic()
        try:
            if not most:
                raise CaseError(f"the {duration(budget_s)} of all cases are over")
            record = finished(measure(name, quick=quick, limit_s=most), anyway=anyway)
        except CaseError as error:
            told, failed = f"no record: {error}", True
        else:
            told = "a quick run, nothing written" if quick else _written(record, anyway=anyway, write=write)
            failed = failed or told.startswith("no record")
        took[name] = f"{duration(time.monotonic() - start):>12}  {told}"
        print(f"{name}: {told}", flush=True)
    print("\n".join(["== took", *(f"{name:<12} {told}" for name, told in took.items())]))
    of = f"  of {duration(budget_s)} at most" if math.isfinite(budget_s) else ""
    print(f"{'in all':<12} {duration(time.monotonic() - began):>12}{of}")
    return int(failed)


def _written(record: dict[str, Any], *, anyway: bool, write: Callable[[dict[str, Any]], Path]) -> str:
    if not record["clean"] and not anyway:
        return f"no record: the code changed while it ran ({record['commit']})"
    path, why = write(record), unpublishable(record)
    return f"written: {path}" + (f"; not publishable: {'; '.join(why)}" if why else "")


def main() -> int:
    """Read the arguments, run the cases, write their records."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "case", nargs="*", help=f"one or more of {', '.join(CASES)}; default: {', '.join(BENCH)}"
    )
    parser.add_argument(
        "--list", action="store_true", help="the cases and what each may take at most, and nothing else"
    )
    parser.add_argument("--quick", action="store_true", help="a shorter run that writes nothing")
    parser.add_argument(
        "--anyway", action="store_true", help="write records of changed code, too; these are never published"
    )
    parser.add_argument(
        "--limit", type=float, metavar="SECONDS", help="what each case may take; default: its own"
    )
    parser.add_argument("--into", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if unknown := set(arguments.case) - CASES.keys():
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(CASES)}")
    names = arguments.case or list(BENCH)
    if arguments.into:
        arguments.into.write_text(json.dumps(CASES[names[0]].run(quick=arguments.quick)))
        return 0
    if arguments.list:
        for name in arguments.case or CASES:
            long = " (only by its name)" if CASES[name].long else ""
            print(f"{name:<12} {duration(limit_of(name)):>12}  {CASES[name].says}{long}")
        return 0
    commit, clean = state_of(ROOT)
    if not (clean or arguments.quick or arguments.anyway):
        parser.error(
            f"the code is not surely that of a commit ({commit}), so its figures could not be published. Commit first, "
            "or use --anyway for records that never are, or --quick to write none."
        )
    conditions.adopt_orphans()
    return run(
        names,
        quick=arguments.quick,
        anyway=arguments.anyway,
        limit_s=arguments.limit,
        budget_s=math.inf if arguments.case else BUDGET_S,
    )


if __name__ == "__main__":
    sys.exit(main())
