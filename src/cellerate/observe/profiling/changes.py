"""Finds the changes that shorten a training most, by trying: each is measured on top of those before it.

Faults that spoil other measurements are tried first: a step that waits for batches, runs eagerly or has one row says
little about kernels.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import keras

from cellerate.errors import CellerateError, in_a_line
from cellerate.format import milliseconds, percent, size
from cellerate.layers.accelerate import accelerate, forget_compiled, is_accelerated, restore
from cellerate.layers.explain import LayerReport, explain
from cellerate.models.rewrite import with_dtype_policy
from cellerate.observe.profiling.feeding import Feed, KeptBatches, rows_of, widened
from cellerate.observe.profiling.record import Suggestion
from cellerate.observe.profiling.stepping import timed_steps
from cellerate.observe.profiling.unharmed import runs_eagerly
from cellerate.training.precision import precision_candidates

SMALL_BATCH = 32
"""Fewer rows than Keras takes by default are a fault; more are a choice."""
_LOADER, _SMALLEST = 0.1, 0.05
_VALIDATION, _VALIDATION_AFTER = 0.1, 0.05
_IDLE, _TOGETHER, _WIDER = 0.25, 16, 4
_READ_AHEAD, _PAGE = 0.05, 4096
# The prefix with which `explain` names unmet conditions of Cellerate's kernels.
_REFUSED = "accelerated: "


@dataclasses.dataclass
class Found:
    """The facts before changes are tried.

    Attributes:
        step_s: The seconds of a step on the user's data.
        kept_s: The seconds of a step with its batches in memory.
        batch_s: The seconds of making one batch, alone.
        batch_bytes: The bytes of a batch.
        disk_bytes: The bytes that a step read from storage; None if unknown.
        idle: The share of a step in which nothing is computed.
        steps_per_epoch: None if unknown.
        validation_s: The seconds of validation in an epoch; None without validation.
    """

    step_s: float
    kept_s: float
    batch_s: float
    batch_bytes: int
    disk_bytes: float | None
    idle: float
    steps_per_epoch: int | None
    validation_s: float | None

    @property
    def training_share(self) -> float:
        """The share of an epoch that is not validation."""
        if self.steps_per_epoch is None or self.validation_s is None:
            return 1.0
        training = self.steps_per_epoch * self.step_s
        return training / (training + self.validation_s)


def is_cold(disk_bytes: float | None, batch_bytes: int) -> bool:
    """True if a good part of the batches came from storage, not from memory."""
    return disk_bytes is not None and disk_bytes > max(_PAGE, _READ_AHEAD * batch_bytes)


def find_changes(
    model: keras.Model, batches: Sequence[Any], found: Found, seconds: float, notify: Callable[[str], None]
) -> tuple[list[Suggestion], list[str]]:
    """Try changes that might shorten a training.

    Args:
        model: The model, whose weights, settings and kernels may change (see `unharmed`).
        batches: Batches that are kept in memory.
        found: The facts about the training.
        seconds: The approximate length of each measurement.
        notify: Called with the change that is tried next.

    Returns:
        The changes that gain something, faults before choices and the largest gain first; and notes on changes that
        gained nothing, or could not be tried.
    """
    tries = _Tries(model, batches, found, seconds, notify)
    for one in (
        tries.loader,
        tries.validation,
        tries.eager,
        tries.small_batch,
        tries.kernels,
        tries.precision,
        tries.together,
    ):
        tries.attempt(one)
    without = [f"tried without gain: {', '.join(tries.without_gain)}."] if tries.without_gain else []
    return sorted(tries.changes, key=lambda change: (change.optional, -change.gain)), without + tries.untried


def _without_kernels(reports: Sequence[LayerReport]) -> list[str]:
    """The reasons why recurrent layers do not run on Cellerate's kernels, a sentence for each."""
    paths: dict[str, list[str]] = {}
    for report in reports:
        for one in report.conditions:
            named = one.name.startswith(_REFUSED) or (one.name == "time steps" and one.holds is False)
            if named:
                name = one.name.removeprefix(_REFUSED)
                reason = f"{'' if name == 'class' else f'{name}: '}{one.found}{one.fix and f' -> {one.fix}'}"
                paths.setdefault(reason, []).append(report.path)
    return [f"{', '.join(named)} cannot be accelerated: {reason}" for reason, named in paths.items()]


