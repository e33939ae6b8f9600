"""A page on this machine that shows runs while they train: `cellerate watch`."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from cellerate.errors import DataError
from cellerate.observe.runs import find_runs, named, read_run, run_folders
from cellerate.web import PAGE_HEADERS, Server, bound_socket, file_routes

_FOLDER = Path(__file__).parent / "pages"
_FILES = {
    "/": ("watch.html", "text/html"),
    "/watch.css": ("watch.css", "text/css"),
    "/watch.js": ("watch.js", "text/javascript"),
}


def watch(
    paths: Sequence[str | Path],
    *,
    host: str,
    port: int,
    started: Callable[[str], None] = lambda address: None,
) -> None:
    """Serve the page until SIGINT or SIGTERM.

    Args:
        paths: Runs, their models, or folders of runs, which are searched again and again.
        host: The address to listen on.
        port: The port; 0 for a free one.
        started: Called with the page's address once it can be opened.

    Raises:
        DataError: A path names no run.
        ConfigError: The host cannot be a name or an address.
        OutputError: The server cannot listen on this address.
    """
    find_runs(paths)
    listener = bound_socket(host, port)
    listener.listen()
    shown = f"[{host}]" if ":" in host else host
    config = uvicorn.Config(
        make_app(paths, host), lifespan="off", log_config=None, access_log=False, ws="none"
    )
    started(f"http://{shown}:{listener.getsockname()[1]}")
    Server(config).run([listener])


def make_app(paths: Sequence[str | Path], host: str = "127.0.0.1") -> Starlette:
    """The application: the page, and the answers to its requests."""
    routes = [*file_routes(_FOLDER, _FILES), Route("/runs", functools.partial(_runs, paths))]
    # Otherwise another site could read the page, under a host name of its own that it points to this machine.
    known = [host, f"[{host}]", "127.0.0.1", "localhost", "[::1]"]
    allowed = ["*"] if host in ("0.0.0.0", "::") else known  # noqa: S104 (the user opened it to the network)
    return Starlette(routes=routes, middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=allowed)])


def _runs(paths: Sequence[str | Path], request: Request) -> Response:
    """The new figures of each run: `?name=began,end` says which figures the page has."""
    folders: list[Path] = []
    for path in paths:
        # A run may be removed and come back while it is watched.
        with contextlib.suppress(DataError):
            folders += run_folders(path)
    found = []
    for name, folder in named(folders).items():
        began, _, end = request.query_params.get(name, "").partition(",")
        try:
            page = read_run(folder, float(began or 0), int(end or 0))
        except ValueError:
            page = read_run(folder)
        found.append({"name": name, "folder": str(folder), **dataclasses.asdict(page)})
    answer = {"now": time.time(), "runs": found}
    return Response(json.dumps(answer, allow_nan=False), headers=PAGE_HEADERS, media_type="application/json")
