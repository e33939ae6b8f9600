"""The models of a server by their names, each with the threads that compute on it."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from cellerate.errors import ConfigError, DataError, ModelError
from cellerate.runtime.forecast import ForecastSettings, forecast_settings
from cellerate.runtime.packed import PackedModel, load
from cellerate.runtime.program import smallest_tables
from cellerate.serving.answer_size import tried_outputs
from cellerate.serving.answers import RequestError
from cellerate.serving.calls import CallWorker
from cellerate.serving.limits import Limits
from cellerate.serving.sessions import Sessions, SessionWorker
from cellerate.serving.workers import TextWorker

FLUSH_EVERY_S = 10.0
"""The time between two rounds in which the states of sessions are written to the disk, against a crash."""

# The models that the request of this context uses.
_held: contextvars.ContextVar[list[Served] | None] = contextvars.ContextVar("held", default=None)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class Served:
    """A served model.

    Args:
        name: Its name for clients.
        path: Its file.
        model: The model.
        limits: The limits of its requests.
        state: The folder for the states of sessions; None to keep none on disk.

    Attributes:
        name: Its name for clients.
        path: Its file.
        model: The model.
        created: The time of loading, in seconds since 1970.
        texts: Continues texts; None if it is not a text model.
        sessions: Keeps the states of streams; None if a layer needs future steps.
        series: The settings for reading a series; None unless it is a forecaster.
        no_sessions: The reason why it has no sessions, or "".
        calls: Computes whole calls.
        holders: The number of requests that use it; see `holding_models`.
        outputs: The dtype and the shape of each output by its name; empty if they are not known beforehand.

    Raises:
        CellerateError: The model cannot be served; the message says why.
    """

    def __init__(self, name: str, path: Path, model: PackedModel, limits: Limits, state: Path | None) -> None:
        self.name, self.path, self.model = name, path, model
        self.created = int(time.time())
        self.series: ForecastSettings | None = None
        if model.task == "series":
            self.series = forecast_settings(model.cell.header.get("payload"), str(path))
        self.outputs = tried_outputs(model, path)
        self._table_rows = _tables(model)
        self.no_sessions = ""
        self.sessions: SessionWorker | None = None
        try:
            kept = Sessions(
                model,
                None if state is None else state / f"{name}-{model.fingerprint[:16]}.sessions",
                most=limits.sessions,
                most_in_memory=limits.sessions_in_memory,
                time_to_live_s=limits.session_ttl_s,
                refuse_after_s=2 * FLUSH_EVERY_S,
            )
        except ModelError as error:
            self.no_sessions = str(error)
        else:
            self.sessions = SessionWorker(kept, limits.pushes, FLUSH_EVERY_S)
        self.texts: TextWorker | None = None
        if model.task == "text":
            self.texts = TextWorker(model, limits.sequences, limits.prompt_cache_bytes)
        self.calls = CallWorker(limits.calls)
        self.holders = 0

    @property
    def kind(self) -> str:
        """The model in words, with the route that it answers at."""
        route = {
            "text": "a text model: POST /v1/completions",
            "series": f"a forecaster: POST /v1/models/{self.name}/forecast",
            "embed": "a model of lines: POST /v1/embeddings",
        }
        return route.get(self.model.task or "", f"a model without a task: POST /v2/models/{self.name}/infer")

    def check_ids(self, tensors: Mapping[str, np.ndarray]) -> None:
        """Refuse ids outside their tables, and negative ids, which the runtime would count from the end.

        Raises:
            DataError: An id is out of range; the message says where.
        """
        for name, rows in self._table_rows.items():
            ids = tensors.get(name)
            if ids is None or ids.dtype.kind not in "iu" or not ids.size:
                continue
            if ids.min() < 0 or ids.max() >= rows:
                place = [int(axis) for axis in np.argwhere((ids < 0) | (ids >= rows))[0]]
                raise DataError(
                    f"input {name!r} holds {ids[tuple(place)]} at {place}; the ids of {self.name} run from 0 to "
                    f"{rows - 1}."
                )

    async def close(self) -> None:
        """End the running texts, let calls finish, and write the sessions to the disk."""
        await self.end_texts(0)
        await self.calls.close()
        if self.sessions is not None:
            await self.sessions.close()

    async def end_texts(self, drain_s: float) -> None:
        """Refuse new texts, and give running texts `drain_s` seconds; then they end as they are."""
        if self.texts is not None:
            await self.texts.close(drain_s)


class Models:
    """The models of a server.

    Args:
        paths: `.cell` files by the names of the models.
        limits: The limits of each model's requests.
        state: The folder for the states of sessions; None to keep none on disk.
        device: The device that generates texts, as `cellerate.load` takes it.

    Raises:
        CellerateError: A model cannot be served; the message says why.
    """

    def __init__(
        self, paths: dict[str, Path], limits: Limits, state: Path | None = None, device: str = "cpu"
    ) -> None:
        self.limits = limits
        self._state, self._device = state, device
        self._served = {name: self._open(name, path) for name, path in paths.items()}
        self._reloading = asyncio.Lock()

    def __iter__(self) -> Iterator[Served]:
        """The models, in the order of their files."""
        return iter(self._served.values())

    def get(self, name: str) -> Served:
        """The model of a name.

        Raises:
            RequestError: There is none.
        """
        served = self._find(name)
        if (held := _held.get()) is not None:
            held.append(served)
            served.holders += 1
        return served

    async def reload(self, name: str, drain_s: float = 30) -> bool:
        """Read a model's file again. Running requests finish on the old model; later ones use the new model.

        Returns:
            True if the file holds another model than before; otherwise nothing changes.

        Raises:
            RequestError: There is no such model, or the file holds another model while there are sessions.
            CellerateError: The file cannot be used; the old model stays.
        """
        async with self._reloading:
            old = self._find(name)
            model = await asyncio.to_thread(_loaded, old.path, self._device)
            if model.fingerprint == old.model.fingerprint:
                return False
            # From here on no session can begin, because it would end with the old model.
            left = 0 if old.sessions is None else old.sessions.sessions.replace()
            if left:
                raise RequestError(
                    409,
                    f"{old.path} holds another model now, and {left} sessions belong to the old "
                    "one, which stays: close them, or start the server again.",
                )
            try:
                self._served[name] = await asyncio.to_thread(
                    Served, name, old.path, model, self.limits, self._state
                )
            except BaseException:
                if old.sessions is not None:
                    old.sessions.sessions.keep()
                raise
        end = time.monotonic() + drain_s
        # Requests that hold the old model may not have started to compute on it.
        while old.holders and time.monotonic() < end:
            await asyncio.sleep(0.01)
        await old.close()
        return True

    async def end_texts(self, drain_s: float) -> None:
        """As `Served.end_texts`, for all models at once."""
        await asyncio.gather(*(served.end_texts(drain_s) for served in self))

    async def close(self) -> None:
        """Closes all models at once."""
        await asyncio.gather(*(served.close() for served in self))

    def _find(self, name: str) -> Served:
        if name not in self._served:
            raise RequestError(
                404, f"there is no model {name[:100]!r} here; there is {', '.join(self._served)}."
            )
        return self._served[name]

    def _open(self, name: str, path: Path) -> Served:
        return Served(name, path, _loaded(path, self._device), self.limits, self._state)


@contextlib.contextmanager
def holding_models() -> Iterator[None]:
    """Keep the models that are used within a `with` open until its end, even if they are replaced meanwhile."""
    held: list[Served] = []
    token = _held.set(held)
    try:
        yield
    finally:
        _held.reset(token)
        for served in held:
            served.holders -= 1


def _tables(model: PackedModel) -> dict[str, int]:
    """The rows of the smallest table that looks up an input, by the name of the input."""
    program = model.cell.program
    tables = smallest_tables(program.nodes)
    return {
        name: len(tables[number].arrays["embeddings"])
        for name, number in program.inputs.items()
        if number in tables
    }


def named_paths(arguments: Sequence[str]) -> dict[str, Path]:
    """The files by the names of their models, from NAME=FILE or FILE.

    Raises:
        ConfigError: A name is not valid or comes twice, or a file is not a `.cell` file.
    """
    found: dict[str, Path] = {}
    for argument in arguments:
        name, equals, file = argument.partition("=")
        path = Path(file if equals else argument)
        name = name if equals else path.stem
        if path.suffix != ".cell":
            command = f"`cellerate pack {path} -o {path.with_suffix('.cell')}`"
            if path.suffix != ".keras":
                command = "`cellerate pack MODEL.keras -o MODEL.cell`"
            raise ConfigError(f"{path} is not a .cell file: pack the model first ({command}).")
        if not _NAME.fullmatch(name):
            raise ConfigError(
                f"{name!r} cannot be the name of a model: give letters, digits, '.', '_' and '-', such as "
                f"book={os.fspath(path)}."
            )
        if name in found:
            raise ConfigError(f"two models have the name {name!r}: rename one, as in other={path}.")
        found[name] = path
    return found


def _loaded(path: Path, device: str) -> PackedModel:
    """Open a model and compute on it once, so that the first request does not wait for first-use preparation."""
    model = load(path, device=device)
    if model.task == "text":
        model.steps.read(model.steps.initial_state(), np.zeros((1, 1), np.int32))
    return model
