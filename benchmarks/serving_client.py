"""The client of the serving case, in a process of its own: raw connections, so that little of the machine goes to it.

`python serving_client.py '{"kind": "sessions", "port": 8000, ...}'` prints what it measured as JSON.
"""

import asyncio
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
    """Sends a request; gives the status and the body of its answer."""
    reader, writer = connection
    _send(writer, path, body)
    status, length = await _head(reader)
    return status, await reader.readexactly(length or 0)


def _send(writer: asyncio.StreamWriter, path: str, body: bytes) -> None:
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)


async def _head(reader: asyncio.StreamReader) -> tuple[int, int | None]:
    """The status of an answer, and its length if it tells one."""
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    lines = head.split(b"\r\n")
    lengths = [int(line.split(b":")[1]) for line in lines if line.startswith(b"content-length:")]
    return int(lines[0].split()[1]), lengths[0] if lengths else None


async def sessions(
    port: int, idle: int, connections: int, streams: int, features: int, seconds: float
) -> dict[str, Any]:
    """Streams that push a row a second, each connection all of its own as lines; beside idle ones."""
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
    # Python's own pauses would be counted as the server's.
    gc.disable()
    latencies: list[float] = []
    failed = 0
    begin = time.perf_counter() + 0.5

    async def stream(place: int) -> None:
        nonlocal failed
        for second in range(round(seconds)):
            # The time counts from when the push was due, not from when there was time to send it.
            due = begin + second + place / connections
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            right = await pushed(lasting[place], bodies[place][second % 4])
            latencies.append(time.perf_counter() - due)
            failed += each - right

    await asyncio.gather(*(stream(place) for place in range(connections)))
    return {"latencies_s": sorted(latencies), "failed": failed, "pushes": len(latencies) * each}


async def texts(port: int, streams: int, tokens: int, rounds: int, prompt: str) -> dict[str, Any]:
    """Streams of text side by side, each begins its next text when one ends."""
    firsts: list[float] = []
    found: dict[int, str] = {}
    events = characters = 0
    refused: list[float] = []
    gc.disable()

    async def stream(place: int) -> None:
        nonlocal events, characters
        connection = await connect(port)
        for number in range(rounds):
            seed = place * rounds + number
            body = {"model": "text", "prompt": prompt, "max_tokens": tokens, "seed": seed, "stream": True}
            begin = time.perf_counter()
            _send(connection[1], "/v1/completions", json.dumps(body).encode())
            status, length = await _head(connection[0])
            if status != 200:
                refused.append(time.perf_counter() - begin)
                await connection[0].readexactly(length or 0)
                continue
            pieces: list[str] = []
            while (size := int(await connection[0].readuntil(b"\r\n"), 16)) > 0:
                chunk = (await connection[0].readexactly(size + 2))[:-2]
                if not pieces:
                    firsts.append(time.perf_counter() - begin)
                for event in chunk.split(b"\n\n"):
                    if event.startswith(b"data: {"):
                        pieces.append(json.loads(event[6:])["choices"][0]["text"])
                        events += 1
            await connection[0].readexactly(2)
            found[seed] = "".join(pieces)
            characters += len(found[seed])
        connection[1].close()

    begin = time.perf_counter()
    await asyncio.gather(*(stream(place) for place in range(streams)))
    return {
        "seconds": time.perf_counter() - begin,
        "characters": characters,
        "events": events,
        "first_s": sorted(firsts),
        "refused_s": sorted(refused),
        "some": {seed: found[seed] for seed in sorted(found)[:: max(1, len(found) // 8)]},
    }


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    run: Any = {"sessions": sessions, "texts": texts}[asked.pop("kind")]
    print(json.dumps(asyncio.run(run(**asked))))
