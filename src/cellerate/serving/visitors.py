"""Tells requests of this server's own pages, under its own names, from those of other sites.

A page of any other site can make a browser send requests to a server on this machine or in this network. Where the
server asks for no key, that is all it takes. So a request that a browser marks as one of another site is refused, and
so is one for a name that is not this server's: a site can let its own name lead here for a moment (DNS rebinding), and
is then the same site. An address is not a name, so it cannot.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence
from urllib.parse import urlsplit

from starlette.datastructures import Headers

_JSON = ("application/json", "application/jsonl", "application/x-ndjson", "application/x-jsonlines")
# Tensors as bytes behind the JSON.
_BYTES = "application/octet-stream"
# What curl and HTTP libraries say of bodies that they were told nothing of.
_UNTOLD = ("", "application/x-www-form-urlencoded")
_OF_BROWSERS = ("origin", "referer", "cookie", "sec-fetch-site", "sec-fetch-mode")


class Visitors:
    """Tells requests that may pass from those of other sites.

    Args:
        host: The address that the server listens on.
        names: Further names of it; "*" for any.
    """

    def __init__(self, host: str = "127.0.0.1", names: Sequence[str] = ()) -> None:
        self._any = "*" in names
        self._configured = {name.lower().rstrip(".") for name in names}
        own = socket.gethostname().lower()
        self._names = self._configured | {"localhost", host.lower(), own, f"{own}.local"}

    def refusal(self, method: str, headers: Headers) -> tuple[int, str] | None:
        """The status and the reason to refuse a request; None for one that may pass."""
        host = headers.get("host", "")
        if not self._is_own(_name(host)):
            return 403, (
                f"{_name(host)[:100]!r} is not a name of this server: start it with "
                f"`cellerate serve --allow-host {_name(host)[:100]}`."
            )
        origin = headers.get("origin")
        if origin is not None and not self._is_same(origin, host):
            return 403, "requests of pages of other sites are refused."
        # A link may lead here from anywhere; it changes nothing, and nobody else reads the answer.
        follows = method in ("GET", "HEAD") and headers.get("sec-fetch-mode") == "navigate"
        if headers.get("sec-fetch-site") in ("cross-site", "same-site") and not follows:
            return 403, "requests of pages of other sites are refused."
        if method in ("POST", "PUT", "PATCH"):
            return _refused_body(headers)
        return None

    def _is_own(self, name: str) -> bool:
        return (
            self._any or not name or name in self._names or name.endswith(".localhost") or _is_address(name)
        )

    def _is_same(self, origin: str, host: str) -> bool:
        """True if a page's origin is this server, as far as the browser sees it."""
        try:
            parts = urlsplit(origin)
            name = (parts.hostname or "").lower()
        except ValueError:
            return False
        usual = {"http": ":80", "https": ":443"}.get(parts.scheme, "")
        return bool(name) and (
            name in self._configured
            or parts.netloc.lower().removesuffix(usual) == host.lower().removesuffix(usual)
        )


def _refused_body(headers: Headers) -> tuple[int, str] | None:
    """Refuses a body by its type: a page may send a few types to any site without asking it first."""
    if headers.get("content-length", "0") == "0" and "transfer-encoding" not in headers:
        return None
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind in _JSON or kind == _BYTES or kind.endswith("+json"):
        return None
    if kind in _UNTOLD and not any(name in headers for name in _OF_BROWSERS):
        return None
    return (
        415,
        f"the body comes as {kind or 'nothing'!r:.60}; expected the header Content-Type: application/json.",
    )


def _name(host: str) -> str:
    """The name in a `Host` header, without the port."""
    name = host.strip().lower()
    if name.startswith("["):
        return name[1:].partition("]")[0]
    return name.partition(":")[0].rstrip(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
