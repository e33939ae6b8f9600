"""Sessions, predictions and texts in parallel while the disk fails and the server is killed: all answers are correct.

Ten minutes here; `MIXED_LOAD_S=7200` makes it two hours. What is counted is printed.
"""

import asyncio
import contextlib
import errno
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest

from cellerate.distributed.launch import free_port
from cellerate.runtime.packed import load
from support.disks.failing_files import FailingFiles, build_library
from support.servers import CHARACTERS, Server, plain_cell, serving, text_cell
from support.serving.linear_sessions import Crash, Outcome, Sent, SessionClient, explained

_SEED, _CLIENTS = 0, 24
_SECONDS = float(os.environ.get("MIXED_LOAD_S", "600"))
# The seconds that a crash may lose (docs/guide/serving.md): on a working disk, and on a failing disk.
_LOST_S, _LOST_WITHOUT_DISK_S = 10.0, 30.0
# The tolerance between the clocks of a client and of the server on two busy cores.
_SLACK_S = 2.0
# The next flush, due within ten seconds, writes the states that the disk refused.
_UNTIL_WRITTEN_S = 12.0


class Servers:
    """A server that can be killed and restarted at the same address."""

    def __init__(self, folder: Path, outcome: Outcome) -> None:
        self.disk = FailingFiles(folder / "control")
        self._library = build_library(folder)
        self._state = folder / "state"
        self._state.mkdir()
        self.disk.watch(self._state)
        self.models = [plain_cell(folder / "plain.cell"), text_cell(folder / "text.cell")]
        self.port, self._outcome = free_port(), outcome
        self._failed_until = -_UNTIL_WRITTEN_S
        self._running = contextlib.ExitStack()

    def start(self) -> Server:
        options = ("--state", str(self._state), "--port", str(self.port), "--no-access-log")
        self.server = self._running.enter_context(
            serving(
                *self.models,
                options=(*options, "--sessions-in-memory", str(_CLIENTS // 3)),
                **self.disk.environment(self._library),
            )
        )
        self._outcome.is_down = False
        return self.server

    def heal(self) -> None:
        """Make the disk work again."""
        if self.disk.fails:
            self._failed_until = time.monotonic()
        self.disk.heal()

    async def restart(self, sent: signal.Signals) -> None:
        """Stop the server and start it on a working disk."""
        self._outcome.is_down = True
        if sent is signal.SIGKILL:
            self.server.process.kill()
            now = time.monotonic()
            unwritten = self.disk.fails or now < self._failed_until + _UNTIL_WRITTEN_S
            lost = _LOST_WITHOUT_DISK_S if unwritten else _LOST_S
            self._outcome.crashes.append(Crash(now, lost + _SLACK_S, ends_sessions=unwritten))
            await asyncio.to_thread(self.server.process.wait, 60)
        else:
            await asyncio.to_thread(self.server.stop, sent)
        self._running.close()
        self.heal()
        await asyncio.to_thread(self.start)

    def close(self) -> None:
        self.disk.heal()
        self._running.close()


async def harm(servers: Servers, outcome: Outcome, until: float) -> None:
    """Repeatedly make the disk fail in every way and kill the server."""
    draw = random.Random(_SEED)
    while time.monotonic() < until:
        await asyncio.sleep(draw.uniform(2, 14))
        kind = draw.choice(("full", "damaged", "read-only", "slow", "well"))
        error = {"full": errno.ENOSPC, "damaged": errno.EIO, "read-only": errno.EROFS}.get(kind, 0)
        outcome.count(f"disk {kind}")
        if kind != "well":
            servers.disk.fail(error, pause_us=20_000 if kind == "slow" else 0)
        await asyncio.sleep(draw.choice((1, 5, 12, 28)))
        ending = draw.choice(("kill", "kill", "stop", "goes on"))
        outcome.count(ending)
        if ending == "kill":
            await servers.restart(signal.SIGKILL)
        elif ending == "stop":
            # A crash on a failing disk loses sessions, and the server says so: another test covers that.
            servers.heal()
            await asyncio.sleep(2)
            await servers.restart(signal.SIGTERM)
        outcome.counts["changes that failed"] = (
            outcome.counts.get("changes that failed", 0) + servers.disk.failed
        )
        servers.heal()


async def ask_others(http: httpx2.AsyncClient, models: list[Path], outcome: Outcome, until: float) -> None:
    """Send predictions and texts beside the sessions; each has exactly one correct answer."""
    draw, numbers = random.Random(_SEED), np.random.default_rng(_SEED)
    plain, texts = load(models[0]), dict[tuple[str, int], str]()
    while time.monotonic() < until:
        if outcome.is_down:
            await asyncio.sleep(0.05)
            continue
        with contextlib.suppress(httpx2.HTTPError):
            rows = numbers.normal(size=(draw.randrange(1, 40), 3)).astype(np.float32)
            answer = await http.post("/v1/models/plain:predict", json={"instances": [rows.tolist()]})
            outcome.count(f"predict {answer.status_code}")
            right = plain.predict(rows[None])
            found = answer.json()["predictions"][0] if answer.status_code == 200 else None
            if found is not None and not np.allclose(found["each"], right["each"][0], atol=1e-5):
                outcome.wrong.append("a prediction is another one")
            key = ("".join(draw.choices(CHARACTERS, k=5)), draw.randrange(3))
            body: dict[str, Any] = {"model": "text", "prompt": key[0], "max_tokens": 200, "seed": key[1]}
            answer = await http.post("/v1/completions", json=body)
            outcome.count(f"text {answer.status_code}")
            if answer.status_code == 200:
                text = answer.json()["choices"][0]["text"]
                if texts.setdefault(key, text) != text:
                    outcome.wrong.append(f"a text of one seed is another one: {text!r}")
        await asyncio.sleep(0.02)


async def mixed(servers: Servers, outcome: Outcome, seconds: float) -> None:
    until = time.monotonic() + seconds
    new = load(servers.models[0]).streams(1)
    limits = httpx2.Limits(max_connections=200)
    address = f"http://127.0.0.1:{servers.port}"
    async with httpx2.AsyncClient(base_url=address, trust_env=False, timeout=120, limits=limits) as http:
        clients = [SessionClient(place, _SEED, new, 3, outcome) for place in range(_CLIENTS)]
        await asyncio.gather(
            harm(servers, outcome, until),
            ask_others(http, servers.models, outcome, until),
            *(client.run(http, "plain", until) for client in clients),
        )


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="what is preloaded is for Linux")
def test_answers_stay_correct_while_the_disk_fails_and_the_server_is_killed(tmp_path: Path) -> None:
    outcome = Outcome()
    servers = Servers(tmp_path, outcome)
    servers.start()
    try:
        asyncio.run(mixed(servers, outcome, _SECONDS))
    finally:
        servers.close()
    print(dict(sorted(outcome.counts.items())), len(outcome.crashes), "crashes")
    assert not outcome.wrong, outcome.wrong[:5]
    statuses = {name for name in outcome.counts if name.isdecimal()}
    assert statuses <= {"200", "404", "410", "503"}, outcome.counts
    assert outcome.counts["answers checked"] > 20 * _SECONDS
    assert outcome.counts["changes that failed"] > 0
    assert len(outcome.crashes) >= _SECONDS / 120


def sent(stream: Any, steps: np.ndarray) -> Sent:
    outputs = stream.push(steps[None])
    return Sent(steps, {name: array[0].tolist() for name, array in outputs.items()})


def test_checker_accepts_any_order_and_refuses_lost_or_repeated_pushes(tmp_path: Path) -> None:
    new = load(plain_cell(tmp_path / "plain.cell")).streams(1)
    first, second, third = (np.random.default_rng(n).normal(size=(2, 3)).astype(np.float32) for n in range(3))
    stream = new.clone()
    pushes = [sent(stream, steps) for steps in (first, second, third)]
    found = explained([new], [pushes[2], pushes[0], pushes[1]])
    (after,) = found.after
    assert np.array_equal(after.state, stream.state)
    assert [one.state.any() for one in found.between] == [False, True, True]
    # An older state, a lost push, a repeated push.
    assert explained([new], pushes[1:]).after == []
    assert explained([after], pushes[:1]).after == []
    twice = new.clone()
    twice.push(first[None])
    assert explained([twice], pushes).after == []
    # A push without an answer may have taken effect or not, before or after the others.
    unknown = Sent(first, None)
    assert len(explained([new], [unknown]).after) == 2
    assert len(explained([new], [unknown, *pushes[1:]]).after) == 1
