"""A race of training steps: contestants take turns in one run, so that a drift of the machine's speed affects them all.

Before a contestant is timed, its first losses are compared with losses in float64: torch's, or, on TensorFlow, where
Keras takes other steps, those of stock Keras there.
"""

import functools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.processes import (
    ALLOCATOR_WORDS,
    Process,
    RefusedError,
    program,
    same_allocator,
    two_at_a_time,
)
from benchmarks.training.contestant import Settings
from cellerate.measure import as_timing

BATCH, LENGTH = 128, 100
CHECKED_STEPS = 3
# The allowed relative error of the first losses against float64: for float32 the rounding that adds up over some
# Adam steps, which divide by small numbers; for bfloat16 one rounding of a number.
BOUNDS = {"float32": 1e-4, "mixed_bfloat16": 2.0**-8}
# Dropout masks differ between contestants, so only the size of the first loss is comparable.
RANDOM_BOUND = 0.02
# The time limit of a contestant to start and compile, with two at a time.
COMPILE_LIMIT_S = 60.0
QUICK = {"units": 32, "batch": 4, "length": 8}


class Contestant:
    """A process that trains one model and reports the time of each step."""

    def __init__(self, book: Path, **settings: Any) -> None:
        self.settings = settings
        self._process = process_of(settings, "training.contestant", str(book))
        self.seconds: dict[int, list[float]] = {}
        self.losses: list[float] = []
        self.peak_bytes = 0
        self.ran: dict[str, str | None] = {}
        self.allocator = ""

    def steps(
        self, count: int, *, timed: bool = True, batch: int | None = None, limit_s: float | None = None
    ) -> list[float]:
        """Run the given number of steps, at the given or the default batch size, and keep their times.

        Returns:
            Their losses.

        Raises:
            RefusedError: They take longer than `limit_s`.
        """
        batch = batch or self.settings["batch"]
        done = self._process.ask([count, batch], limit_s, "compile")
        if timed:
            # The first step of a `fit` also sets it up.
            self.seconds.setdefault(batch, []).extend(done["seconds"][1:])
        self.losses += done["losses"]
        self.peak_bytes = done["peak_bytes"]
        self.ran, self.allocator = done["ran"], done["allocator"]
        return list(done["losses"])

    def record(self, batch: int, error: float | None = None) -> dict[str, Any]:
        """The entry of its steps at one batch size in a result file; `error` is the error of its first losses."""
        timing = as_timing(self.seconds[batch])
        return {
            **self.settings,
            "batch": batch,
            "settings": in_words(self.settings),
            **timing.summary(),
            "p99_s": timing.percentile_s(0.99),
            "characters_per_s": batch * self.settings["length"] / timing.median_s,
            "error_of_losses": error,
            "allocator_found": self.allocator,
            "peak_bytes": self.peak_bytes,
            "ran": self.ran,
        }

    def close(self) -> None:
        """End the process."""
        self._process.close()


def process_of(settings: Settings, module: str, *arguments: str) -> Process:
    """The process of a contestant, a program that takes its settings and more arguments."""
    environment = {"KERAS_BACKEND": settings["backend"]}
    if settings.get("device") == "cpu":
        environment["CUDA_VISIBLE_DEVICES"] = ""
    if settings["policy"] == "float64":
        environment["JAX_ENABLE_X64"] = "1"
    command = program(module, json.dumps(settings), *arguments)
    name = f"{settings['implementation']} on {settings['backend']}"
    return Process(command, name, settings["allocator"], **environment)


def in_words(settings: Settings) -> str:
    """The settings of a contestant in words, precision aside."""
    words = [ALLOCATOR_WORDS[settings["allocator"]]]
    if settings["implementation"] == "torch.nn.LSTM":
        words.append("fused Adam")
    if settings["jit_compile"] is True:
        words.append("torch.compile" if settings["implementation"] == "torch.nn.LSTM" else "jit_compile=True")
    if settings["unroll"]:
        words.append("unroll=True")
    return ", ".join([*words, "steps_per_execution 1"])


