"""Training steps of the models that people train: Keras on every backend, Cellerate there, torch.nn.LSTM, in turn.

float32, Adam 0.001, through `fit`, one batch a call. All start from the same weights and see the same batches. Before
any is timed, the losses of its first steps are compared with those in float64, with dropout switched off. Then each
has its turns on the quiet machine, and some once more while another process keeps a core busy.
"""

import functools
import os
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.processes import busy_process, same_allocator, two_at_a_time
from benchmarks.training.contestant import Settings
from benchmarks.training.race import CHECKED_STEPS, COMPILE_LIMIT_S, check, in_words, process_of
from benchmarks.training.typical_models import MODELS, SMALL
from cellerate.kernels import native
from cellerate.measure import as_timing

ROUNDS = 3
AVX2: Mapping[str, str] = {
    "CELLERATE_TARGET": "avx2",
    "ATEN_CPU_CAPABILITY": "avx2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "XLA_FLAGS": "--xla_cpu_max_isa=AVX2",
}
"""Variables that limit Cellerate, torch, its libraries, TensorFlow and JAX to the instructions of a common laptop."""


class Contestant:
    """A process that trains one model in one way."""

    def __init__(self, **settings: Any) -> None:
        self.settings = settings
        self._process = process_of(settings, "training.typical_contestant")
        self.allocator = ""
        self.peak_bytes = 0

    def steps(
        self, count: int, *, checked: bool = False, limit_s: float | None = None
    ) -> dict[str, list[float]]:
        """Run the given number of steps and return their "seconds" and "losses"; `checked` steps have no dropout."""
        found: dict[str, Any] = self._process.ask(
            [count, self.settings["batch"], checked], limit_s, "compile"
        )
        self.allocator, self.peak_bytes = found["allocator"], found["peak_bytes"]
        return found

    def close(self) -> None:
        """End the process."""
        self._process.close()


def contestants_of(name: str, batch: int) -> list[Settings]:
    """All contestants that can train a model, in every way that may be their fastest."""
    # By default Keras does not compile LSTMs with XLA on TensorFlow; it always compiles on jax, and never on torch.
    ways: list[tuple[str, str, Any]] = [
        ("tensorflow", "keras", "auto"),
        ("tensorflow", "keras", True),
        ("tensorflow", "cellerate-cpu", "auto"),
        ("jax", "keras", "auto"),
        ("jax", "cellerate-cpu", "auto"),
        ("torch", "keras", "auto"),
        ("torch", "cellerate-cpu", "auto"),
    ]
    if MODELS[name].in_torch:
        ways += [("torch", "torch.nn.LSTM", "auto"), ("torch", "torch.nn.LSTM", True)]
    return [settings_of(name, batch, *way) for way in ways]


def settings_of(name: str, batch: int, backend: str, implementation: str, jit_compile: Any) -> Settings:
    """The contestants in float32."""
    return {
        "model": name,
        "batch": batch,
        "backend": backend,
        "implementation": implementation,
        "jit_compile": jit_compile,
        "policy": "float32",
        "allocator": "kept",
        "unroll": False,
    }


def with_avx2(*, quick: bool) -> dict[str, Any]:
    """The races of the small models, with every contestant limited to AVX2, in the case's own process."""
    os.environ.update(AVX2)
    return {"environment": dict(AVX2)} | run(quick=quick, names=SMALL)


def run(*, quick: bool, names: Sequence[str] = tuple(MODELS)) -> dict[str, Any]:
    """A race for each model and each of its batches; a quick one has two models and short turns."""
    found: dict[str, Any] = {"peak_operations_per_s": native.measure_peak(), "target": native.target()}
    found |= {"races": [], "refused": []}
    for name in ("forecaster", "characters-128") if quick else names:
        for batch in MODELS[name].batches[: 1 if quick else None]:
            records, refused = _race(name, batch, seconds=0.2 if quick else 2.0)
            found["races"].append(records)
            found["refused"] += refused
            for record in records:
                show(record, found["peak_operations_per_s"])
    return found


