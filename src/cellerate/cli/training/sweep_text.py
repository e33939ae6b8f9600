"""`cellerate sweep text`."""

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
from cellerate.tasks.settings import TextArchitecture, TextOptions
from cellerate.training.settings import TrainingSettings


@with_settings("data", TextOptions, leave_out=["paths", "carry_states", *swept("text")], panel="Text")
@with_settings("architecture", TextArchitecture, leave_out=swept("text"), panel="Model")
@with_settings("training", TrainingSettings, leave_out=[*UNUSED, *swept("text")], panel="Training")
@with_settings("settings", SweepSettings, panel="Sweep")
@with_axes("asked", task_axes("text"), panel="Swept")
def sweep_text(
    paths: Annotated[list[str], operand("Text files, folders or glob patterns.")],
    asked: Mapping[str, Any],
    settings: SweepSettings,
    data: TextOptions,
    architecture: TextArchitecture,
    training: TrainingSettings,
    output: Folder = Path("sweep"),
    resume: ResumeSweep = False,
    overwrite: OverwriteSweep = False,
    backend: Backend = None,
    json: Json = False,
    quiet: Quiet = False,
    config: Config = None,
) -> None:
    """Train models of text with several settings beside each other, briefly, and say what each brings.

    Examples:
        cellerate sweep text book.txt --batch-size 8..512

        cellerate sweep text book.txt --units 64..512 --learning-rate 1e-4..1e-2 --time-budget 600

        cellerate sweep text book.txt --layer-norm both --layers 1,2 --device cpu,gpu -o sweep/
    """
    how = SweepOptions(output, resume, overwrite, backend, json, quiet)
    run_sweep("text", paths, settings, given_fields(data, architecture, training) | dict(asked), how)