class _Tries:
    def __init__(
        self,
        model: keras.Model,
        batches: Sequence[Any],
        found: Found,
        seconds: float,
        notify: Callable[[str], None],
    ) -> None:
        self._model, self._batches, self._found, self._notify = model, list(batches), found, notify
        self._seconds = seconds
        self._trying = ""
        self._rows = rows_of(batches[0])
        # Seconds of a step of `_rows` rows, with the changes so far.
        self._now = min(found.kept_s, found.step_s)
        # The share of the user's step that the changes so far leave.
        self._left = 1.0
        self._compiled = False
        self.changes: list[Suggestion] = []
        self.without_gain: list[str] = []
        self.untried: list[str] = []

    def attempt(self, one: Callable[[], None]) -> None:
        """Try a change; if the model does not allow it, note that and go on."""
        self._what = one.__name__.replace("_", " ")
        try:
            one()
        except (
            Exception
        ) as error:  # errors of the backend, such as out of memory or an operation that does not compile
            reason = next(iter(str(error).splitlines()), "") or type(error).__name__
            self.untried.append(f"{self._what}: not tried, because it failed: {reason[:200]}")

    def loader(self) -> None:
        """Batches that come too late."""
        found = self._found
        stall = found.step_s - self._now
        if stall < _LOADER * found.step_s:
            return
        why = f"steps wait {milliseconds(1e3 * stall)} for a batch, and the rest takes {milliseconds(1e3 * self._now)}"
        if is_cold(found.disk_bytes, found.batch_bytes):
            title = "Batches are read from storage, because the page cache does not hold the data"
            why += f"; {size(found.disk_bytes or 0)} a step come from storage"
            do = (
                "Read the data once before training (cat DATA > /dev/null), or move them to a faster disk or to memory "
                "(/dev/shm); data that do not fit into memory: pack them narrower "
                "(`cellerate data pack --storage float16`)."
            )
        else:
            title = "The training waits for batches"
            why += f"; making one takes {milliseconds(1e3 * found.batch_s)} alone"
            do = (
                "Make batches ahead and with less work: several workers (PyDataset(workers=4), num_workers of a "
                "DataLoader, .prefetch and .cache of tf.data), whole batches of NumPy instead of rows in Python, or "
                "Cellerate's own windows (cellerate train), which are one gather a batch."
            )
        self._add(title, why, found.step_s, self._now, do)

    def validation(self) -> None:
        """A validation that takes much of the time."""
        found = self._found
        share = 1 - found.training_share
        if share < _VALIDATION or found.steps_per_epoch is None or found.validation_s is None:
            return
        training = found.steps_per_epoch * found.step_s
        every = max(2, round(found.validation_s / (_VALIDATION_AFTER * training)))
        after = found.validation_s / every
        self.changes.append(
            Suggestion(
                title=f"Validation takes {percent(share)} of an epoch",
                why=f"{milliseconds(1e3 * found.validation_s)} of validation beside {milliseconds(1e3 * training)} of "
                "training in each epoch",
                gain=(found.validation_s - after) / (training + found.validation_s),
                before_ms=1e3 * (training + found.validation_s),
                after_ms=1e3 * (training + after),
                do=f"Validate every {every} epochs (fit(validation_freq={every})), or on 1 of {every} of the held-out "
                "data, of which a fixed sample tells as much (validation_steps; "
                "`cellerate train --validation-fraction`).",
            )
        )

    def eager(self) -> None:
        """Operations that run one by one."""
        model = self._model
        if not runs_eagerly(model):
            return
        self._try("compiled instead of eager")
        before = model.run_eagerly, model.jit_compile
        # For these, Keras chooses.
        model.run_eagerly, model.jit_compile = False, None
        said = "run_eagerly=True" if before[0] else "jit_compile=False"
        self._compiled = self._measured(
            f"Every operation is called from Python ({said})",
            "nothing is compiled, so that Python is in the way of every small operation",
            f"model.compile(...) without {said}.",
        )
        if not self._compiled:
            model.run_eagerly, model.jit_compile = before

    def small_batch(self) -> None:
        """Fewer rows than the hardware needs."""
        if self._rows >= SMALL_BATCH:
            return
        if self._model_takes_one_size():
            self.untried.append(f"larger batches: the model takes batches of {self._rows} rows only")
            return
        self._try(f"batches of {SMALL_BATCH} rows")
        rows, before = self._rows, self._now
        wide = widened(self._batches, SMALL_BATCH)
        after = self._step_s(self._model, wide) * rows / SMALL_BATCH
        gained = self._add(
            f"A batch has only {rows} row{'s' if rows > 1 else ''}",
            f"{SMALL_BATCH} rows take {milliseconds(1e3 * after * SMALL_BATCH / rows)}, {rows} take "
            f"{milliseconds(1e3 * before)}: all weights are read, and all of Python runs, for every few rows",
            before,
            after,
            f"batch_size={SMALL_BATCH} or more, with a learning rate tuned for it.",
        )
        if gained:
            self._batches, self._rows, self._now = wide, SMALL_BATCH, after * SMALL_BATCH / rows

    def kernels(self) -> None:
        """Recurrent layers that run on Keras's own code, although kernels for them exist."""
        explanation = explain(self._model)
        self.untried += _without_kernels(explanation.layers)
        slow = [
            one
            for one in explanation.layers
            if any(c.name == "accelerated" and c.holds is False for c in one.conditions)
        ]
        if not slow:
            for one in explanation.layers:
                for condition in one.changes:
                    if not condition.name.startswith(_REFUSED):
                        self.untried.append(
                            f"{one.path}: {condition.name}: {condition.found} -> {condition.fix}"
                        )
            return
        self._try("Cellerate's kernels")
        before = any(is_accelerated(layer) for layer in self._model._flatten_layers())
        accelerate(self._model)
        if not any(is_accelerated(layer) for layer in self._model._flatten_layers()):
            return
        names = ", ".join(one.path for one in slow)
        kinds = ", ".join(dict.fromkeys(one.kernel for one in slow))
        others = [f"{c.name} ({c.found})" for one in slow for c in one.changes if c.name != "accelerated"]
        why = f"Keras computes {'them' if len(slow) > 1 else 'it'} with {kinds}"
        why += (
            f"; what keeps a fused kernel of Keras away: {', '.join(dict.fromkeys(others))}" if others else ""
        )
        kept = self._measured(
            f"{names} run{'s' if len(slow) == 1 else ''} on Keras's own code",
            why,
            "cellerate.accelerate(model), before fit; the model stays a Keras model. The command line's trainings do "
            "so by themselves.",
        )
        if not kept and not before:
            restore(self._model)

    def precision(self) -> None:
        """16-bit numbers, if the machine multiplies them faster."""
        model = self._model
        if model.dtype_policy.name != "float32":
            return
        policy = precision_candidates()[0]
        self._try(policy)
        try:
            # Keras warns that a loss that is a lambda cannot be copied.
            with warnings.catch_warnings(action="ignore"):
                config = model.get_compile_config()
                copy = with_dtype_policy(model, policy)
                copy.compile_from_config(config)
        except (CellerateError, ValueError, TypeError) as error:
            self.untried.append(f"{policy}: {in_a_line(error)}")
            return
        copy.run_eagerly, copy.jit_compile = model.run_eagerly, model.jit_compile
        if any(is_accelerated(layer) for layer in model._flatten_layers()):
            accelerate(copy)
        before, after = self._now, self._step_s(copy)
        gained = self._add(
            f"Numbers have 32 bits, and {policy} is faster here",
            "the multiply-adds of this machine take more 16-bit numbers at once",
            before,
            after,
            f'keras.config.set_dtype_policy("{policy}") before the model is built (`cellerate train --precision auto` '
            "tries it and watches the loss).",
            optional=True,
        )
        if gained:
            self._now, self._model = after, copy

    def together(self) -> None:
        """Steps that spend much of their time in Python."""
        # The idle time of an eager step says nothing about a compiled one.
        if self._found.idle < _IDLE or self._compiled:
            return
        if keras.config.backend() != "torch" and self._model.steps_per_execution == 1:
            self._try(f"{_TOGETHER} steps at a time")
            self._model.steps_per_execution = _TOGETHER
            kept = self._measured(
                f"Between steps, {percent(self._found.idle)} of the time is Python",
                "the device waits for the next call",
                f"model.compile(..., steps_per_execution={_TOGETHER}).",
                optional=True,
            )
            if not kept:
                self._model.steps_per_execution = 1
        elif keras.config.backend() == "torch" and not self._model_takes_one_size():
            rows, wide = self._rows, self._rows * _WIDER
            self._try(f"batches of {wide} rows")
            before = self._now
            after = self._step_s(self._model, widened(self._batches, wide)) / _WIDER
            self._add(
                f"Python takes {percent(self._found.idle)} of a step of {rows} rows",
                "each operation is called by itself, however small it is",
                before,
                after,
                f"batch_size={wide}, with a learning rate tuned for it.",
                optional=True,
            )

    def _try(self, what: str) -> None:
        """Notify of the change that is measured next."""
        self._trying = what
        self._notify(what)

    def _measured(self, title: str, why: str, do: str, *, optional: bool = False) -> bool:
        """Measure the model as it is now; True if the change gains enough to be reported and kept."""
        forget_compiled(self._model)
        before, after = self._now, self._step_s(self._model)
        gained = self._add(title, why, before, after, do, optional=optional)
        if gained:
            self._now = after
        return gained

    def _step_s(self, model: keras.Model, batches: Sequence[Any] | None = None) -> float:
        feed = Feed(KeptBatches(self._batches if batches is None else batches), shuffle=False)
        return timed_steps(model, feed, self._seconds).step_s

    def _add(
        self, title: str, why: str, before_s: float, after_s: float, do: str, *, optional: bool = False
    ) -> bool:
        """Report a change; True if it gains enough."""
        if 1 - after_s / before_s < _SMALLEST:
            times = f"{milliseconds(1e3 * before_s)} -> {milliseconds(1e3 * after_s)}"
            self.without_gain.append(f"{self._trying} ({times})")
            return False
        gain = self._left * (1 - after_s / before_s) * self._found.training_share
        self._left *= after_s / before_s
        self.changes.append(Suggestion(title, why, gain, 1e3 * before_s, 1e3 * after_s, do, optional))
        return True

    def _model_takes_one_size(self) -> bool:
        fixed = any(tensor.shape[0] is not None for tensor in getattr(self._model, "inputs", None) or ())
        return fixed or any(getattr(layer, "stateful", False) for layer in self._model._flatten_layers())
