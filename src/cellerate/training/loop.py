"""Trains a model: one call of `fit`, surrounded by what a long run needs.

Every task trains through `train`. Inside is plain Keras; around it are the optimizer, the best model on disk, exact
resume, a time limit, Ctrl-C, history and display.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from pathlib import Path
from typing import Any, Literal

import keras

from cellerate.data.arrays import BatchSource
from cellerate.data.pipeline import KerasBatches
from cellerate.files import remove_unfinished
from cellerate.layers.accelerate import accelerate
from cellerate.layers.carried_states import carried_states
from cellerate.layers.engine.gradient_norm import GradientNorm
from cellerate.layers.kernels_used import kernels_used
from cellerate.machine.environment import keep_freed_memory
from cellerate.models.rewrite import same_layers, with_dtype_policy
from cellerate.models.storage import save_model
from cellerate.training.beginning import begun, checkpoint_to_resume, layers_held, progress_of
from cellerate.training.callback_list import WhenDue, check_callbacks
from cellerate.training.callbacks import (
    Conductor,
    EarlyStopping,
    Interrupted,
    ReduceLROnPlateau,
    RunFacts,
    RunHooks,
    stop_signals,
)
from cellerate.training.checkpoint import Checkpoint, Position, architecture_of, restore
from cellerate.training.checkpoint_folder import CheckpointFolder
from cellerate.training.optimizers import build_optimizer, check_updates
from cellerate.training.parallel import Processes
from cellerate.training.pipeline import StageReport
from cellerate.training.precision import precision_for
from cellerate.training.probe import check_probe, end_probe, is_probe
from cellerate.training.run import TrainingRun
from cellerate.training.start import own_run, run_folder
from cellerate.training.stretches import ErrorByStretch
from cellerate.training.telemetry import Display, RunPlan, Telemetry, check_trackers, write_history
from cellerate.training.time_limits import SampleSize, judged_part

Status = Literal["finished", "stopped early", "time limit", "interrupted"]


@dataclasses.dataclass(frozen=True)
class TrainingResult:
    """The result of a run.

    Attributes:
        model: The trained model: the best one, except after an interruption. Of several processes only the first
            one's is certain to be.
        status: Why the run ended.
        output: The model file; after an interruption in the first epoch it does not exist yet, unless the model before
            it was judged.
        folder: The run's folder: checkpoint, history, curve, TensorBoard files.
        history: One record per epoch, of this call and of those it resumed.
        best_epoch: The epoch whose model is in `output`, from 1; 0 for the model before the first epoch, if it was
            judged (`best` is then a number), or for none.
        best: The validation loss of that epoch, or its training loss if there are no validation data.
        seconds: Seconds of training, without validation.
        precision: The dtype policy of the training.
        kernels: The backend and kernels of the training, as `kernels_used` names them.
        here: Whether this process judges and reports the result: the first of several that train together.
        judged: The sample of the validation part that judged each epoch, if a time limit leaves no time for all of it;
            else None.
        first_loss: The training loss of the first step.
        stages: The stages of the model, if several processes have divided it.
    """

    model: keras.Model
    status: Status
    output: Path
    folder: Path
    history: tuple[dict[str, Any], ...]
    best_epoch: int
    best: float | None
    seconds: float
    precision: str
    kernels: str
    here: bool
    judged: SampleSize | None = None
    first_loss: float | None = None
    stages: tuple[StageReport, ...] = ()

    @property
    def can_be_judged(self) -> bool:
        """True if the model of this process is the one to judge: it is the first, and training was not interrupted."""
        return self.here and self.status != "interrupted"


def train(model: keras.Model, source: BatchSource, run: TrainingRun) -> TrainingResult:
    """Trains `model` on `source`.

    Afterwards the model's layers run on Cellerate's kernels, as the setting `implementation` says, and the process
    keeps freed memory (see `environment.keep_freed_memory`).

    Several processes that have joined a group (`distributed.group`, torchrun) train together: each is called with the
    same arguments, computes its rows of every batch, and returns. The curve is that of one process. The first process
    writes the files.

    Args:
        model: Any built Keras model. It stays uncompiled: the optimizer belongs to the run, so a saved model
            is small and loads as plain Keras. It is trained in place, except in mixed precision, which trains
            a copy (see `TrainingResult.model`).
        source: The training batches; their order is part of the run.
        run: The user's options, and the needs of the task.

    Returns:
        The result. After an interruption (Ctrl-C, SIGTERM) the checkpoint is written and the status is
        "interrupted".

    Raises:
        ConfigError: See `start.check_start`; or a callback is not a Keras callback.
        CheckpointError: The checkpoint is damaged, or from a run with other settings, data or model.
        OutputError: A file could not be written.
        TrainingError: The loss is no longer a finite number, or far above the loss of the first step.
    """
    training = _Training(model, source, run)
    with own_run(run.options, first=training.processes.first):
        keep_freed_memory()
        training.begin_or_resume()
        training.accelerate()
        with contextlib.ExitStack() as fixing:
            fixing.enter_context(layers_held(training.model, training.progress.fixed, fixed=True))
            training.compile()
            conductor = training.conduct()
            status = training.fit(conductor)
        return training.result(status)


class _Training:
    """A model in training, step by step; each step has what the steps before have found.

    Attributes:
        model: The model, in the precision of the run.
        processes: The processes that train together.
        progress: The counts and records of the run.
    """

    def __init__(self, model: keras.Model, source: BatchSource, run: TrainingRun) -> None:
        self.model, self._source, self._run, self._options = model, source, run, run.options
        self._settings, self._limits = run.options.training, run.options.limits
        self._output = Path(run.options.output)
        self._folder = run_folder(self._output)
        check_trackers(self._settings.track)
        check_updates(self._settings, len(source))
        self._own_callbacks = check_callbacks(run.options.callbacks)
        self.processes = Processes()
        self.processes.check(model, carry_states=run.carry_states)
        check_probe(carry_states=run.carry_states)
        self._display = run.options.listener
        self._checkpoints = CheckpointFolder(self._folder, self._settings.keep_checkpoints)
        # A message about the start of a new run, if its weights are not random.
        self._beginning = ""

    def begin_or_resume(self) -> None:
        """Finds the checkpoint of a run that is to go on; for a new one, the model's beginning and its precision."""
        run = self._run
        self._identity = {
            **self._settings.curve_settings(),
            **run.identity,
            "backend": keras.config.backend(),
            "carry_states": run.carry_states,
            "training data": self._source.fingerprint(),
            "validation data": run.validation.fingerprint() if run.validation is not None else None,
            "model": architecture_of(self.model),
        }
        self._checkpoint: Checkpoint | None = None
        if self._options.resume:
            self._checkpoint = checkpoint_to_resume(
                self._checkpoints, self._identity, self._settings, self._display
            )
        resumed = self._checkpoint
        self.processes.check_same(self._identity, resumed.position if resumed is not None else None)
        self.progress = progress_of(resumed)
        self.progress.finished = ""
        if resumed is None:
            self._beginning = begun(run.begin, self.model, self.progress, self.processes)
            self.progress.precision = precision_for(
                self.model,
                self._source,
                loss=run.loss,
                settings=self._settings,
                display=self._display,
                processes=self.processes,
            )

    def accelerate(self) -> None:
        """Takes the model to the precision of the run and onto Cellerate's kernels."""
        precision = self.progress.precision
        if precision != "float32":
            self.model = with_dtype_policy(self.model, precision)
        accelerate(self.model, self._settings.implementation, sum_embedding_gradients=True)

    def compile(self) -> None:
        """Compiles the trainer, restores it from the checkpoint if there is one, and chooses the validation batches.

        Shows which kernels compute it.
        """
        run, source = self._run, self._source
        self._states = carried_states(self.model, source.batch_size) if run.carry_states else None
        # The trainer is compiled instead of `model`, so that the model's file holds no optimizer.
        name = f"{self.model.name}_trainer"
        self._trainer = self._states.model if self._states else same_layers(self.model, name)
        # Several processes must exchange gradients, which the engine does not expose.
        engine = "off" if self.processes.several else "auto"
        accelerate(self._trainer, self._settings.implementation, engine=engine, sum_embedding_gradients=True)
        compiled = functools.partial(
            self._trainer.compile,
            loss=self.processes.loss(run.loss),
            weighted_metrics=list(run.metrics),
            jit_compile=self._settings.jit_compile,
        )
        optimizer = build_optimizer(self._settings, len(source), self.progress.precision)
        self._norms = GradientNorm(optimizer)
        compiled(optimizer)
        self._kernels = kernels_used(self._trainer, self.progress.precision)
        self._display.message(self._kernels + self._beginning)
        self._held_out, self._judged = judged_part(
            self._trainer,
            run.validation,
            self._limits,
            self.progress,
            self.processes,
            new=self._checkpoint is None and not is_probe(),
            in_order=run.carry_states,
        )
        self._stretched = next((one for one in run.metrics if isinstance(one, ErrorByStretch)), None)
        if self._stretched is not None and self._judged is not None and self._held_out is not None:
            # The function compiled to measure the time holds another number of batches.
            self._stretched.batches = len(self._held_out)
            compiled(optimizer)
        if self._checkpoint is not None:
            restore(self._trainer, self._checkpoint)
        if divided := self.processes.replicate(self._trainer, source):
            self._display.message(divided)
        if is_probe():
            end_probe(
                self._trainer, source, run.loss, self._settings, self.progress.precision, self.processes
            )

    def conduct(self) -> Conductor:
        """Opens the telemetry of the run; gives the callback that saves, judges and stops."""
        run, progress = self._run, self.progress
        made_of = {**dataclasses.asdict(self._settings), **self._identity, "precision": progress.precision}
        self._telemetry = Telemetry(
            self._display,
            self._folder,
            self._settings.track,
            made_of,
            resumed=self._checkpoint is not None,
            sample=None if run.sample is None else functools.partial(run.sample, self.model),
            show_samples=self._options.sample_every is not None,
        )
        self._display = self._telemetry if self.processes.first else Display()
        self._monitor = "loss" if self._held_out is None else "val_loss"
        return Conductor(
            RunFacts(
                settings=self._settings,
                steps_per_epoch=len(self._source),
                items_per_step=self._source.items_per_batch,
                monitor=self._monitor,
                identity=dict(self._identity),
                sample_every=self._options.sample_every,
                ends=self._limits.training_ends(progress.judging_s),
                ignorant=run.ignorant,
            ),
            RunHooks(
                write_checkpoint=self._checkpoints.save,
                write_best=self._save_best,
                write_history=lambda: write_history(self._folder, progress.history, progress.curve),
                begin_states=self._states.reset if self._states else lambda: None,
            ),
            progress=progress,
            display=self._display,
            processes=self.processes,
            judge_first=self._held_out if self._beginning else None,
            stretched=self._stretched,
            norms=self._norms,
        )

    def _save_best(self) -> None:
        with layers_held(self.model, self.progress.fixed, fixed=False):
            save_model(self.model, self._output, self._run.record)

    def _watching(self) -> list[keras.callbacks.Callback]:
        """The Keras callbacks that the settings ask for."""
        settings, found = self._settings, []
        if settings.patience is not None:
            found.append(
                EarlyStopping(self.progress, monitor=self._monitor, mode="min", patience=settings.patience)
            )
        if settings.plateau_patience is not None:
            found.append(
                ReduceLROnPlateau(
                    self.progress,
                    monitor=self._monitor,
                    mode="min",
                    patience=settings.plateau_patience,
                    factor=settings.plateau_factor,
                )
            )
        return found

    def fit(self, conductor: Conductor) -> Status:
        """Trains to the end or until something stops the run, and returns the status."""
        run, source, display = self._run, self._source, self._display
        most_s = self._limits.training_s(self._settings, self.progress.judging_s)
        plan = RunPlan(
            self._settings.epochs, len(source), source.items_per_batch, source.item, run.bits, most_s
        )
        stopped_early = False
        with contextlib.ExitStack() as watched:
            try:
                # From before the first file of the run, so that an early Ctrl-C leaves a checkpoint beside it.
                with stop_signals(conductor, display):
                    if self.processes.first:
                        remove_unfinished(self._folder)
                        remove_unfinished(self._output)
                        watched.enter_context(self._telemetry)
                    display.start(plan)
                    for sentence in self._limits.sentences(self._judged, source.item):
                        display.message(sentence)
                    stopped_early = _fit_parts(
                        self._trainer,
                        self.processes.share(source),
                        self._held_out,
                        self._settings.epochs,
                        self._own_callbacks,
                        self._watching(),
                        conductor,
                        self._checkpoint,
                    )
            except Interrupted:
                pass
            finally:
                display.stop()
            status: Status = "finished"
            if conductor.interrupted:
                status = "interrupted"
            elif conductor.timed_out:
                status = "time limit"
            elif stopped_early:
                status = "stopped early"
            if status in ("finished", "stopped early"):
                self.progress.finished = status
                conductor.save()
            self._telemetry.status = status
        return status

    def result(self, status: Status) -> TrainingResult:
        """The result of the run, in the first process with the best model."""
        progress = self.progress
        # From here on all processes may read the files of the first.
        self.processes.wait()
        stages = self.processes.stages()
        model = self.processes.own(self.model, self._settings.implementation)
        best_is_last = progress.best_epoch == len(progress.history)
        if (
            self.processes.first
            and status != "interrupted"
            and progress.best is not None
            and not best_is_last
        ):
            model.load_weights(self._output)
        return TrainingResult(
            model=model,
            status=status,
            output=self._output,
            folder=self._folder,
            history=tuple(progress.history),
            best_epoch=progress.best_epoch,
            best=progress.best,
            seconds=progress.seconds,
            precision=progress.precision,
            kernels=self._kernels,
            here=self.processes.first,
            judged=self._judged,
            first_loss=progress.first_loss,
            stages=stages,
        )


