"""The thread that computes whole calls of a model: predictions, forecasts, embeddings and scores, one after another."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from cellerate.serving.workers import BusyError, DeadlineError

_Found = TypeVar("_Found")


@dataclasses.dataclass
class CallTotals:
    """Sums over the calls of a model since its file was loaded.

    Attributes:
        succeeded: The number of calls that returned.
        failed: The number of calls that raised an error.
        rows: The rows of the calls that returned.
        waiting_s: The time in seconds from a call's request until its computation began.
        computing_s: The time in seconds of the computations that returned.
        failing_s: The time in seconds from the request of a failed call to its error.
        last: When the last call returned, in seconds since 1970; 0 before the first one.
    """

    succeeded: int = 0
    failed: int = 0
    rows: int = 0
    waiting_s: float = 0
    computing_s: float = 0
    failing_s: float = 0
    last: float = 0


class CallWorker:
    """Runs calls in a thread of its own.

    Args:
        most: How many calls may wait or run.

    Attributes:
        totals: Sums over the calls that say how many rows they take.
    """

    def __init__(self, most: int) -> None:
        self.totals = CallTotals()
        self._most = most
        self._count = 0
        self._lock = threading.Lock()
        self._closing = False
        self._pool = ThreadPoolExecutor(1, "cellerate-calls")

    @property
    def waiting(self) -> int:
        """The number of calls that wait or run."""
        return self._count

    async def run(
        self, call: Callable[[], _Found], deadline_s: float | None = None, *, rows: int | None = None
    ) -> _Found:
        """Run a call in its turn, and return its result.

        A call is dropped if its client gave up before it started.

        Args:
            call: The computation.
            deadline_s: How long the call may wait and compute, in seconds; None for no limit.
            rows: The rows that `totals` counts; with None, `totals` leaves the call out.

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
        future = self._pool.submit(call if rows is None else self._counted(call, rows))
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

    def _counted(self, call: Callable[[], _Found], rows: int) -> Callable[[], _Found]:
        requested = time.perf_counter()

        def counted() -> _Found:
            began, totals = time.perf_counter(), self.totals
            try:
                found = call()
            except BaseException:
                totals.failed += 1
                totals.failing_s += time.perf_counter() - requested
                raise
            totals.succeeded += 1
            totals.rows += rows
            totals.waiting_s += began - requested
            totals.computing_s += time.perf_counter() - began
            totals.last = time.time()
            return found

        return counted

    def _ended(self) -> None:
        with self._lock:  # in the thread of the pool, or in that of the loop for a call that was left out
            self._count -= 1
