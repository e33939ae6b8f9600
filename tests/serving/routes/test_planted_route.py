"""A new route is a handler and a row in `OPERATIONS`: the server answers it, and its OpenAPI document has it."""

import asyncio
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest
from starlette.requests import Request
from starlette.responses import Response

from cellerate.errors import DataError
from cellerate.serving import app
from cellerate.serving.answers import decoded, json_answer
from cellerate.serving.limits import Limits
from cellerate.serving.models import Models
from cellerate.serving.routes import OPERATIONS, openapi
from cellerate.serving.routes.operations import RouteDescription
from cellerate.serving.server_state import body_of
from support.servers import plain_cell


class WeighRequest(msgspec.Struct):
    """The model to weigh."""

    model: str


async def weigh(request: Request) -> Response:
    asked = decoded(await body_of(request), WeighRequest)
    if asked.model == "air":
        raise DataError("air has no weight")
    return json_answer({"weight": len(asked.model)})


@pytest.fixture(autouse=True)
def planted(monkeypatch: pytest.MonkeyPatch) -> None:
    row = RouteDescription("POST", "/v1/weigh", weigh, "Scales", "Weighs a model.", WeighRequest)
    for module in (app, openapi):
        monkeypatch.setattr(module, "OPERATIONS", (*OPERATIONS, row))


async def asked(path: Path, *requests: tuple[str, str, Any]) -> list[Any]:
    """The answers of a server of one model."""
    models = Models({"plain": path}, Limits())
    try:
        transport = httpx2.ASGITransport(app.make_app(models))
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return [await client.request(method, where, json=body) for method, where, body in requests]
    finally:
        await models.close()


def test_planted_route_answers_and_is_documented(tmp_path: Path) -> None:
    path = plain_cell(tmp_path / "plain.cell")
    right, wrong, broken, get, document = asyncio.run(
        asked(
            path,
            ("POST", "/v1/weigh", {"model": "book"}),
            ("POST", "/v1/weigh", {"model": "air"}),
            ("POST", "/v1/weigh", {"model": 3}),
            ("GET", "/v1/weigh", None),
            ("GET", "/openapi.json", None),
        )
    )
    assert (right.status_code, right.json()) == (200, {"weight": 4})
    assert (wrong.status_code, wrong.json()) == (400, {"error": "air has no weight"})
    assert broken.status_code == 400
    assert (get.status_code, get.headers["allow"]) == (405, "POST")
    operation = document.json()["paths"]["/v1/weigh"]["post"]
    assert "Weighs a model." in operation.values()
    body = operation["requestBody"]["content"]["application/json"]["schema"]
    assert body == {"$ref": "#/components/schemas/WeighRequest"}
    assert "WeighRequest" in document.json()["components"]["schemas"]
