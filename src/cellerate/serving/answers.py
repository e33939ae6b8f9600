"""Answers of the server: JSON in and out, and the HTTP status of each error.

Each protocol has its own form of an error, and every error of a route takes that form.
"""

from __future__ import annotations

import asyncio
import difflib
import logging
import re
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, Final, TypeVar

import msgspec
import numpy as np
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from cellerate.errors import CellerateError, ConfigError, DataError, ModelError
from cellerate.serving.sessions import (
    ExistingSessionError,
    MissingSessionError,
    ReplacedModelError,
    StorageError,
    TooManySessionsError,
)
from cellerate.serving.workers import BusyError, DeadlineError

log = logging.getLogger("cellerate.serving")

Handler = Callable[[Request], Awaitable[Response]]
CLIENT_GONE = 499
"""The status in the log for an answer that nobody reads, as nginx writes it."""
# The paths of OpenAI's protocol, including routes that are missing here, because its clients show no other form of
# error. On all other paths an error is {"error": message}, as in V2 and TensorFlow Serving.
_MISSING = "chat|responses|moderations|audio|images|videos|files|uploads|batches|fine_tuning|vector_stores"
_OPENAI = re.compile(rf"/v1/(completions|embeddings|models(/[^/:]+)?|({_MISSING})(/.*)?)")
# The characters that a tokenizer file encodes in some 10 ms.
_MANY_CHARACTERS = 1 << 14
_LARGEST = float(np.finfo(np.float32).max)
_Found = TypeVar("_Found")
_Form = TypeVar("_Form", bound=msgspec.Struct)
# Values, beside false, with which a field has no effect.
_NOTHING: Final[tuple[Any, ...]] = (None, [], {}, "")


class _Failures:
    """Internal errors in the log: the first ones with their traceback, then only the number of further ones."""

    def __init__(self) -> None:
        self._until, self._told, self._more = 0.0, 0, 0

    def tell(self, error: BaseException) -> None:
        now = time.monotonic()
        if now >= self._until:
            if self._more:
                log.error("%d more requests failed in the last %d s", self._more, _WHILE_S)
            self._until, self._told, self._more = now + _WHILE_S, 0, 0
        if self._told < _MOST_TOLD:
            self._told += 1
            log.error("a request failed", exc_info=error)
        else:
            self._more += 1


_WHILE_S, _MOST_TOLD = 60, 10
_failures = _Failures()


class RequestError(CellerateError):
    """A failed request with its own HTTP status.

    Attributes:
        status: The HTTP status.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class ClientGoneError(CellerateError):
    """The client no longer waits for the answer."""


def json_answer(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A value as JSON; NaN and infinity become null, because JSON has neither."""
    return Response(msgspec.json.encode(value), status, headers, "application/json")


