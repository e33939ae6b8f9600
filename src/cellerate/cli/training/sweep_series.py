"""`cellerate sweep series`."""

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
from cellerate.data.settings import FILLED_IN, Reading, TableOptions
from cellerate.optimization.sweep import SweepSettings
from cellerate.tasks.settings import ForecastArchitecture, SeriesOptions
from cellerate.training.settings import TrainingSettings


@with_settings("data", SeriesOptions, leave_out=["paths", "reading", *swept("series")], panel="Series")
@with_settings("reading", Reading, leave_out=FILLED_IN, panel="Series")
@with_settings("table", TableOptions, panel="Tables")
@with_settings("architecture", ForecastArchitecture, leave_out=swept("series"), panel="Model")
@with_settings("training", TrainingSettings, leave_out=[*UNUSED, *swept("series")], panel="Training")
@with_settings("settings", SweepSettings, panel="Sweep")
@with_axes("asked", task_axes("series"), panel="Swept")
def sweep_series(
    paths: Annotated[
        list[str],
        operand("Tables (CSV, Parquet, Arrow, Excel, JSON lines, .npy), or a packed series."),
    ],
    asked: Mapping[str, Any],
    settings: SweepSettings,
    data: SeriesOptions,
    reading: Reading,
    table: TableOptions,
    architecture: ForecastArchitecture,
    training: TrainingSettings,
    output: Folder = Path("sweep"),
    resume: ResumeSweep = False,
    overwrite: OverwriteSweep = False,
    backend: Backend = None,
    json: Json = False,
    quiet: Quiet = False,
    config: Config = None,
) -> None:
    """Train forecasters with several settings beside each other, briefly, and say what each brings.

    Examples:
        cellerate sweep series ETTh1.csv --target OT --batch-size 1..4096 --device cpu,gpu

        cellerate sweep series ETTh1.csv --target OT --bidirectional both --units 16..128

        cellerate sweep series ETTh1.csv --target OT --window 48..192 --time-budget 300 -o sweep/
    """
    how = SweepOptions(output, resume, overwrite, backend, json, quiet)
    options = given_fields(data, reading, table, architecture, training) | dict(asked)
    run_sweep("series", paths, settings, options, how)
