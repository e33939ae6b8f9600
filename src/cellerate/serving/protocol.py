"""The HTTP connection, with bounds that uvicorn lacks: on the head, the time it takes, and the parts of a body."""

import asyncio
import http
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from cellerate.serving.limits import Limits


def protocol_within(limits: Limits) -> type[HttpToolsProtocol]:
    """The class of connections for uvicorn.

    Args:
        limits: The bounds.
    """

    class Protocol(HttpToolsProtocol):
        """A connection that is closed when a client sends too much, or too slowly."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self._timer: asyncio.TimerHandle | None = None
            self._head_bytes = self._chunks = 0
            self._refused = False

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._wait_for_head()

        def connection_lost(self, exc: Exception | None) -> None:
            self._head_came()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            if self._refused:
                return
            super().data_received(data)
            # Between two requests, anything begins the next one.
            if self._timer is None and (self.cycle is None or self.cycle.response_complete):
                self._wait_for_head()

        def on_message_begin(self) -> None:
            self._head_bytes = self._chunks = 0
            super().on_message_begin()

        def on_url(self, url: bytes) -> None:
            self._count_head(len(url))
            super().on_url(url)

        def on_header(self, name: bytes, value: bytes) -> None:
            self._count_head(len(name) + len(value) + 4)
            super().on_header(name, value)

        def on_headers_complete(self) -> None:
            self._head_came()
            if not self._refused:
                super().on_headers_complete()

        def on_body(self, body: bytes) -> None:
            self._chunks += 1
            if self._chunks > limits.chunks:
                self._refuse(413, f"the body comes in more than {limits.chunks} parts; send larger ones.")
            if not self._refused:
                super().on_body(body)

        def on_message_complete(self) -> None:
            if not self._refused:
                super().on_message_complete()

        def _count_head(self, size: int) -> None:
            self._head_bytes += size
            if self._head_bytes > limits.header_bytes:
                self._refuse(431, f"the head of the request has more than {limits.header_bytes} bytes.")

        def _wait_for_head(self) -> None:
            self._timer = self.loop.call_later(
                limits.receive_s, self._refuse, 408, f"the request took longer than {limits.receive_s:g} s."
            )

        def _head_came(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

        def _refuse(self, status: int, message: str) -> None:
            if self._refused or self.transport.is_closing():
                return
            self._refused = True
            # While an answer is on its way, another one would be read as a part of it.
            if self.cycle is None or self.cycle.response_complete:
                text = f'{{"error":"{message}"}}'
                phrase = http.HTTPStatus(status).phrase
                self.transport.write(
                    f"HTTP/1.1 {status} {phrase}\r\ncontent-type: application/json\r\n"
                    f"content-length: {len(text)}\r\nconnection: close\r\n\r\n{text}".encode()
                )
            self.transport.close()

    return Protocol
