"""The run of `optimize`: opening, the stages, the verdict and the report."""

import contextlib
import dataclasses
import datetime
import functools
import hashlib
import json
import os
import shlex
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Unpack

import keras
import numpy as np

import cellerate
from cellerate.data.settings import TableOptions
from cellerate.errors import ConfigError, OutputError
from cellerate.files import LOCK, check_writable, exclusive, interrupted_by_sigterm
from cellerate.keras_graph import keras2
from cellerate.keywords import OptimizeKeywords
from cellerate.machine.doctor import busy_now
from cellerate.machine.environment import machine, processors, versions
from cellerate.models.rewrite import describe
from cellerate.models.storage import TaskRecord, save_model
from cellerate.optimization.budget import left_out, verdict_s
from cellerate.optimization.context import Context
from cellerate.optimization.listener import StageListener, TerminalListener
from cellerate.optimization.probe_client import PATIENCE_S, Probe
from cellerate.optimization.processes import Workers
from cellerate.optimization.schedule import run_stages
from cellerate.optimization.settings import NESTED, OptimizeSettings
from cellerate.optimization.stages.verdict import verdict
from cellerate.optimization.state import FILE_NAME, Choices, State, load_state, save_state
from cellerate.optimization.training import policy_of
from cellerate.optimization.workloads.base import Workload
from cellerate.optimization.workloads.opening import open_workload
from cellerate.report.html import write_html
from cellerate.report.markdown import write_markdown
from cellerate.report.record import SCHEMA, Run, write_run
from cellerate.settings import differing_options, record_of, takes_fields_of
from cellerate.tasks.describe import CardFigure, file_info, write_card
from cellerate.tasks.settings import ReadingOptions
from cellerate.training.precision import gpu_visible


@takes_fields_of(OptimizeSettings, ReadingOptions, TableOptions, leave_out=NESTED)
def optimize(
    model: str | os.PathLike[str] | keras.Model,
    data: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    output: str | os.PathLike[str] = "optimized",
    *,
    record: TaskRecord | None = None,
    restart: bool = False,
    verbose: bool = False,
    **options: Unpack[OptimizeKeywords],
) -> Run:
    """Tunes and shrinks a trained model within an allowed loss of quality, and reports every decision.

    First the model is measured as it runs today: a process with only Keras trains it, judges it and uses it. The
    stages follow, each with a share of the time, and each is kept if it helps: kernels, batch size, sequence length,
    pipeline, precision, quantizing, pruning, distilling. The best model within the allowed loss is written as
    `optimized.cell` and `optimized.keras`. Comparisons are timed in turns. Each finished stage is saved to disk, so
    the same call continues an interrupted run.

    Args:
        model: A `.keras` file that Cellerate wrote, or a Keras model together with its `record`.
        data: Files for its task: the training data, or similar data.
        output: The folder of the run.
        record: The record of a model that is not given as a file, as `load_model` returns it.
        restart: Discards an earlier run in the folder.
        verbose: Shows progress on stderr.
        options: The settings of the run, the format of tables of series, and options of reading them that differ from
            the training; listed below.

    Returns:
        The run, which the folder has as `report.json`, `report.html` and `report.md`, with a card of the chosen model
        as `card.md`. After Ctrl-C its status is "interrupted".

    Raises:
        CellerateError: The model, the data, a setting or the folder cannot be used.

    Example:
        >>> found = cellerate.optimize("book.keras", "book.txt", max_quality_loss=0.01)
        >>> print(found.verdict.sentence)
    """
    reading, table = record_of(ReadingOptions, options), record_of(TableOptions, options)
    settings = record_of(OptimizeSettings, options, reading=reading, table=table)
    listener = TerminalListener() if verbose else StageListener()
    return run(model, data, output, settings, record=record, restart=restart, listener=listener)


