"""The gate before all routes: origins, keys, bounds, and a line in the log for each answered request.

It is plain ASGI: a middleware that wraps requests and responses would hide that a client has disconnected.
"""

from __future__ import annotations

import base64
import hmac
import logging
import time
from collections.abc import Sequence
from urllib.parse import unquote_to_bytes

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cellerate.serving.answers import RequestError, error_answer
from cellerate.serving.limits import Limits
from cellerate.serving.metrics import Metrics
from cellerate.serving.models import holding_models
from cellerate.serving.visitors import Visitors
from cellerate.serving.workers import BusyError

OPEN = ("/healthz", "/v2/health/live", "/v2/health/ready")
"""The paths that need no key: the probes."""

access_log = logging.getLogger("cellerate.serving.access")


class Gate:
    """Lets requests through to an app.

    Args:
        app: The app.
        limits: The limit on requests at once.
        metrics: The metrics that count requests.
        visitors: The requests that may come from a browser.
        keys: The accepted API keys; empty for a server without keys.
    """

    def __init__(
        self, app: ASGIApp, limits: Limits, metrics: Metrics, visitors: Visitors, keys: Sequence[bytes] = ()
    ) -> None:
        self._app, self._limits, self._metrics = app, limits, metrics
        self._visitors, self._keys = visitors, list(keys)
        self._running = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request, itself or through the app."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begin, status, sent = time.perf_counter(), 0, 0

        async def noting(message: Message) -> None:
            nonlocal status, sent
            if message["type"] == "http.response.start":
                status = message["status"]
            elif message["type"] == "http.response.body":
                sent += len(message.get("body", b""))
            await send(message)

        self._running += 1
        self._metrics.running.set(self._running)
        try:
            refusal = self._refusal(scope)
            if refusal is None:
                with holding_models():
                    await self._app(scope, receive, noting)
            else:
                await refusal(scope, receive, noting)
        finally:
            self._running -= 1
            self._metrics.running.set(self._running)
            self._note(scope, status, sent, time.perf_counter() - begin)

    def _refusal(self, scope: Scope) -> ASGIApp | None:
        """Return the answer that refuses a request; None if the request may pass."""
        path, headers = scope["path"], Headers(scope=scope)
        if path in OPEN:
            return None
        if not _is_text(scope["raw_path"]):
            return error_answer(RequestError(400, "the path is not UTF-8."), path)
        if (refused := self._visitors.refusal(scope["method"], headers)) is not None:
            return error_answer(RequestError(*refused), path)
        if self._keys and not self._has_key(headers):
            answer = error_answer(
                RequestError(401, "a key is needed: send it as `Authorization: Bearer KEY`."), path
            )
            # A browser then asks for a password, and sends the key as that password.
            answer.headers["www-authenticate"] = 'Basic realm="cellerate"' if path == "/" else "Bearer"
            return answer
        if self._running > self._limits.requests:
            self._metrics.refused.labels(_route(scope)).inc()
            return error_answer(
                BusyError(f"{self._limits.requests} requests are answered already; try again."), path
            )
        return None

    def _has_key(self, headers: Headers) -> bool:
        # Compared as bytes, because a header has no encoding.
        kind, _, given = headers.get("authorization", "").encode("latin-1").partition(b" ")
        if kind.lower() == b"basic":
            try:
                given = base64.b64decode(given.strip(), validate=True).partition(b":")[2]
            except ValueError:
                return False
        # All keys are compared, so that the time does not reveal which one was close.
        return bool(sum(hmac.compare_digest(given.strip(), key) for key in self._keys))

    def _note(self, scope: Scope, status: int, sent: int, seconds: float) -> None:
        route = _route(scope)
        self._metrics.requests.labels(scope["method"], route, status).inc()
        self._metrics.request_s.labels(route).observe(seconds)
        if access_log.isEnabledFor(logging.INFO):
            access_log.info(
                {
                    "client": (scope.get("client") or ("",))[0],
                    "method": scope["method"],
                    "path": scope["path"],
                    "status": status,
                    "bytes": sent,
                    "ms": round(seconds * 1e3, 2),
                }
            )


def _is_text(raw_path: bytes) -> bool:
    """False for a path whose bytes are not UTF-8: all such names would become the same text."""
    try:
        unquote_to_bytes(raw_path).decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _route(scope: Scope) -> str:
    """The pattern of a request's route, not the path of the client: those would be endlessly many labels."""
    return str(getattr(scope.get("route"), "path", "none"))
