"""The routes of a server, as one ASGI application."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import ASGIApp

from cellerate.serving.answers import RequestError, answering, error_answer, json_answer
from cellerate.serving.gate import Gate
from cellerate.serving.metrics import Metrics
from cellerate.serving.models import Models
from cellerate.serving.routes import OPERATIONS, document, page_routes
from cellerate.serving.server_state import models_of
from cellerate.serving.visitors import Visitors

# Replacements for OpenAI routes that are missing here: a packed model has neither roles nor chat templates.
_INSTEAD = dict.fromkeys(
    ("/v1/chat/completions", "/v1/responses"), "POST /v1/completions continues texts, with the field prompt"
)


def make_app(models: Models, keys: Sequence[bytes] = (), visitors: Visitors | None = None) -> ASGIApp:
    """The application of a server.

    Args:
        models: What it serves.
        keys: The accepted API keys; empty for a server without keys.
        visitors: The requests that may come from a browser; None for a server on this machine.
    """
    visitors = visitors or Visitors()
    metrics = Metrics(models)
    app = Starlette(
        routes=[
            *page_routes(),
            Route("/openapi.json", _openapi),
            *(
                Route(each.path, answering(each.handler), methods=[each.method], name=each.name)
                for each in OPERATIONS
            ),
        ],
        middleware=[Middleware(Gate, limits=models.limits, metrics=metrics, visitors=visitors, keys=keys)],
        exception_handlers={HTTPException: _of_no_route},
    )
    app.state.models, app.state.metrics = models, metrics
    return app


async def _openapi(request: Request) -> Response:
    """`GET /openapi.json`."""
    return json_answer(document(each.name for each in models_of(request)))


async def _of_no_route(request: Request, error: Exception) -> Response:
    """Answer a request to an unknown route, or with a method that the route does not take."""
    path = request.url.path
    if isinstance(error, HTTPException) and error.status_code == 404:
        instead = _INSTEAD.get(path, "/docs lists all routes")
        error = RequestError(404, f"there is no route {path[:100]!r} here; {instead}.")
    allowed = ""
    if isinstance(error, HTTPException) and error.status_code == 405:
        # Starlette only names the methods of one route of the path.
        methods = {
            method
            for route in request.app.routes
            if isinstance(route, Route) and route.matches(request.scope)[0] is Match.PARTIAL
            for method in route.methods or ()
        }
        allowed = ", ".join(sorted(methods))
        error = RequestError(
            405, f"{path[:100]!r} takes {allowed}, not {request.method[:20]}; /docs lists all routes."
        )
    answer = error_answer(error, path)
    if allowed:
        answer.headers["allow"] = allowed
    return answer
