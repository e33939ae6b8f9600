"""Requests from an event loop to compute threads: order, cancellation, limits, errors, and shutdown."""

import asyncio
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cellerate.data.tokenizers.tokenizer import CharacterTokenizer
from cellerate.errors import BackendError, DataError
from cellerate.kernels.decoder.sampling import SamplingRules
from cellerate.runtime.cell import Cell
from cellerate.runtime.packed import PackedModel
from cellerate.runtime.text.batcher import Batcher, Ticket
from cellerate.serving.sessions.pushes import MissingSessionError, Push
from cellerate.serving.sessions.sessions import Sessions
from cellerate.serving.sessions.worker import SessionWorker
from cellerate.serving.workers import BusyError, DeadlineError, TextWorker
from support.graphs import Graph, draw

CHARACTERS = "abcdefgh"


def text_model() -> PackedModel:
    graph = Graph()
    ids = graph.input("ids", -1, dtype="int32")
    rows = graph.add("embedding", "rows", {"ids": ids}, {"embeddings": draw(len(CHARACTERS), 5)})
    head = graph.dense(graph.lstm(rows, "lstm", 5, 16), "logits", 16, len(CHARACTERS))
    tokenizer = CharacterTokenizer(CHARACTERS).to_config()
    return PackedModel(
        Cell(graph.program(logits=head), "float32", {"task": "text", "payload": {"tokenizer": tokenizer}})
    )


MODEL = text_model()
PROMPT = np.array([0, 1, 2], np.int32)


async def text_of(worker: TextWorker, seed: int = 0, max_tokens: int = 50, **options: Any) -> str:
    updates = worker.complete(PROMPT, max_tokens=max_tokens, rules=SamplingRules(seed=seed), **options)
    return "".join([update.text async for update in updates])


def right(seed: int, max_tokens: int = 50) -> str:
    return MODEL.generate("abc", max_tokens=max_tokens, seed=seed)


async def until(condition: Any) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.001)


def test_each_of_many_requests_gets_the_answer_it_gets_alone() -> None:
    async def main() -> None:
        worker = TextWorker(MODEL)
        lengths = [1, 7, 50, 200] * 10
        found = await asyncio.gather(*(text_of(worker, seed, n) for seed, n in enumerate(lengths)))
        assert found == [right(seed, n) for seed, n in enumerate(lengths)]
        assert worker.sequences == 0
        await worker.close(1)

    asyncio.run(main())


def test_text_drawn_before_the_client_listens_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    submit = Batcher.submit

    def slow(*args: Any, **options: Any) -> Ticket:
        ticket = submit(*args, **options)
        time.sleep(0.02)  # the drawing thread continues meanwhile
        return ticket

    async def main() -> None:
        worker = TextWorker(MODEL)
        beside = asyncio.create_task(text_of(worker, 9, 100_000_000))
        await until(lambda: worker.sequences == 1)
        monkeypatch.setattr(Batcher, "submit", slow)
        for seed in range(20):
            async with asyncio.timeout(10):
                assert await text_of(worker, seed, 3) == right(seed, 3)
        beside.cancel()
        await worker.close(0)

    asyncio.run(main())


def test_repeated_prompt_is_not_read_again() -> None:
    async def main() -> None:
        worker = TextWorker(MODEL, prompt_cache_bytes=1 << 20)
        assert await text_of(worker, 1) == right(1)
        assert worker.recalled == 0
        assert await text_of(worker, 2) == right(2)
        assert worker.recalled == len(PROMPT)
        await worker.close(1)

    asyncio.run(main())


def test_client_that_stops_listening_frees_its_place() -> None:
    async def main() -> None:
        worker = TextWorker(MODEL, most_sequences=2)
        updates = worker.complete(PROMPT, max_tokens=10_000_000, rules=SamplingRules())
        assert (await anext(updates)).text
        other = asyncio.create_task(text_of(worker, max_tokens=10_000_000))
        await until(lambda: worker.sequences == 2)
        with pytest.raises(BusyError, match="2 sequences are drawn or waiting already"):
            await text_of(worker)
        await updates.aclose()
        other.cancel()
        await until(lambda: worker.sequences == 0)
        assert await text_of(worker, 3) == right(3)
        await worker.close(1)

    asyncio.run(main())


def test_request_that_takes_too_long_ends() -> None:
    async def main() -> None:
        worker = TextWorker(MODEL)
        with pytest.raises(DeadlineError, match=r"longer than 0\.05 s"):
            await text_of(worker, max_tokens=100_000_000, deadline_s=0.05)
        await until(lambda: worker.sequences == 0)
        assert await text_of(worker, 3, deadline_s=30) == right(3)
        await worker.close(1)

    asyncio.run(main())


