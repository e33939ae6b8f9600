"""`cellerate sweep embed`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from cellerate.cli.options import Backend, Config, Json, Quiet, operand, with_settings
from cellerate.cli.training.sweep_running import (
    UNUSED,
    Folder,
    OverwriteSweep,
    ResumeSweep,
    SweepOptions,
    given_fields,
    run_sweep,
    swept,
    task_axes,
    with_axes,
)
from cellerate.optimization.sweep import SweepSettings
from cellerate.tasks.settings import AutoencoderArchitecture, LineOptions
from cellerate.training.settings import TrainingSettings


@with_settings("data", LineOptions, leave_out=["path", *swept("embed")], panel="Lines")
@with_settings("architecture", AutoencoderArchitecture, leave_out=swept("embed"), panel="Model")
@with_settings("training", TrainingSettings, leave_out=[*UNUSED, *swept("embed")], panel="Training")
@with_settings("settings", SweepSettings, panel="Sweep")
@with_axes("asked", task_axes("embed"), panel="Swept")
def sweep_embed(
    path: Annotated[
        str,
        operand("A text file with one entry per line, or a Parquet file."),
    ],
    asked: Mapping[str, Any],
    settings: SweepSettings,
    data: LineOptions,
    architecture: AutoencoderArchitecture,
    training: TrainingSettings,
    output: Folder = Path("sweep"),
    resume: ResumeSweep = False,
    overwrite: OverwriteSweep = False,
    backend: Backend = None,
    json: Json = False,
    quiet: Quiet = False,
    config: Config = None,
) -> None:
    """Train autoencoders of lines with several settings beside each other, briefly, and say what each brings.

    Examples:
        cellerate sweep embed lines.txt --batch-size 16..256

        cellerate sweep embed lines.txt --latent 32..256 --optimizer adam,lion -o sweep/
    """
    how = SweepOptions(output, resume, overwrite, backend, json, quiet)
    run_sweep("embed", [path], settings, given_fields(data, architecture, training) | dict(asked), how)
