"""`cellerate sweep model`."""

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
from cellerate.training.settings import TrainingSettings

_TASKS = ("text", "series", "embed")
# The sizes of a model that is trained already are what they are.
_AXES = {
    name: (axis, task)
    for task in reversed(_TASKS)
    for name, (axis, _) in task_axes(task).items()
    if axis.part != "architecture"
}


@with_settings("training", TrainingSettings, leave_out=[*UNUSED, *swept(*_TASKS)], panel="Training")
@with_settings("settings", SweepSettings, panel="Sweep")
@with_axes("asked", _AXES, panel="Swept")
def sweep_model(
    model: Annotated[str, operand("A model that `train` wrote.")],
    paths: Annotated[list[str], operand("Data of the model's task.")],
    asked: Mapping[str, Any],
    settings: SweepSettings,
    training: TrainingSettings,
    output: Folder = Path("sweep"),
    resume: ResumeSweep = False,
    overwrite: OverwriteSweep = False,
    backend: Backend = None,
    json: Json = False,
    quiet: Quiet = False,
    config: Config = None,
) -> None:
    """Train a model further with several settings beside each other, briefly, and say what each brings.

    The settings of its training hold where none are given. The word `model` may be left out.

    Examples:
        cellerate sweep book.keras book.txt --batch-size 8..512

        cellerate sweep model ett.keras ETTh1.csv --learning-rate 1e-4..1e-2 -o sweep/
    """
    how = SweepOptions(output, resume, overwrite, backend, json, quiet)
    run_sweep(model, paths, settings, given_fields(training) | dict(asked), how)
