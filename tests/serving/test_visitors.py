"""Browser requests from other sites, foreign host names, and bodies of other content types."""

import gzip
import json
import socket
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.datastructures import Headers

from cellerate.serving.answers import RequestError
from cellerate.serving.compression import unpacked
from cellerate.serving.routes import page_routes
from cellerate.serving.visitors import Visitors
from support.servers import Server, plain_cell, serving

HOST = "localhost:8000"


def refused(visitors: Visitors, method: str = "GET", **headers: str) -> int | None:
    found = visitors.refusal(
        method, Headers({name.replace("_", "-"): value for name, value in headers.items()})
    )
    return None if found is None else found[0]


@pytest.mark.parametrize(
    ("host", "passes"),
    [
        ("localhost", True),
        ("LOCALHOST:8000", True),
        ("localhost.:8000", True),
        ("127.0.0.1:8000", True),
        ("[::1]:8000", True),
        ("192.168.1.7", True),
        ("demo.localhost:1", True),
        (socket.gethostname(), True),
        ("", True),
        ("evil.example", False),
        ("evil.example:8000", False),
        ("localhost.evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("1.2.3.4.5", False),
        ("[evil]", False),
    ],
)
def test_foreign_host_names_are_refused(host, passes):
    assert (refused(Visitors(), host=host) is None) == passes
    assert refused(Visitors(names=["*"]), host=host) is None


def test_configured_host_names_are_accepted():
    visitors = Visitors("models.example", ["api.example."])
    assert refused(visitors, host="models.example:80") is None
    assert refused(visitors, host="api.example") is None
    assert refused(visitors, host="other.example") == 403
    # A proxy in front may change the host name.
    assert refused(visitors, host="127.0.0.1:8000", origin="https://api.example") is None
    assert refused(visitors, host="127.0.0.1:8000", origin="https://other.example") == 403


@pytest.mark.parametrize(
    ("headers", "passes"),
    [
        ({"origin": "http://localhost:8000", "sec_fetch_site": "same-origin"}, True),
        ({"origin": "http://localhost:3000", "sec_fetch_site": "same-site"}, False),
        ({"origin": "http://localhost:3000"}, False),
        ({"origin": "http://evil.example"}, False),
        ({"origin": "http://localhost:8000.evil.example"}, False),
        ({"origin": "http://[evil"}, False),
        ({"origin": "null"}, False),
        ({"sec_fetch_site": "cross-site", "sec_fetch_mode": "no-cors"}, False),
        ({"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate"}, False),
        ({"sec_fetch_site": "none", "sec_fetch_mode": "navigate"}, True),
        ({}, True),
    ],
)
def test_browser_requests_from_other_sites_are_refused(headers, passes):
    body = {"content_type": "application/json", "content_length": "2"}
    assert (refused(Visitors(), "POST", host=HOST, **body, **headers) is None) == passes


def test_link_from_another_site_and_origin_without_default_port_are_accepted():
    assert refused(Visitors(), host=HOST, sec_fetch_site="cross-site", sec_fetch_mode="navigate") is None
    assert (
        refused(Visitors(), "DELETE", host=HOST, sec_fetch_site="cross-site", sec_fetch_mode="navigate")
        == 403
    )
    assert refused(Visitors(), host="localhost:80", origin="http://localhost") is None
    assert refused(Visitors(), host="localhost", origin="https://localhost:443") is None


@pytest.mark.parametrize(
    ("kind", "passes"),
    [
        ("application/json", True),
        ("application/json; charset=utf-8", True),
        ("application/vnd.api+json", True),
        ("application/x-ndjson", True),
        ("application/octet-stream", True),
        ("application/x-www-form-urlencoded", True),
        (None, True),
        ("text/plain;charset=UTF-8", False),
        ("multipart/form-data; boundary=x", False),
        ("text/html", False),
    ],
)
def test_body_of_another_content_type_is_refused(kind, passes):
    headers = {"host": HOST, "content_length": "2"} | ({} if kind is None else {"content_type": kind})
    assert refused(Visitors(), "POST", **headers) == (None if passes else 415)
    assert refused(Visitors(), "POST", **headers | {"content_length": "0"}) is None
    assert (
        refused(Visitors(), "PUT", host=HOST, transfer_encoding="chunked", content_type="text/plain") == 415
    )
    # The body of an HTML form is refused, too, if an Origin header shows that a browser sends it.
    if kind in (None, "application/x-www-form-urlencoded"):
        assert refused(Visitors(), "POST", **headers, origin="http://" + HOST) == 415


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("models")
    keys = folder / "keys"
    keys.write_bytes("# keys of the team\n\nschlüssel\n  # another comment\n".encode() + b"bytes\xff\n")
    with serving(plain_cell(folder / "plain.cell"), options=("--key-file", str(keys))) as running:
        yield running


def status(
    server: Server, authorization: bytes | None, path: bytes = b"/v1/models", host: bytes = b"localhost"
) -> int:
    lines = [b"GET " + path + b" HTTP/1.1", b"Host: " + host, b"Connection: close"]
    if authorization is not None:
        lines.append(b"Authorization: " + authorization)
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        connection.sendall(b"\r\n".join([*lines, b"", b""]))
        return int(connection.recv(65536).split(b" ")[1])


@pytest.mark.parametrize(
    ("authorization", "expected"),
    [
        ("Bearer schlüssel".encode(), 200),
        (b"Bearer bytes\xff", 200),
        (b"Basic OnNjaGzDvHNzZWw=", 200),
        (b"Basic \xe9", 401),
        (b"Basic \xc3\xa9==", 401),
        (b"Basic a", 401),
        (b"Bearer # keys of the team", 401),
        (b"Bearer # another comment", 401),
        (b"Bearer", 401),
        (b"Bearer \xff", 401),
        (None, 401),
    ],
)
def test_key_file_holds_keys_as_bytes_and_ignores_comments(server, authorization, expected):
    assert status(server, authorization) == expected


@pytest.mark.parametrize("route", page_routes(), ids=lambda route: route.path)
def test_pages_are_served(server, route):
    assert status(server, b"Bearer bytes\xff", path=route.path.encode()) == 200


def test_server_refuses_paths_that_are_not_text(server):
    key = b"Bearer bytes\xff"
    assert status(server, key, host=b"service.namespace") == 200, "a page that leads here has no key"
    assert status(server, key, path=b"/v1/models/plain/sessions/%ff") == 400
    assert status(server, key, path=b"/v1/models/plain/sessions/%c3%a9") == 404
    assert status(server, None, path=b"/healthz", host=b"service.namespace") == 200


def test_server_without_keys_refuses_foreign_host_names(tmp_path: Path):
    path = plain_cell(tmp_path / "plain.cell")
    with serving(path, options=("--allow-host", "models.example")) as running:
        assert status(running, None, host=b"evil.example") == 403
        assert status(running, None, host=b"models.example:80") == 200
        assert status(running, None, path=b"/healthz", host=b"evil.example") == 200


def test_gzip_of_several_members_is_one_body():
    one, other = gzip.compress(b'{"a":1}\n'), gzip.compress(b'{"b":2}\n')
    assert unpacked(one + other, "gzip", 100) == b'{"a":1}\n{"b":2}\n'
    assert unpacked(one + gzip.compress(b""), "gzip", 100) == b'{"a":1}\n'
    for body, encoding in (
        (one + b"rubbish", "gzip"),
        (zlib.compress(b"x") + b"y", "deflate"),
        (one * 100, "gzip"),
    ):
        with pytest.raises(RequestError) as caught:
            unpacked(body, encoding, 10_000)
        assert caught.value.status == 400
    with pytest.raises(RequestError, match="its end is missing"):
        unpacked(one + other[:-3], "gzip", 100)
    with pytest.raises(RequestError) as caught:
        unpacked(one + other, "gzip", 10)
    assert caught.value.status == 413


def test_every_gzip_member_of_a_push_is_read(tmp_path: Path):
    lines = [json.dumps({"id": name, "inputs": [[1, 2, 3]], "begin": True}).encode() + b"\n" for name in "ab"]
    with serving(plain_cell(tmp_path / "plain.cell")) as running, running.client() as http:
        body = b"".join(map(gzip.compress, lines))
        answer = http.post("/v1/models/plain/push", content=body, headers={"content-encoding": "gzip"})
        assert answer.status_code == 200 and len(answer.text.splitlines()) == 2
        for name in "ab":
            assert http.get(f"/v1/models/plain/sessions/{name}").status_code == 200
