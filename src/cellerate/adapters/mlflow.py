"""Packed models as a flavour of MLflow: saved, logged, loaded, and served by `mlflow models serve`.

The flavour "cellerate" keeps the `.cell` file unchanged. MLflow's own tools call the flavour "python_function": it
answers prompts with texts, rows of a series with a forecast, lines with vectors, and passes other data to `predict`.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from cellerate import __version__
from cellerate.errors import ConfigError
from cellerate.machine.environment import require
from cellerate.runtime.packed import PackedModel, load

require("mlflow", "mlflow", "cellerate.adapters.mlflow")

from mlflow import artifacts, pyfunc  # noqa: E402
from mlflow.models import Model, ModelSignature  # noqa: E402
from mlflow.models.model import MLMODEL_FILE_NAME  # noqa: E402

FLAVOR = "cellerate"
"""The name of the flavour in the file MLmodel."""
_FILE = "model.cell"


def save_model(
    cell: str | os.PathLike[str],
    path: str | os.PathLike[str],
    mlflow_model: Model | None = None,
    *,
    signature: ModelSignature | None = None,
    input_example: Any = None,
    metadata: Mapping[str, Any] | None = None,
) -> None:
    """Save a packed model as a folder of MLflow.

    Args:
        cell: The `.cell` file.
        path: The folder, which must not exist.
        mlflow_model: The model object that MLflow's `log` passes.
        signature: As MLflow's own flavours take it.
        input_example: The same.
        metadata: The same.

    Raises:
        ConfigError: The folder exists.
        DataError, ModelError: The file cannot be read.
    """
    task = load(cell).task
    target = Path(path)
    if target.exists() and any(target.iterdir()):
        raise ConfigError(f"{target} exists; give the name of a folder that does not.")
    target.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(cell, target / _FILE)
    made = mlflow_model or Model()
    for name, value in {"signature": signature, "input_example": input_example, "metadata": metadata}.items():
        if value is not None:
            setattr(made, name, value)
    needs = [f"cellerate[tables]=={__version__}"]
    pyfunc.add_to_model(made, loader_module=__name__, data=_FILE, python_env={"dependencies": needs})
    made.add_flavor(FLAVOR, data=_FILE, version=__version__, task=task)
    (target / "requirements.txt").write_text("\n".join(needs) + "\n")
    made.save(str(target / MLMODEL_FILE_NAME))


def log_model(cell: str | os.PathLike[str], name: str, **options: Any) -> Any:
    """Log a packed model to the active run of MLflow, and return MLflow's information on it.

    Args:
        cell: The `.cell` file.
        name: The name of the model in the run.
        options: Arguments of `mlflow.models.Model.log`, such as `registered_model_name` and `signature`.
    """
    return Model.log(artifact_path=None, name=name, flavor=sys.modules[__name__], cell=cell, **options)


def load_model(
    model_uri: str, *, device: str = "cpu", public_key: str | os.PathLike[str] | None = None
) -> PackedModel:
    """Open a packed model that MLflow keeps.

    Args:
        model_uri: Such as "runs:/.../name", "models:/name/1" or a folder.
        device: As for `cellerate.load`.
        public_key: As for `cellerate.load`.
    """
    return load(Path(artifacts.download_artifacts(model_uri)) / _FILE, device=device, public_key=public_key)


def _load_pyfunc(path: str) -> CellFunction:
    return CellFunction(load(path))


class CellFunction:
    """A packed model with the interface that MLflow calls.

    Args:
        model: The model.
    """

    def __init__(self, model: PackedModel) -> None:
        self.model = model

    def predict(self, data: Any, params: Mapping[str, Any] | None = None) -> Any:
        """Give the results of a call.

        Args:
            data: A frame, an array, a list, or a dictionary of arrays by the names of the inputs.
            params: Keyword arguments of the call, such as `max_tokens` of a text model.
        """
        options = dict(params or {})
        if self.model.task in ("text", "embed"):
            texts = [str(text) for text in np.asarray(data, object).ravel()]
            if self.model.task == "embed":
                return self.model.embed(texts, **options)
            return self.model.generate(texts, **options)
        if self.model.task == "series":
            return self.model.forecast(data, **options)
        named = isinstance(data, Mapping)
        return self.model.predict(data if named else np.asarray(data, np.float32), **options)
