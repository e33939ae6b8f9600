"""Trains a model: one call of `fit`, surrounded by what a long run needs.

Every task trains through `train`. Inside is plain Keras; around it are the optimizer, the best model on disk, exact
resume, a time limit, Ctrl-C, history and display.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import keras

from cellerate.data.arrays import BatchSource
from cellerate.data.pipeline import KerasBatches
from cellerate.files import remove_unfinished
from cellerate.layers.accelerate import accelerate
from cellerate.layers.carried_states import carried_states
from cellerate.machine.environment import keep_freed_memory
from cellerate.models.rewrite import same_layers, with_dtype_policy
from cellerate.training.beginning import Begin, begun, checkpoint_to_resume, layers_held, progress_of
from cellerate.training.callback_list import WhenDue, check_callbacks
from cellerate.training.callbacks import Conductor, EarlyStopping, Interrupted, ReduceLROnPlateau
from cellerate.training.checkpoint import Checkpoint, Position, architecture_of, restore
from cellerate.training.checkpoint_folder import CheckpointFolder
from cellerate.training.divergence import GradientNorm
from cellerate.training.kernels_used import kernels_used
from cellerate.training.optimizers import build_optimizer
from cellerate.training.parallel import Processes
from cellerate.training.precision import precision_for
from cellerate.training.probe import end_probe, is_probe
from cellerate.training.settings import TrainingSettings
from cellerate.training.signals import stop_signals
from cellerate.training.start import own_run, run_folder
from cellerate.training.stretches import ErrorByStretch
from cellerate.training.telemetry import Display, RunPlan, Sample, Telemetry, check_trackers, write_history
from cellerate.training.time_limits import SampleSize, TimeLimits, judged_part

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
        kernels: What computed it, as `kernels_used` says.
        here: Whether this process says and judges what came of it: of several that train together, the first.
        judged: How much of the validation part each epoch was judged on, where a time limit leaves no time for all;
            None for all of it.
        first_loss: The training loss of the first step.
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


def train(
    model: keras.Model,
    source: BatchSource,
    *,
    output: str | Path,
    save: Callable[[keras.Model, Path], None],
    loss: Any,
    settings: TrainingSettings,
    metrics: Sequence[Any] = (),
    validation: BatchSource | None = None,
    begin: Begin | None = None,
    identity: Mapping[str, Any] | None = None,
    carry_states: bool = False,
    resume: bool = False,
    overwrite: bool = False,
    callbacks: Sequence[keras.callbacks.Callback] = (),
    display: Display | None = None,
    bits: str | None = None,
    sample: Callable[[keras.Model], Sample] | None = None,
    sample_every: int | None = None,
    limits: TimeLimits | None = None,
    ignorant: float | None = None,
) -> TrainingResult:
    """Trains `model` on `source`.

    Args:
        model: Any built Keras model. It stays uncompiled: the optimizer belongs to the run, so a saved model
            is small and loads as plain Keras. It is trained in place, except in mixed precision, which trains
            a copy (see `TrainingResult.model`).
        source: The training batches; their order is part of the run.
        output: A `.keras` path for the best model; the run folder lies beside it.
        save: Writes the model it is given to a path; called at each improvement.
        loss: A Keras loss.
        settings: How to train.
        metrics: Keras metrics, weighted if the source gives weights.
        validation: Batches whose loss decides which epoch is best; with None, the last epoch is.
        begin: Gives the model of a new run better weights than random ones, such as a solution in closed form. That
            model is judged on the validation data, too, and stays the best one unless an epoch is clearly better:
            see `stretches.clearly_better`. The time counts as training.
        identity: What else a resumed run must have in common with this one.
        carry_states: Truncated backpropagation through time: the states of recurrent layers carry over from
            batch to batch, and start from zero each epoch. Needs a source whose rows continue in the same way.
        resume: Continues from the checkpoint in the run folder.
        overwrite: Replaces a model or an unfinished run of the same name.
        callbacks: Keras callbacks of your own, called as `fit` calls them. Their model is the compiled one, which has
            the layers of `model`. A run that resumes in the middle of an epoch begins `fit` twice.
        display: Shows the progress; None shows nothing. Of several processes, only the first shows.
        bits: The name under which to show the loss in bits, if it is a cross-entropy in nats.
        sample: Gives something the model makes, for those who watch; from its weights alone, as only one process asks.
        sample_every: Shows a sample after so many steps, and after each epoch; None shows none.
        limits: The time limits, which began earlier than this call; None makes them of the settings.
        ignorant: The loss of a model that knows nothing, such as one that finds all characters equally likely. An
            epoch far above it, and above the first step, is one that diverged.

    Afterwards the model's layers run on Cellerate's kernels, as `settings.implementation` says, and the process
    keeps freed memory (see `environment.keep_freed_memory`).

    Several processes that have joined a group (`distributed.group`, torchrun) train together: each is called with the
    same arguments, computes its rows of every batch, and returns. The curve is that of one process. The first process
    writes the files.

    Returns:
        The result. After an interruption (Ctrl-C, SIGTERM) the checkpoint is written and the status is
        "interrupted".

    Raises:
        ConfigError: See `start.check_start`; or a callback is none.
        CheckpointError: The checkpoint is damaged, or from a run with other settings, data or model.
        OutputError: A file could not be written.
        TrainingError: The loss is no longer a finite number, or far above that of the first step.
    """
    output = Path(output)
    limits = limits or TimeLimits.of(settings)
    check_trackers(settings.track)
    own_callbacks = check_callbacks(callbacks)
    processes = Processes()
    processes.check(model, carry_states=carry_states)
    display = display if display is not None and processes.first else Display()
    with contextlib.ExitStack() as held:
        held.enter_context(own_run(output, resume=resume, overwrite=overwrite, first=processes.first))
        keep_freed_memory()
        folder = run_folder(output)
        identity = {
            **settings.curve_settings(),
            **(identity or {}),
            "backend": keras.config.backend(),
            "carry_states": carry_states,
            "training data": source.fingerprint(),
            "validation data": validation.fingerprint() if validation is not None else None,
            "model": architecture_of(model),
        }
        checkpoints = CheckpointFolder(folder, settings.keep_checkpoints)
        checkpoint = checkpoint_to_resume(checkpoints, identity, settings, display) if resume else None
        processes.check_same(identity, checkpoint.position if checkpoint is not None else None)
        progress = progress_of(checkpoint)
        progress.finished = ""
        told = ""
        if checkpoint is None:
            told = begun(begin, model, progress, processes)
            progress.precision = precision_for(
                model, source, loss=loss, settings=settings, display=display, processes=processes
            )
        if progress.precision != "float32":
            model = with_dtype_policy(model, progress.precision)
        accelerate(model, settings.implementation, sum_embedding_gradients=True)
        kernels = kernels_used(model, progress.precision)
        display.message(kernels + told)
        fixing = held.enter_context(contextlib.ExitStack())
        fixing.enter_context(layers_held(model, progress.fixed, fixed=True))

        states = carried_states(model, source.batch_size) if carry_states else None
        # The trainer is compiled instead of `model`, so that the model's file holds no optimizer.
        trainer = states.model if states else same_layers(model, f"{model.name}_trainer")
        compiled = functools.partial(
            trainer.compile,
            loss=processes.loss(loss),
            weighted_metrics=list(metrics),
            jit_compile=settings.jit_compile,
        )
        optimizer = build_optimizer(settings, len(source), progress.precision)
        norms = GradientNorm(optimizer)
        compiled(optimizer)
        held_out, judged = judged_part(
            trainer,
            validation,
            limits,
            progress,
            processes,
            new=checkpoint is None and not is_probe(),
            in_order=carry_states,
        )
        stretched = next((one for one in metrics if isinstance(one, ErrorByStretch)), None)
        if stretched is not None and judged is not None and held_out is not None:
            # What was compiled to measure the time knows another number of batches.
            stretched.batches = len(held_out)
            compiled(optimizer)
        if checkpoint is not None:
            restore(trainer, checkpoint)
        processes.replicate(trainer)
        if is_probe():
            end_probe(trainer, source, loss, settings, progress.precision, processes)
        made_of = {**dataclasses.asdict(settings), **identity, "precision": progress.precision}
        shown = None if sample is None else functools.partial(sample, model)
        telemetry = Telemetry(
            display,
            folder,
            settings.track,
            made_of,
            resumed=checkpoint is not None,
            sample=shown,
            show_samples=sample_every is not None,
        )
        display = telemetry if processes.first else Display()
        monitor = "loss" if held_out is None else "val_loss"

        def save_best() -> None:
            with layers_held(model, progress.fixed, fixed=False):
                save(model, output)

        conductor = Conductor(
            settings=settings,
            progress=progress,
            steps_per_epoch=len(source),
            items_per_step=source.items_per_batch,
            monitor=monitor,
            display=display,
            sample_every=sample_every,
            write_checkpoint=checkpoints.save,
            write_best=save_best,
            write_history=lambda: write_history(folder, progress.history, progress.curve),
            begin_states=states.reset if states else lambda: None,
            identity=dict(identity),
            processes=processes,
            judge_first=held_out if told else None,
            stretched=stretched,
            ends=limits.training_ends(progress.judging_s),
            norms=norms,
            ignorant=ignorant,
        )
        watching: list[keras.callbacks.Callback] = []
        if settings.patience is not None:
            watching.append(EarlyStopping(progress, monitor=monitor, mode="min", patience=settings.patience))
        if settings.plateau_patience is not None:
            watching.append(
                ReduceLROnPlateau(
                    progress,
                    monitor=monitor,
                    mode="min",
                    patience=settings.plateau_patience,
                    factor=settings.plateau_factor,
                )
            )
        most_s = limits.training_s(settings, progress.judging_s)
        plan = RunPlan(settings.epochs, len(source), source.items_per_batch, source.item, bits, most_s)
        with contextlib.ExitStack() as telling:
            if processes.first:
                remove_unfinished(folder)
                remove_unfinished(output)
                telling.enter_context(telemetry)
            display.start(plan)
            for said in limits.sentences(judged, source.item):
                display.message(said)
            try:
                with stop_signals(conductor, display):
                    stopped_early = _fit_parts(
                        trainer,
                        processes.share(source),
                        held_out,
                        settings.epochs,
                        own_callbacks,
                        watching,
                        conductor,
                        checkpoint,
                    )
            except Interrupted:
                stopped_early = False
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
                progress.finished = status
                conductor.save()
            telemetry.status = status
        fixing.close()
        # What the first has written, all may read from here on.
        processes.wait()
        model = processes.own(model, settings.implementation)
        best_is_last = progress.best_epoch == len(progress.history)
        if processes.first and status != "interrupted" and progress.best is not None and not best_is_last:
            model.load_weights(output)
        return TrainingResult(
            model=model,
            status=status,
            output=output,
            folder=folder,
            history=tuple(progress.history),
            best_epoch=progress.best_epoch,
            best=progress.best,
            seconds=progress.seconds,
            precision=progress.precision,
            kernels=kernels,
            here=processes.first,
            judged=judged,
            first_loss=progress.first_loss,
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
    parts = [(position.epoch, position.batch, position.epoch + 1)] if position.batch else []
    first_whole = position.epoch + (1 if position.batch else 0)
    if first_whole < epochs:
        parts.append((first_whole, 0, epochs))
    for epoch, start, stop in parts:
        with contextlib.ExitStack() as opened:
            batches = KerasBatches(source, start=start, epoch=epoch)
            conductor.begin_part(start, checkpoint if start else None, batches)
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