def _fit_parts(
    trainer: keras.Model,
    source: BatchSource,
    validation: BatchSource | None,
    epochs: int,
    own: list[keras.callbacks.Callback],
    watching: list[keras.callbacks.Callback],
    conductor: Conductor,
    checkpoint: Checkpoint | None,
) -> bool:
    """Calls `fit` once, or twice when a run resumes in the middle of an epoch. True if it stopped early.

    Keras fixes the number of batches when `fit` begins, so the rest of a cut epoch needs a separate call.
    """
    position = checkpoint.position if checkpoint else Position()
    conductor.position = position
    # A run that only has yet to end saves without a call of `fit`, which would set it.
    conductor.set_model(trainer)
    # A run may have been cut off between the epoch that ends it and its end.
    cut = checkpoint is not None and not position.batch and not checkpoint.progress["finished"]
    if cut and any(isinstance(one, EarlyStopping) and one.is_due() for one in watching):
        return True
    parts = [(position.epoch, position.batch, position.epoch + 1)] if position.batch else []
    first_whole = position.epoch + (1 if position.batch else 0)
    if first_whole < epochs:
        parts.append((first_whole, 0, epochs))
    for epoch, start, stop in parts:
        with contextlib.ExitStack() as opened:
            batches = KerasBatches(source, start=start, epoch=epoch)
            conductor.begin_part(start, checkpoint if start else None, batches)
            if start:
                # TensorFlow builds metrics in the first step, which is too late to restore their sums.
                trainer._symbolic_build(data_batch=source.batch(epoch, start))
            held_out = KerasBatches(validation) if validation is not None else None
            for feed in filter(None, (batches, held_out)):
                opened.callback(feed.close)
            trainer.fit(
                batches,
                initial_epoch=epoch,
                epochs=stop,
                validation_data=held_out,
                callbacks=WhenDue(
                    own, [*watching, conductor], conductor, model=trainer, epochs=stop, steps=len(batches)
                ),
                shuffle=False,
                verbose=0,
            )
        if trainer.stop_training:
            return True
    return False
