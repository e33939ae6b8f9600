"""Keys and limits: the refusals of a server, after which it keeps running."""

import json
import socket
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from support.servers import Server, plain_cell, refusal, serving, text_cell

ASK = {"model": "text", "prompt": "abc", "max_tokens": 5}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return text_cell(tmp_path_factory.mktemp("models") / "text.cell")


@pytest.fixture(scope="module")
def small(path: Path) -> Iterator[Server]:
    """A server with small limits."""
    bounds = {
        "body-bytes": 10_000,
        "header-bytes": 2000,
        "receive-s": 0.5,
        "chunks": 50,
        "prompt-tokens": 100,
    }
    options = [text for name, bound in bounds.items() for text in (f"--{name}", str(bound))]
    with serving(path, options=tuple(options)) as running:
        yield running


def raw(server: Server, *parts: bytes, pause_s: float = 0.0) -> bytes:
    """Send bytes, and return everything received until the server closes the connection."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        for part in parts:
            try:
                connection.sendall(part)
            except OSError:
                break
            time.sleep(pause_s)
        found = b""
        try:
            while more := connection.recv(65536):
                found += more
        except OSError:
            pass
        return found


def beside(server: Server, clients: Sequence[Sequence[bytes]]) -> list[bytes]:
    """The result of `raw` for each of several simultaneous clients."""
    with ThreadPoolExecutor(len(clients)) as pool:
        return list(pool.map(lambda parts: raw(server, *parts, pause_s=0.1), clients))


@pytest.mark.parametrize("where", ["environment", "file"])
def test_every_route_except_the_probes_needs_a_key(path, tmp_path, where):
    options: tuple[str, ...] = ()
    environment = {"CELLERATE_API_KEYS": "first, second"}
    if where == "file":
        file = tmp_path / "keys"
        file.write_text("first\n\nsecond\n")
        options, environment = ("--key-file", str(file)), {}
    with serving(path, options=options, **environment) as server, server.client() as http:
        for probe in ("/healthz", "/v2/health/live", "/v2/health/ready"):
            assert http.get(probe).status_code == 200
        document = http.get("/openapi.json", headers={"authorization": "Bearer second"}).json()
        for route, methods in document["paths"].items():
            if route in ("/healthz", "/v2/health/live", "/v2/health/ready"):
                continue
            filled = route.format(name="text", version="1", id="1")
            for method in methods:
                for key in (None, "Bearer", "Bearer third", "Basic first"):
                    headers = {} if key is None else {"authorization": key}
                    answer = http.request(method, filled, headers=headers, json={})
                    assert answer.status_code == 401, (method, filled, key)
                    assert "www-authenticate" in answer.headers
        for unknown in ("/metrics", "/", "/none"):
            assert http.get(unknown).status_code == 401
        assert http.get("/metrics", headers={"authorization": "Bearer first"}).status_code == 200
        assert http.get("/metrics", auth=("anyone", "second")).status_code == 200, "as a browser asks for it"


def test_public_address_without_a_key_is_refused_without_no_key(path):
    assert "on 0.0.0.0 anyone in the network could use the models" in refusal(
        path, options=("--host", "0.0.0.0")
    )
    with serving(path, options=("--host", "0.0.0.0", "--no-key")) as server:
        assert server.address


def test_body_beyond_the_bound_is_refused_with_and_without_a_length(small):
    text = json.dumps(ASK | {"user": "x" * 20_000}).encode()
    with small.client() as http:
        for content in (text, iter([text[:5000], text[5000:]])):
            answer = http.post("/v1/completions", content=content)
            assert answer.status_code == 413
            assert "more than 10000 bytes" in answer.json()["error"]["message"]
        assert http.post("/v1/completions", json=ASK).status_code == 200


def test_body_in_too_many_parts_is_refused(small):
    head = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"
    found = raw(small, head + b"1\r\na\r\n" * 60 + b"0\r\n\r\n")
    assert found == b"" or found.startswith(b"HTTP/1.1 4"), found


def test_head_beyond_the_bound_is_refused(small):
    for request in (
        b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nlong: " + b"y" * 3000 + b"\r\n\r\n",
        b"GET /healthz?" + b"z" * 3000 + b" HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\n" + b"a: b\r\n" * 1000,
    ):
        assert raw(small, request).startswith(b"HTTP/1.1 431 "), request[:40]


def test_slow_client_is_disconnected(small):
    begin = time.monotonic()
    slow = (
        (),
        (b"GET /healthz HT",),
        (b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n", b"GET /heal"),
        (b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 50\r\n\r\n{",),
    )
    for parts, found in zip(slow, beside(small, slow), strict=True):
        assert b" 408 " in found, parts
    assert time.monotonic() - begin < 15


def test_broken_requests_are_refused_and_the_server_keeps_running(small):
    broken = (
        (b"\x00\x01\x02\r\n\r\n",),
        (b"NONSENSE\r\n\r\n",),
        (b"GET / HTTP/9.9\r\n\r\n",),
        (b"GET /%zz HTTP/1.1\r\n\r\n",),
    )
    for found in beside(small, broken):
        assert found == b"" or found.startswith(b"HTTP/1.1 4"), found
    with small.client() as http:
        assert http.get("/healthz").json() == {"status": "ok"}


def test_prompt_beyond_the_bound_is_refused(small):
    with small.client() as http:
        answer = http.post("/v1/completions", json=ASK | {"prompt": "a" * 101})
        assert "a prompt has 101 characters; at most 100 are read" in answer.json()["error"]["message"]


def test_unknown_routes_and_methods_are_errors_in_json(small):
    with small.client() as http:
        none = http.post("/v2/none", json={})
        assert none.status_code == 404
        assert none.json() == {"error": "there is no route '/v2/none' here; /docs lists all routes."}
        answer = http.get("/v1/completions")
        assert answer.status_code == 405
        message = answer.json()["error"]["message"]
        assert message == "'/v1/completions' takes POST, not GET; /docs lists all routes."
        assert answer.headers["allow"] == "POST"
        assert http.patch("/v1/models/text/sessions").headers["allow"] == "GET, HEAD, POST"


def test_texts_above_the_limit_are_refused_at_once_and_later_accepted(path):
    long = ASK | {"max_tokens": 100_000, "stream": True}
    with serving(path, options=("--sequences", "2")) as server, server.client() as http:
        with http.stream("POST", "/v1/completions", json=long | {"n": 2}) as answer:
            assert answer.status_code == 200
            begin = time.monotonic()
            refused = http.post("/v1/completions", json=ASK)
            assert refused.status_code == 503
            assert refused.headers["retry-after"] == "1"
            assert time.monotonic() - begin < 1
            # A refusal does not read the request, however long, and the connection stays usable.
            assert http.post("/v1/completions", content=b"{" * 3_000_000).status_code == 503
            assert http.get("/healthz").status_code == 200
        # The stream's reader disconnected, so its places become free soon.
        end = time.monotonic() + 10
        while http.post("/v1/completions", json=ASK).status_code == 503:
            assert time.monotonic() < end
            time.sleep(0.01)
        assert http.post("/v1/completions", content=b"{").status_code == 400


def test_client_that_disconnects_frees_its_places(path):
    with serving(path, options=("--sequences", "8")) as server, server.client() as http:
        body = json.dumps(ASK | {"max_tokens": 100_000, "n": 4}).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n\r\n".encode()
        for _ in range(5):
            with socket.create_connection(("127.0.0.1", server.port)) as connection:
                connection.sendall(head + body)
                time.sleep(0.05)
        end = time.monotonic() + 10
        while 'num_requests_running{model_name="text"} 0.0' not in http.get("/metrics").text:
            assert time.monotonic() < end
            time.sleep(0.01)


def test_pipelined_requests_are_answered_and_those_of_a_client_that_goes_away_are_dropped(path):
    body = json.dumps(ASK | {"max_tokens": 200}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n"
    one, last = (f"{head}{end}\r\n".encode() + body for end in ("", "connection: close\r\n"))
    with serving(path) as server, server.client() as http:
        assert raw(server, one * 4 + last).count(b"HTTP/1.1 200") == 5
        for count in (1, 2, 5):
            with socket.create_connection(("127.0.0.1", server.port)) as connection:
                connection.sendall(one * count)
        # Their answers would have come by now.
        assert raw(server, one * 4 + last).count(b"HTTP/1.1 200") == 5
        assert 'num_requests_running{model_name="text"} 0.0' in http.get("/metrics").text
        assert not any("Traceback" in line or "Exception" in line for line in server.lines)


def test_request_that_takes_too_long_ends(path):
    with serving(path, options=("--request-s", "0.2")) as server, server.client() as http:
        answer = http.post("/v1/completions", json=ASK | {"max_tokens": 100_000, "n": 64})
        assert answer.status_code == 504
        assert "took longer than" in answer.json()["error"]["message"]


def test_metrics_count_the_work_done(path, tmp_path):
    with serving(path, plain_cell(tmp_path / "plain.cell")) as server, server.client() as http:
        http.post("/v1/completions", json=ASK | {"n": 3})
        http.post("/v1/models/plain/sessions/a/push", json={"inputs": [[1, 2, 3]], "begin": True})
        http.post("/v1/models/plain/sessions/b/push", json={"inputs": [[1, 2, 3]]})
        http.get("/v1/models/none")
        text = http.get("/metrics").text
    for line in (
        'generation_tokens_total{model_name="text"} 15.0',
        'prompt_tokens_total{model_name="text"} 3.0',
        'time_to_first_token_seconds_count{model_name="text"} 3.0',
        'session_pushes_total{model_name="plain"} 1.0',
        'session_push_errors_total{model_name="plain"} 1.0',
        'sessions{model_name="plain"} 1.0',
        'http_requests_total{method="POST",route="/v1/completions",status="200"} 1.0',
        'http_requests_total{method="GET",route="/v1/models/{name}",status="404"} 1.0',
    ):
        assert line in text, line
    logged = [json.loads(line) for line in server.lines if '"path"' in line]
    assert logged[0]["path"] == "/v1/completions"
    assert logged[-2]["status"] == 404


@pytest.mark.parametrize(
    "models, message",
    [
        (["none.cell"], "none.cell"),
        (["book.keras"], "pack the model first (`cellerate pack book.keras -o book.cell`)"),
        (["notes.txt"], "pack the model first (`cellerate pack MODEL.keras -o MODEL.cell`)"),
        (["a b=text.cell"], "cannot be the name of a model"),
        (["{path}", "{path}"], "two models have the name 'text'"),
    ],
)
def test_model_that_cannot_be_served_gives_a_one_line_error(path, models, message):
    assert message in refusal(*(name.format(path=path) for name in models), options=("--no-state",))


def test_drain_without_an_end_is_refused_before_the_models_are_read():
    assert "--drain must be a number at least 0, not inf" in refusal("none.cell", options=("--drain", "inf"))


def test_repeated_errors_do_not_fill_the_log(monkeypatch, caplog):
    from cellerate.serving import answers

    now = 1000.0
    monkeypatch.setattr(answers.time, "monotonic", lambda: now)
    monkeypatch.setattr(answers, "_failures", answers._Failures())
    for _ in range(500):
        assert answers.status_of(ZeroDivisionError("division"))[0] == 500
    assert len(caplog.records) == 10
    now += 61
    answers.status_of(ZeroDivisionError("division"))
    assert "490 more requests failed in the last 60 s" in caplog.text
    assert len(caplog.records) == 12