def decoded(body: bytes, form: type[_Found]) -> _Found:
    """Decode a JSON body into the form that a route expects.

    Raises:
        RequestError: The body is not JSON, or a value has another type or is out of range; the message says where.
    """
    try:
        return msgspec.json.decode(body, type=form)
    except msgspec.ValidationError as error:
        raise RequestError(400, f"the body does not fit: {_sentence(error)}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RequestError(400, f"the body is not JSON: {_sentence(error)}") from error
    except RecursionError as error:
        raise RequestError(400, "the body is nested too deeply.") from error


def decoded_strictly(
    body: bytes,
    form: type[_Form],
    *,
    unsupported: Collection[str] = (),
    passed: Collection[str] = (),
) -> _Form:
    """Decode a JSON object into the form that a route expects; refuse unknown fields, such as misspelt ones.

    Args:
        body: The body.
        form: A struct with the known fields.
        unsupported: Fields of the protocol that are refused unless their values have no effect.
        passed: Fields of the protocol that have no effect here.

    Raises:
        RequestError: As `decoded`; or a field is unknown, and the message names the nearest known one.
    """
    known = [field.name for field in msgspec.structs.fields(form)]
    fields = decoded(body, dict[str, Any])
    for name, value in fields.items():
        # Clients send null for what they leave out.
        if name in known or name in passed or value is False or value in _NOTHING:
            continue
        if name in unsupported:
            raise RequestError(400, f"{name} is not supported: leave it out.")
        near = difflib.get_close_matches(name, known, 1)
        meant = f"Did you mean {near[0]}?" if near else f"There is {', '.join(known)}."
        raise RequestError(400, f"there is no field {name!r:.100}. {meant}")
    try:
        return msgspec.convert(fields, form)
    except msgspec.ValidationError as error:
        raise RequestError(400, f"the body does not fit: {_sentence(error)}") from error


async def aside(call: Callable[[], _Found], characters: int) -> _Found:
    """Run a call on a thread of its own if its request has many characters, so that others are answered meanwhile."""
    return await asyncio.to_thread(call) if characters > _MANY_CHARACTERS else call()


def inputs_of(values: Mapping[str, Any], *, scaled_later: bool = False) -> dict[str, np.ndarray]:
    """Return the arrays of a model's inputs, by name, from JSON lists of numbers, or of booleans for a mask.

    Args:
        values: The lists by the names of the inputs.
        scaled_later: Whether the numbers may be larger than float32 holds, because they are scaled before use.

    Raises:
        ConfigError: As `array_of`, or float32 cannot hold a number.
    """
    found = {}
    for name, value in values.items():
        what = f"input {name!r:.100}"
        array = found[name] = array_of(what, value, "bfiu")
        # JSON has no infinity, so a number that would become one was too large.
        if not scaled_later and array.dtype.kind == "f" and np.abs(array).max() > _LARGEST:
            raise ConfigError(f"{what} has a number that float32 cannot hold.")
    return found


def array_of(what: str, value: Any, kinds: str = "fiu") -> np.ndarray:
    """Return an array from JSON lists.

    Args:
        what: Its name in messages.
        value: The lists.
        kinds: The kinds of NumPy types that it may have.

    Raises:
        ConfigError: Rows have different lengths, or a value is not a number.
    """
    try:
        found = np.array(value)
    except ValueError as error:
        raise ConfigError(f"{what} has rows of different lengths.") from error
    if found.dtype.kind not in kinds or found.ndim == 0 or found.size == 0:
        raise ConfigError(f"{what} must be numbers, not {str(value)[:60]!r}.")
    return found


def times_of(value: Any) -> np.ndarray:
    """Return times from JSON lists: local times in ISO 8601, without an offset.

    Raises:
        ConfigError: A value is not such a time.
    """
    try:
        found = np.array(value)
        if found.dtype.kind == "U" and not any("Z" in one or "+" in one for one in found.ravel().tolist()):
            return found.astype("M8[us]")
    except ValueError:
        pass
    raise ConfigError(
        f"times must be such as '2024-01-31T23:00', without an offset, not {str(value)[:60]!r}."
    )


def status_of(error: BaseException) -> tuple[int, str, dict[str, str]]:
    """Return the HTTP status, the message and the headers of an error."""
    match error:
        case RequestError():
            return error.status, str(error), {}
        case HTTPException():
            return error.status_code, f"{error.detail}.", dict(error.headers or {})
        case BusyError():
            return 503, str(error), {"retry-after": "1"}
        case DeadlineError():
            return 504, str(error), {}
        case MissingSessionError():
            return 410 if error.ended else 404, str(error), {}
        case StorageError():
            return 503, str(error), {"retry-after": "10"}
        case ExistingSessionError() | ReplacedModelError():
            return 409, str(error), {}
        case TooManySessionsError():
            return 429, str(error), {}
        case ConfigError() | DataError() | ModelError():
            return 400, str(error), {}
    _failures.tell(error)
    return 500, "the server failed; its log says why.", {}


def error_answer(error: BaseException, path: str) -> Response:
    """Return an error in the form that the protocol of a path uses."""
    status, message, headers = status_of(error)
    if not _OPENAI.fullmatch(path):
        return json_answer({"error": message}, status, headers)
    kind = "invalid_request_error" if status < 500 else "server_error"
    return json_answer(
        {"error": {"message": message, "type": kind, "param": None, "code": None}}, status, headers
    )


def answering(handler: Handler) -> Handler:
    """Return a handler whose errors become answers."""

    async def answer(request: Request) -> Response:
        try:
            return await handler(request)
        except (ClientGoneError, ClientDisconnect):
            return Response(status_code=CLIENT_GONE)
        except Exception as error:
            return error_answer(error, request.scope["path"])

    return answer


async def unless_gone(request: Request, work: Awaitable[_Found]) -> _Found:
    """Wait for work, and cancel it if the client disconnects. The body must have been read.

    Raises:
        ClientGoneError: The client disconnected.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGoneError("the client disconnected before its answer was ready.")
    finally:
        gone.cancel()
        if not task.done():
            task.cancel()
            await asyncio.wait({task})


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _sentence(error: Exception) -> str:
    text = str(error)
    return text if text.endswith(".") else f"{text}."
