"""Where a run may begin: its output can be written, nobody else writes it, and no earlier run is lost unasked.

Commands ask for it before a framework starts, so this module imports none.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from cellerate.errors import CheckpointError, ConfigError
from cellerate.files import check_writable, exclusive
from cellerate.machine.environment import require
from cellerate.messages import argument

if TYPE_CHECKING:
    from cellerate.training.run import RunOptions

# What a run needs beside Keras, and what for.
_PACKAGES = {"safetensors": "a checkpoint", "psutil": "measuring memory"}


def run_folder(output: str | Path) -> Path:
    """The folder of the run that makes `output`: `book.keras` → `book.run`."""
    return Path(output).with_suffix(".run")


def check_start(run: RunOptions) -> None:
    """Refuses, before any work, a run that could not write its output, lacks a package or would destroy what is there.

    Raises:
        BackendError: A package that the run needs later is not installed.
        OutputError: The model or the run folder cannot be written, or another process is training into it.
        ConfigError: There is a model or an unfinished run of the same name, and neither `resume` nor `overwrite` is
            True; or both are.
        CheckpointError: `resume` is True and there is no usable checkpoint.
    """
    from cellerate.training.parallel import Processes
    from cellerate.training.telemetry import check_trackers

    for package, purpose in _PACKAGES.items():
        require(package, "train", purpose)
    check_trackers(run.training.track)
    folder = run_folder(run.output)
    if folder.exists() and Processes().first:
        with exclusive(folder):
            pass
    check_output(run.output, resume=run.resume, overwrite=run.overwrite)


@contextlib.contextmanager
def own_run(run: RunOptions, *, first: bool) -> Iterator[None]:
    """A block in which no other process trains into the output; checked as by `check_start` once that is certain.

    Of processes that train together, only the `first` keeps others away.
    """
    if not first:
        check_output(run.output, resume=run.resume, overwrite=run.overwrite)
        yield
        return
    with exclusive(run_folder(run.output)):
        # Since `check_start`, which came before hours of reading, perhaps, another run may have ended here.
        check_output(run.output, resume=run.resume, overwrite=run.overwrite)
        yield


def check_output(output: str | Path, *, resume: bool, overwrite: bool) -> None:
    """Refuses a run that could not write its model or would destroy what is there.

    Args:
        output: The model.
        resume: Whether the run goes on with an earlier one.
        overwrite: Whether it replaces one.

    Raises:
        CellerateError: See `check_start`.
    """
    output = Path(output)
    if output.suffix != ".keras":
        raise ConfigError(f"the model is written as a .keras file, not {output.name!r}: name it *.keras.")
    if resume and overwrite:
        raise ConfigError(
            f"{argument('resume', True)} goes on with a run, and {argument('overwrite', True)} replaces it: choose "
            "one of the two."
        )
    check_writable(output)
    folder, newest = run_folder(output), None
    # The first checkpoint creates the run folder, so a run that never begins leaves no empty folder.
    if folder.exists():
        # It imports NumPy, which takes a moment that only an earlier run is worth.
        from cellerate.training.checkpoint_folder import CheckpointFolder

        checkpoints = CheckpointFolder(folder)
        checkpoints.check_writable()
        try:
            newest = checkpoints.newest(arrays=False)
        except CheckpointError:
            if resume:
                raise
    if resume and newest is None:
        raise CheckpointError(
            f"there is no checkpoint to resume in {folder}. Leave {argument('resume', True)} out."
        )
    if resume or overwrite:
        return
    if newest is not None and not newest.progress["finished"]:
        raise ConfigError(
            f"{folder} holds a run that has not ended. Go on with it ({argument('resume', True)}), replace it "
            f"({argument('overwrite', True)}), or give another name."
        )
    if output.exists():
        longer = f"train it for more epochs ({argument('resume', True)}), " if newest is not None else ""
        raise ConfigError(
            f"{output} exists. Replace it ({argument('overwrite', True)}), {longer}or give another name."
        )
