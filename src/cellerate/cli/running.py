"""The common part of the three training verbs around the training: all runs start, report and end alike."""

import contextlib
import dataclasses
import functools
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from cellerate.cli.backend import start_backend
from cellerate.cli.output import (
    INTERRUPTED,
    command_to_resume,
    is_silent,
    keep_stdout,
    notify,
    show,
    silence,
)
from cellerate.cli.tables import warnings_as_notes
from cellerate.cli.words import in_options
from cellerate.distributed.settings import ProcessSettings
from cellerate.errors import CheckpointError, OutputError
from cellerate.format import size
from cellerate.live_line import LiveLine
from cellerate.machine.environment import LAUNCHED_VARIABLE, PROBE_VARIABLE, select_backend
from cellerate.messages import alternatives, marked

if TYPE_CHECKING:
    from cellerate.training.loop import TrainingResult
    from cellerate.training.telemetry import Display

Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Replace a model, or a run that has not ended, of the same name.")
]

# Exit codes from here on are those of a signal; Ctrl-C, which is one of them, has been answered.
_KILLED = 131
# Shorter runs are trials. In an epoch that gains less than this share of the loss, noise may be all of it.
_FEWEST_EPOCHS, _MUCH = 3, 0.02


class Tasks(TyperGroup):
    """A verb whose commands are the tasks, such as `train`."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Name the tasks if a file stands in the place of a task, as in `train book.txt`."""
        if args and args[0] not in self.commands and Path(args[0]).exists():
            tasks = alternatives(list(self.commands))
            ctx.fail(f"Say what to train on {args[0]}: {tasks}, as in `{ctx.command_path} text {args[0]}`.")
        return super().resolve_command(ctx, args)


def start_training(
    backend: str | None,
    parallel: ProcessSettings,
    data: Sequence[str],
    output: Path,
    quiet: bool,
    *,
    resume: bool,
    overwrite: bool,
) -> bool:
    """Starts the backend of a training, in the group of processes that this one belongs to.

    Before that it says what it is about to do, because frameworks take seconds to start.

    With several processes it runs this command in as many, and exits as they do.

    Args:
        backend: The backend, as `start_backend` takes it.
        parallel: How many processes there are to be.
        data: What will be read.
        output: The model that will be written.
        quiet: Whether to say nothing.
        resume: Whether it goes on with an earlier run.
        overwrite: Whether it replaces one.

    Returns:
        Whether several processes train.

    Raises:
        CellerateError: The data are not there, the output cannot be written or is there already, the backend or the
            group cannot be started, or several processes are no faster than one.
    """
    from cellerate.data.files import check_exist
    from cellerate.distributed.group import check_backend, join, own_place
    from cellerate.training.start import check_output

    selected = select_backend(backend)
    check_exist(data)
    check_output(output, resume=resume, overwrite=overwrite)

    place, probing = own_place(), PROBE_VARIABLE in os.environ
    # A single process, of a probe or of Ray, has this command, but no place in a group.
    launched = LAUNCHED_VARIABLE in os.environ
    if place is None and not launched and (parallel.count > 1 or parallel.ray is not None):
        check_backend(selected)
        run = _runner(parallel, output)
        if parallel.probe and parallel.count > 1:
            from cellerate.distributed.launch import probe

            found = probe(run, parallel.count, output.parent if output.parent.is_dir() else Path())
            if not quiet:
                notify(found)
        code = run(parallel.count, {})
        if (code == 1 or code >= _KILLED) and any(output.with_suffix(".run").glob("checkpoint-*")):
            notify(f"the last checkpoint is as it was. To go on:\n  {command_to_resume()}")
        raise typer.Exit(code)
    if probing or (place is not None and place.number):
        silence()
    if not quiet:
        more = f" and {len(data) - 1} more" if len(data) > 1 else ""
        notify(f"training {output} on {data[0]}{more}: starting {selected}")
    if place is None:
        start_backend(backend)
        return False
    # A launcher of the user's does not know of stages.
    os.environ.update(parallel.variables())
    # The processes of JAX tell on stdout whom they are connected to.
    keep_stdout()
    start_backend(backend, functools.partial(join, place))
    return True


def _runner(parallel: ProcessSettings, output: Path) -> Callable[[int, Mapping[str, str]], int]:
    """The launcher of this command in a number of processes, with variables for their environment."""
    command = [sys.executable, *sys.argv]

    def variables(count: int, extra: Mapping[str, str]) -> dict[str, str]:
        return {**(parallel.variables() if count > 1 else {}), **extra}

    if parallel.ray is None:
        from cellerate.distributed.launch import launch

        return lambda count, extra: launch(command, count, variables(count, extra))
    from cellerate.distributed.ray_launch import launch_on_ray

    address = parallel.ray

    def on_ray(count: int, extra: Mapping[str, str]) -> int:
        try:
            return launch_on_ray(
                command,
                address,
                count,
                least=min(count, parallel.min_processes or count),
                run=output.with_suffix(".run"),
                extra=variables(count, extra),
                say=notify,
                emit=show,
            )
        except KeyboardInterrupt:
            notify(f"interrupted. To go on:\n  {command_to_resume()}")
            return INTERRUPTED

    return on_ray


