"""The common part of verbs that pass over much data: a folder as output, and several processes."""

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cellerate.cli.output import command_to_repeat, notify, print_json, print_result, silence
from cellerate.errors import ConfigError
from cellerate.machine.environment import LAUNCHED_VARIABLE, require

if TYPE_CHECKING:
    from cellerate.tasks.bulk import PassResult

Processes = Annotated[
    int,
    typer.Option(
        "--processes", help="Share the work among this many processes; the output is a folder then.", min=1
    ),
]


def is_folder(output: Path) -> bool:
    """True if an output is meant as a folder of Parquet files: it has no suffix."""
    return output.suffix == "" or output.is_dir()


def check_processes(processes: int, output: Path | None) -> None:
    """Raises `ConfigError` if several processes are to write one file."""
    if processes > 1 and output is not None and not is_folder(output):
        raise ConfigError(
            f"several processes write a folder of Parquet files, and {output} is a file: give a name without a suffix."
        )


@contextlib.contextmanager
def shared_pass(model: Path, processes: int, output: Path, *further: str) -> Iterator[None]:
    """A block that makes a pass into a folder; before it, `processes` processes do the remaining work.

    Args:
        model: The model; a packed model computes on the CPU.
        processes: The number of processes.
        output: The folder, which no other command may write meanwhile.
        further: Further options for the command line of these processes.

    Raises:
        BackendError: The package `pyarrow`, which writes it, is not installed.
        OutputError: Another command is writing there.
        Exit: A process failed; it has said why.
    """
    from cellerate.distributed.group import own_share
    from cellerate.files import exclusive
    from cellerate.tasks.pieces import remove_pass

    require("pyarrow", "tables", "writing Parquet files")
    number, count = own_share()
    if LAUNCHED_VARIABLE in os.environ or count > 1:
        if LAUNCHED_VARIABLE in os.environ or number:
            silence()
        yield
        return
    existed = output.exists()
    with exclusive(output):
        try:
            if processes > 1:
                from cellerate.distributed.launch import launch

                # Options come before a "--" that ends them: right behind the verb.
                command = [sys.executable, *sys.argv[:2], *further, *sys.argv[2:]]
                if code := launch(command, processes, gpus=model.suffix != ".cell"):
                    raise typer.Exit(code)
            yield
        except (KeyboardInterrupt, typer.Exit):
            if any(output.glob("part-*.parquet")) and not further:
                notify(f"what is done stays in {output}. To go on:\n  {command_to_repeat()}")
            raise
        finally:
            # A pass without results leaves nothing behind.
            if not (existed or any(output.glob("part-*.parquet"))):
                remove_pass(output)


def print_pass(done: "PassResult", json: bool) -> None:
    """Prints the result of a pass."""
    record = pass_record(done)
    if json:
        print_json(record)
    else:
        left = "" if done.done == done.pieces else f", of {done.pieces:,}: other processes are still at work"
        print_result(f"{done.output}: {done.done:,} files{left}")


def pass_record(done: "PassResult") -> dict[str, Any]:
    """The result of a pass, as JSON values."""
    return {"output": str(done.output), "files": done.done, "of": done.pieces}