def run(
    model: str | os.PathLike[str] | keras.Model,
    data: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    output: str | os.PathLike[str],
    settings: OptimizeSettings,
    *,
    record: TaskRecord | None = None,
    restart: bool = False,
    listener: StageListener | None = None,
    command: str | None = None,
) -> Run:
    """Run `optimize` with its settings as a record.

    Args:
        model: A `.keras` file that Cellerate wrote, or a model, which is then written into the folder.
        data: The training data, or similar data.
        output: The folder of the run.
        settings: The options.
        record: The record of a model that is not given as a file.
        restart: Discards an earlier run in the folder.
        listener: The listener that receives progress.
        command: The command that reproduces the run; None for a command line.

    Returns:
        The run; after Ctrl-C its status is "interrupted", and the next call continues it.

    Raises:
        OutputError: Another process runs in the folder.
        CellerateError: The model, the data or the folder cannot be used, or the baseline cannot be measured.
    """
    began = time.perf_counter()
    listener, folder = listener or StageListener(), Path(output)
    if folder.exists() and not folder.is_dir():
        raise OutputError(f"cannot write into {folder}: it is a file. Choose a folder (-o).")
    # Checked before this run starts processes of its own; reported only once there is something to measure.
    busy = busy_now()
    with _own(folder), contextlib.ExitStack() as stack:
        check_writable(folder / FILE_NAME)
        paths = [os.fspath(path) for path in ([data] if isinstance(data, str | os.PathLike) else data)]
        given = model if isinstance(model, keras.Model) else None
        file = folder / "original.keras" if given is not None else _checked_file(model, record, folder)
        start = functools.partial(
            Probe,
            file,
            paths,
            seed=settings.seed,
            reading=settings.reading,
            table=settings.table,
            backend=keras.config.backend(),
            patience_s=PATIENCE_S,
        )
        processes = stack.enter_context(contextlib.closing(Workers(start)))
        open_run = functools.partial(_open, data=paths, folder=folder, settings=settings, restart=restart)
        if given is not None:
            # Written to another name than the file of an earlier run, whose model may be another one.
            beside = folder / "given.keras"
            try:
                save_model(given, beside, record)
                work, state = open_run(beside)
                beside.replace(file)
            finally:
                with contextlib.suppress(OSError):
                    beside.unlink()
        else:
            if restart or not (folder / FILE_NAME).exists():
                # The baseline comes first: its processes open the data while this process does so, too.
                processes.begin()
            work, state = open_run(file)
        if busy:
            listener.message(busy)
        if state.passes:
            done = sum(one.status == "done" for one in state.passes)
            listener.message(
                f"continuing the run in {folder}: {done} {'stage is' if done == 1 else 'stages are'} done"
            )
        context = Context(
            workload=work,
            settings=settings,
            folder=folder,
            model_file=file,
            data=paths,
            backend=keras.config.backend(),
            state=state,
            listener=listener,
            processes=processes,
        )
        return _finish(context, began, command or _command(file, paths, folder, settings))


def _finish(context: Context, began: float, reproduce: str) -> Run:
    """Run the remaining stages, and write the report."""
    state, folder, listener = context.state, context.folder, context.listener
    before = state.seconds
    try:
        with _stopping(listener):
            waiting = run_stages(context, began, before)
            listener.begin("Verdict")
            left = context.settings.time_budget - before - (time.perf_counter() - began)
            context.give(None, spare_s=max(0.0, left - verdict_s(context)))
            found = verdict(context)
    except KeyboardInterrupt:
        state.seconds = before + time.perf_counter() - began
        save_state(state, folder)
        result = _record(context, reproduce, "interrupted", None)
    else:
        state.seconds = before + time.perf_counter() - began
        save_state(state, folder)
        notes = left_out(context, state.passes, waiting)
        found = dataclasses.replace(found, warnings=(*found.warnings, *notes))
        result = _record(context, reproduce, "finished", found)
    write_run(result, folder)
    write_html(result, folder)
    write_markdown(result, folder)
    _write_model_card(result, folder)
    return result


def _write_model_card(run: Run, folder: Path) -> None:
    """Write `card.md` beside the packed model, if the verdict has left one."""
    packed = folder / "optimized.cell"
    if run.verdict is not None and packed.is_file():
        write_card(folder / "card.md", file_info(packed), _judged(run))


def _judged(run: Run) -> list[CardFigure]:
    """The quality of the chosen model on the part that no choice has seen."""
    found = {} if run.verdict is None else {one.role: one.quality.value for one in run.verdict.tested}
    if "before" not in found:
        return []
    name, unit = run.metric.name, run.metric.unit
    metric = name if name.startswith(unit) else f"{name} {unit}"
    return [CardFigure(metric, run.metric.test_source, found.get("after", found["before"]), found["before"])]


@contextlib.contextmanager
def _own(folder: Path) -> Iterator[None]:
    """A block in which no other process runs in the folder."""
    with exclusive(folder):
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                (folder / LOCK).unlink()


@contextlib.contextmanager
def _stopping(listener: StageListener) -> Iterator[None]:
    """Removes the live line at the end, and turns a SIGTERM into an orderly end."""
    with interrupted_by_sigterm():
        try:
            yield
        finally:
            listener.stop()


