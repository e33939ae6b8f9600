"""Check and time the GPU kernels: `python -m benchmarks.gpu.suite -o FOLDER [--minutes 9]`.

For a machine with an NVIDIA GPU, Hopper or newer, that is available for minutes: a failure, a hang or a broken state of
the GPU loses one item, and if the run ends early, all findings stay in journals and in `gpu-<date>.json`, which
`--summarise` makes anew from the journals. The parts with Keras models need Keras. Ends with 1 if something failed,
with 2 if there is no GPU; the record says whether the goals are reached.
"""

import argparse
import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu import compiling, summary, watch
from benchmarks.gpu.device import KERNELS
from benchmarks.gpu.journal import append, journal
from benchmarks.gpu.watch import Line, Part
from benchmarks.records import new_record, write_record
from cellerate.machine.environment import processors

DEVICE = Part("device", "benchmarks.gpu.device", 20, 60)
PARTS = (
    Part("compiled", "benchmarks.gpu.compiling", 60, 120, workers=processors(), gpu=False),
    Part("selfcheck", "benchmarks.gpu.device", 10, 60),
    Part("recurrence", "benchmarks.gpu.timings", 25, 90),
    Part("checks", "benchmarks.gpu.checks", 35, 120),
    Part("generation", "benchmarks.gpu.generation", 20, 90),
    Part("fit", "benchmarks.gpu.layers", 225, 260),
    Part("sizes", "benchmarks.gpu.timings", 60, 150),
    Part("variants", "benchmarks.gpu.timings", 12, 60),
    Part("robustness", "benchmarks.gpu.checks", 8, 60),
    # The whole part takes 250 s; the chart lacks the lines for which no time is left.
    Part("crossover", "benchmarks.gpu.layers", 40, 600),
)
# Parts that only run by name: for rare machines, and for compute-sanitizer, under which all others
# would take hours.
NAMED = (
    Part("tensorflow", "benchmarks.gpu.layers", 250, 500),
    Part("small", "benchmarks.gpu.checks", 60, 3600),
)
# The time to end processes and to write the record; a tenth of a short run.
_ENDING_S = 12.0
# One of this many compiled kernels is printed; there are hundreds.
_COMPILED_TOLD = 25


def planned(parts: Sequence[Part], seconds: float) -> list[Part]:
    """The parts, in their order, that probably fit into `seconds`."""
    found: list[Part] = []
    for part in parts:
        if sum(one.expected_s for one in [DEVICE, *found, part]) <= seconds:
            found.append(part)
    return found


def share(part: Part, after: Sequence[Part], left_s: float) -> float:
    """The time limit of a part: its expected time, plus the time that later parts are not expected to need."""
    spare = left_s - sum(one.expected_s for one in after)
    return min(left_s, part.most_s, max(part.expected_s, spare))


class Suite:
    """A run.

    Args:
        folder: The folder of the journals and the record.
        parts: The parts to run, in this order.
        left_out: The names of the parts that do not fit.
        seconds: The time limit, after which no process runs.

    Attributes:
        record: The findings so far.
    """

    def __init__(self, folder: Path, parts: Sequence[Part], left_out: Sequence[str], seconds: float) -> None:
        self._folder, self._parts, self._compiled = folder, parts, 0
        self._began = time.monotonic()
        self._end = self._began + seconds
        expected = {part.name: part.expected_s for part in parts}
        self.record = new_record("gpu")
        self.record["plan"] = {"seconds": seconds, "expected_s": expected, "left_out": list(left_out)}
        told = ", ".join(f"{name} {expected_s:.0f} s" for name, expected_s in expected.items())
        _say(
            f"planned for {seconds:.0f} s: {told or 'nothing'}; left out: {', '.join(left_out) or 'nothing'}"
        )
        self.write()

    def run(self) -> bool:
        """Run the parts; return False if they need a GPU and there is none."""
        if any(part.gpu for part in self._parts):
            self._run(DEVICE, self._parts)
            kernels = [one for one in self.record["result"].get("device", ()) if one["item"] == KERNELS]
            if not kernels:
                return False
            os.environ[compiling.ARCHITECTURE] = kernels[0]["architecture"]
        for nth, part in enumerate(self._parts):
            self._run(part, self._parts[nth + 1 :])
        return True

    def _run(self, part: Part, after: Sequence[Part]) -> None:
        left_s = self._end - time.monotonic()
        seconds = share(part, after, left_s)
        if seconds <= 0:
            file = journal(self._folder, part.module)
            append(file, part=part.name, event="left out", item=None, reason="there was no time left")
            return
        _say(f"== {part.name}, at most {seconds:.0f} s; {left_s:.0f} s are left")
        watch.run(part, self._folder, seconds, self._tell)
        self.write()

    def _tell(self, line: Line) -> None:
        if line["part"] == "compiled" and line["event"] == "done":
            self._compiled += 1
            if self._compiled % _COMPILED_TOLD:
                return
        told = summary.event_line(line)
        if told is not None:
            _say(f"{time.monotonic() - self._began:6.1f} s  {told}")

    def write(self) -> Path:
        """Write the record of the findings so far."""
        head = self.record | {"seconds": time.monotonic() - self._began}
        self.record = summary.summarised(self._folder, head)
        return write_record(self.record, self._folder)


def _say(text: str) -> None:
    # The reader of stdout may have closed it.
    with contextlib.suppress(OSError):
        print(text, flush=True)


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Make termination signals interrupt the process once, so that the final writes are not interrupted."""

    def interrupt(*_: Any) -> None:
        for one in before:
            signal.signal(one, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = {one: signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        for one in before:
            signal.signal(one, interrupt)
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the requested parts and print the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "-o", "--output", type=Path, help="the folder of the journals and the record, an empty one"
    )
    parser.add_argument("--minutes", type=float, default=9.0, help="when everything is written; default: 9")
    names = [part.name for part in (*PARTS, *NAMED)]
    parser.add_argument("--only", action="append", choices=names, help="a part; may be repeated")
    parser.add_argument(
        "--summarise", type=Path, metavar="FOLDER", help="only make the record of journals anew"
    )
    given = parser.parse_args(arguments)
    if given.summarise is not None:
        record = summary.summarised(given.summarise)
        return _ended(record, write_record(record, given.summarise))
    if given.output is None:
        parser.error("-o FOLDER is missing: where the journals and the record go")
    if any(given.output.glob("*.jsonl")):
        parser.error(f"{given.output} has the journals of another run; -o takes an empty folder")
    return _run(given.output, given.only, given.minutes * 60)


def _run(folder: Path, only: Sequence[str] | None, seconds: float) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    seconds -= min(_ENDING_S, seconds / 10)
    parts = [part for part in (*PARTS, *NAMED) if part.name in only] if only else planned(PARTS, seconds)
    left_out = [part.name for part in PARTS if part not in parts]
    there, interrupted = True, False
    with _interruptible():
        suite = Suite(folder, parts, left_out, seconds)
        try:
            there = suite.run()
        except KeyboardInterrupt:
            interrupted = suite.record["interrupted"] = True
        path = suite.write()
        code = _ended(suite.record, path)
    if not there:
        why = [error["message"] for _, error in summary.failures(suite.record)]
        _say(f"there is no GPU that the kernels run on: {why[0] if why else 'it did not answer'}")
        return 2
    return 130 if interrupted else code


def _ended(record: summary.Record, path: Path) -> int:
    """Print a record; return the exit status of the program."""
    for line in summary.report_lines(record):
        _say(line)
    _say(f"written: {path}")
    return int(any(summary.failures(record)))


if __name__ == "__main__":
    sys.exit(main())
