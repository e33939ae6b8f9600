"""The client of the serving case, a separate process with raw connections to take little processor time.

`python -m benchmarks.serving.client '{"kind": "sessions", "port": 8000, ...}'` prints its measurements as JSON.
"""

import asyncio
import dataclasses
import gc
import json
import random
import sys
import time
from typing import Any

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def connect(port: int) -> Connection:
    """A connection to the server."""
    return await asyncio.open_connection("127.0.0.1", port, limit=1 << 24)


async def post(connection: Connection, path: str, body: bytes) -> tuple[int, bytes]:
    """Send a request; return the status and the body of the answer."""
    reader, writer = connection
    _send(writer, path, body)
    status, length = await _head(reader)
    return status, await reader.readexactly(length or 0)


def _send(writer: asyncio.StreamWriter, path: str, body: bytes) -> None:
    head = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)


async def _head(reader: asyncio.StreamReader) -> tuple[int, int | None]:
    """The status of an answer, and its length if given."""
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    lines = head.split(b"\r\n")
    lengths = [int(line.split(b":")[1]) for line in lines if line.startswith(b"content-length:")]
    return int(lines[0].split()[1]), lengths[0] if lengths else None


async def sessions(
    port: int, idle: int, connections: int, streams: int, features: int, seconds: float
) -> dict[str, Any]:
    """Streams that push a row a second, beside idle ones; each connection sends the rows of its streams as lines."""
    lasting = [await connect(port) for _ in range(connections)]

    def lines(names: list[str], **more: Any) -> bytes:
        rows = [[round(random.gauss(0, 1), 4) for _ in range(features)] for _ in names]
        return "\n".join(
            json.dumps({"id": name, "inputs": [row], **more}) for name, row in zip(names, rows, strict=True)
        ).encode()

    async def pushed(connection: Connection, body: bytes) -> int:
        status, answer = await post(connection, "/v1/models/streams/push", body)
        return answer.count(b'"outputs"') if status == 200 else 0

    for first in range(0, idle, 5000):
        names = [f"idle-{number}" for number in range(first, min(idle, first + 5000))]
        if await pushed(lasting[0], lines(names, begin=True)) != len(names):
            raise SystemExit("the idle sessions could not be opened")
    each = streams // connections
    owned = [[f"stream-{place}-{number}" for number in range(each)] for place in range(connections)]
    for connection, own in zip(lasting, owned, strict=True):
        if await pushed(connection, lines(own, begin=True)) != each:
            raise SystemExit("the streams could not be opened")
    bodies = [[lines(own) for _ in range(4)] for own in owned]
    # Garbage collection of the client would count as time of the server.
    gc.disable()
    latencies: list[float] = []
    failed = 0
    begin = time.perf_counter() + 0.5

    async def stream(place: int) -> None:
        nonlocal failed
        for second in range(round(seconds)):
            # The time starts when the push is due, not when it is sent.
            due = begin + second + place / connections
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            right = await pushed(lasting[place], bodies[place][second % 4])
            latencies.append(time.perf_counter() - due)
            failed += each - right

    await asyncio.gather(*(stream(place) for place in range(connections)))
    return {"latencies_s": sorted(latencies), "failed": failed, "pushes": len(latencies) * each}