def _checked_file(model: str | os.PathLike[str], record: TaskRecord | None, folder: Path) -> Path:
    """Return the path of a model's file, unless the run would overwrite it."""
    keras2.refuse(model)
    if record is not None:
        raise ConfigError("record is for a model in memory; a file has its own: leave record out.")
    own = (folder / "optimized.keras", folder / "candidates")
    if any(Path(model).resolve().is_relative_to(path.resolve()) for path in own):
        raise ConfigError(
            f"{model} is one of the files that this run writes, or removes: choose another folder (-o)."
        )
    return Path(model)


def _open(
    file: Path, *, data: Sequence[str], folder: Path, settings: OptimizeSettings, restart: bool
) -> tuple[Workload, State]:
    """Open a model, its data, and their run in the folder, or a new run if the folder has none."""
    work = open_workload(file, data, seed=settings.seed, reading=settings.reading, table=settings.table)
    identity = _identity(work, settings)
    if restart:
        _clear(folder)
    state = load_state(folder, identity)
    if state is not None:
        work.judge_on(state.judged_share)
    return work, state or State(identity=identity, choices=_first_choices(work, settings), started=_now())


def _identity(work: Workload, settings: OptimizeSettings) -> dict[str, str]:
    """The values that tell runs apart. A run with more time, or with other stages, is the same run and continues."""
    free = ("time_budget", "only", "skip")
    kept_fields = {name: value for name, value in settings.record().items() if name not in free}
    return {
        "model": _digest(work),
        # The parts too: what was judged on others cannot be compared.
        "data": f"{work.fingerprint}; {work.metric.source}; {work.metric.test_source}",
        "settings": json.dumps(kept_fields, sort_keys=True),
        "backend": keras.config.backend(),
        "version": cellerate.__version__,
    }


def _digest(work: Workload) -> str:
    """Return a digest of a model; a digest of its file would change, because Keras writes the time into it."""
    description = [describe(work.model), work.record.payload]
    digest = hashlib.sha256(json.dumps(description, sort_keys=True, default=str).encode())
    for weights in work.model.get_weights():
        digest.update(np.ascontiguousarray(weights).tobytes())
    return digest.hexdigest()[:16]


def _first_choices(work: Workload, settings: OptimizeSettings) -> Choices:
    return Choices(
        implementation="keras",
        training_precision=policy_of(work.model),
        batch_size=settings.batch_size or work.batch_size,
        accumulate=1,
        length=work.length,
        packed_precision="float32",
    )


def _clear(folder: Path) -> None:
    """Remove the files that a run keeps in order to continue; its results stay until there are new ones."""
    (folder / FILE_NAME).unlink(missing_ok=True)
    shutil.rmtree(folder / "candidates", ignore_errors=True)


def _record(context: Context, command: str, status: Any, found: Any) -> Run:
    state, work, settings = context.state, context.workload, context.settings
    here = machine()
    environment = (
        ("processor", f"{here['cpu']}, {processors()} cores"),
        ("memory", f"{here['memory_bytes'] / 1e9:.0f} GB"),
        ("system", str(here["system"])),
        ("Python", str(here["python"])),
        ("backend", context.backend),
        ("device", "GPU" if gpu_visible() else "CPU"),
        *versions().items(),
    )
    return Run(
        schema=SCHEMA,
        model=context.model_file.name,
        task=work.record.task,
        item=work.item,
        data=work.data,
        started=state.started,
        seconds=state.seconds,
        status=status,
        command=command,
        settings=json.loads(json.dumps(settings.record())),
        environment=environment,
        metric=work.metric,
        max_quality_loss=settings.max_quality_loss,
        explanation=tuple(state.explanation),
        passes=tuple(state.passes),
        candidates=tuple(state.candidates),
        training_steps=tuple(state.training_steps),
        verdict=found,
    )


def _command(file: Path, data: Sequence[str], folder: Path, settings: OptimizeSettings) -> str:
    """Return the command line of the run, with the options that differ from the defaults."""
    words = ["cellerate", "optimize", str(file)]
    for path in data:
        words += ["--data", path]
    for record in (settings, settings.reading, settings.table):
        words += differing_options(type(record), vars(record))
    return shlex.join([*words, "-o", str(folder), "--backend", keras.config.backend()])


def _now() -> str:
    return datetime.datetime.now().astimezone().isoformat(timespec="seconds")
