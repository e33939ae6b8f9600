"""The routes of TensorFlow Serving's REST API for a model: predict, and what the model is.

Source: https://www.tensorflow.org/tfx/serving/api_rest
"""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec
import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from cellerate.errors import ConfigError
from cellerate.serving.answers import RequestError, decoded, inputs_of, json_answer
from cellerate.serving.models import Served
from cellerate.serving.routes.predicting import predicted
from cellerate.serving.server_state import VERSION, body_of, served_of

_SIGNATURE: Final = "serving_default"


class PredictRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A request to compute, by rows (`instances`) or by columns (`inputs`)."""

    instances: list[Any] | None = None
    inputs: Any = None
    signature_name: Literal["serving_default"] | None = _SIGNATURE


def version_status() -> list[dict[str, Any]]:
    """The state in TensorFlow Serving's words of a model that can be used."""
    return [
        {
            "version": VERSION,
            "state": "AVAILABLE",
            "status": {"error_code": "OK", "error_message": ""},
        }
    ]


async def predict(request: Request) -> Response:
    """`POST /v1/models/NAME:predict`."""
    served = served_of(request)
    asked = decoded(await body_of(request), PredictRequest)
    if (asked.instances is None) == (asked.inputs is None):
        raise RequestError(400, "the body must have either instances or inputs.")
    by_row = asked.instances is not None
    tensors = _of_rows(served, asked.instances or []) if by_row else _of_columns(served, asked.inputs)
    found = await predicted(served, request, tensors)
    if len(found) == 1:
        (array,) = found.values()
        return json_answer({"predictions" if by_row else "outputs": array.tolist()})
    if not by_row:
        return json_answer({"outputs": {name: array.tolist() for name, array in found.items()}})
    columns = {name: array.tolist() for name, array in found.items()}
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    return json_answer({"predictions": rows})


async def metadata(request: Request) -> Response:
    """`GET /v1/models/NAME/metadata`."""
    served = served_of(request)
    nodes, inputs = served.model.cell.program.nodes, served.model.cell.program.inputs
    signature = {
        "inputs": {
            name: _tensor(
                name,
                str(nodes[at].options["dtype"]),
                served.model.inputs[name],
            )
            for name, at in inputs.items()
        },
        "outputs": {
            name: _tensor(name, *served.outputs.get(name, ("float32", None))) for name in served.model.outputs
        },
        "method_name": "tensorflow/serving/predict",
    }
    return json_answer(
        {
            "model_spec": {"name": served.name, "signature_name": "", "version": VERSION},
            "metadata": {"signature_def": {"signature_def": {_SIGNATURE: signature}}},
        }
    )


def _tensor(name: str, dtype: str, shape: Any) -> dict[str, Any]:
    answer: dict[str, Any] = {"unknown_rank": shape is None, "dim": []}
    if shape is not None:
        answer["dim"] = [{"size": str(size), "name": ""} for size in shape]
    return {"dtype": "DT_INT32" if dtype == "int32" else "DT_FLOAT", "tensor_shape": answer, "name": name}


def _of_rows(served: Served, rows: list[Any]) -> dict[str, np.ndarray]:
    """The inputs, from one entry a row: its value, or its values by the names of the inputs."""
    if not rows:
        raise ConfigError("instances is empty; expected at least one row.")
    names = list(served.model.inputs)
    if not any(isinstance(row, dict) for row in rows):
        return _of_columns(served, rows)
    if not all(isinstance(row, dict) and row.keys() == rows[0].keys() for row in rows):
        raise ConfigError(f"each of instances must have the inputs {', '.join(names)}, and only them.")
    return _of_columns(served, {name: [row[name] for row in rows] for name in rows[0]})


def _of_columns(served: Served, values: Any) -> dict[str, np.ndarray]:
    names = list(served.model.inputs)
    if not isinstance(values, dict):
        if len(names) > 1:
            raise ConfigError(f"the inputs must be given by name, for this model has {', '.join(names)}.")
        values = {names[0]: values}
    return inputs_of(values)
