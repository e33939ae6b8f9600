"""The callbacks through which a run watches `fit`: when to look, when to save, when to stop.

Everything that must happen between two batches happens here. No callback may make `fit` wait for the device at
every step.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import Any

import keras

from cellerate.data.arrays import BatchSource
from cellerate.data.pipeline import KerasBatches
from cellerate.errors import TrainingError
from cellerate.format import loss
from cellerate.layers.engine.gradient_norm import GradientNorm
from cellerate.messages import marked
from cellerate.training.checkpoint import Checkpoint, Position, capture, restore_metrics, sync_variables
from cellerate.training.divergence import diverged, is_far, reference_loss, remedy
from cellerate.training.optimizers import current_learning_rate
from cellerate.training.parallel import Processes
from cellerate.training.settings import TrainingSettings
from cellerate.training.stretches import ErrorByStretch, clearly_better
from cellerate.training.telemetry import Display

_LOOK_EVERY_S = 0.2


class Interrupted(Exception):  # noqa: N818 (not an error: the run stops cleanly)
    """Leaves `fit` once the checkpoint of an interrupted run is written."""


@dataclasses.dataclass
class Progress:
    """The counts and records of a run that carry over from one checkpoint or call of `fit` to the next.

    Attributes:
        history: One record per epoch.
        curve: Rows of epoch, step and the mean loss of that epoch so far.
        best: The best value of the monitored loss, or None.
        best_epoch: The epoch of `best`, from 1; 0 for the model before the first one.
        epoch_seconds: Seconds trained in the current epoch.
        seconds: Seconds trained in all.
        counters: The counters of Keras's own callbacks, by class name.
        finished: Why the run ended, if it reached its end.
        precision: The dtype policy of the run.
        fixed: The names of layers that training leaves as they are.
        first: The validation loss and metrics of the model before the first epoch, if it was judged.
        first_by_stretch: Its error in each stretch of the validation part.
        first_loss: The training loss of the first step.
        judged_batches: The validation batches that a time limit leaves time for; 0 for all.
        judging_s: About how many seconds judging takes under a time limit.
    """

    history: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    curve: list[list[float]] = dataclasses.field(default_factory=list)
    best: float | None = None
    best_epoch: int = 0
    epoch_seconds: float = 0.0
    seconds: float = 0.0
    counters: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    finished: str = ""
    precision: str = "float32"
    fixed: list[str] = dataclasses.field(default_factory=list)
    first: dict[str, float] = dataclasses.field(default_factory=dict)
    first_by_stretch: list[float] = dataclasses.field(default_factory=list)
    first_loss: float | None = None
    judged_batches: int = 0
    judging_s: float = 0.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunFacts:
    """The facts of a run that do not change while it goes on.

    Attributes:
        settings: The run's settings.
        steps_per_epoch: Batches per epoch.
        items_per_step: Items per batch.
        monitor: The loss that decides which model is best: "val_loss" or "loss".
        identity: The settings and data that identify the run in its checkpoints.
        sample_every: Steps of the run between two samples; None asks for none.
        ends: The time of `perf_counter` at which training must end, besides the limit in the settings.
        ignorant: The loss of a model that has learned nothing, if it is known.
    """

    settings: TrainingSettings
    steps_per_epoch: int
    items_per_step: int
    monitor: str
    identity: dict[str, Any]
    sample_every: int | None = None
    ends: float = math.inf
    ignorant: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunHooks:
    """The actions of a run that its conductor times.

    Attributes:
        write_checkpoint: Writes a checkpoint to the disk.
        write_best: Writes the model; called when it is the best so far.
        write_history: Writes the history files.
        begin_states: Called at the start of an epoch and of a validation pass: zeroes carried states.
    """

    write_checkpoint: Callable[[Checkpoint], None]
    write_best: Callable[[], None]
    write_history: Callable[[], None]
    begin_states: Callable[[], None]


class Conductor(keras.callbacks.Callback):
    """Follows a run batch by batch: display, loss curve, checkpoints, best model, interruption, time limit.

    It must be the last in the list of callbacks, so that a checkpoint at an epoch's end includes their changes.

    Args:
        facts: The facts that do not change during the run.
        hooks: The actions that the conductor calls when they are due.
        progress: The run's progress; changed in place.
        display: Shows the progress.
        processes: The processes that train together. All look at the same batches, and stop and save after the same
            batch; the first one's clock and a signal to any of them decide.
        judge_first: Validation batches to judge the model on before the first epoch; None does not.
        stretched: The metric that knows the error of each stretch of the validation part, if there is one.
        norms: Counts the norms of the gradients.
    """

    def __init__(
        self,
        facts: RunFacts,
        hooks: RunHooks,
        *,
        progress: Progress,
        display: Display,
        processes: Processes,
        judge_first: BatchSource | None = None,
        stretched: ErrorByStretch | None = None,
        norms: GradientNorm | None = None,
    ) -> None:
        super().__init__()
        self.progress = progress
        self.stop_requested = False
        self.interrupted = False
        self.timed_out = False
        self.position = Position()
        self._facts = facts
        self._hooks = hooks
        self._settings = facts.settings
        self._display = display
        self._processes = processes
        self._judge_first = judge_first
        self._stretched = stretched
        self._norms = norms
        self._resumed: Checkpoint | None = None
        self._cut: Checkpoint | None = None
        self._start = 0
        self._looked = self._saved = time.perf_counter()
        self._next_look: float = math.inf
        self._deadline = math.inf

    def begin_part(self, start: int, resumed: Checkpoint | None, batches: KerasBatches) -> None:
        """Prepares for a call of `fit`; call it before each one.

        Args:
            start: The batch of the epoch at which `fit` begins.
            resumed: The checkpoint taken within that epoch, or None at the start of an epoch.
            batches: The training batches of that call.
        """
        self._start = start
        self._resumed = resumed
        self._batches = batches

    def due(self, batch: int) -> bool:
        """True if batch `batch` of this call of `fit` must be looked at; looking waits for the device."""
        done = self._start + batch + 1
        if batch == 0 or done % self._settings.log_every == 0 or done == self._facts.steps_per_epoch:
            return True
        if self._is_sampled(done):
            return True
        # JAX queues minutes of steps within a moment, so the clock alone would not tell when to look.
        if self._processes.several or done >= self._next_look:
            return done >= self._next_look
        now = time.perf_counter()
        return self.stop_requested or now - self._looked >= _LOOK_EVERY_S or self._late(now)

    def on_train_begin(self, logs: Mapping[str, float] | None = None) -> None:
        """Starts the clock of the time limit, which counts training only."""
        if self._judge_first is not None:
            source, self._judge_first = self._judge_first, None
            self._judge_start(source)
        if self._settings.max_seconds is not None and math.isinf(self._deadline):
            # The time of the beginning counts, too.
            spent = 0.0 if self._resumed or self.progress.history else self.progress.seconds
            self._deadline = time.perf_counter() + self._settings.max_seconds - spent

    def _judge_start(self, source: BatchSource) -> None:
        """Makes the model before the first epoch the best one so far."""
        with contextlib.closing(KerasBatches(source)) as batches:
            logs = self.model.evaluate(batches, callbacks=[self], verbose=0, return_dict=True)
        self._processes.settle(self.model)
        found = {f"val_{name}": float(value) for name, value in logs.items()}
        self._display.message(
            f"before the first epoch: {self._facts.monitor} {loss(found[self._facts.monitor])}"
        )
        if all(map(math.isfinite, found.values())):
            self.progress.first, self.progress.best = found, found[self._facts.monitor]
            self.progress.first_by_stretch = self._by_stretch()
            self._write(self._hooks.write_best)

    def _is_best(self, logs: Mapping[str, float]) -> bool:
        """Return True if an epoch's model is to be kept: the best so far, and clearly better than the first one."""
        value, progress = logs[self._facts.monitor], self.progress
        best = math.isfinite(value) and (
            progress.best is None or value < progress.best or self._facts.monitor == "loss"
        )
        if not progress.first:
            return best
        best = best and clearly_better(logs, progress.first, self._by_stretch(), progress.first_by_stretch)
        # Only the first process has the counts of all.
        return bool(self._processes.of_first(best))

    def _by_stretch(self) -> list[float]:
        return [] if self._stretched is None else self._stretched.by_stretch()

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, float] | None = None) -> None:
        """Zeroes carried states, or restores those of an epoch that was cut short."""
        self.position = Position(epoch, self._start)
        if self._resumed is not None:
            restore_metrics(self.model, self._resumed)
            self._processes.count_once(self.model)
            self._resumed = None
        else:
            self._hooks.begin_states()
            self.progress.epoch_seconds = 0.0
            if self._norms is not None:
                self._norms.reset()
        self._epoch_began = time.perf_counter()
        self._waited_before = self._batches.waited_s
        self._first_step: tuple[int, float] | None = None
        self._last_step = (self._start, self._epoch_began)
        self._next_look = 0

    def on_train_batch_end(self, batch: int, logs: Mapping[str, float] | None = None) -> None:
        """Looks at a batch that is due."""
        done = self._start + batch + 1
        logs = self._processes.logs(self.model, logs or {})
        logs = {name: float(value) for name, value in logs.items()}
        now = self._looked = time.perf_counter()
        self._first_step = self._first_step or (done, now)
        steps, seconds = done - self._last_step[0], now - self._last_step[1]
        self._last_step = (done, now)
        self.position = Position(self.position.epoch, done)
        if not math.isfinite(logs["loss"]):
            raise TrainingError(
                f"training diverged: the loss is {logs['loss']} at step {done} of epoch "
                f"{self.position.epoch + 1}. Try {marked(remedy(self._settings))}. The last checkpoint and the best "
                "model so far have not changed."
            )
        if self._steps(done) == 1:
            self.progress.first_loss = logs["loss"]
        if done % self._settings.log_every == 0 or done == self._facts.steps_per_epoch:
            self.progress.curve.append([self.position.epoch + 1, done, logs["loss"]])
        self._display.data_wait(self._data_wait(now - self._epoch_began))
        self._display.step(self.position.epoch, done, logs)
        if done == self._facts.steps_per_epoch:
            # The validation that follows belongs to this epoch, so `on_epoch_end` saves and stops.
            return
        if self._is_sampled(done):
            self._processes.settle(self.model)
            sync_variables(self.model)
            self._write(lambda: self._display.sample(self.position.epoch + 1, self._steps(done)))
        # After more steps than these, Ctrl-C would wait for too long.
        look = done + max(1, min(int(steps * _LOOK_EVERY_S / max(seconds, 1e-6)), self._settings.log_every))
        stop, late, save = self._agreed(now, look)
        if stop:
            self.interrupted = True
            self.save()
            self._processes.wait()
            raise Interrupted
        if late:
            # `fit` still validates after this partial epoch; the epoch itself resumes from this checkpoint.
            self._cut = self._capture()
            self.model.stop_training = True
        elif save:
            self.save()

    def on_test_begin(self, logs: Mapping[str, float] | None = None) -> None:
        """Zeroes carried states: validation must not see those of the training streams."""
        self._processes.settle(self.model)
        self._hooks.begin_states()
        self._display.phase("validating")
        self._judging_since = time.perf_counter()

    def on_test_end(self, logs: Mapping[str, float] | None = None) -> None:
        """Ends the display of the validation, whose time does not count as training."""
        self._display.phase("")
        self._deadline += time.perf_counter() - self._judging_since

    def on_epoch_end(self, epoch: int, logs: Mapping[str, float] | None = None) -> None:
        """Records the epoch, writes the model if it is the best so far, then the history and a checkpoint."""
        logs = {name: float(value) for name, value in (logs or {}).items()}
        self._processes.settle(self.model)
        stop, late, _ = self._agreed(time.perf_counter())
        progress = self.progress
        part_seconds = self._last_step[1] - self._epoch_began
        far = is_far(logs, reference_loss(progress.first_loss, self._facts.ignorant))
        # Only the first process has the counts of all.
        far = bool(self._processes.of_first(far))
        best = not far and self._is_best(logs)
        norm = math.nan if self._norms is None else self._norms.mean()
        record: dict[str, Any] = {
            "epoch": epoch + 1,
            "steps": self.position.batch,
            **logs,
            "learning_rate": current_learning_rate(self.model.optimizer),
            "seconds": progress.epoch_seconds + part_seconds,
            "items_per_s": self._items_per_s(),
            "data_wait": self._data_wait(part_seconds),
            **({"gradient_norm": norm} if math.isfinite(norm) else {}),
            "best": best,
        }
        if best:
            progress.best, progress.best_epoch = logs[self._facts.monitor], epoch + 1
            self._write(self._hooks.write_best)
        progress.history.append(record)
        progress.seconds += part_seconds
        self._write(self._hooks.write_history)
        self._display.epoch({**record, "metrics": [name for name in logs if not name.endswith("loss")]})
        if far:
            raise TrainingError(diverged(record, progress.first_loss, self._settings))
        if self._cut is not None:
            cut = self._cut
            cut.progress.update(best=progress.best, best_epoch=progress.best_epoch)
            self._write(lambda: self._hooks.write_checkpoint(cut))
            self.timed_out = True
            return
        if late:
            self.timed_out = True
            self.model.stop_training = True
        self.position = Position(epoch + 1, 0)
        self._start = 0
        self.save()
        if stop:
            self.interrupted = True
            self._processes.wait()
            raise Interrupted

    def save(self) -> None:
        """Writes a checkpoint of the current state."""
        checkpoint = self._capture()
        self._write(lambda: self._hooks.write_checkpoint(checkpoint))
        self._saved = time.perf_counter()

    def _steps(self, done: int) -> int:
        """The steps of the run, once `done` steps of this epoch are."""
        return self.position.epoch * self._facts.steps_per_epoch + done

    def _is_sampled(self, done: int) -> bool:
        return self._facts.sample_every is not None and self._steps(done) % self._facts.sample_every == 0

    def _agreed(self, now: float, look: int = 0) -> tuple[bool, bool, bool]:
        """Three decisions that all processes share: whether to stop, whether the time is up, whether to save.

        All processes look again at batch `look`.
        """
        late = self._late(now)
        save = now - self._saved >= self._settings.checkpoint_every_s
        *agreed, self._next_look = self._processes.most([self.stop_requested, late, save, look])
        stop, late, save = map(bool, agreed)
        return stop, late, save

    def _late(self, now: float) -> bool:
        return now >= min(self._deadline, self._facts.ends)

    def _write(self, write: Callable[[], None]) -> None:
        """Writes a file, in the first process only."""
        if self._processes.first:
            with self._processes.apart():
                write()

    def _capture(self) -> Checkpoint:
        self._processes.settle(self.model)
        progress = dataclasses.asdict(self.progress)
        if self.position.batch:
            part_seconds = self._last_step[1] - self._epoch_began
            progress["epoch_seconds"] += part_seconds
            progress["seconds"] += part_seconds
        return capture(self.model, self.position, self._facts.identity, progress)

    def _data_wait(self, seconds: float) -> float:
        """The share of this epoch's seconds that `fit` waited for batches."""
        return min(1.0, (self._batches.waited_s - self._waited_before) / seconds) if seconds > 0 else 0.0

    def _items_per_s(self) -> float:
        """The steady speed of this call of `fit`, without the first step, which may include a compilation."""
        if self._first_step is None:
            return 0.0
        steps = self._last_step[0] - self._first_step[0]
        seconds = self._last_step[1] - self._first_step[1]
        return steps * self._facts.items_per_step / seconds if steps and seconds > 0 else 0.0