def _race(name: str, batch: int, seconds: float) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The records of all contestants, and the settings of those that cannot take part."""
    truths, refused, started = _truths(name, batch), list[dict[str, Any]](), list[Contestant]()

    def start(settings: Settings) -> tuple[Contestant, float] | None:
        each = Contestant(**settings)
        started.append(each)
        try:
            losses = each.steps(CHECKED_STEPS, checked=True, limit_s=COMPILE_LIMIT_S)["losses"]
            error = check(settings, losses, truths[settings["backend"] == "tensorflow"])
        except RuntimeError as reason:
            each.close()
            # For our contestants, any reason is a failure.
            if settings["implementation"].startswith("cellerate"):
                raise
            words = str(reason)
            refused.append(
                {**settings, "title": MODELS[name].title, "settings": in_words(settings), "refused": words}
            )
            print(
                f"{name} {settings['implementation']} on {settings['backend']} takes no part: {words}",
                flush=True,
            )
            return None
        return each, error

    try:
        starts = [functools.partial(start, settings) for settings in contestants_of(name, batch)]
        running = [one for one in two_at_a_time(starts) if one is not None]
        same_allocator(each.allocator for each, _ in running)
        quiet = _turns([each for each, _ in running], seconds)
        with busy_process():
            busy = _turns([each for each, _ in running], seconds / 2)
        records = [
            _record(each, error, *times) for (each, error), *times in zip(running, quiet, busy, strict=True)
        ]
    finally:
        for each in started:
            each.close()
    return records, refused


def _turns(running: Sequence[Contestant], seconds: float) -> list[list[float]]:
    """The times of the steps of each contestant, in seconds; all take turns."""
    counts = []
    for each in running:
        middle = as_timing(each.steps(4)["seconds"][1:]).median_s
        counts.append(min(200, max(2, round(seconds / ROUNDS / middle))) + 1)
    found: list[list[float]] = [[] for _ in running]
    for _ in range(ROUNDS):
        for times, each, count in zip(found, running, counts, strict=True):
            # The first step of a `fit` also sets it up.
            times += each.steps(count)["seconds"][1:]
    return found


def _truths(name: str, batch: int) -> dict[bool, list[float]]:
    """The first losses in float64; for TensorFlow (True) with its own steps.

    There the gradient of an embedding is a list of rows, and Keras's Adam takes other steps with it than elsewhere.
    """
    own_steps = MODELS[name].vocabulary > 0
    asked = [
        settings_of(name, batch, "torch", "torch.nn.LSTM" if MODELS[name].in_torch else "keras", "auto"),
        *([settings_of(name, batch, "tensorflow", "keras", "auto")] if own_steps else []),
    ]
    found = []
    for settings in asked:
        each = Contestant(**settings | {"policy": "float64"})
        try:
            found.append(each.steps(CHECKED_STEPS, checked=True)["losses"])
        finally:
            each.close()
    # The very first loss is the same for all kinds of steps.
    return {False: found[0], True: [found[0][0], *found[-1][1:]]}


def _record(each: Contestant, error: float, quiet: list[float], busy: list[float]) -> dict[str, Any]:
    model, timing = MODELS[each.settings["model"]], as_timing(quiet)
    return {
        **each.settings,
        "title": model.title,
        "settings": in_words(each.settings),
        **timing.summary(),
        "busy_median_s": as_timing(busy).median_s,
        # The backward pass has twice the products of the forward pass, each a multiplication and an addition.
        "operations": 6 * each.settings["batch"] * model.products,
        "error_of_losses": error,
        "allocator_found": each.allocator,
        "peak_bytes": each.peak_bytes,
    }


def show(record: dict[str, Any], peak: float) -> None:
    """Print a record."""
    share = record["operations"] / record["median_s"] / peak
    print(
        f"{record['model']:<15} B={record['batch']:<4} {record['backend']:<11} {record['implementation']:<14} "
        f"{record['settings']:<55} {record['median_s'] * 1e3:9.2f} ms ({share:.0%} of the peak)  "
        f"beside a busy process {record['busy_median_s'] * 1e3:9.2f} ms",
        flush=True,
    )
