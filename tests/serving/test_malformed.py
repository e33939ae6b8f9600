"""Malformed requests of every kind: each gets its own error, and the server keeps running."""

import asyncio
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from cellerate.serving.app import make_app
from cellerate.serving.limits import Limits
from cellerate.serving.models import Models
from cellerate.serving.routes.openapi import document
from cellerate.serving.routes.operations import OPERATIONS
from support.servers import embed_cell, plain_cell, series_cell, text_cell

LIMITS = Limits(max_tokens=50, sequences_per_request=8, prompt_tokens=200, body_bytes=100_000, sessions=100)
GOOD: dict[str, Any] = {
    "/v1/completions": {
        "model": "text", "prompt": "abc", "max_tokens": 5, "n": 2, "seed": 1, "stop": ["a"], "logprobs": 2,
        "echo": True, "stream": False, "temperature": 1.0, "top_p": 0.9,
    },
    "/v1/embeddings": {"model": "lines", "input": ["abc", "d"], "encoding_format": "base64"},
    "/tokenize": {"model": "text", "prompt": "abc"},
    "/detokenize": {"model": "text", "tokens": [1, 2]},
    "/v1/models/plain:predict": {"instances": [[[1.0, 2.0, 3.0]]]},
    "/v1/models/series/forecast": {"rows": [[1.0, 2.0]] * 6},
    "/v1/models/plain/sessions": {"id": "a"},
    "/v1/models/plain/push": {"id": "a", "inputs": [[1.0, 2.0, 3.0]], "begin": False, "end": False},
    "/v1/models/series/sessions/b/push": {"inputs": [[1.0, 2.0]], "begin": True},
    "/v2/models/plain/infer": {
        "inputs": [{"name": "x", "shape": [1, 2, 3], "datatype": "FP32", "data": [1, 2, 3, 4, 5, 6]}],
        "outputs": [{"name": "each", "parameters": {"binary_data": True}}],
        "parameters": {"sequence_id": 3, "sequence_start": True},
    },
}  # fmt: skip
ODD = (
    None, True, 0, -1, 1.5, 1e308, 2**31, 2**63, 2**64, -(2**70), "", "a", "\x00", "\ud83d\ude00" * 3, "x" * 300, [],
    [[]], {}, [None], [[1], [2, 3]], {"a": 1}, [[[[[]]]]], float("nan"), float("inf"),
)  # fmt: skip


def changed(value: Any, chance: random.Random) -> Any:
    """A copy of a value with one part replaced, removed or added."""
    if isinstance(value, dict) and value and chance.random() < 0.9:
        key = chance.choice(list(value))
        match chance.random():
            case share if share < 0.15:
                return {name: each for name, each in value.items() if name != key}
            case share if share < 0.2:
                return value | {chance.choice(["x", "", "model"]): chance.choice(ODD)}
        return value | {key: changed(value[key], chance)}
    if isinstance(value, list) and value and chance.random() < 0.7:
        place = chance.randrange(len(value))
        return [*value[:place], changed(value[place], chance), *value[place + 1 :]]
    return chance.choice(ODD)


def broken(body: bytes, chance: random.Random) -> bytes:
    """A copy of some bytes with a few removed, doubled or replaced."""
    place = chance.randrange(len(body))
    match chance.randrange(4):
        case 0:
            return body[:place]
        case 1:
            return body[:place] + chance.randbytes(3) + body[place:]
        case 2:
            return body[:place] + bytes([chance.randrange(256)]) + body[place + 1 :]
    return b"[" * chance.choice((10, 5000)) + body


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    folder = tmp_path_factory.mktemp("models")
    made = [make(folder / f"{name}.cell") for name, make in MAKERS.items()]
    yield {path.stem: path for path in made}


MAKERS = {"text": text_cell, "lines": embed_cell, "plain": plain_cell, "series": series_cell}


async def _sent(paths: dict[str, Path], count: int) -> tuple[dict[int, int], list[str]]:
    models = Models(paths, LIMITS)
    chance, statuses, wrong = random.Random(1), {}, []
    try:
        transport = httpx2.ASGITransport(make_app(models))
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
            for _ in range(count):
                path = chance.choice(list(GOOD))
                body = json.dumps(changed(GOOD[path], chance)).encode()
                if chance.random() < 0.2:
                    body = broken(body, chance)
                headers = {}
                if chance.random() < 0.1:
                    headers["inference-header-content-length"] = str(chance.randrange(-2, len(body) + 2))
                answer = await client.post(path, content=body, headers=headers)
                statuses[answer.status_code] = statuses.get(answer.status_code, 0) + 1
                if answer.status_code >= 500:
                    wrong.append(f"{path} {headers} {body[:300]!r}: {answer.status_code} {answer.text[:300]}")
    finally:
        await models.close()
    return statuses, wrong


@pytest.mark.parametrize("count", [3000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_malformed_request_gets_an_error_and_leaves_the_server_running(paths, count, caplog):
    statuses, wrong = asyncio.run(_sent(paths, count))
    assert not wrong, "\n".join(wrong[:5])
    assert statuses[200] > count / 20, "too few of them are right to reach the models"
    assert statuses[400] > count / 3


def test_openapi_document_names_every_operation_and_body():
    told = document(["text", "lines"])
    assert set(told["paths"]) == {each.path for each in OPERATIONS}
    assert len({each.name for each in OPERATIONS}) == len(OPERATIONS)
    for each in OPERATIONS:
        operation = told["paths"][each.path][each.method.lower()]
        assert ("requestBody" in operation) == (each.body is not None)
    asked = told["components"]["schemas"]["CompletionRequest"]
    assert asked["required"] == ["model", "prompt"]
    assert asked["properties"]["logprobs"]["anyOf"][0]["maximum"] == 20
    json.dumps(told)
