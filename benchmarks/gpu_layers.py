"""Keras models on a GPU through `model.fit`: the character model, and training time against the size of the batch.

A module of its own because each contestant is a process with Keras (`lstm.Contestant`), where `gpu_suite` has the
kernels in its own.
"""

import itertools
import sysconfig
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cellerate.measure import as_timing
from lstm import Contestant, race

BACKEND = "torch"
# Of the chart: powers of four up to 4096, for layers that cuDNN has and one that it has not.
BATCHES = (1, 4, 16, 64, 256, 1024, 4096)
KINDS = ("plain", "relu", "bidirectional")
CHART_UNITS = 128


@contextmanager
def python_text() -> Iterator[Path]:
    """A file of text that is wherever Python is: some of its library."""
    with tempfile.TemporaryDirectory() as folder:
        book = Path(folder) / "book.txt"
        files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))[:60]
        text = "".join(file.read_text(encoding="utf-8", errors="ignore") for file in files)
        # As many kinds of characters as English text has.
        book.write_text("".join(c for c in text if c == "\n" or " " <= c <= "~"), encoding="utf-8")
        yield book


def character_model(book: Path, *, units: int = 512, seconds: float = 10, steps: int = 50) -> dict[str, Any]:
    """The speed of training in characters/s, Keras's own beside Cellerate's, and their losses step by step."""
    contestants = [
        {"backend": BACKEND, "units": units, "implementation": implementation, "policy": policy, "batch": 128}
        for implementation, policy in (
            ("keras", "float32"),
            ("keras", "mixed_bfloat16"),
            ("auto", "float32"),
            ("auto", "mixed_bfloat16"),
        )
    ]
    losses = []
    for settings in contestants:
        each = Contestant(book, **settings)
        losses.append({**settings, "losses": each.steps(steps)})
        each.close()
    return {"races": race(book, contestants, seconds=seconds), "losses": losses}


def crossover(book: Path, left: Callable[[], float]) -> list[dict[str, Any]]:
    """Milliseconds of a training step against the batch, on the CPU and the GPU, Keras's own and accelerated.

    Args:
        book: A text.
        left: How many seconds there are left; at 0 no further contestant begins.
    """
    found: list[dict[str, Any]] = []
    for kind, device, implementation in itertools.product(KINDS, ("gpu", "cpu"), ("auto", "keras")):
        settings = {
            "backend": BACKEND,
            "units": CHART_UNITS,
            "implementation": implementation,
            "policy": "float32",
            "batch": 1,
            "variant": kind,
            "device": device,
        }
        each = Contestant(book, **settings)
        try:
            for batch in BATCHES:
                if left() <= 0:
                    return found
                each.seconds.clear()
                each.steps(3, timed=False, batch=batch)
                each.steps(4, batch=batch)
                # The first times tell whether more are to be had.
                if sum(each.seconds) < 1:
                    each.steps(31, batch=batch)
                found.append({**settings, "batch": batch, **as_timing(each.seconds).summary()})
                print(found[-1], flush=True)
                # Four times the batch would take four times as long, which tells nothing new.
                if found[-1]["median_s"] > 2:
                    break
        finally:
            each.close()
    return found
