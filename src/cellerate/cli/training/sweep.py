"""`cellerate sweep`: a task, or a model that is trained already."""

from typing import Annotated

from cellerate.cli.options import operand, with_settings
from cellerate.cli.training.sweep_running import Asked, run_sweep, sweep_verb, swept, task_axes
from cellerate.data.settings import FILLED_IN, Reading, TableOptions
from cellerate.tasks.settings import (
    AutoencoderArchitecture,
    ForecastArchitecture,
    LineOptions,
    ReadingOptions,
    SeriesOptions,
    TextArchitecture,
    TextOptions,
)

_TASKS = ("text", "series", "embed")
# The sizes of a model that is trained already are what they are.
_AXES = {
    name: (axis, task)
    for task in reversed(_TASKS)
    for name, (axis, _) in task_axes(task).items()
    if axis.part != "architecture"
}


@with_settings("data", TextOptions, leave_out=["paths", "carry_states", *swept("text")], panel="Text")
@with_settings("architecture", TextArchitecture, leave_out=swept("text"), panel="Model")
@sweep_verb(task_axes("text"), "text")
def sweep_text(
    paths: Annotated[list[str], operand("Text files, folders or glob patterns.")],
    asked: Asked,
    data: TextOptions,
    architecture: TextArchitecture,
) -> None:
    """Train models of text with several settings beside each other, briefly, and say what each brings.

    Examples:
        cellerate sweep text book.txt --batch-size 8..512

        cellerate sweep text book.txt --units 64..512 --learning-rate 1e-4..1e-2 --time-budget 600

        cellerate sweep text book.txt --layer-norm both --layers 1,2 --device cpu,gpu -o sweep/
    """
    run_sweep("text", paths, asked, data, architecture)


@with_settings("data", SeriesOptions, leave_out=["paths", "reading", *swept("series")], panel="Series")
@with_settings("reading", Reading, leave_out=FILLED_IN, panel="Series")
@with_settings("table", TableOptions, panel="Tables")
@with_settings("architecture", ForecastArchitecture, leave_out=swept("series"), panel="Model")
@sweep_verb(task_axes("series"), "series")
def sweep_series(
    paths: Annotated[
        list[str],
        operand("Tables (CSV, Parquet, Arrow, Excel, JSON lines, .npy), or a packed series."),
    ],
    asked: Asked,
    data: SeriesOptions,
    reading: Reading,
    table: TableOptions,
    architecture: ForecastArchitecture,
) -> None:
    """Train forecasters with several settings beside each other, briefly, and say what each brings.

    Examples:
        cellerate sweep series ETTh1.csv --target OT --batch-size 1..4096 --device cpu,gpu

        cellerate sweep series ETTh1.csv --target OT --bidirectional both --units 16..128

        cellerate sweep series ETTh1.csv --target OT --window 48..192 --time-budget 300 -o sweep/
    """
    run_sweep("series", paths, asked, data, reading, table, architecture)


@with_settings("data", LineOptions, leave_out=["path", *swept("embed")], panel="Lines")
@with_settings("architecture", AutoencoderArchitecture, leave_out=swept("embed"), panel="Model")
@sweep_verb(task_axes("embed"), "embed")
def sweep_embed(
    path: Annotated[str, operand("A text file with one entry per line, or a Parquet file.")],
    asked: Asked,
    data: LineOptions,
    architecture: AutoencoderArchitecture,
) -> None:
    """Train autoencoders of lines with several settings beside each other, briefly, and say what each brings.

    Examples:
        cellerate sweep embed lines.txt --batch-size 16..256

        cellerate sweep embed lines.txt --latent 32..256 --optimizer adam,lion -o sweep/
    """
    run_sweep("embed", [path], asked, data, architecture)


@with_settings("reading", ReadingOptions, panel="Reading of series")
@with_settings("table", TableOptions, panel="Tables")
@sweep_verb(_AXES, *_TASKS)
def sweep_model(
    model: Annotated[str, operand("A model that `train` wrote.")],
    paths: Annotated[list[str], operand("Data of the model's task.")],
    asked: Asked,
    reading: ReadingOptions,
    table: TableOptions,
) -> None:
    """Train a model further with several settings beside each other, briefly, and say what each brings.

    The settings of its training hold where none are given. The word `model` may be left out.

    Examples:
        cellerate sweep book.keras book.txt --batch-size 8..512

        cellerate sweep model ett.keras ETTh1.csv --learning-rate 1e-4..1e-2 -o sweep/
    """
    run_sweep(model, paths, asked, reading, table)
