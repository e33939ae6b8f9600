"""Packing: a trained Keras model as one small file that runs without Keras.

A module of its own because the command line and the Python API share it; it strings together what opens a
model, what reads its layers and what writes the file.
"""

import os
from pathlib import Path
from typing import Any

import keras

import cellerate
from cellerate.errors import ConfigError
from cellerate.layers.reading import read_program
from cellerate.models.storage import TaskRecord, load_model
from cellerate.runtime.cell import write_cell


def pack(
    model: str | os.PathLike[str] | keras.Model,
    output: str | os.PathLike[str],
    *,
    precision: str = "float32",
    record: TaskRecord | None = None,
) -> None:
    """Writes a model into a `.cell` file, whole or not at all; `cellerate.load` opens it.

    Args:
        model: The file of a Keras model, or a model; of Cellerate or of anyone. It is not changed.
        output: Must end in ".cell".
        precision: How the matrices are kept: "float32", "bfloat16" or "int8".
        record: What belongs to a model that is not given as a file, as `load_model` returns it.

    Raises:
        ConfigError: The output has another suffix, the precision is unknown, or `record` is given with a file.
        ModelError: The file is damaged, or a layer cannot be packed; the message names all of those.
        OutputError: The file could not be written.

    Example:
        >>> cellerate.pack("book.keras", "book.cell", precision="int8")
    """
    target = Path(output)
    if target.suffix != ".cell":
        raise ConfigError(f"a packed model is written to a path ending in '.cell'; got {str(target)!r}.")
    if not isinstance(model, keras.Model):
        if record is not None:
            raise ConfigError("record is for a model, and a file has its own: leave one of them out.")
        model, record = load_model(model)
    header: dict[str, Any] = {"cellerate": cellerate.__version__, "model": model.name}
    if record is not None:
        header |= {"task": record.task, "payload": record.payload}
    write_cell(target, read_program(model), precision=precision, header=header)
