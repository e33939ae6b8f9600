"""Training a character model, step by step: Keras's own code, Cellerate's and torch.nn.LSTM, each in its fastest ways.

The model: embedding 256, one LSTM, a dense layer to V characters; 128 windows of 100 characters of a real book,
Adam 0.001, each gradient clipped to a norm of 1. All contestants start from the same weights and see the same batches,
one a call (`steps_per_execution` 1), and each step ends with its loss. float32 and bfloat16 are separate races: ratios
are quoted within a precision.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.training.contestant import EMBEDDING, VARIANTS, Settings
from benchmarks.training.race import BATCH, BOUNDS, LENGTH, Contest, Contestant, settings_of


def contestants_of(units: int, policy: str, allocator: str = "kept") -> list[Settings]:
    """All contestants that can train the model in a precision, in every way that may be their fastest."""
    ways: dict[str, list[dict[str, Any]]] = {
        # By default Keras does not compile LSTMs with XLA on TensorFlow; it always compiles on jax, and never on torch.
        "tensorflow": [{}, {"jit_compile": True}, {"jit_compile": True, "unroll": True}],
        "jax": [{}, {"unroll": True}],
        "torch": [{}, {"jit_compile": True}],
    }
    found = []
    for backend, tried in ways.items():
        for way in tried:
            found.append(settings_of(backend, units, "keras", policy) | way)
        found.append(settings_of(backend, units, "cellerate-cpu", policy))
    for way in ({}, {"jit_compile": True}):
        found.append(settings_of("torch", units, "torch.nn.LSTM", policy) | way)
    return [one | {"allocator": allocator} for one in found]


def plain_ways(found: Iterable[Settings]) -> list[Settings]:
    """The contestants without an extra setting."""
    return [one for one in found if one["jit_compile"] == "auto" and not one["unroll"]]


def main_race(book: Path, *, quick: bool) -> dict[str, Any]:
    """Every contestant of one size against the others, and the gain of the allocator alone."""
    contest = Contest(book, quick=quick)
    seconds = 0.3 if quick else 3
    found: dict[str, Any] = {"batch": BATCH, "length": LENGTH, "embedding": EMBEDDING, "races": []}
    for units in (128,) if quick else (128, 512):
        records = []
        for policy in BOUNDS:
            records += contest.race(contestants_of(units, policy), seconds=seconds)[0]
        found["races"].append(records)
    stock = plain_ways(contestants_of(128, "float32", "stock"))
    (found["stock_allocator"],) = contest.race(stock, seconds=seconds)
    found["refused"] = contest.refused
    return found


def variants_race(book: Path, *, quick: bool) -> dict[str, Any]:
    """Each variant of the layer, ours and Keras's own."""
    backend, units = "jax", 256
    contest = Contest(book, quick=quick)
    found: dict[str, Any] = {"backend": backend, "units": units}
    contestants = [
        {**settings_of(backend, units, implementation, "float32"), "variant": name}
        for name in VARIANTS
        for implementation in ("cellerate-cpu", "keras")
    ]
    (found["float32"],) = contest.race(contestants, seconds=0.3 if quick else 1.5)
    found["refused"] = contest.refused
    return found


def small_batches(book: Path, *, quick: bool) -> dict[str, Any]:
    """Batches of 1 and 8, in float32."""
    contest, by_batch = Contest(book, quick=quick), {}
    for units in (128,) if quick else (128, 512):
        batches = (1, 8)
        contestants = [one for one in contestants_of(units, "float32") if not one["unroll"]]
        races = contest.race(contestants, seconds=0.3 if quick else 1, batches=batches)
        for batch, records in zip(batches, races, strict=True):
            by_batch.setdefault(batch, []).append(records)
    races = [race for races in by_batch.values() for race in races]
    return {"races": races, "refused": contest.refused}


def losses(book: Path, *, quick: bool) -> dict[str, Any]:
    """The loss after 300 and 1,000 steps on each backend: Keras in float32 beside ours in float32 and bfloat16.

    All have the same weights and batches; Keras's optimizer takes other steps with an embedding on TensorFlow.
    """
    found = []
    for backend in ("tensorflow", "jax", "torch"):
        for implementation, policy in _KERAS_AND_OURS:
            settings = settings_of(backend, 64, implementation, policy) | {"batch": 32, "length": 64}
            each, curve = Contestant(book, **settings), []
            for steps in (20, 40) if quick else (300, 1000):
                curve += each.steps(steps - len(curve))
                last = sum(curve[-20:]) / 20
                found.append({**each.settings, "steps": steps, "mean_of_last_20": last})
                print(f"{backend:<11} {implementation:<14} {policy:<15} step {steps}: {last:.4f}", flush=True)
            found[-1]["curve"] = [round(loss, 5) for loss in curve]
            each.close()
    return {"losses": found}


def memory(book: Path, *, quick: bool) -> dict[str, Any]:
    """The most memory that a training process holds in ten steps, waiting for each step's loss."""
    found = []
    for units in (128,) if quick else (128, 256, 512):
        for implementation, policy in _KERAS_AND_OURS:
            each = Contestant(book, **settings_of("jax", units, implementation, policy))
            each.steps(10)
            each.close()
            found.append({**each.settings, "peak_bytes": [each.peak_bytes]})
            print(
                f"H={units:<4} {implementation:<14} {policy:<15} {each.peak_bytes / 1e6:.0f} MB at most",
                flush=True,
            )
    return {"processes": found}


_KERAS_AND_OURS = (
    ("keras", "float32"),
    ("cellerate-cpu", "float32"),
    ("cellerate-cpu", "mixed_bfloat16"),
)
