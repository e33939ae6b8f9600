"""`POST /v1/embeddings`, as OpenAI's clients ask for it: a vector a line."""

from __future__ import annotations

import base64
import math
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from cellerate.serving.answer_size import check_numbers
from cellerate.serving.answers import RequestError, json_answer
from cellerate.serving.limits import Limits
from cellerate.serving.models import Served
from cellerate.serving.routes.predicting import in_turn

_MOST_LINES = 2048


class EmbeddingRequest(msgspec.Struct):
    """A request for vectors."""

    model: str
    input: str | Annotated[list[str], msgspec.Meta(min_length=1, max_length=_MOST_LINES)]
    encoding_format: Literal["float", "base64"] | None = "float"
    dimensions: Annotated[int, msgspec.Meta(ge=1)] | None = None
    user: str | None = None


async def embed(asked: EmbeddingRequest, served: Served, request: Request, limits: Limits) -> Response:
    """Answers a request for vectors.

    Raises:
        CellerateError: The request cannot be answered.
    """
    if served.model.task != "embed":
        raise RequestError(
            400,
            f"{served.name} gives no vectors; it is {served.kind}. Serve a model of `train embed`.",
        )
    lines = [asked.input] if isinstance(asked.input, str) else asked.input
    check_numbers(len(lines) * sum(math.prod(shape[1:]) for _, shape in served.outputs.values()), limits)
    # A character that the model never saw is read as unknown: a service cannot ask its clients to clean lines.
    vectors = await in_turn(served, request, lambda: served.model.embed(lines, errors="replace"), len(lines))
    if asked.dimensions not in (None, vectors.shape[1]):
        raise RequestError(
            400, f"dimensions is {asked.dimensions}; the vectors of {served.name} have {vectors.shape[1]}."
        )
    tokens = sum(map(len, lines))
    return json_answer(
        {
            "object": "list",
            "model": served.name,
            "data": [
                {"object": "embedding", "index": n, "embedding": _written(vector, asked.encoding_format)}
                for n, vector in enumerate(vectors)
            ],
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        }
    )


def _written(vector: np.ndarray, form: str | None) -> Any:
    if form == "base64":
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    return vector.tolist()
