"""Keras models on a GPU through `model.fit`; parts of the GPU suite: `fit`, `tensorflow` and `crossover`.

`fit` trains the character model beside stock Keras on the same backend, `tensorflow` beside stock Keras on TensorFlow,
and `crossover` measures training time against the size of the batch, for `chart`. Each contestant is a process with
Keras (`training.race.Contestant`).
"""

import contextlib
import importlib.util
import itertools
import os
import sysconfig
import tempfile
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu.goals import losses_apart
from benchmarks.gpu.journal import Item, LeftOutError, log_tail
from benchmarks.gpu.sizes import CHART_BATCHES, CHART_UNITS, FIT_BACKENDS, FIT_POLICIES, FIT_UNITS
from benchmarks.training.race import BATCH, Contestant, settings_of
from cellerate.files import atomic_write
from cellerate.measure import as_timing

# For the chart: layers that cuDNN supports, and one that it does not.
KINDS = ("plain", "relu", "bidirectional")
CHART_BACKEND = "torch"
# For stock Keras on TensorFlow: layers that its cuDNN supports, in each precision, and layers that it does not.
BESIDE_TENSORFLOW = (
    ("plain", "float32"),
    ("plain", "mixed_bfloat16"),
    ("plain", "mixed_float16"),
    ("bidirectional", "mixed_bfloat16"),
    ("random mask", "mixed_bfloat16"),
    ("relu", "mixed_bfloat16"),
    ("recurrent dropout", "mixed_bfloat16"),
)
# The steps of the curve and of each turn, and the number of turns.
STEPS, ROUNDS, ROUND_S = 50, 3, 1.5
# If a step takes longer than this, larger batches are left out.
SLOW_S = 0.5
# The time to load a framework and Keras, to compile, and to measure the faster implementation.
_LIMIT_S = 150
Settings = dict[str, Any]


def fit() -> list[Item]:
    """An item for each backend and policy, the fastest policy first."""
    _prepare()
    return [
        Item(f"{backend} {policy}", partial(character_model, backend, policy), _LIMIT_S)
        for policy in FIT_POLICIES
        for backend in FIT_BACKENDS
    ]


def tensorflow() -> list[Item]:
    """An item for each kind of layer and policy."""
    _prepare("tensorflow", "torch")
    os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
    return [
        Item(f"{variant} {policy}", partial(beside_tensorflow, variant, policy), _LIMIT_S)
        for variant, policy in BESIDE_TENSORFLOW
    ]


def crossover() -> list[Item]:
    """An item for each batch and contestant: layer by layer, ours and Keras's, on the GPU and the CPU."""
    _prepare()
    held = Held()
    found = []
    for kind, device, implementation in itertools.product(KINDS, ("gpu", "cpu"), ("auto", "keras")):
        settings = settings_of(CHART_BACKEND, CHART_UNITS, implementation, "float32")
        settings |= {"batch": 1, "variant": kind, "device": device}
        name = f"{kind} {device} {implementation}"
        found += [Item(f"{name} B{n}", partial(held.point, settings, n), _LIMIT_S) for n in CHART_BATCHES]
    return found


def _prepare(*backends: str) -> None:
    for name in ("keras", *backends):
        if importlib.util.find_spec(name) is None:
            raise LeftOutError(f"{name} is not installed")
    # Several contestants share the GPU, and JAX would take most of its memory.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")


def python_text() -> Path:
    """A text file available with every Python: some of its library."""
    book = Path(tempfile.gettempdir()) / "cellerate-python-library.txt"
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))[:60]
    text = "".join(file.read_text(encoding="utf-8", errors="ignore") for file in files)
    with atomic_write(book) as beside:
        # As many different characters as in English text.
        beside.write_text("".join(c for c in text if c == "\n" or " " <= c <= "~"), encoding="utf-8")
    return book


def character_model(
    backend: str, policy: str, *, units: int = FIT_UNITS, batch: int = BATCH
) -> dict[str, Any]:
    """The speed of training and the losses of each step, beside Keras's own, which may fail alone."""
    _prepare(backend)
    ours, keras = _race(
        settings_of(backend, units, name, policy) | {"batch": batch} for name in ("auto", "keras")
    )
    return {
        "backend": backend,
        "policy": policy,
        "characters_per_s": ours.get("characters_per_s"),
        "losses_apart": losses_apart(ours, keras),
        "contestants": [ours, keras],
        "error": ours.get("error"),
        "right": _is_finite(ours),
    }


