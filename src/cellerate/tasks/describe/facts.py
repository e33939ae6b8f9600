"""The facts of a file of Cellerate: its task, its sizes, its training.

Keras is imported for its own files only.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cellerate.data.series import SUFFIX, is_packed_series, open_packed
from cellerate.errors import DataError
from cellerate.runtime.packed import load
from cellerate.runtime.record import task_facts

_SHOWN = ("epochs", "optimizer", "learning_rate", "precision", "implementation", "backend", "seed")


def file_info(path: Path, *, check: bool = False) -> dict[str, Any]:
    """Reads the description that a file or folder contains.

    Args:
        path: A `.keras` file (or a legacy `.h5` file), a `.cell` file, or the folder of a packed series.
        check: Compare all values of a packed series with their checksums, not a sample. Models are always read whole.

    Returns:
        "file", "format" and "bytes"; of a model "name", "task" (None if Cellerate did not train it), "parameters",
        "dtype" (the precision of a packed model, else the dtype policy), "inputs" and "outputs" (by name, with None for
        any size; empty for a model that is not built or has a `call` of its own), the fields of `TaskFacts` that its
        task has, "data" and "training" as its record has them, and "cellerate", the version that packed it; of a series
        "rows", "columns", "series", "segments" (stretches without a gap), "dtype", "first_time", "last_time", "step",
        "frequency", the "settings" it was packed with, and "checked": "all" or "a sample".

    Raises:
        DataError: There is no such file, it is none of these, or it is damaged.
        ModelError: The model in it is damaged.
    """
    if is_packed_series(path) or path.suffix == SUFFIX:
        return _of_series(path, check=check)
    if path.suffix == ".cell":
        return _of_cell(path)
    if path.suffix not in (".keras", ".h5", ".hdf5"):
        raise DataError(
            f"{path} is not a .keras file, a .cell file, or the folder of a packed series. Give one of these."
        )
    return _of_keras(path)


def counts_of(data: Mapping[str, Any]) -> str:
    """The sizes of the data of a training in words."""
    return ", ".join(f"{value:,} {name}" for name, value in data.items() if isinstance(value, int))


def settings_of(training: Mapping[str, Any]) -> str:
    """The settings of a training that interest most readers."""
    return ", ".join(f"{name} {training[name]}" for name in _SHOWN if name in training)


def _of_keras(path: Path) -> dict[str, Any]:
    from cellerate.keras_graph.graph import inputs_and_outputs
    from cellerate.models.storage import load_model

    model, record = load_model(path)
    inputs, outputs = inputs_and_outputs(model)
    task, payload = (None, None) if record is None else (record.task, record.payload)
    return {
        "file": str(path),
        "format": "keras",
        "bytes": path.stat().st_size,
        "name": model.name,
        "task": task,
        "parameters": sum(math.prod(weight.shape) for weight in model.weights),
        "dtype": model.dtype_policy.name,
        "inputs": inputs,
        "outputs": outputs,
        **_recorded(task, payload, str(path)),
    }


def _of_cell(path: Path) -> dict[str, Any]:
    model = load(path)
    header = model.cell.header
    return {
        "file": str(path),
        "format": "cell",
        "bytes": path.stat().st_size,
        "name": header.get("model"),
        "task": model.task,
        "parameters": model.parameters,
        "dtype": model.precision,
        "inputs": {
            name: [None if size == -1 else size for size in shape] for name, shape in model.inputs.items()
        },
        "outputs": dict.fromkeys(model.outputs),
        **_recorded(model.task, header.get("payload"), str(path)),
        "cellerate": header.get("cellerate"),
    }


def _of_series(path: Path, *, check: bool) -> dict[str, Any]:
    if not is_packed_series(path):
        raise DataError(f"there is no packed series {path}; make one with `cellerate data pack`.")
    packed = open_packed(path, check_all=check)
    times = packed.times
    return {
        "file": str(path),
        "format": "series",
        "bytes": sum(each.stat().st_size for each in path.iterdir() if each.is_file()),
        "rows": len(packed.values),
        "columns": list(packed.columns),
        "series": len(packed.names),
        "segments": len(packed.segments),
        "dtype": packed.values.dtype.name,
        "first_time": None if times is None or not len(times) else packed.form.write(times.min()[None])[0],
        "last_time": None if times is None or not len(times) else packed.form.write(times.max()[None])[0],
        "step": str(packed.step) if packed.step.size else None,
        "frequency": None if packed.frequency is None else packed.frequency.name,
        "settings": packed.settings,
        "fingerprint": packed.fingerprint,
        "checked": "all" if check else "a sample",
    }


def _recorded(task: str | None, payload: Any, model: str) -> dict[str, Any]:
    """The facts in the record of a model."""
    facts = dataclasses.asdict(task_facts(task, payload, model))
    found = {name: value for name, value in facts.items() if value is not None}
    recorded = payload if isinstance(payload, dict) else {}
    return found | {name: recorded.get(name) for name in ("data", "training")}
