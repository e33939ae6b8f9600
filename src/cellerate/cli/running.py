"""What the three training verbs share around the training itself, so that all runs start, report and end alike."""

import contextlib
import functools
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import typer

from cellerate.cli.backend import start_backend
from cellerate.cli.output import command_to_resume, keep_stdout, note, silence
from cellerate.machine.environment import PROBE_VARIABLE, select_backend

if TYPE_CHECKING:
    from cellerate.training.display import Display
    from cellerate.training.loop import TrainingResult


def start_training(backend: str | None, processes: int, probe: bool, quiet: bool) -> bool:
    """Starts the backend of a training, in the group of processes that this one belongs to.

    With several `processes` it runs this command in as many, and exits as they do.

    Returns:
        Whether several processes train.

    Raises:
        CellerateError: The backend or the group cannot be started, or several processes are no faster than one.
    """
    from cellerate.distributed.group import check_backend, join, own_place

    place = own_place()
    # Beside several processes a probe times one, which has this command, but no place in a group.
    if place is None and processes > 1 and PROBE_VARIABLE not in os.environ:
        from cellerate.distributed import launch

        check_backend(select_backend(backend))
        command = [sys.executable, *sys.argv]
        if probe:
            found = launch.probe(command, processes)
            if not quiet:
                note(found)
        raise typer.Exit(launch.launch(command, processes))
    if PROBE_VARIABLE in os.environ or (place is not None and place.number):
        silence()
    if place is None:
        start_backend(backend)
        return False
    # The processes of JAX tell on stdout whom they are connected to.
    keep_stdout()
    start_backend(backend, functools.partial(join, place))
    return True


def training_display(quiet: bool) -> "Display":
    """The display of a run."""
    from cellerate.training.display import Display, Terminal

    return Display() if quiet else Terminal()


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
        "history": list(result.history),
    }


def finish_training(result: "TrainingResult", quiet: bool, next_steps: Sequence[str]) -> None:
    """Says where the results are and what to do next; after an interrupted run it exits with 130."""
    if result.status == "interrupted":
        where = f"after epoch {len(result.history)}" if result.history else "in its first epoch"
        note(f"interrupted {where}; nothing is lost. To go on:\n  {command_to_resume()}")
        raise typer.Exit(130)
    if quiet:
        return
    if result.status == "time limit":
        note(f"stopped at the time limit. To go on:\n  {command_to_resume()}")
    if result.status == "stopped early":
        note(f"stopped early: epoch {result.best_epoch} was the best.")
    note(f"model: {result.output}   history: {result.folder}/history.csv")
    note("next:\n" + "\n".join(f"  {step}" for step in next_steps))


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
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield None
        return
    bar = Progress(
        TextColumn(what),
        BarColumn(bar_width=20),
        DownloadColumn() if in_bytes else MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
    )
    task = None

    def report(done: int, total: int) -> None:
        nonlocal task
        if task is None:
            bar.start()
            task = bar.add_task("", total=total or None)
        bar.update(task, completed=done)
        if 0 < total <= done:
            bar.stop()

    try:
        yield report
    finally:
        bar.stop()
