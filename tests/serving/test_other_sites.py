"""Pages of other sites in a real browser cannot write to a session and cannot read an answer."""

import functools
import http.server
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from support.report.browser import EVIL, browser
from support.servers import plain_cell, serving

__all__ = ["browser"]
pytestmark = pytest.mark.slow

SENT = """async ([address, with_credentials]) => {
    const credentials = with_credentials ? "include" : "omit";
    const told = [];
    const ask = async (path, options) => {
        try {
            const answer = await fetch(address + path, { credentials, ...options });
            told.push(answer.type === "opaque" ? "opaque" : answer.status);
        } catch (error) { told.push("refused"); }
    };
    const push = JSON.stringify({ inputs: [[9, 9, 9]] });
    const path = "/v1/models/plain/sessions/a/push";
    await ask(path, { method: "POST", mode: "no-cors", body: push });
    await ask(path, { method: "POST", mode: "no-cors", body: new Blob([push]) });
    await ask(path, { method: "POST", body: push, headers: { "content-type": "application/json" } });
    const end = '{"id":"a","inputs":[[1,1,1]],"end":true}';
    await ask("/v1/models/plain/push", { method: "POST", mode: "no-cors", body: end });
    await ask("/v1/models/plain/sessions/a", { method: "DELETE" });
    await ask("/v2/repository/models/plain/load", { method: "POST", mode: "no-cors" });
    await ask("/v1/models/plain/sessions/a/state", {});
    return told;
}"""
FORM = """address => {
    const form = document.createElement("form");
    form.method = "POST"; form.enctype = "text/plain";
    form.action = address + "/v1/models/plain/sessions/a/push";
    const field = document.createElement("input");
    field.name = '{"inputs":[[9,9,9]],"x":"'; field.value = '"}';
    form.append(field); document.body.append(form); form.submit();
}"""


class _Blank(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>other</title>")

    def log_message(self, *told: Any) -> None:
        pass


@pytest.fixture
def elsewhere() -> Iterator[int]:
    """The port of a server of a blank page."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Blank)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"], ids=["cross-site", "same-site"])
@pytest.mark.parametrize("keys", [False, True], ids=["open", "keys"])
def test_requests_of_another_site_reach_no_session(browser, elsewhere, tmp_path, host, keys):
    path = plain_cell(tmp_path / "plain.cell")
    environment = {"CELLERATE_API_KEYS": "secret"} if keys else {}
    headers = {"authorization": "Bearer secret"} if keys else {}
    with serving(path, **environment) as server, server.client(headers=headers) as client:
        push = functools.partial(client.post, "/v1/models/plain/sessions/a/push")
        assert push(json={"inputs": [[1, 2, 3]], "begin": True}).status_code == 200
        before = client.get("/v1/models/plain/sessions/a/state").json()
        known = {"http_credentials": {"username": "me", "password": "secret"}} if keys else {}
        context = browser.new_context(**known)
        page = context.new_page()
        if keys:
            # From here on the browser knows the key and sends it.
            assert page.goto(server.address).status == 200
        page.goto(f"http://{host}:{elsewhere}/")
        told = page.evaluate(SENT, [server.address, keys])
        assert set(told) <= {"opaque", "refused"}, told
        with page.expect_navigation():
            page.evaluate(FORM, server.address)
        assert "refused" in page.content() or "key" in page.content()
        assert client.get("/v1/models/plain/sessions/a/state").json() == before
        context.close()
        assert push(json={"inputs": [[1, 2, 3]]}).status_code == 200


def test_foreign_host_name_that_resolves_to_the_server_reads_nothing(browser, tmp_path):
    with serving(plain_cell(tmp_path / "plain.cell")) as server:
        page = browser.new_page()
        assert page.goto(f"http://{EVIL}:{server.port}/v1/models").status == 403
        assert page.evaluate("async () => (await fetch('/v1/models')).status") == 403
        assert page.goto(f"http://localhost:{server.port}/v1/models").status == 200
        page.close()
