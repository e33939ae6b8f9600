"""The OpenAPI document of a server, from the table of its operations and the forms of their bodies."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from cellerate import __version__
from cellerate.serving.routes.operations import OPERATIONS, RouteDescription
from cellerate.serving.server_state import VERSION

_ERRORS = {
    400: "Something in the request cannot be used; the message says what.",
    401: "A key is needed.",
    404: "There is no such model, version or session.",
    405: "This path has other methods.",
    408: "The request took too long to arrive.",
    409: "There is one already, or it belongs to another model.",
    410: "The session ended; the message says why.",
    413: "The request is too large.",
    415: "The body has another encoding.",
    429: "The limit of sessions is reached.",
    431: "The head of the request is too large.",
    500: "The server failed.",
    503: "The server is busy; try again after `Retry-After` seconds.",
    504: "It took longer than the server allows.",
}
_PARAMETER = re.compile(r"{(\w+)}")
_ABOUT = {
    "name": "The name of a model.",
    "version": 'The version of a model; there is only "1".',
    "id": "The name of a session.",
}


def document(models: Iterable[str]) -> dict[str, Any]:
    """The OpenAPI 3.1 document.

    Args:
        models: The names of the models.
    """
    values = {"name": list(models), "version": [VERSION]}
    forms = [each.body for each in OPERATIONS if each.body is not None]
    schemas, parts = msgspec.json.schema_components(forms, ref_template="#/components/schemas/{name}")
    schema_of = dict(zip(forms, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for each in OPERATIONS:
        paths.setdefault(each.path, {})[each.method.lower()] = _operation(
            each, schema_of.get(each.body), values
        )
    error = {
        "type": "object",
        "required": ["error"],
        "properties": {
            "error": {
                "description": "What is wrong; in OpenAI's protocol an object with the text in `message`.",
                "anyOf": [{"type": "string"}, {"type": "object"}],
            }
        },
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "Cellerate", "version": __version__, "description": "Packed models over HTTP."},
        "paths": paths,
        "components": {
            "schemas": parts | {"Error": error},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
    }


def _operation(each: RouteDescription, schema: Any, values: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    answers: dict[str, Any] = {
        str(each.status): {
            "description": "It worked.",
            **({"content": {kind: {} for kind in each.gives}} if each.gives else {}),
        }
    }
    for status, text in _ERRORS.items():
        answers[str(status)] = {
            "description": text,
            "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
        }
    description: dict[str, Any] = {
        "tags": [each.group],
        "summary": each.text,
        "operationId": each.name,
        "parameters": [
            {
                "name": name,
                "in": "path",
                "required": True,
                "description": _ABOUT[name],
                "schema": {"type": "string"} | ({"enum": values[name]} if name in values else {}),
            }
            for name in _PARAMETER.findall(each.path)
        ],
        "responses": answers,
    }
    if each.body is not None:
        # Bytes behind JSON and lines of JSON have no schema of their own.
        description["requestBody"] = {
            "required": True,
            "content": {
                kind: {"schema": schema} if kind == "application/json" else {} for kind in each.takes
            },
        }
    return description
