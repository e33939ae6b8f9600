"""The pages of a server: files of the package, which load nothing from elsewhere."""

from __future__ import annotations

from pathlib import Path

from starlette.routing import Route

from cellerate.web import file_routes

_FOLDER = Path(__file__).parents[1] / "pages"


def page_routes() -> list[Route]:
    """The routes of the pages."""
    paths = {
        "/": ("playground.html", "text/html"),
        "/docs": ("docs.html", "text/html"),
        "/assets/page.css": ("page.css", "text/css"),
        "/assets/playground.js": ("playground.js", "text/javascript"),
        "/assets/docs.js": ("docs.js", "text/javascript"),
    }
    return file_routes(_FOLDER, paths)
