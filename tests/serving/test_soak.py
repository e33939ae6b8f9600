"""Ten minutes of mixed load from clients that often disconnect midway: the server must free all their resources."""

import asyncio
import json
import random
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.servers import CHARACTERS, Server, embed_cell, plain_cell, serving, text_cell

pytestmark = pytest.mark.slow
WARM_S, SOAK_S, CLIENTS, TTL_S = 30, 570, 40, 5
MOST_GROWTH = 50 << 20


class Gone(Exception):  # noqa: N818 (not an error: the client itself disconnected)
    """A client disconnected in the middle of a request."""


async def ask(port: int, draw: random.Random, path: str, body: Any, patience: float) -> int:
    """Send a request and return the status of its answer, or disconnect before the answer ends."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    goes = draw.random() < 0.4
    try:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {len(data)}\r\n\r\n"
        request = head.encode() + data
        if goes and draw.random() < 0.3:
            writer.write(request[: draw.randrange(len(request))])
            await writer.drain()
            await asyncio.sleep(draw.random() * patience)
            raise Gone
        writer.write(request)
        await writer.drain()
        if goes:
            await asyncio.wait_for(reader.read(draw.randrange(1, 2000)), draw.random() * patience + 0.001)
            raise Gone
        answer = await reader.read()
        return int(answer.split(None, 2)[1])
    except TimeoutError:
        raise Gone from None
    finally:
        if goes and draw.random() < 0.5:
            writer.transport.abort()
        writer.close()


def request(draw: random.Random, number: int) -> tuple[str, Any]:
    """A random request; most are valid."""
    rows = [[draw.random() for _ in range(3)] for _ in range(draw.randrange(1, 30))]
    prompt = "".join(draw.choices(CHARACTERS, k=draw.choice((1, 20, 300, 3000))))
    name = f"s{number}-{draw.randrange(10)}"
    text = {"model": "text", "prompt": prompt, "max_tokens": draw.choice((1, 50, 1000)), "seed": number}
    more = {"n": draw.randrange(1, 4), "logprobs": draw.choice((None, 2)), "stream": draw.random() < 0.6}
    inputs = [{"name": "x", "shape": [1, len(rows), 3], "datatype": "FP32", "data": np.ravel(rows).tolist()}]
    return draw.choice(
        [
            ("/v1/completions", text),
            ("/v1/completions", text | more | {"prompt": prompt[:300], "max_tokens": 100}),
            ("/v1/embeddings", {"model": "lines", "input": ["abc", prompt[:10]]}),
            ("/v2/models/plain/infer", {"inputs": inputs}),
            ("/v1/models/plain:predict", {"instances": [rows]}),
            (f"/v1/models/plain/sessions/{name}/push", {"inputs": rows, "begin": True}),
            (f"/v1/models/plain/sessions/{name}/push", {"inputs": rows, "end": draw.random() < 0.3}),
            ("/v1/completions", prompt.encode()),
        ]
    )


async def load(port: int, seconds: float) -> dict[int, int]:
    """Run clients in parallel for some seconds; return the number of answers of each status."""
    statuses: dict[int, int] = {}
    end = time.monotonic() + seconds

    async def client(place: int) -> None:
        draw = random.Random(place * 1000 + int(seconds))
        number = place
        while time.monotonic() < end:
            number += CLIENTS
            path, body = request(draw, number)
            try:
                status = await ask(port, draw, path, body, 0.3)
            except Gone:
                status = 0
            statuses[status] = statuses.get(status, 0) + 1

    await asyncio.gather(*(client(place) for place in range(CLIENTS)))
    return statuses


def resident(server: Server) -> int:
    """The memory of the server in bytes."""
    text = Path(f"/proc/{server.process.pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", text)
    assert found
    return int(found[1]) << 10


def held(server: Server) -> dict[str, float]:
    """What the server holds for clients, by the names of its numbers."""
    with server.client() as http:
        text = http.get("/metrics").text
    names = ("num_requests_running", "sessions", "session_pushes_waiting", "pending_request_count")
    found = {name: sum(map(float, re.findall(rf"^{name}{{.*}} (\S+)$", text, re.M))) for name in names}
    found["http_requests_running"] = float(re.findall(r"^http_requests_running (\S+)$", text, re.M)[0]) - 1
    return found


def descriptors(server: Server) -> int:
    """The number of files and connections that the server has open."""
    return len(list(Path(f"/proc/{server.process.pid}/fd").iterdir()))


def test_clients_that_disconnect_leave_no_resources_in_use(tmp_path: Path) -> None:
    makers = {"text": text_cell, "lines": embed_cell, "plain": plain_cell}
    models = [make(tmp_path / f"{name}.cell") for name, make in makers.items()]
    options = ("--state", str(tmp_path / "state"), "--session-ttl-s", str(TTL_S), "--no-access-log")
    with serving(*models, options=options) as server:
        time.sleep(1)
        before = descriptors(server)
        asyncio.run(load(server.port, WARM_S))
        warm = resident(server)
        statuses = asyncio.run(load(server.port, SOAK_S))
        grown = resident(server) - warm
        end = time.monotonic() + 3 * TTL_S
        while any(held(server).values()) and time.monotonic() < end:
            time.sleep(0.5)
        time.sleep(1)  # the connection of the last check closes
        assert not any(held(server).values()), held(server)
        assert descriptors(server) <= before + 2, descriptors(server)
        assert server.process.poll() is None
        print(f"{statuses}, {grown >> 20} MB")
    assert grown <= MOST_GROWTH, f"{grown >> 20} MB"
    assert set(statuses) <= {0, 200, 400, 404, 409, 410}, statuses
    # Requests of both kinds were frequent.
    assert statuses[0] > 1000, statuses
    assert statuses[200] > 1000, statuses
