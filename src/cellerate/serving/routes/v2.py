"""The Open Inference Protocol V2 over HTTP, as Triton's clients speak it; a sequence is a session.

Source: https://github.com/kserve/open-inference-protocol, and Triton's extensions for sequences, binary tensor data,
model repositories, model configurations and statistics.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from cellerate import __version__
from cellerate.serving.answers import RequestError, decoded, json_answer, unless_gone
from cellerate.serving.compression import packed
from cellerate.serving.models import Models, Served
from cellerate.serving.routes.predicting import predicted
from cellerate.serving.routes.pushing import push_one, worker_of
from cellerate.serving.routes.v2_tensors import (
    InferRequest,
    LoadRequest,
    chosen_outputs,
    datatype_of,
    read_request,
    written_response,
)
from cellerate.serving.server_state import VERSION, body_of, metrics_of, models_of, served_of


async def server(request: Request) -> Response:
    """`GET /v2`."""
    return json_answer(
        {
            "name": "cellerate",
            "version": __version__,
            "extensions": [
                "binary_tensor_data",
                "sequence",
                "sequence(string_id)",
                "model_repository",
                "model_configuration",
                "statistics",
            ],
        }
    )


async def live(request: Request) -> Response:
    """`GET /v2/health/live`."""
    return json_answer({"live": True})


async def ready(request: Request) -> Response:
    """`GET /v2/health/ready`."""
    refused = any(
        served.sessions is not None and served.sessions.sessions.disk.refuses for served in models_of(request)
    )
    return json_answer({"ready": not refused}, 503 if refused else 200)


async def metadata(request: Request) -> Response:
    """`GET /v2/models/NAME`."""
    served = served_of(request)
    inputs, outputs = _tensors(served)
    return json_answer(
        {
            "name": served.name,
            "versions": [VERSION],
            "platform": "cellerate",
            "inputs": inputs,
            "outputs": outputs,
        }
    )


async def config(request: Request) -> Response:
    """`GET /v2/models/NAME/config`, the model configuration of Triton, which its load generator reads.

    A sequence is left out of it, because Triton's clients would then send nothing else to the model.
    """
    served = served_of(request)
    inputs, outputs = (
        [
            {"name": each["name"], "data_type": f"TYPE_{each['datatype']}", "dims": each["shape"][1:]}
            for each in tensors
        ]
        for tensors in _tensors(served)
    )
    return json_answer(
        {
            "name": served.name,
            "platform": "cellerate",
            "backend": "cellerate",
            "version_policy": {"latest": {"num_versions": 1}},
            # A row of an answer has a number at least.
            "max_batch_size": models_of(request).limits.answer_numbers,
            "input": inputs,
            "output": outputs,
        }
    )


async def statistics(request: Request) -> Response:
    """`GET /v2/models/NAME/stats`, and of all models without a name: the calls since their files were loaded."""
    named = "name" in request.path_params
    found = [served_of(request)] if named else models_of(request)
    return json_answer({"model_stats": [_statistics(served) for served in found]})


def _statistics(served: Served) -> dict[str, Any]:
    totals = served.calls.totals

    def part(count: int, seconds: float = 0.0) -> dict[str, int]:
        return {"count": count, "ns": int(seconds * 1e9)}

    done = totals.succeeded
    return {
        "name": served.name,
        "version": VERSION,
        "last_inference": int(totals.last * 1000),
        "inference_count": totals.rows,
        "execution_count": done,
        "inference_stats": {
            "success": part(done, totals.waiting_s + totals.computing_s),
            "fail": part(totals.failed, totals.failing_s),
            "queue": part(done, totals.waiting_s),
            # The computation reads the arrays of a request and writes its answer's, with no copy between.
            "compute_input": part(done),
            "compute_infer": part(done, totals.computing_s),
            "compute_output": part(done),
            "cache_hit": part(0),
            "cache_miss": part(0),
        },
        "batch_stats": [],
    }


def _tensors(served: Served) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The inputs and outputs of a model; of an output that was not tried, only the batch is known."""
    program = served.model.cell.program
    inputs = [
        {
            "name": name,
            "datatype": "INT32" if program.nodes[at].options["dtype"] == "int32" else "FP32",
            "shape": list(served.model.inputs[name]),
        }
        for name, at in program.inputs.items()
    ]
    outputs = []
    for name in served.model.outputs:
        dtype, shape = served.outputs.get(name, ("float32", [-1]))
        outputs.append({"name": name, "datatype": datatype_of(np.dtype(dtype)), "shape": shape})
    return inputs, outputs


async def model_ready(request: Request) -> Response:
    """`GET /v2/models/NAME/ready`."""
    return json_answer({"name": served_of(request).name, "ready": True})


async def infer(request: Request) -> Response:
    """`POST /v2/models/NAME/infer`."""
    served = served_of(request)
    body = await body_of(request)
    asked, tensors = read_request(body, request.headers.get("inference-header-content-length"))
    sequence = _sequence(asked)
    names = chosen_outputs(asked, worker_of(served).sessions.outputs if sequence else served.model.outputs)
    if sequence:
        outputs = await unless_gone(request, _pushed(served, request, asked, sequence, tensors))
        outputs = outputs if names is None else {name: outputs[name] for name in names}
    else:
        outputs = await predicted(served, request, tensors, names)
    answer = {"model_name": served.name, "model_version": VERSION} | ({"id": asked.id} if asked.id else {})
    parts, length = written_response(asked, answer, outputs)
    body, how = packed(b"".join(parts), request.headers.get("accept-encoding", ""))
    headers = {} if length is None else {"inference-header-content-length": str(length)}
    if how is not None:
        headers |= {"content-encoding": how, "vary": "accept-encoding"}
    kind = "application/json" if length is None else "application/octet-stream"
    return Response(body, headers=headers, media_type=kind)


async def index(request: Request) -> Response:
    """`POST /v2/repository/index`."""
    return json_answer(
        [
            {"name": each.name, "version": VERSION, "state": "READY", "reason": ""}
            for each in models_of(request)
        ]
    )


async def load(request: Request) -> Response:
    """`POST /v2/repository/models/NAME/load`: reads the model's file again."""
    models: Models = models_of(request)
    body = await body_of(request)
    if body:
        decoded(body, LoadRequest).refuse_another_model()
    changed = await models.reload(request.path_params["name"])
    return json_answer({"changed": changed})


async def _pushed(
    served: Served, request: Request, asked: InferRequest, sequence: str, tensors: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Pushes the tensors, of one row, to the session of a sequence."""
    for name, array in tensors.items():
        if array.ndim < 2 or len(array) != 1:
            raise RequestError(
                400,
                f"input {name!r:.100} has shape {list(array.shape)}; a sequence takes one row: [1, steps, ...].",
            )
    served.check_ids(tensors)
    found = await push_one(
        served,
        metrics_of(request),
        models_of(request).limits,
        sequence,
        {name: array[0] for name, array in tensors.items()},
        begin=asked.flag("sequence_start"),
        end=asked.flag("sequence_end"),
        # As Triton does: a client that lost its connection, or crashed, could not begin its sequence again otherwise.
        restart=True,
    )
    return {name: array[np.newaxis] for name, array in found.items()}


def _sequence(asked: InferRequest) -> str:
    """The sequence that a request belongs to; "" for none."""
    given = asked.parameter("sequence_id") or 0
    if isinstance(given, str):
        return given
    if isinstance(given, bool) or not isinstance(given, int) or not -(2**63) <= given < 2**64:
        raise RequestError(400, f"sequence_id is {given!r:.40}; expected a text or an integer of 64 bits.")
    return str(given) if given else ""
