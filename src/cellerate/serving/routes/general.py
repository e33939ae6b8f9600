"""The routes that belong to no protocol, and those that belong to two."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from cellerate.runtime.forecast import ForecastSettings
from cellerate.serving.answer_size import check_numbers
from cellerate.serving.answers import (
    RequestError,
    array_of,
    aside,
    decoded,
    decoded_strictly,
    json_answer,
    times_of,
)
from cellerate.serving.models import Served
from cellerate.serving.routes.completions import UNSUPPORTED, WITHOUT_EFFECT, CompletionRequest, complete
from cellerate.serving.routes.embeddings import EmbeddingRequest, embed
from cellerate.serving.routes.predicting import in_turn
from cellerate.serving.routes.tensorflow import version_status
from cellerate.serving.server_state import body_of, metrics_of, models_of, served_of
from cellerate.serving.workers import BusyError


class ForecastRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A request for forecasts: rows of a series, or of several, in the units of the data.

    A model may have more inputs: the columns known in advance for the rows to forecast (`future`), the times of all
    rows (`times`), and the name of the series (`series`).
    """

    rows: list[Any]
    future: list[Any] | None = None
    times: list[Any] | None = None
    series: str | list[str] | None = None


class TokenizeRequest(msgspec.Struct):
    """A text to turn into ids; without a model, by the only text model there is."""

    prompt: str
    model: str | None = None


class DetokenizeRequest(msgspec.Struct):
    """Ids to turn into text; without a model, by the only text model there is."""

    tokens: list[int]
    model: str | None = None


async def health(request: Request) -> Response:
    """`GET /healthz`."""
    disks = [served.sessions.sessions.disk for served in models_of(request) if served.sessions is not None]
    if not any(disk.trouble for disk in disks):
        return json_answer({"status": "ok"})
    refused = any(disk.refuses for disk in disks)
    problem = "the states of sessions cannot be written to the disk; the log says why."
    return json_answer(
        {"status": "failing" if refused else "degraded", "reason": problem}, 503 if refused else 200
    )


async def metrics(request: Request) -> Response:
    """`GET /metrics`."""
    return Response(metrics_of(request).text(), media_type="text/plain; version=0.0.4")


async def models(request: Request) -> Response:
    """`GET /v1/models`."""
    return json_answer({"object": "list", "data": [_model(each) for each in models_of(request)]})


async def model(request: Request) -> Response:
    """`GET /v1/models/NAME`: what OpenAI's clients and TensorFlow Serving's expect, in one object."""
    served = served_of(request)
    return json_answer(_model(served) | {"model_version_status": version_status()})


async def completions(request: Request) -> Response:
    """`POST /v1/completions`."""
    _check_place(request)
    asked = decoded_strictly(
        await body_of(request), CompletionRequest, unsupported=UNSUPPORTED, passed=WITHOUT_EFFECT
    )
    models = models_of(request)
    return await complete(asked, models.get(asked.model), request, models.limits, metrics_of(request))


async def embeddings(request: Request) -> Response:
    """`POST /v1/embeddings`."""
    asked = decoded_strictly(await body_of(request), EmbeddingRequest, passed=WITHOUT_EFFECT)
    models = models_of(request)
    return await embed(asked, models.get(asked.model), request, models.limits)


async def forecast(request: Request) -> Response:
    """`POST /v1/models/NAME/forecast`."""
    served, limits = served_of(request), models_of(request).limits
    asked = decoded(await body_of(request), ForecastRequest)
    rows = array_of("rows", asked.rows)
    future = None if asked.future is None else array_of("future", asked.future)
    times = None if asked.times is None else times_of(asked.times)
    if served.series is not None:
        settings = served.series
        values = settings.horizon * len(settings.reading.targets) * max(1, len(settings.quantiles))
        check_numbers(values * (len(rows) if rows.ndim == 3 else 1), limits)

    def call() -> np.ndarray:
        return served.model.forecast(rows, future=future, times=times, series=asked.series)

    found = await in_turn(served, request, call, len(rows) if rows.ndim == 3 else 1)
    return json_answer({"model": served.name, "forecast": found.tolist()})


async def tokenize(request: Request) -> Response:
    """`POST /tokenize`, as vLLM has it."""
    asked = decoded(await body_of(request), TokenizeRequest)
    tokenizer, limits = _text_model(request, asked.model).model.tokenizer, models_of(request).limits
    ids = await aside(lambda: tokenizer.encode_prompt(asked.prompt), len(asked.prompt))
    check_numbers(len(ids), limits)
    return json_answer({"tokens": ids.tolist(), "count": len(ids), "max_model_len": limits.prompt_tokens})


async def detokenize(request: Request) -> Response:
    """`POST /detokenize`, as vLLM has it."""
    asked = decoded(await body_of(request), DetokenizeRequest)
    served = _text_model(request, asked.model)
    text = await aside(lambda: served.model.tokenizer.decode(asked.tokens), len(asked.tokens))
    return json_answer({"prompt": text})


async def tokenizer_info(request: Request) -> Response:
    """`GET /tokenizer_info`, as vLLM has it, of the only text model there is; no id stands for an end."""
    tokenizer = _text_model(request, None).model.tokenizer
    return json_answer(
        {
            "tokenizer_class": type(tokenizer).__name__,
            "vocab_size": tokenizer.vocabulary_size,
            "model_max_length": models_of(request).limits.prompt_tokens,
            **dict.fromkeys(("bos_token", "eos_token", "pad_token", "chat_template")),
        }
    )


def _check_place(request: Request) -> None:
    """Refuse a text before its request is read if all models are full: cheap refusals leave time for generating.

    Raises:
        BusyError: All models are full.
    """
    busy: BusyError | None = None
    for served in models_of(request):
        if served.texts is not None:
            try:
                served.texts.check_place()
            except BusyError as error:
                busy = error
            else:
                return
    if busy is not None:
        raise busy


def _text_model(request: Request, name: str | None) -> Served:
    models = models_of(request)
    if name is None:
        found = [served for served in models if served.texts is not None]
        if len(found) != 1:
            names = ", ".join(served.name for served in found) or "none"
            raise RequestError(400, f"model is missing: name one of the text models here ({names}).")
        return found[0]
    served = models.get(name)
    if served.texts is None:
        raise RequestError(400, f"{served.name} has no vocabulary; it is {served.kind}.")
    return served


def _needed(settings: ForecastSettings) -> dict[str, Any]:
    """The fields that requests for forecasts need beside the rows."""
    covariates = settings.covariates
    needed: dict[str, Any] = {"future": list(covariates.future)} if covariates.future else {}
    if covariates.calendar is not None:
        needed["times"] = settings.window + settings.horizon
    if covariates.series is not None or covariates.scaling is not None:
        needed["series"] = True
    return needed


def _model(served: Served) -> dict[str, Any]:
    answer: dict[str, Any] = {
        "id": served.name,
        "object": "model",
        "created": served.created,
        "owned_by": "cellerate",
        "task": served.model.task,
        "precision": served.model.precision,
        "sessions": served.sessions is not None,
    }
    if served.series is not None:
        answer["series"] = {
            "features": served.series.reading.features,
            "targets": served.series.reading.targets,
            "window": served.series.window,
            "horizon": served.series.horizon,
            "quantiles": served.series.quantiles,
        } | _needed(served.series)
    return answer
