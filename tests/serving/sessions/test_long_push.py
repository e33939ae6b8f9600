"""Pushes of many steps run in pieces between other requests, take effect wholly or not at all, and are limited."""

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cellerate.runtime.packed import load
from cellerate.serving.sessions import long_push
from cellerate.serving.sessions.long_push import LongPush
from cellerate.serving.sessions.pushes import ExistingSessionError, MissingSessionError, Push, steps_in
from cellerate.serving.sessions.sessions import Sessions
from cellerate.serving.sessions.worker import SessionWorker
from cellerate.serving.workers import DeadlineError
from support.graphs import draw
from support.servers import plain_cell, series_cell, serving, text_cell
from support.serving.session_models import F, model, opened, steps

LONG = 300


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set a small piece of sixteen steps, so that a push has many pieces."""
    monkeypatch.setattr(long_push, "_MOST", 16)


def finished(push: LongPush) -> Any:
    while (result := push.advance()) is None:
        pass
    if isinstance(result, Exception):
        raise result
    return result


@pytest.mark.parametrize("kind", ["plain", "series"])
def test_long_push_in_pieces_gives_the_bits_of_one_push(tmp_path: Path, kind: str) -> None:
    one = load({"plain": plain_cell, "series": series_cell}[kind](tmp_path / "m.cell"))
    (name,) = one.inputs
    rows = draw(LONG, one.inputs[name][2])
    whole, cut = Sessions(one), Sessions(one)
    (right,) = whole.push([Push("a", {name: rows}, begin=True)])
    found = finished(LongPush(cut, Push("a", {name: rows}, begin=True)))
    assert found.keys() == right.keys()
    for output in right:
        assert found[output].tobytes() == np.asarray(right[output]).tobytes(), output
    assert cut.state("a").tobytes() == whole.state("a").tobytes()
    finished(LongPush(cut, Push("a", {name: rows}, end=True)))
    with pytest.raises(MissingSessionError):
        cut.state("a")


def test_session_keeps_its_state_until_the_last_piece_of_a_push(tmp_path: Path) -> None:
    one, path = model(), tmp_path / "s.db"
    sessions = opened(Sessions(one, path), "a")
    before = sessions.state("a")
    push = LongPush(sessions, Push("a", steps(LONG)))
    for _ in range(5):
        assert push.advance() is None
    assert np.array_equal(sessions.state("a"), before)
    sessions.disk.flush_some(sessions.disk.unsaved())
    sessions._memory.store.close()
    again = Sessions(one, path)
    assert np.array_equal(again.state("a"), before)
    again.disk.shut()


@pytest.mark.parametrize("begin", [False, True])
def test_push_that_fails_midway_changes_nothing(monkeypatch: pytest.MonkeyPatch, begin: bool) -> None:
    sessions = Sessions(model())
    if not begin:
        opened(sessions, "a")
        before = sessions.state("a")
    real, calls = sessions._streams.push, []

    def push(inputs: Any, rows: Any) -> Any:
        calls.append(rows)
        if len(calls) == 3:
            raise ValueError("no memory")
        return real(inputs, rows)

    monkeypatch.setattr(sessions._streams, "push", push)
    with pytest.raises(ValueError, match="no memory"):
        finished(LongPush(sessions, Push("a", steps(LONG), begin=begin)))
    assert len(sessions) == (0 if begin else 1)
    if not begin:
        assert np.array_equal(sessions.state("a"), before)
    # The row of the failed push is free again.
    counts = set()
    for _ in range(10):
        finished(LongPush(sessions, Push("a" if not begin else "b", steps(40), begin=begin, end=begin)))
        counts.add(sessions._streams.count)
    assert len(counts) == 1


def test_push_to_a_missing_session_or_begin_of_an_open_one_fails_at_once() -> None:
    sessions = opened(Sessions(model()), "a")
    with pytest.raises(MissingSessionError):
        finished(LongPush(sessions, Push("b", steps(LONG))))
    with pytest.raises(ExistingSessionError):
        finished(LongPush(sessions, Push("a", steps(LONG), begin=True)))


def test_long_push_that_restarts_its_session_begins_from_the_initial_state() -> None:
    sessions, fresh = opened(Sessions(model()), "a"), Sessions(model())
    sessions.push([Push("a", steps(3, seed=1))])
    finished(LongPush(sessions, Push("a", steps(LONG), begin=True, restart=True)))
    finished(LongPush(fresh, Push("a", steps(LONG), begin=True)))
    assert np.array_equal(sessions.state("a"), fresh.state("a"))
    assert len(sessions) == 1


def test_push_that_takes_too_long_changes_nothing() -> None:
    sessions = opened(Sessions(model()), "a")
    before = sessions.state("a")
    push = LongPush(sessions, Push("a", steps(LONG)), deadline_s=0.05)
    assert push.advance() is None
    time.sleep(0.06)
    with pytest.raises(DeadlineError, match=r"longer than 0\.05 s, and was ended; nothing of it was read"):
        finished(push)
    assert np.array_equal(sessions.state("a"), before)


@contextlib.asynccontextmanager
async def working(sessions: Sessions) -> AsyncIterator[SessionWorker]:
    worker = SessionWorker(sessions)
    try:
        yield worker
    finally:
        await worker.close()


class Slow:
    """Make each piece of a long push wait for its release."""

    def __init__(self, sessions: Sessions, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go = threading.Semaphore(0)
        real = sessions.read_lent

        def read(inputs: Any, row: int) -> Any:
            assert self.go.acquire(timeout=30)
            return real(inputs, row)

        monkeypatch.setattr(sessions, "read_lent", read)


def test_other_sessions_are_answered_between_pieces_and_the_same_session_afterwards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = model()
    sessions = opened(Sessions(one), "long", "other")
    slow = Slow(sessions, monkeypatch)

    async def run() -> None:
        async with working(sessions) as worker:
            rows = draw(LONG, F)
            long = asyncio.ensure_future(worker.push([Push("long", {"x": rows})]))
            await asyncio.sleep(0.05)
            same = asyncio.ensure_future(worker.push([Push("long", steps(2))]))
            looked = asyncio.ensure_future(worker.run(lambda one: one.state("long"), "long"))
            for _ in range(3):
                other = asyncio.ensure_future(worker.push([Push("other", steps(2))]))
                await asyncio.sleep(0.05)  # the push waits before this piece
                slow.go.release()
                slow.go.release()
                (result,) = await asyncio.wait_for(other, 30)
                assert isinstance(result, dict)
            assert not long.done() and not same.done() and not looked.done()
            assert worker.waiting >= 3
            for _ in range(LONG):
                slow.go.release()
            (first,), (second,) = await long, await same
            state = await looked
        alone = opened(Sessions(one), "long")
        (expected,) = alone.push([Push("long", {"x": np.concatenate([rows, steps(2)["x"]])})])
        assert np.concatenate([first["y"], second["y"]]).tobytes() == expected["y"].tobytes()
        assert np.array_equal(state, alone.state("long"))

    asyncio.run(run())


def test_cancelled_push_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = opened(Sessions(model()), "long", "a")
    before = {name: sessions.state(name) for name in ("long", "a")}
    slow = Slow(sessions, monkeypatch)

    async def run() -> None:
        async with working(sessions) as worker:
            long = asyncio.ensure_future(worker.push([Push("long", steps(LONG))]))
            await asyncio.sleep(0.05)
            behind = asyncio.ensure_future(worker.push([Push("long", steps(2)), Push("a", steps(2))]))
            await asyncio.sleep(0.05)
            behind.cancel()
            long.cancel()
            await asyncio.gather(long, behind, return_exceptions=True)
            for _ in range(LONG):
                slow.go.release()
            for name, state in before.items():
                assert np.array_equal(await worker.run(lambda one, name=name: one.state(name), name), state)

    asyncio.run(run())


def test_push_that_waits_too_long_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = opened(Sessions(model()), "a")
    slow = Slow(sessions, monkeypatch)

    async def run() -> None:
        async with working(sessions) as worker:
            long = asyncio.ensure_future(worker.push([Push("a", steps(LONG))]))
            await asyncio.sleep(0.05)
            with pytest.raises(DeadlineError, match="nothing of it was read"):
                await worker.push([Push("a", steps(2))], deadline_s=0.1)
            for _ in range(LONG):
                slow.go.release()
            (result,) = await long
            assert len(result["y"]) == LONG
            after = sessions.state("a")
        alone = opened(Sessions(model()), "a")
        alone.push([Push("a", steps(LONG))])
        assert np.array_equal(after, alone.state("a"))

    asyncio.run(run())


def test_lines_with_long_pushes_keep_their_order() -> None:
    one = model()
    sessions, alone = Sessions(one), Sessions(one)
    pushes = [
        Push("a", steps(3), begin=True),
        Push("b", steps(100, seed=1), begin=True),
        Push("a", steps(200, seed=2)),
        Push("b", steps(2, seed=3), end=True),
        Push("a", {"x": draw(70, F + 1)}),
        Push("a", steps(1, seed=4)),
    ]

    async def run() -> list[Any]:
        async with working(sessions) as worker:
            return await worker.push(pushes)

    for push, found, right in zip(pushes, asyncio.run(run()), alone.push(pushes), strict=True):
        assert type(found) is type(right)
        if isinstance(right, dict):
            assert found["y"].tobytes() == right["y"].tobytes(), push


def test_push_counts_the_steps_of_its_longest_input() -> None:
    assert steps_in(Push("a", {"x": np.zeros((3, 2)), "y": np.zeros(5)})) == 5
    assert steps_in(Push("a", {"x": np.float32(1)})) == 0
    assert steps_in(Push("a", {})) == 0


def test_server_checks_limits_of_steps_and_answers_before_it_computes(tmp_path: Path) -> None:
    paths = (
        plain_cell(tmp_path / "plain.cell"),
        text_cell(tmp_path / "text.cell"),
        series_cell(tmp_path / "s.cell"),
    )
    bounds = ("--steps", "500", "--answer-numbers", "4000")
    with serving(*paths, options=bounds) as server, server.client() as http:

        def asked(path: str, body: Any) -> tuple[int, str]:
            answer = http.post(f"/v1/models/{path}", json=body)
            return answer.status_code, answer.json().get("error", "")

        assert asked("plain/sessions/a/push", {"inputs": [[1, 2, 3]] * 500, "begin": True})[0] == 200
        before = http.get("/v1/models/plain/sessions/a/state").json()
        for path, body, told in (
            ("plain/sessions/a/push", {"inputs": [[1, 2, 3]] * 501}, "a push has 501 steps, and at most 500"),
            ("text/sessions/a/push", {"inputs": "a" * 501, "begin": True}, "at most 500 are read at once"),
            ("plain:predict", {"instances": [[[1, 2, 3]] * 501]}, "1 rows of 501 steps are too many"),
            (
                "plain:predict",
                {"instances": [[[1, 2, 3]] * 100] * 60},
                "at most 500 steps a row, and 5,000 in all",
            ),
            # 4 numbers a step and 7 of the last one.
            (
                "plain:predict",
                {"instances": [[[1, 2, 3]] * 400] * 3},
                "would have 4,821 numbers, and at most 4,000",
            ),
            ("s/forecast", {"rows": [[[1, 2]] * 6] * 700}, "would have 4,200 numbers"),
        ):
            status, error = asked(path, body)
            assert (status, told in error) == (413, True), (status, error)
        lines = "\n".join(json.dumps({"id": "a", "inputs": [[1, 2, 3]] * 60}) for _ in range(20))
        answer = http.post("/v1/models/plain/push", content=lines)
        assert answer.status_code == 413
        assert http.get("/v1/models/plain/sessions/a/state").json() == before
        assert asked("plain:predict", {"instances": [[[1, 2, 3]] * 400] * 2})[0] == 200
