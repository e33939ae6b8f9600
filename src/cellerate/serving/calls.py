"""The thread that computes whole calls of a model: predictions, forecasts, embeddings and scores, one after another."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from cellerate.serving.workers import BusyError, DeadlineError

_Found = TypeVar("_Found")


class CallWorker:
    """Runs calls in a thread of its own.

    Args:
        most: How many calls may wait or run.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._count = 0
        self._lock = threading.Lock()
        self._closing = False
        self._pool = ThreadPoolExecutor(1, "cellerate-calls")

    @property
    def waiting(self) -> int:
        """The number of calls that wait or run."""
        return self._count

    async def run(self, call: Callable[[], _Found], deadline_s: float | None = None) -> _Found:
        """Run a call in its turn, and return its result.

        A call is dropped if its client gave up before it started.

        Raises:
            BusyError: Too many calls wait, or the worker is closing.
            DeadlineError: The call took longer than `deadline_s`.
        """
        if self._closing or self._count >= self._most:
            raise BusyError(
                "the server is shutting down."
                if self._closing
                else f"{self._most} calls wait already; try again."
            )
        with self._lock:
            self._count += 1
        future = self._pool.submit(call)
        future.add_done_callback(lambda _: self._ended())
        try:
            async with asyncio.timeout(deadline_s):
                return await asyncio.wrap_future(future)
        except TimeoutError as error:
            raise DeadlineError(f"the request took longer than {deadline_s:g} s, and was ended.") from error

    async def close(self) -> None:
        """Refuses new calls and waits for those that wait or run."""
        self._closing = True
        await asyncio.to_thread(self._pool.shutdown)

    def _ended(self) -> None:
        with self._lock:  # in the thread of the pool, or in that of the loop for a call that was left out
            self._count -= 1