def beside_tensorflow(
    variant: str, policy: str, *, units: int = FIT_UNITS, batch: int = BATCH
) -> dict[str, Any]:
    """The speed of training with Cellerate on torch, and with stock Keras on TensorFlow."""
    size = {"variant": variant, "batch": batch}
    ours, theirs = _race(
        settings_of(*of, policy) | size for of in (("torch", units, "auto"), ("tensorflow", units, "keras"))
    )
    return {
        "variant": variant,
        "policy": policy,
        "contestants": [ours, theirs],
        # A ReLU can let both diverge.
        "right": _is_finite(ours) or ("losses" in theirs and not _is_finite(theirs)),
    }


def _is_finite(record: dict[str, Any]) -> bool:
    """True if a contestant has trained, and no loss was infinite or NaN."""
    return bool(np.isfinite(record.get("losses", np.nan)).all())


def _race(contestants: Iterable[Settings]) -> list[dict[str, Any]]:
    """The records of some contestants that take turns."""
    book = python_text()
    racers = [_Racer(book, settings) for settings in contestants]
    try:
        for racer in racers:
            racer.begin()
        for _ in range(ROUNDS):
            for racer in racers:
                racer.turn()
    finally:
        for racer in racers:
            racer.close()
    return [racer.record for racer in racers]


class _Racer:
    """A contestant of a race, which may drop out.

    Attributes:
        record: Its entry in a result file.
    """

    def __init__(self, book: Path, settings: Settings) -> None:
        self.record: dict[str, Any] = settings
        self._contestant = Contestant(book, **settings)
        self._count = 0

    def begin(self) -> None:
        """Run the steps of the loss curve, and some to learn the time of a step."""
        self._run(STEPS, timed=False)
        if "error" not in self.record:
            self.record = {**self.record, "losses": list(self._contestant.losses)}
        self._run(4)

    def turn(self) -> None:
        """Run the steps of a turn."""
        if self._count == 0 and self._contestant.seconds:
            (seconds,) = self._contestant.seconds.values()
            self._count = max(3, min(200, round(ROUND_S / as_timing(seconds).median_s)))
            self._contestant.seconds.clear()
        self._run(self._count + 1)

    def _run(self, count: int, *, timed: bool = True) -> None:
        if "error" in self.record:
            return
        try:
            self._contestant.steps(count, timed=timed)
            if timed:
                self.record |= self._contestant.record(self.record["batch"])
        except (RuntimeError, OSError) as error:
            self.record = {**self.record, "error": f"{type(error).__name__}: {error}", "log": log_tail()}

    def close(self) -> None:
        """End the contestant."""
        with contextlib.suppress(OSError):
            self._contestant.close()


class Held:
    """The open contestant, kept while consecutive items need it."""

    def __init__(self) -> None:
        self._settings: Settings = {}
        self._contestant: Contestant | None = None
        self._too_slow = False

    def point(self, settings: Settings, batch: int) -> dict[str, Any]:
        """The milliseconds of a training step with a batch."""
        if settings != self._settings:
            self._close()
            self._settings, self._too_slow = settings, False
        if self._too_slow:
            raise LeftOutError(
                f"a smaller batch took more than {SLOW_S} s a step, and so many times more tell nothing new"
            )
        if self._contestant is None:
            self._contestant = Contestant(python_text(), **settings)
        each = self._contestant
        try:
            each.seconds.clear()
            each.steps(3, timed=False, batch=batch)
            each.steps(4, batch=batch)
            # The first times show whether there is time for more.
            if sum(each.seconds[batch]) < 1:
                each.steps(31, batch=batch)
        except (RuntimeError, OSError):
            self._close()
            raise
        found = {**settings, "batch": batch, **as_timing(each.seconds[batch]).summary()}
        self._too_slow = found["median_s"] > SLOW_S
        return found

    def _close(self) -> None:
        if self._contestant is not None:
            with contextlib.suppress(OSError):
                self._contestant.close()
        self._contestant = None