class Contest:
    """The races of a case: the invited contestants, those that took part, and those that could not.

    Args:
        book: The text.
        quick: A small model and short turns.

    Attributes:
        refused: The settings of contestants that could not take part, each with its reason, "refused".
    """

    def __init__(self, book: Path, *, quick: bool) -> None:
        self.book, self.quick = book, quick
        self.refused: list[dict[str, Any]] = []
        self._gave_up: dict[tuple[Any, ...], str] = {}
        # The losses in float64, which are the same for all precisions.
        self._found: dict[tuple[Any, ...], dict[int, list[float]]] = {}

    def race(
        self,
        contestants: Sequence[Settings],
        *,
        seconds: float,
        rounds: int = 3,
        batches: Sequence[int] = (),
    ) -> list[list[dict[str, Any]]]:
        """Let contestants take turns, each for about `seconds` in all.

        Args:
            contestants: The settings of each; all have one size, variants aside.
            seconds: The seconds for each contestant and batch size.
            rounds: The turns of each contestant.
            batches: The batch sizes; without any, those of the settings.

        Returns:
            The records, a list for each batch size.

        Raises:
            RuntimeError: Our losses differ from torch's in float64, or a contestant has another allocator.
        """
        if self.quick:
            contestants = [one | QUICK for one in contestants]
            batches = [min(one, QUICK["batch"]) for one in batches]
        batches = batches or [contestants[0]["batch"]]
        truth = self._truth(contestants, batches)
        self._started: list[Contestant] = []
        starts = [functools.partial(self._start, settings, truth, batches) for settings in contestants]
        try:
            running = [one for one in two_at_a_time(starts) if one is not None]
            same_allocator((each.allocator for each, _ in running), contestants[0]["allocator"])
            found = [self._turns(running, batch, seconds, rounds) for batch in batches]
        finally:
            for each in self._started:
                each.close()
        for record in (one for records in found for one in records):
            show(record)
        return found

    def _truth(
        self, contestants: Sequence[Settings], batches: Sequence[int]
    ) -> dict[tuple[str, bool], dict[int, list[float]]]:
        """The first losses in float64, by variant and `own_steps`."""
        asked = dict.fromkeys(_judged_by(one) for one in [*_dense(contestants), *contestants])
        same = (contestants[0]["units"], contestants[0]["length"], *batches)
        missing = [one for one in asked if (one, same) not in self._found]
        runs = [functools.partial(self._in_float64, *one, contestants[0], batches) for one in missing]
        self._found |= {(one, same): found for one, found in zip(missing, two_at_a_time(runs), strict=True)}
        for variant, own in missing:
            for batch in batches if own else ():
                # The very first loss is the same for all kinds of steps.
                self._found[(variant, own), same][batch][0] = self._found[(variant, False), same][batch][0]
        return {one: self._found[one, same] for one in asked}

    def _in_float64(
        self, variant: str, own: bool, like: Settings, batches: Sequence[int]
    ) -> dict[int, list[float]]:
        """The first losses by batch size: torch's, or Keras's on jax if torch lacks the variant."""
        implementation = "torch.nn.LSTM" if variant == "plain" and not own else "keras"
        backend = "tensorflow" if own else "torch" if variant == "plain" else "jax"
        settings = settings_of(backend, like["units"], implementation, "float64")
        each = Contestant(self.book, **settings | {"variant": variant, "length": like["length"]})
        try:
            return {batch: each.steps(CHECKED_STEPS, timed=False, batch=batch) for batch in batches}
        finally:
            each.close()

    def _start(
        self,
        settings: Settings,
        truth: dict[tuple[str, bool], dict[int, list[float]]],
        batches: Sequence[int],
    ) -> tuple[Contestant, float] | None:
        """A contestant with correct losses, and their error; None if it cannot take part."""
        way = (settings["backend"], settings["implementation"], settings["jit_compile"], settings["unroll"])
        if way in self._gave_up:
            self._refuse(settings, self._gave_up[way])
            return None
        each = Contestant(self.book, **settings)
        self._started.append(each)
        try:
            errors = []
            for batch in batches:
                losses = each.steps(CHECKED_STEPS, timed=False, batch=batch, limit_s=COMPILE_LIMIT_S)
                errors.append(check(settings, losses, truth[_judged_by(settings)][batch]))
        except RuntimeError as error:
            # Wrong losses are a reason too. For our contestants, any reason is a failure.
            each.close()
            if settings["implementation"].startswith("cellerate"):
                raise
            reason = str(error)
            if isinstance(error, RefusedError):
                # A contestant that did not compile the smallest layer is not tried on a larger one.
                reason = self._gave_up[way] = f"{reason} (H={settings['units']})"
            self._refuse(settings, reason)
            return None
        return each, max(errors)

    def _refuse(self, settings: Settings, reason: str) -> None:
        self.refused.append({**settings, "settings": in_words(settings), "refused": reason})
        print(f"H={settings['units']:<4} {name_of(settings)} takes no part: {reason}", flush=True)

    def _turns(
        self, running: Sequence[tuple[Contestant, float]], batch: int, seconds: float, rounds: int
    ) -> list[dict[str, Any]]:
        counts = []
        for each, _ in running:
            each.steps(2, batch=batch)
            middle = as_timing(each.seconds.pop(batch)).median_s
            counts.append(max(2, round(seconds / rounds / middle)) + 1)
        for _ in range(rounds):
            for (each, _), count in zip(running, counts, strict=True):
                each.steps(min(count, 200), batch=batch)
        return [each.record(batch, error) for each, error in running]


