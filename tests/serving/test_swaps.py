"""Replacing a model while sessions begin: a session is either kept or refused with a reason."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cellerate.errors import ModelError
from cellerate.runtime.text import sampling_rules
from cellerate.serving import models as module
from cellerate.serving.answers import RequestError, status_of
from cellerate.serving.limits import Limits
from cellerate.serving.models import Models, holding_models
from cellerate.serving.sessions.pushes import Push, ReplacedModelError
from cellerate.serving.workers import BusyError
from support.graphs import draw
from support.servers import series_cell, text_cell

BEGIN = Push("a", {"series": draw(2, 2)}, begin=True)


@pytest.mark.parametrize("works", [True, False])
def test_session_cannot_begin_on_a_model_under_replacement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, works: bool
) -> None:
    path = series_cell(tmp_path / "m.cell")
    begun, go = threading.Event(), threading.Event()
    real = module.Served.__init__

    async def run() -> None:
        models = Models({"m": path}, Limits())
        old = models.get("m")
        assert old.sessions is not None

        def slow(self: Any, *args: Any) -> None:
            begun.set()
            assert go.wait(30)
            if not works:
                raise ModelError("not this one")
            real(self, *args)

        monkeypatch.setattr(module.Served, "__init__", slow)
        series_cell(path, quantiles=(0.1, 0.5, 0.9))
        reload = asyncio.ensure_future(models.reload("m"))
        await asyncio.to_thread(begun.wait, 30)
        (refused,) = await old.sessions.push([BEGIN])
        assert isinstance(refused, ReplacedModelError) and status_of(refused)[0] == 409
        go.set()
        if works:
            assert await reload
            assert models.get("m") is not old
        else:
            with pytest.raises(ModelError):
                await reload
            assert models.get("m") is old
        now = models.get("m").sessions
        assert now is not None
        (result,) = await now.push([BEGIN])
        assert isinstance(result, dict)
        assert len(now.sessions) == 1
        await models.close()

    asyncio.run(run())


def test_model_with_sessions_is_not_replaced_and_accepts_new_sessions(tmp_path: Path) -> None:
    path = series_cell(tmp_path / "m.cell")

    async def run() -> None:
        models = Models({"m": path}, Limits())
        sessions = models.get("m").sessions
        assert sessions is not None
        await sessions.push([BEGIN])
        text_cell(path)
        with pytest.raises(RequestError, match="1 sessions belong to the old one"):
            await models.reload("m")
        (result,) = await sessions.push([BEGIN._replace(name="b")])
        assert isinstance(result, dict)
        await models.close()

    asyncio.run(run())


def test_running_request_ends_on_its_model_despite_a_replacement(tmp_path: Path) -> None:
    path = text_cell(tmp_path / "m.cell")
    rules = sampling_rules(temperature=0)

    async def run() -> None:
        models = Models({"m": path}, Limits())
        with holding_models():
            old = models.get("m")
            assert old.texts is not None
            text_cell(path, seed=1)
            reload = asyncio.ensure_future(models.reload("m"))
            while models.get("m") is old:
                await asyncio.sleep(0.001)
            drawn = old.texts.complete(np.array([1, 2]), max_tokens=3, rules=rules)
            assert sum([len(update.ids) async for update in drawn]) == 3
            assert await old.calls.run(lambda: 5) == 5
            assert not reload.done()
        assert await reload
        with pytest.raises(BusyError):
            old.texts.check_place()
        assert models.get("m").holders == 0
        await models.close()

    asyncio.run(run())
