"""The pages of a server: files of the package, which load nothing from elsewhere."""

import functools
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

_FOLDER = Path(__file__).parent / "pages"
_HEADERS = {
    # What a model writes is shown as text; should a fault ever let it become markup, nothing of it would run.
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}


def page_routes() -> list[Route]:
    """The routes of the pages."""
    paths = {
        "/": ("playground.html", "text/html"),
        "/docs": ("docs.html", "text/html"),
        "/assets/page.css": ("page.css", "text/css"),
        "/assets/playground.js": ("playground.js", "text/javascript"),
        "/assets/docs.js": ("docs.js", "text/javascript"),
    }
    return [Route(path, functools.partial(_file, *told)) for path, told in paths.items()]


async def _file(name: str, kind: str, request: Request) -> Response:
    return Response((_FOLDER / name).read_bytes(), headers=_HEADERS, media_type=kind)
