"""The threads that compute, and how requests in an event loop reach them: one for texts and one for sessions a model.

Whatever waits is bounded: a request that finds no place is refused at once, before anything of it is computed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import AsyncGenerator, Sequence
from typing import Any, TypeVar

import numpy as np

from cellerate.errors import CellerateError
from cellerate.kernels.decoder.sampling import SamplingRules
from cellerate.runtime.packed import PackedModel
from cellerate.runtime.text import Batcher, Ticket, Update

_Found = TypeVar("_Found")

# After an error of the machine the next try waits, so that an error that stays does not take a core.
_PAUSE_S = 0.1

log = logging.getLogger("cellerate.serving")


class BusyError(CellerateError):
    """All places for requests are taken; one may be free in a second."""


class DeadlineError(CellerateError):
    """A request took longer than it may."""


class TextWorker:
    """Continues texts on one model, side by side, in a thread of its own.

    Args:
        model: A packed text model.
        most_sequences: How many sequences may wait or be drawn at once.
        prompt_cache_bytes: What the remembered states after prompts may take.
    """

    def __init__(self, model: PackedModel, most_sequences: int = 1024, prompt_cache_bytes: int = 0) -> None:
        self._batcher = Batcher(
            model.steps, model.tokenizer, most_active=most_sequences, prompt_cache_bytes=prompt_cache_bytes
        )
        self._most = most_sequences
        self._condition = threading.Condition()
        self._listeners: dict[
            Ticket, tuple[asyncio.AbstractEventLoop, asyncio.Queue[Update | Exception]]
        ] = {}
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="cellerate-texts", daemon=True)
        self._thread.start()

    @property
    def sequences(self) -> int:
        """The number of sequences that wait or are drawn."""
        return len(self._listeners)

    @property
    def recalled(self) -> int:
        """The number of ids of prompts that did not have to be read, because the state after them was remembered."""
        return self._batcher.recalled

    def check_place(self) -> None:
        """Says whether another sequence has a place now.

        Raises:
            BusyError: There are too many sequences, or the worker is closing.
        """
        if self._closing or len(self._listeners) >= self._most:
            raise BusyError(
                "the server is shutting down."
                if self._closing
                else f"{self._most} sequences are drawn or waiting already; try again."
            )

    async def complete(
        self,
        prompt: np.ndarray,
        *,
        max_tokens: int,
        rules: SamplingRules,
        stop: Sequence[str] = (),
        deadline_s: float | None = None,
    ) -> AsyncGenerator[Update]:
        """Continues a prompt. A listener that stops ends the sequence, at the end of the step that runs.

        Args:
            prompt: (N,) ids.
            max_tokens: Maximum number of ids to draw.
            rules: How to draw them.
            stop: Texts that end it.
            deadline_s: What it may take in seconds; None for any time.

        Returns:
            What it drew, step by step; the last one says why it ended.

        Raises:
            BusyError: There are too many sequences, or the worker is closing.
            ConfigError, DataError, ModelError: As `Batcher.submit`, and what made the sequence fail.
            DeadlineError: It took longer than `deadline_s`.
        """
        loop, queue = asyncio.get_running_loop(), asyncio.Queue[Update | Exception]()
        with self._condition:
            self.check_place()
            ticket = self._batcher.submit(prompt, max_tokens=max_tokens, rules=rules, stop=stop)
            self._listeners[ticket] = loop, queue
            self._condition.notify()
        end = None if deadline_s is None else loop.time() + deadline_s
        try:
            while True:
                try:
                    # Not around the whole loop: a timeout would end what the listener does between two updates.
                    async with asyncio.timeout_at(end):
                        update = await queue.get()
                except TimeoutError as error:
                    raise DeadlineError(
                        f"the request took longer than {deadline_s:g} s, and was ended."
                    ) from error
                if isinstance(update, Exception):
                    raise update
                if update.ticket.error is not None:
                    raise update.ticket.error
                yield update
                if update.reason is not None:
                    return
        finally:
            self._batcher.cancel(ticket)

    async def close(self, drain_s: float) -> None:
        """Refuses new sequences, lets those that run end for some seconds, then ends the rest with what they have."""
        with self._condition:
            self._closing = True
            self._condition.notify()
        end = time.monotonic() + drain_s
        while self._listeners and time.monotonic() < end:
            await asyncio.sleep(0.01)
        for ticket in list(self._listeners):
            self._batcher.cancel(ticket)
        await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._closing or not self._batcher.idle)
                if self._closing and self._batcher.idle:
                    return
            try:
                updates = self._batcher.step()
            except Exception as error:
                # The machine's error, not one of a sequence: those that wait for it are told, and the next may try.
                self._tell([(ticket, error) for ticket in list(self._listeners)])
                time.sleep(_PAUSE_S)
                continue
            self._tell([(update.ticket, update) for update in updates])

    def _tell(self, news: Sequence[tuple[Ticket, Update | Exception]]) -> None:
        """Hands results to those that wait for them, in one call an event loop."""
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[Any, Update | Exception]]] = {}
        with self._condition:  # so that the request just submitted is listening
            for ticket, each in news:
                ended = isinstance(each, Exception) or each.reason is not None
                listener = self._listeners.pop(ticket, None) if ended else self._listeners.get(ticket)
                if ended:
                    self._batcher.cancel(ticket)
                if listener is not None:
                    by_loop.setdefault(listener[0], []).append((listener[1], each))
        for loop, items in by_loop.items():
            with contextlib.suppress(RuntimeError):  # the loop has ended, and with it the waiting requests
                loop.call_soon_threadsafe(_put_all, items)


def _put_all(items: Sequence[tuple[asyncio.Queue[Any], Any]]) -> None:
    for queue, each in items:
        queue.put_nowait(each)