def test_wrong_request_fails_alone() -> None:
    async def main() -> None:
        worker = TextWorker(MODEL)
        good = asyncio.create_task(text_of(worker, 5, 200))
        with pytest.raises(DataError):
            async for _ in worker.complete(np.array([99]), max_tokens=5, rules=SamplingRules()):
                pass
        assert await good == right(5, 200)
        assert worker.sequences == 0
        await worker.close(1)

    asyncio.run(main())


def test_system_error_reaches_all_requests_and_the_next_request_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        worker = TextWorker(MODEL)
        step = worker._batcher.step
        monkeypatch.setattr(
            worker._batcher, "step", lambda: (_ for _ in ()).throw(BackendError("the GPU is gone."))
        )
        found = await asyncio.gather(*(text_of(worker, n) for n in range(3)), return_exceptions=True)
        assert [str(each) for each in found] == ["the GPU is gone."] * 3
        monkeypatch.setattr(worker._batcher, "step", step)
        assert await text_of(worker, 3) == right(3)
        await worker.close(1)

    asyncio.run(main())


def test_close_waits_for_running_texts_and_cuts_longer_ones() -> None:
    async def main() -> None:
        worker = TextWorker(MODEL)
        short = asyncio.create_task(text_of(worker, 1, 2000))
        long = asyncio.create_task(text_of(worker, 2, 1_000_000_000))
        await asyncio.sleep(0)  # both run; the short one may end at any moment
        closing = asyncio.create_task(worker.close(0.5))
        await asyncio.sleep(0)
        with pytest.raises(BusyError, match="shutting down"):
            await text_of(worker)
        assert await short == right(1, 2000)
        cut = await long
        assert cut and right(2, len(cut)) == cut
        await closing
        assert not worker._thread.is_alive()

    asyncio.run(main())


def plain_model() -> PackedModel:
    graph = Graph()
    y = graph.lstm(graph.input("x", -1, 3), "lstm", 3, 5)
    return PackedModel(Cell(graph.program(y=y), "float32", {}))


def sessions(folder: Path | None = None) -> Sessions:
    return Sessions(plain_model(), None if folder is None else folder / "s.db")


def test_pushes_from_many_tasks_keep_their_order_in_a_session() -> None:
    async def main() -> None:
        worker = SessionWorker(sessions())
        names = [f"s{n}" for n in range(20)]
        for name in names:
            worker.sessions.open(name)
        right = plain_model().predict(draw(30, 3)[np.newaxis])[0]

        async def follow(name: str) -> None:
            found = []
            for t in range(0, 30, 2):
                (result,) = await worker.push([Push(name, {"x": draw(30, 3)[t : t + 2]})])
                assert isinstance(result, dict)
                found.append(result["y"])
            assert np.concatenate(found).tobytes() == right.tobytes()

        await asyncio.gather(*map(follow, names))
        (missing,) = await worker.push([Push("nobody", {"x": draw(1, 3)})])
        assert isinstance(missing, MissingSessionError)
        await worker.close()
        with pytest.raises(BusyError, match="shutting down"):
            await worker.push([])

    asyncio.run(main())


def test_pushes_above_the_limit_are_refused_and_close_finishes_waiting_ones(tmp_path: Path) -> None:
    async def main() -> None:
        worker = SessionWorker(sessions(tmp_path), most_pushes=3)
        worker.sessions.open("a")
        with pytest.raises(BusyError, match="more than 3 pushes would wait"):
            await worker.push([Push("a", {"x": draw(1, 3)})] * 4)
        waiting = asyncio.create_task(worker.push([Push("a", {"x": draw(2, 3)})] * 2))
        await asyncio.sleep(0)
        await worker.close()
        assert all(isinstance(result, dict) for result in await waiting)

    asyncio.run(main())
    again = sessions(tmp_path)
    assert len(again) == 1 and again.state("a").any()


def test_states_are_written_to_disk_in_the_background(tmp_path: Path) -> None:
    async def main() -> None:
        worker = SessionWorker(sessions(tmp_path), flush_every_s=0.05)
        worker.sessions.open("a")
        # The states as a crash would leave them: while the worker runs, it locks the file.
        copy = tmp_path / "copy"
        copy.mkdir()

        def is_there() -> bool:
            for path in tmp_path.glob("s.db*"):
                shutil.copy(path, copy)
            found = sessions(copy)
            there = len(found) == 1
            found.disk.shut()
            return there

        await until(is_there)
        await worker.close()

    asyncio.run(main())


@pytest.mark.parametrize("on_disk", [False, True])
def test_unused_sessions_end_without_any_request(tmp_path: Path, on_disk: bool) -> None:
    async def main() -> None:
        path = tmp_path / "s.db" if on_disk else None
        kept = Sessions(plain_model(), path, time_to_live_s=0.2, most_in_memory=2)
        worker = SessionWorker(kept, flush_every_s=0.05)
        for name in "abc":
            kept.open(name)
        await until(lambda: len(kept) == 0)
        assert kept.disk.unsaved() == []
        await worker.close()

    asyncio.run(main())
