"""The routes of sessions: open, push, look, close, take along, and many pushes at once as lines of JSON."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from cellerate.errors import CellerateError, DataError
from cellerate.serving.answers import RequestError, aside, decoded, json_answer, status_of, unless_gone
from cellerate.serving.models import Served
from cellerate.serving.routes.pushing import push_all, push_one, steps_of, worker_of
from cellerate.serving.server_state import body_of, metrics_of, models_of, served_of
from cellerate.serving.sessions import Push

Name = str | int
"""A session's name: a text, or an integer, which is the text of its digits."""


class OpenRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A request to begin a session."""

    id: Name


class PushRequest(msgspec.Struct, forbid_unknown_fields=True):
    """New steps of a session: steps of numbers, arrays by the names of the inputs, or a text."""

    inputs: list[Any] | dict[str, list[Any]] | str
    begin: bool = False
    end: bool = False


class PushLine(PushRequest, kw_only=True):
    """As `PushRequest`, with the session's name."""

    id: Name


class StateFormat(msgspec.Struct, forbid_unknown_fields=True):
    """The state of a session: float32 in little-endian bytes, in base64, and whose it is."""

    model: str
    state: str


async def count(request: Request) -> Response:
    """`GET /v1/models/NAME/sessions`."""
    served = served_of(request)
    return json_answer({"model": served.name, "sessions": len(worker_of(served).sessions)})


async def begin(request: Request) -> Response:
    """`POST /v1/models/NAME/sessions`."""
    served, asked = served_of(request), decoded(await body_of(request), OpenRequest)
    name = str(asked.id)
    await worker_of(served).run(lambda sessions: sessions.open(name), name)
    return json_answer({"id": name, "model": served.name}, 201)


async def look(request: Request) -> Response:
    """`GET /v1/models/NAME/sessions/ID`."""
    served, name = served_of(request), _name(request)
    unused_s = await worker_of(served).run(lambda sessions: sessions.unused_s(name), name)
    return json_answer({"id": name, "model": served.name, "unused_s": round(unused_s, 3)})


async def end(request: Request) -> Response:
    """`DELETE /v1/models/NAME/sessions/ID`."""
    name = _name(request)
    await worker_of(served_of(request)).run(lambda sessions: sessions.close(name), name)
    return Response(status_code=204)


async def push(request: Request) -> Response:
    """`POST /v1/models/NAME/sessions/ID/push`."""
    served, name, body = served_of(request), _name(request), await body_of(request)
    asked = decoded(body, PushRequest)
    steps = await aside(lambda: steps_of(served, asked.inputs), len(body))
    work = push_one(
        served,
        metrics_of(request),
        models_of(request).limits,
        name,
        steps,
        begin=asked.begin,
        end=asked.end,
    )
    return json_answer({"id": name} | _told(await unless_gone(request, work)))


async def push_lines(request: Request) -> Response:
    """`POST /v1/models/NAME/push`: a push a line, and an answer a line, in the same order."""
    served, body = served_of(request), await body_of(request)
    lines = [line for line in body.split(b"\n") if line.strip()]
    if not lines:
        raise RequestError(400, "the body is empty; expected a line of JSON for each push.")
    worker_of(served)
    names, pushes, wrong = await aside(lambda: _pushes(served, lines), len(body))
    work = push_all(served, metrics_of(request), models_of(request).limits, pushes)
    found = iter(await unless_gone(request, work))
    answers = []
    for number, name in enumerate(names):
        result = wrong.get(number) or next(found)
        answer = {} if name is None else {"id": name}
        if isinstance(result, Exception):
            status, message, _ = status_of(result)
            answers.append(answer | {"error": message, "status": status})
        else:
            answers.append(answer | _told(result))
    return Response(msgspec.json.Encoder().encode_lines(answers), media_type="application/jsonl")


def _pushes(
    served: Served, lines: Sequence[bytes]
) -> tuple[list[str | None], list[Push], dict[int, CellerateError]]:
    """The session of each line, None if it names none; the pushes; and the errors of lines by their numbers."""
    names: list[str | None] = []
    pushes: list[Push] = []
    wrong: dict[int, CellerateError] = {}
    for number, line in enumerate(lines):
        try:
            asked = decoded(line, PushLine)
            names.append(str(asked.id))
            pushes.append(Push(str(asked.id), steps_of(served, asked.inputs), asked.begin, asked.end))
        except CellerateError as error:
            if len(names) == number:
                names.append(None)
            wrong[number] = error
    return names, pushes, wrong


async def take(request: Request) -> Response:
    """`GET /v1/models/NAME/sessions/ID/state`."""
    served, name = served_of(request), _name(request)
    state = await worker_of(served).run(lambda sessions: sessions.state(name), name)
    written = base64.b64encode(state.astype("<f4").tobytes()).decode()
    return json_answer(StateFormat(served.model.fingerprint, written))


async def bring(request: Request) -> Response:
    """`PUT /v1/models/NAME/sessions/ID/state`."""
    served, name = served_of(request), _name(request)
    given = decoded(await body_of(request), StateFormat)
    if given.model != served.model.fingerprint:
        raise RequestError(
            409, f"the state belongs to another model than {served.name}: send it to that model."
        )
    try:
        bytes_ = base64.b64decode(given.state, validate=True)
        state = np.frombuffer(bytes_, "<f4").astype(np.float32)
    except (binascii.Error, ValueError) as error:
        raise DataError(f"the state is not float32 numbers in base64: {error}.") from error
    await worker_of(served).run(lambda sessions: sessions.restore(name, state), name)
    return json_answer({"id": name, "model": served.name})


def _told(outputs: dict[str, np.ndarray]) -> dict[str, Any]:
    return {"outputs": {name: array.tolist() for name, array in outputs.items()}}


def _name(request: Request) -> str:
    name: str = request.path_params["id"]
    return name