@contextlib.contextmanager
def stop_signals(conductor: Conductor, display: Display) -> Iterator[None]:
    """Makes the first Ctrl-C or SIGTERM finish the step and save; the second stops at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: FrameType | None) -> None:
        if conductor.stop_requested:
            display.end_at_once()
        conductor.stop_requested = True
        display.message(
            "Stopping after this step; once more stops at once and loses the steps since the last save."
        )

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Resumable:
    """Lets a Keras callback keep its counters through a checkpoint and a second call of `fit`."""

    counted: tuple[str, ...] = ()

    def __init__(self, progress: Progress, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._progress = progress

    def on_train_begin(self, logs: Mapping[str, float] | None = None) -> None:
        """Restores the counters of the run, because Keras resets its own here."""
        super().on_train_begin(logs)  # type: ignore[misc]
        vars(self).update(self._progress.counters.get(type(self).__name__, {}))

    def on_epoch_end(self, epoch: int, logs: Mapping[str, float] | None = None) -> None:
        """Counts as Keras does, and records the counters for the checkpoint."""
        super().on_epoch_end(epoch, logs)  # type: ignore[misc]
        self._progress.counters[type(self).__name__] = {
            name: None if value is None else float(value) if name == "best" else int(value)
            for name in self.counted
            for value in [getattr(self, name)]
        }


class EarlyStopping(_Resumable, keras.callbacks.EarlyStopping):
    """Keras's early stopping, resumable."""

    counted = ("wait", "best", "best_epoch", "stopped_epoch")

    def is_due(self) -> bool:
        """True if the epochs so far, of an earlier process too, are to end the run."""
        return bool(self._progress.counters.get(type(self).__name__, {}).get("wait", 0) >= self.patience)


class ReduceLROnPlateau(_Resumable, keras.callbacks.ReduceLROnPlateau):
    """Keras's plateau reduction, resumable."""

    counted = ("wait", "best", "cooldown_counter")
