"""Runs a server: it listens, answers, reloads models on SIGHUP, and ends without losing accepted requests."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import signal
import socket
import time
from collections.abc import Callable, Sequence

import uvicorn

from cellerate.errors import CellerateError
from cellerate.serving.answers import log
from cellerate.serving.app import make_app
from cellerate.serving.models import Models
from cellerate.serving.protocol import protocol_within
from cellerate.serving.visitors import Visitors
from cellerate.web import Server, bound_socket

# The seconds for sending answers after their texts have ended.
_LAST_WORDS_S = 5


def serve(
    models: Models,
    *,
    host: str,
    port: int,
    keys: Sequence[bytes] = (),
    names: Sequence[str] = (),
    drain_s: float = 30,
    started: Callable[[str], None] = lambda address: None,
) -> None:
    """Serves until SIGINT or SIGTERM.

    Args:
        models: The models to serve; they are closed at the end.
        host: The address to listen on.
        port: The port; 0 for a free one.
        keys: The accepted API keys; empty for a server without keys.
        names: Further host names of the server; "*" for any.
        drain_s: The seconds that texts may continue after the signal; then they end as they are.
        started: Called with the server's address once it listens.

    Raises:
        ConfigError: The host cannot be a name or an address.
        OutputError: The server cannot listen on this address.
    """
    listener = bound_socket(host, port)
    # Objects loaded by now stay alive, and a garbage collection that scans them would delay every request.
    gc.collect()
    gc.freeze()
    config = uvicorn.Config(
        # A page under another name would need the key, which its browser stores only for this server's name.
        make_app(models, keys, Visitors(host, [*names, *("*" if keys else "")])),
        http=protocol_within(models.limits),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=round(drain_s + _LAST_WORDS_S),
        backlog=2048,
    )
    shown = f"[{host}]" if ":" in host else host
    _Server(config, models, drain_s, lambda: started(f"http://{shown}:{listener.getsockname()[1]}")).run(
        [listener]
    )


class JsonLines(logging.Formatter):
    """Lines of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """A record as a line."""
        entry = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
            + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
        }
        entry |= record.msg if isinstance(record.msg, dict) else {"message": record.getMessage()}
        if record.exc_info:
            entry["error"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


class _Server(Server):
    def __init__(
        self, config: uvicorn.Config, models: Models, drain_s: float, started: Callable[[], None]
    ) -> None:
        super().__init__(config)
        self._models, self._drain_s, self._tell = models, drain_s, started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        reloads: set[asyncio.Task[None]] = set()

        def reload() -> None:
            task = asyncio.create_task(self._reload())
            reloads.add(task)
            task.add_done_callback(reloads.discard)

        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reload)
        self._tell()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let accepted requests finish; texts that take too long end as they are."""
        ending = asyncio.create_task(self._models.end_texts(self._drain_s))
        await super().shutdown(sockets)
        await ending
        await self._models.close()

    async def _reload(self) -> None:
        for served in list(self._models):
            try:
                changed = await self._models.reload(served.name)
                log.info("read %s again: %s", served.path, "another model" if changed else "the same model")
            except CellerateError as error:
                log.error("%s was not read again: %s", served.path, error)
