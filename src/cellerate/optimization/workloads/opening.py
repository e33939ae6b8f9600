"""Opens the workload of a trained model; each task has a row here, and a class in its own file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cellerate.data.settings import TableOptions
from cellerate.errors import ConfigError, ModelError
from cellerate.messages import argument
from cellerate.models.storage import load_model
from cellerate.optimization.workloads.base import Workload
from cellerate.optimization.workloads.lines import LineWorkload
from cellerate.optimization.workloads.series import SeriesWorkload
from cellerate.optimization.workloads.text import TextWorkload
from cellerate.settings import changed_fields
from cellerate.tasks.judging import check_unused
from cellerate.tasks.settings import ReadingOptions


def open_workload(
    model: Path,
    data: Sequence[str | Path],
    *,
    seed: int,
    reading: ReadingOptions = ReadingOptions(),  # noqa: B008 (frozen)
    table: TableOptions = TableOptions(),  # noqa: B008 (frozen)
) -> Workload:
    """Opens a model that Cellerate trained, and data of its task.

    Args:
        model: The model's file.
        data: Files for its task.
        seed: The seed of everything random.
        reading: Options of reading tables that differ from the training.
        table: The format of tables, where it cannot be detected.

    Raises:
        ConfigError: There are no data, more files than the task reads, or options of tables for another task.
        DataError: The data cannot be used.
        ModelError: The model cannot be opened, or its task is unknown.
    """
    if not data:
        raise ConfigError(f"there are no data: give the training data or similar data ({argument('data')}).")
    loaded, record = load_model(model)
    if record is None:
        raise ModelError(
            f"{model} does not say what it is for (no Cellerate record). Train it a little with `cellerate train "
            "TASK DATA --model` first, which adds one; to shrink any Keras model from Python there are "
            "cellerate.quantize, cellerate.prune and cellerate.distill."
        )
    if record.task == "series":
        return SeriesWorkload(model, loaded, record, data, seed, reading=reading, table=table)
    check_unused(changed_fields(reading) | changed_fields(table))
    if record.task == "text":
        return TextWorkload(loaded, record, data, seed)
    return LineWorkload(model, loaded, record, data, seed)