@contextlib.contextmanager
def training_display(
    quiet: bool, output: Path, reading: str = "", *, in_bytes: bool = False
) -> Iterator["Display"]:
    """The display of a run, around all of it.

    Args:
        quiet: Whether it shows nothing.
        output: The model that is written.
        reading: The title of the bar while data are read; "" for no bar.
        in_bytes: Whether the bar counts bytes.

    Yields:
        The display.

    Raises:
        OutputError: A file could not be written; the message says what is kept, and the command to go on.
        typer.Exit: Ctrl-C outside the training itself; what is kept, and the command to go on, were shown.
    """
    from cellerate.training.telemetry import Display, TerminalProgress

    class Program(Display if quiet or is_silent() else TerminalProgress):  # type: ignore[misc]
        """The display of a process that may end without the frameworks in it."""

        def progress(self, done: int, total: int) -> None:
            """Shows how far reading has come."""
            if bar is not None:
                bar(done, total)

        def message(self, text: str) -> None:
            """Shows a sentence of the library, in the words of the command line."""
            super().message(in_options(text))

        def end_at_once(self) -> None:
            """Ends the process: an exception would meet threads that still compute, and tracebacks or a crash."""
            # The interrupted program may be printing, which cannot be done twice at a time.
            with contextlib.suppress(RuntimeError):
                self.stop()
            os.write(2, b"stopped at once: what was saved is as it was.\n")
            os._exit(INTERRUPTED)

    with progress_bar(reading, quiet or not reading, in_bytes=in_bytes) as bar, warnings_as_notes():
        try:
            yield Program()
        except OutputError as error:
            command = _way_on(output)
            if command is None:
                # Refusals at the beginning come before anything is made.
                raise
            raise OutputError(
                f"{marked(error)} The last checkpoint is kept in {output.with_suffix('.run')}. Once files can be "
                f"written again, go on with: {command}"
            ) from error
        except KeyboardInterrupt:
            # The training itself returns when it is interrupted: this is Ctrl-C before it, or while it is judged.
            command = _way_on(output)
            if command is None:
                raise
            notify(
                f"interrupted; the last checkpoint is kept in {output.with_suffix('.run')}. To go on:\n  {command}"
            )
            raise typer.Exit(INTERRUPTED) from None


def _way_on(output: Path) -> str | None:
    """The command that continues a run from its newest checkpoint; None for a run without any."""
    from cellerate.training.checkpoint_folder import CheckpointFolder

    newest = None
    with contextlib.suppress(CheckpointError):
        newest = CheckpointFolder(output.with_suffix(".run")).newest(arrays=False)
    if newest is None:
        return None
    # A run that has trained all its epochs goes on only if it is to train more.
    more = f" --epochs {newest.position.epoch + 1}" if newest.progress.get("finished") else ""
    return f"{command_to_resume()}{more}"


def training_report(result: "TrainingResult") -> dict[str, Any]:
    """The `--json` output of a run."""
    return {
        "status": result.status,
        "output": str(result.output),
        "run_folder": str(result.folder),
        "epochs": len(result.history),
        "best_epoch": result.best_epoch,
        "best_loss": result.best,
        "seconds": result.seconds,
        "precision": result.precision,
        "kernels": result.kernels,
        "judged": result.judged and result.judged._asdict(),
        "stages": [dataclasses.asdict(stage) for stage in result.stages],
        "history": list(result.history),
    }


def finish_training(result: "TrainingResult", quiet: bool, next_steps: Sequence[str]) -> None:
    """Says where the results are and what to do next; after an interrupted run it exits with 130."""
    if result.status == "interrupted":
        where = f"after epoch {len(result.history)}" if result.history else "in its first epoch"
        notify(f"interrupted {where}; nothing is lost. To go on:\n  {command_to_resume()}")
        raise typer.Exit(INTERRUPTED)
    if quiet:
        return
    if result.status == "time limit":
        notify(f"stopped at the time limit. To go on:\n  {command_to_resume()}")
    if result.status == "stopped early":
        best = f"epoch {result.best_epoch}" if result.best_epoch else "the model before the first epoch"
        notify(f"stopped early: {best} was the best.")
    if result.status == "finished" and _still_improves(result):
        again = re.sub(r" --epochs[= ]\d+", "", command_to_resume())
        notify(
            "the last epoch was the best by far, so more epochs will help. To go on:\n  "
            f"{again} --epochs {2 * len(result.history)}"
        )
    for stage in result.stages:
        notify(
            f"stage {stage.stage + 1} ({', '.join(stage.layers)}): {size(stage.memory_bytes)} of memory, waited "
            f"{stage.waiting:.0%} of the time (the bubble of equal stages is {stage.bubble:.0%})"
        )
    notify(f"model: {result.output}   history: {result.folder}/history.csv")
    notify("next:\n" + "\n".join(f"  {step}" for step in next_steps))


def _still_improves(result: "TrainingResult") -> bool:
    """True if the last epoch made the model much better than all before it."""
    losses = [one.get("val_loss", one["loss"]) for one in result.history]
    if len(losses) < _FEWEST_EPOCHS or result.best_epoch != len(losses):
        return False
    before = min(losses[:-1])
    return bool(before - losses[-1] > _MUCH * abs(before))


@contextlib.contextmanager
def progress_bar(
    what: str, quiet: bool, *, in_bytes: bool = False
) -> Iterator[Callable[[int, int], None] | None]:
    """A bar on a terminal that goes when all is done; None where there is none to show.

    Args:
        what: What is being done, as "reading".
        quiet: Whether to show nothing.
        in_bytes: Whether what is counted are bytes.

    Yields:
        What to call with how much is done and how much there is, 0 if that is not known.
    """
    line = None if quiet else LiveLine()
    if line is None or not line.on_terminal:
        yield None
        return
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

    counted = DownloadColumn() if in_bytes else MofNCompleteColumn()
    begun = False

    def report(done: int, total: int) -> None:
        nonlocal begun
        if not begun:
            begun = True
            bar = BarColumn(bar_width=20)
            line.start(TextColumn(what), bar, counted, TimeRemainingColumn(), total=total or None)
        line.update(completed=done)
        if 0 < total <= done:
            line.stop()

    try:
        yield report
    finally:
        line.stop()
