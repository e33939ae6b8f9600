"""The common part of the HTTP servers of this package: pages that load nothing from elsewhere, and an end by signals.

It needs the extra `serve`.
"""

import contextlib
import functools
import signal
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path

import uvicorn
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from cellerate.errors import ConfigError, OutputError
from cellerate.messages import argument

PAGE_HEADERS = {
    # Pages insert data as text only; if a fault ever let data become markup, none of it would run.
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}


def bound_socket(host: str, port: int) -> socket.socket:
    """A socket at an address, for a server to listen on; port 0 takes a free one.

    Raises:
        ConfigError: The host cannot be a name or an address.
        OutputError: The server cannot listen there.
    """
    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        raise OutputError(f"the server cannot listen on {host}:{port}: {error.strerror}.") from error
    except TypeError as error:
        # Python raises it for a name that it cannot encode.
        bound.close()
        raise ConfigError(
            f"{argument('host')} must be an address of this machine or its name, not {host!r}: give "
            f"{argument('host', '127.0.0.1')}, for example."
        ) from error
    return bound


def file_routes(folder: Path, files: Mapping[str, tuple[str, str]]) -> list[Route]:
    """Routes to files of a folder: for each path the name of the file and its media type."""
    return [
        Route(path, functools.partial(_file, folder / name, kind)) for path, (name, kind) in files.items()
    ]


async def _file(file: Path, kind: str, request: Request) -> Response:
    return Response(file.read_bytes(), headers=PAGE_HEADERS, media_type=kind)


class Server(uvicorn.Server):
    """A server of uvicorn whose process is not killed by the signal that ended it."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Ends on SIGINT and SIGTERM as uvicorn does, but does not send them to the process again afterwards."""
        before = {each: signal.signal(each, self.handle_exit) for each in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)
