"""Opens the workload of a trained model; each task has a row here, and a class in its own file."""

from collections.abc import Sequence
from pathlib import Path

from cellerate.errors import ConfigError, ModelError
from cellerate.messages import argument
from cellerate.models.storage import load_model
from cellerate.optimization.workloads.base import Workload
from cellerate.optimization.workloads.lines import LineWorkload
from cellerate.optimization.workloads.series import SeriesWorkload
from cellerate.optimization.workloads.text import TextWorkload


def open_workload(model: Path, data: Sequence[str | Path], *, seed: int) -> Workload:
    """Opens a model that Cellerate trained, and data of its task.

    Raises:
        ConfigError: There are no data, or more files than the task reads.
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
    if record.task == "text":
        return TextWorkload(loaded, record, data, seed)
    if record.task == "series":
        return SeriesWorkload(model, loaded, record, data, seed)
    return LineWorkload(model, loaded, record, data, seed)