@dataclasses.dataclass
class Texts:
    """The characters and times of streams of text.

    Attributes:
        firsts: The seconds from the moment a request was due to its first characters.
        refused: The seconds from the moment a request was due to its refusal.
        found: The texts by their seeds.
        events: The number of parts in which the texts came.
    """

    prompt: str
    firsts: list[float] = dataclasses.field(default_factory=list)
    refused: list[float] = dataclasses.field(default_factory=list)
    found: dict[int, str] = dataclasses.field(default_factory=dict)
    events: int = 0

    async def stream(self, connection: Connection, seed: int, tokens: int, due: float) -> float | None:
        """Request a text and read it whole; return the time to its first characters, or None if refused."""
        reader, writer = connection
        body = {
            "model": "text",
            "prompt": self.prompt,
            "max_tokens": tokens,
            "seed": seed,
            "stream": True,
        }
        _send(writer, "/v1/completions", json.dumps(body).encode())
        status, length = await _head(reader)
        if status != 200:
            if status != 503:
                raise SystemExit(f"a request of a text was answered with {status}")
            self.refused.append(time.perf_counter() - due)
            await reader.readexactly(length or 0)
            return None
        pieces: list[str] = []
        first = 0.0
        lines: list[bytes] = []
        while (size := int(await reader.readuntil(b"\r\n"), 16)) > 0:
            chunk = (await reader.readexactly(size + 2))[:-2]
            if not pieces:
                first = time.perf_counter() - due
                self.firsts.append(first)
            lines = chunk.rstrip().split(b"\n\n")
            for event in lines:
                if event.startswith(b"data: {"):
                    pieces.append(json.loads(event[6:])["choices"][0]["text"])
                    self.events += 1
        await reader.readexactly(2)
        text = "".join(pieces)
        if lines[-1] != b"data: [DONE]" or len(text) != tokens:
            raise SystemExit(f"a text of {tokens} characters ended after {len(text)}")
        self.found[seed] = text
        return first

    def results(self) -> dict[str, Any]:
        """The measurements, with only some of the texts."""
        return {
            "texts": len(self.found),
            "characters": sum(map(len, self.found.values())),
            "events": self.events,
            "first_s": sorted(self.firsts),
            "refused_s": sorted(self.refused),
            "some": {seed: self.found[seed] for seed in sorted(self.found)[:: max(1, len(self.found) // 8)]},
        }


async def texts(port: int, streams: int, tokens: int, rounds: int, prompt: str) -> dict[str, Any]:
    """Streams of text side by side; each begins its next text when one ends."""
    found = Texts(prompt)
    gc.disable()

    async def stream(place: int) -> None:
        connection = await connect(port)
        for number in range(rounds):
            await found.stream(connection, place * rounds + number, tokens, time.perf_counter())
        connection[1].close()

    begin = time.perf_counter()
    await asyncio.gather(*(stream(place) for place in range(streams)))
    return {"seconds": time.perf_counter() - begin, **found.results()}


async def arrivals(
    port: int, rate: float, seconds: float, tokens: int, prompt: str, after_s: float
) -> dict[str, Any]:
    """Requests of texts at random moments, `rate` a second, whether or not earlier ones are answered.

    Then single requests, ten a second for `after_s`, to see when the server has recovered.
    """
    found, probes = Texts(prompt), Texts(prompt)
    # Idle connections and the start of their idle time: the server closes them after five seconds.
    free: list[tuple[float, Connection]] = []
    gc.disable()
    draw = random.Random(0)
    begin = time.perf_counter() + 0.5

    async def one(seed: int, due: float) -> None:
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        since, connection = free.pop() if free else (0.0, None)
        if connection is None or time.perf_counter() - since > 3:
            connection = await connect(port)
        await found.stream(connection, seed, tokens, due)
        free.append((time.perf_counter(), connection))

    async def probe(number: int) -> tuple[float, float | None]:
        due = begin + seconds + number / 10
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        first = await probes.stream(await connect(port), 1_000_000 + number, 50, due)
        return number / 10, first

    moments, moment = [], 0.0
    while (moment := moment + draw.expovariate(rate)) < seconds:
        moments.append(begin + moment)
    *_, tried = await asyncio.gather(
        *(one(seed, due) for seed, due in enumerate(moments)),
        asyncio.gather(*(probe(number) for number in range(round(10 * after_s)))),
    )
    return {"requests": len(moments), "probes": tried, **found.results()}


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    run: Any = {"sessions": sessions, "texts": texts, "arrivals": arrivals}[asked.pop("kind")]
    print(json.dumps(asyncio.run(run(**asked))))
