"""The HTTP connection, with limits that uvicorn lacks: on connections, headers, time and the parts of a body."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import http
import logging
import resource
import time
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from cellerate.serving.limits import Limits

log = logging.getLogger("cellerate.serving")


# The files and pipes that the process needs beside its connections.
_OTHER_FILES = 128
# The share of all connections that one peer may hold, so that it cannot shut others out.
_SHARE_OF_PEER = 0.75
_WORD_EVERY_S = 60


class Connections:
    """All connections: if there are too many, the one idle for longest is closed.

    Args:
        most: The limit on connections.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._most_of_peer = max(1, int(most * _SHARE_OF_PEER))
        self._all: dict[Any, str] = {}
        # The idle connections, the longest idle first.
        self._idle: dict[Any, str] = {}
        self._of_peer: collections.Counter[str] = collections.Counter()
        self._next_word, self._closed = 0.0, 0

    def add(self, connection: Any, peer: str) -> bool:
        """Register a new connection, which waits for its first request. Return False if all places are taken."""
        crowded = self._of_peer[peer] >= self._most_of_peer
        if crowded or len(self._all) >= self.most:
            # A peer with too many connections loses one of its own.
            known = [one for one, whose in self._idle.items() if whose == peer] if crowded else self._idle
            oldest = next(iter(known), None)
            self._tell(peer)
            if oldest is None:
                return False
            self.remove(oldest)
            oldest.give_way()
        self._all[connection] = self._idle[connection] = peer
        self._of_peer[peer] += 1
        return True

    def note(self, connection: Any, *, idle: bool) -> None:
        """Record whether a connection is idle."""
        if connection not in self._all:
            return
        if not idle:
            self._idle.pop(connection, None)
        elif connection not in self._idle:
            self._idle[connection] = self._all[connection]

    def remove(self, connection: Any) -> None:
        """Forgets a connection."""
        peer = self._all.pop(connection, None)
        self._idle.pop(connection, None)
        if peer is not None:
            self._of_peer[peer] -= 1
            if not self._of_peer[peer]:
                del self._of_peer[peer]

    def _tell(self, peer: str) -> None:
        self._closed += 1
        if time.monotonic() >= self._next_word:
            log.warning(
                "the limit of connections is reached: %d, %d of them from %s; %d were closed or refused.",
                len(self._all),
                self._of_peer[peer],
                peer,
                self._closed,
            )
            self._next_word, self._closed = time.monotonic() + _WORD_EVERY_S, 0


def most_connections(wanted: int) -> int:
    """The number of connections that there may be, after as many files as possible were allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + _OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return wanted if soft == resource.RLIM_INFINITY else min(wanted, max(8, soft - _OTHER_FILES))


class _BoundedProtocol(HttpToolsProtocol):
    """A connection that is closed when a client sends too much, or too slowly.

    Args:
        limits: The bounds.
        places: All connections within these bounds.
        args: The arguments of uvicorn's own class.
        kwargs: Its keyword arguments.
    """

    def __init__(self, limits: Limits, places: Connections, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._limits, self._places = limits, places
        self._timer: asyncio.TimerHandle | None = None
        self._head_bytes = self._chunks = 0
        self._refused = False
        # The cycles of requests that are not answered yet, the one in work first.
        self._unanswered: collections.deque[Any] = collections.deque()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        peer = str((transport.get_extra_info("peername") or ("unknown",))[0])
        if not self._places.add(self, peer):
            self._refuse(503, "the server has too many connections; try again.")
            return
        self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._places.remove(self)
        self._stop_timer()
        # uvicorn tells only the last of several requests, and the one in work would write to the closed connection.
        for cycle in self._unanswered:
            cycle.disconnected = True
            cycle.message_event.set()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._unanswered:
            self._unanswered.popleft()
        if not self._unanswered:
            self._places.note(self, idle=True)

    def give_way(self) -> None:
        """Close the connection, because another one needs its place."""
        self._stop_timer()
        self._refused = True
        self.transport.abort()

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
            before = self.cycle
            super().on_headers_complete()
            # None is added for a request to change the protocol, which is refused.
            if self.cycle is not before:
                self._unanswered.append(self.cycle)

    def on_body(self, body: bytes) -> None:
        self._chunks += 1
        if self._chunks > self._limits.chunks:
            self._refuse(413, f"the body comes in more than {self._limits.chunks} parts; send larger ones.")
        if not self._refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if not self._refused:
            super().on_message_complete()

    def _count_head(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > self._limits.header_bytes:
            self._refuse(431, f"the head of the request has more than {self._limits.header_bytes} bytes.")

    def _wait_for_head(self) -> None:
        self._places.note(self, idle=True)
        self._timer = self.loop.call_later(
            self._limits.receive_s,
            self._refuse,
            408,
            f"the request took longer than {self._limits.receive_s:g} s.",
        )

    def _head_came(self) -> None:
        self._places.note(self, idle=False)
        self._stop_timer()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _refuse(self, status: int, message: str) -> None:
        if self._refused or self.transport.is_closing():
            return
        self._refused = True
        # A second answer would be read as a part of the one that is being sent.
        if self.cycle is None or self.cycle.response_complete:
            text = f'{{"error":"{message}"}}'
            phrase = http.HTTPStatus(status).phrase
            self.transport.write(
                f"HTTP/1.1 {status} {phrase}\r\ncontent-type: application/json\r\n"
                f"content-length: {len(text)}\r\nconnection: close\r\n\r\n{text}".encode()
            )
        self.transport.close()


def protocol_within(limits: Limits) -> type[HttpToolsProtocol]:
    """The class of connections for uvicorn.

    Args:
        limits: The bounds.
    """
    places = Connections(most_connections(limits.connections))

    class Protocol(_BoundedProtocol):
        """A connection within these bounds."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(limits, places, *args, **kwargs)

    return Protocol
