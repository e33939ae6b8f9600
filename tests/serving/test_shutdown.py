"""Shutdown: the server answers every accepted request completely and ends soon."""

import concurrent.futures
import re
import signal
import time
from pathlib import Path

import httpx2
import pytest

from cellerate.runtime.packed import load
from support.servers import serving, text_cell


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return text_cell(tmp_path_factory.mktemp("models") / "text.cell", units=64)


def all_began(answers: list[concurrent.futures.Future[httpx2.Response]], http: httpx2.Client) -> bool:
    """True if each text runs or has ended: on a busy machine some texts end before others begin."""
    # Counted first: a text that ends between the two counts is in neither, and the next look finds it.
    ended = sum(one.done() for one in answers)
    running = re.search(r'num_requests_running\{model_name="text"\} (\d+)', http.get("/metrics").text)
    return running is not None and ended + int(running[1]) == len(answers)


def test_shutdown_finishes_running_texts(path):
    with serving(path) as server, server.client(limits=httpx2.Limits(max_connections=None)) as http:

        def ask(n: int) -> httpx2.Response:
            given = {"model": "text", "prompt": "abc", "max_tokens": 20_000, "seed": n, "stream": n % 2 == 0}
            return http.post("/v1/completions", json=given)

        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            answers = [pool.submit(ask, n) for n in range(16)]
            with server.client() as other:
                end = time.monotonic() + 60
                while not all_began(answers, other):
                    assert time.monotonic() < end
                    time.sleep(0.005)
            assert server.stop() == 0
            found = [answer.result() for answer in answers]
    right = load(path).generate("abc", max_tokens=20_000, seed=3)
    assert found[3].json()["choices"][0]["text"] == right
    for n, answer in enumerate(found):
        assert answer.status_code == 200
        if n % 2 == 0:
            assert answer.text.endswith("data: [DONE]\n\n")
            assert '"finish_reason":"length"' in answer.text


def test_shutdown_cuts_texts_that_take_too_long(path):
    with serving(path, options=("--drain", "0.3")) as server, server.client() as http:
        given = {"model": "text", "prompt": "abc", "max_tokens": 100_000, "n": 100, "stream": True}
        with http.stream("POST", "/v1/completions", json=given) as answer:
            lines = answer.iter_lines()
            next(lines)
            begin = time.monotonic()
            server.process.send_signal(signal.SIGTERM)
            rest = list(lines)
        assert server.process.wait(30) == 0
        assert time.monotonic() - begin < 10
        assert rest[-2] == "data: [DONE]"
        assert sum('"finish_reason":"stop"' in line for line in rest) > 50