def _judged_by(settings: Settings) -> tuple[str, bool]:
    """The variant, and whether the steps may be those of Keras on TensorFlow.

    There the gradient of an embedding is sparse, and Keras's Adam takes other steps with it than elsewhere: after the
    first step, the losses of stock Keras and of ours differ from those on torch by up to 1 %, in float64, too.
    """
    return settings.get("variant", "plain"), settings["backend"] == "tensorflow"


def _dense(contestants: Sequence[Settings]) -> list[Settings]:
    """The float64 losses from torch, the reference of all first losses."""
    return [one | {"backend": "torch"} for one in contestants]


def check(settings: Settings, losses: Sequence[float], truth: Sequence[float]) -> float:
    """The largest error of a contestant's first losses, as a share of the losses in float64.

    Raises:
        RuntimeError: It is above the bound, or there is nothing to compare; no time is taken then.
    """
    bound = BOUNDS[settings["policy"]]
    if settings.get("variant") == "recurrent dropout":
        losses, truth, bound = losses[:1], truth[:1], RANDOM_BOUND
    if not losses or len(losses) != len(truth):
        raise RuntimeError(f"{name_of(settings)}: {len(losses)} losses to check beside {len(truth)}")
    errors = [abs(found - right) / abs(right) for found, right in zip(losses, truth, strict=True)]
    error = max(errors)
    # A NaN must exceed the bound, and Python's `max` could drop it.
    if not all(each <= bound for each in errors):
        raise RuntimeError(
            f"{name_of(settings)}: its losses {losses} are {error:.1e} away from {truth}; allowed are {bound:.1e}"
        )
    return error


def name_of(settings: Settings) -> str:
    """A contestant in one line."""
    return (
        f"{settings.get('variant', 'plain'):<18} {settings['backend']:<11} {settings['implementation']:<14} "
        f"{settings['policy']:<15} {in_words(settings)}"
    )


def show(record: dict[str, Any]) -> None:
    """Print a record."""
    print(
        f"H={record['units']:<4} B={record['batch']:<4} {record['median_s'] * 1e3:8.1f} ms  "
        f"{record['characters_per_s'] / 1e3:7.1f} k characters/s  {name_of(record)}",
        flush=True,
    )


def settings_of(backend: str, units: int, implementation: str, policy: str) -> Settings:
    """The figures of a contestant on the plain layer with default settings."""
    return {
        "backend": backend,
        "units": units,
        "implementation": implementation,
        "policy": policy,
        "batch": BATCH,
        "length": LENGTH,
        "allocator": "kept",
        "jit_compile": "auto",
        "unroll": False,
    }
