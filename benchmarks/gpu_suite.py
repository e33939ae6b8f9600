"""Checks and times the GPU kernels: `python benchmarks/gpu_suite.py [--seconds 480]`; one JSON in `results/`.

For a machine with an NVIDIA GPU from Hopper on, torch, and this package; one call checks first and gives all figures.
The parts with Keras models need Keras, too. Ends with 1 if a check fails; whether the goals are reached stands in the
result. `--only small` is for compute-sanitizer, under which all else would take hours.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

import gpu_checks
import gpu_generation
import gpu_layers
import gpu_timings
from records import RESULTS, new_record, write_record


class Suite:
    """What was found, part by part.

    Args:
        seconds: When to begin nothing more.

    Attributes:
        result: The same.
        failed: Whether a check failed.
    """

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds
        self.result: dict[str, Any] = {}
        self.failed = False

    def left(self) -> float:
        """How many seconds there are."""
        return self._end - time.monotonic()

    def small(self) -> None:
        """A few short calls."""
        self._check("small", gpu_checks.small())

    def checks(self) -> None:
        """Every variant against the oracle."""
        self._check("checks", gpu_checks.checks())

    def robustness(self) -> None:
        """NaNs, and a very long sequence."""
        for name, check in (("poisoned", gpu_checks.poisoned), ("soak", gpu_checks.soak)):
            found = self.result[name] = check()
            print(name, found, flush=True)
            self.failed |= not all(found[key] for key in found if isinstance(found[key], bool))

    def timings(self) -> None:
        """Beside cuDNN, for at most half of the time."""
        self._collect("timings", gpu_timings.beside_cudnn_everywhere(), until=self.left() / 2)

    def variants(self) -> None:
        """Beside the plain layer."""
        self._collect("variants", gpu_timings.variants())

    def generation(self) -> None:
        """Characters a second."""
        found = self.result["generation"] = gpu_generation.generation(min(60.0, self.left()))
        print(found, flush=True)
        self.failed |= any(check["equal_rows"] < check["rows"] for check in found["checks"])

    def layers(self) -> None:
        """Keras models through `fit`."""
        with gpu_layers.python_text() as book:
            self.result["character_model"] = gpu_layers.character_model(book)
            self.result["crossover"] = gpu_layers.crossover(book, self.left)

    def _check(self, name: str, found: Iterator[dict[str, Any]]) -> None:
        self.result[name] = []
        for one in found:
            worst = max(one["errors"].values())
            right = worst < 1
            self.failed |= not right
            print(f"{'ok   ' if right else 'WRONG'} {worst:.2f} of what is allowed: {one}", flush=True)
            self.result[name].append(one)

    def _collect(self, name: str, found: Iterator[dict[str, Any]], until: float = 0) -> None:
        self.result[name] = []
        for one in found:
            print(one, flush=True)
            self.result[name].append(one)
            if self.left() <= until:
                return


PARTS = ("checks", "robustness", "timings", "generation", "variants", "layers")


def main() -> int:
    """Runs the parts, and writes what there is when the time is up or something fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=480, help="when to begin no further timing")
    parser.add_argument("--only", action="append", choices=("small", *PARTS), help="a part; may be repeated")
    parser.add_argument("-o", "--output", type=Path, default=RESULTS, help="the folder of the result")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("torch sees no GPU; `cellerate env` says why")
    suite, began = Suite(arguments.seconds), time.monotonic()
    record = new_record("gpu")
    record["gpu"] = torch.cuda.get_device_name()
    record["versions"] |= {"cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()}
    record["result"] = suite.result
    for part in arguments.only or PARTS:
        print(f"== {part}", flush=True)
        run: Callable[[], None] = getattr(suite, part)
        try:
            if part in ("small", "checks", "robustness") or suite.left() > 0:
                run()
        # What one part could not do is written beside what the others did.
        except Exception as error:
            suite.failed = True
            suite.result.setdefault("errors", {})[part] = f"{type(error).__name__}: {error}"
            print(f"FAILED {part}: {error}", flush=True)
    suite.result["goals"] = list(gpu_timings.goals(suite.result))
    for one in suite.result["goals"]:
        figure = "not measured" if one["figure"] is None else f"{one['figure']:,.2f}"
        print(f"{'reached' if one['reached'] else 'MISSED '} {one['goal']}: {figure} (goal {one['limit']:,})")
    record["seconds"] = time.monotonic() - began
    print(f"written: {write_record(record, arguments.output)}")
    return int(suite.failed)


if __name__ == "__main__":
    sys.exit(main())
