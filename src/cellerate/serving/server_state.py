"""The common part of the routes: the models, the metrics, and reading a body within its bounds."""

from __future__ import annotations

import asyncio

from starlette.requests import Request

from cellerate.serving.answers import RequestError
from cellerate.serving.compression import unpacked
from cellerate.serving.metrics import Metrics
from cellerate.serving.models import Models, Served

VERSION = "1"
"""The version of every model: a server has one of each."""


def models_of(request: Request) -> Models:
    """The models of the server."""
    found: Models = request.app.state.models
    return found


def metrics_of(request: Request) -> Metrics:
    """The metrics of the server."""
    found: Metrics = request.app.state.metrics
    return found


def served_of(request: Request) -> Served:
    """The model that the path of a request names.

    Raises:
        RequestError: There is no such model, or not in that version.
    """
    version = request.path_params.get("version", VERSION)
    if version != VERSION:
        raise RequestError(404, f"there is no version {version!r:.40}; there is {VERSION}.")
    return models_of(request).get(request.path_params["name"])


async def body_of(request: Request) -> bytes:
    """The body of a request, unpacked.

    Raises:
        ClientDisconnect: The client disconnected before it sent the body.
        RequestError: The body is too long, took too long, or has another encoding.
    """
    limits = models_of(request).limits
    most = limits.body_bytes
    length = request.headers.get("content-length", "0")
    if not length.isdigit() or int(length) > most:
        raise _too_long(most)
    parts, size = [], 0
    try:
        async with asyncio.timeout(limits.receive_s):
            async for part in request.stream():
                size += len(part)
                if size > most:
                    raise _too_long(most)
                parts.append(part)
    except TimeoutError as error:
        raise RequestError(408, f"the body took longer than {limits.receive_s:g} s to arrive.") from error
    return unpacked(b"".join(parts), request.headers.get("content-encoding", "").lower(), most)


def _too_long(most: int) -> RequestError:
    return RequestError(413, f"the body has more than {most} bytes; send less at once.")
