"""The thread that works on the sessions of one model, and how requests in an event loop reach it.

Whatever waits is bounded: a request that finds no place is refused at once, before anything of it is computed.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import itertools
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from cellerate.errors import CellerateError
from cellerate.serving.sessions.long_push import LongPush, is_long
from cellerate.serving.sessions.pushes import Push
from cellerate.serving.sessions.sessions import Result, Sessions
from cellerate.serving.workers import BusyError, DeadlineError

_Found = TypeVar("_Found")

# States that are written between two batches of pushes: a few milliseconds.
_FLUSHED_AT_ONCE = 128
# How often it is said in the log that states cannot be written.
_WORD_EVERY_S = 60

log = logging.getLogger("cellerate.serving")


class SessionWorker:
    """Works on the sessions of one model, in a thread of its own, in the order in which it was asked.

    All pushes that wait are read in one call.

    Args:
        sessions: The sessions.
        most_pushes: How many pushes may wait.
        flush_every_s: How often states are written to the disk, against a crash.
    """

    def __init__(self, sessions: Sessions, most_pushes: int = 65_536, flush_every_s: float = 10) -> None:
        self.sessions = sessions
        self._most, self._flush_every = most_pushes, flush_every_s
        self._condition = threading.Condition()
        self._waiting: list[_Task] = []
        # What is read in pieces, by turns; and what waits for that in its session.
        self._long: collections.deque[_LongTask] = collections.deque()
        self._later: list[_Task] = []
        self._count = 0
        self._closing = False
        # When the trouble of the disk is told again; 0 without any.
        self._next_word = 0.0
        self._thread = threading.Thread(target=self._run, name="cellerate-sessions", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """The number of pushes that wait."""
        return self._count

    async def push(self, pushes: Sequence[Push], deadline_s: float | None = None) -> list[Result]:
        """As `Sessions.push`; of what nobody waits for any more nothing is read.

        Args:
            pushes: What came.
            deadline_s: What it may take in seconds; None for any time.

        Raises:
            BusyError: Too many pushes wait, or the worker is closing.
            DeadlineError: It took longer than `deadline_s`, and nothing was read.
        """
        names = frozenset(push.name for push in pushes)
        results: list[Result] = await self._done(_Task(pushes, None, names, deadline_s))
        return results

    async def run(self, call: Callable[[Sessions], _Found], name: str) -> _Found:
        """Calls with the sessions when it is the turn of a session, and returns what the call returned.

        Raises:
            BusyError: Too many pushes wait, or the worker is closing.
            CellerateError: What the call raised.
        """
        found: _Found = await self._done(_Task((), call, frozenset((name,)), None))
        return found

    async def close(self) -> None:
        """Does what waits, writes all states to the disk, and ends."""
        with self._condition:
            self._closing = True
            self._condition.notify()
        await asyncio.to_thread(self._thread.join)
        await asyncio.to_thread(self.sessions.disk.shut)

    async def _done(self, task: _Task) -> Any:
        done = task.done
        with self._condition:
            if self._closing or self._count + task.count > self._most:
                raise BusyError(
                    "the server is shutting down."
                    if self._closing
                    else f"more than {self._most} pushes would wait; try again, or push less at once."
                )
            self._waiting.append(task)
            self._count += task.count
            self._condition.notify()
        timer = None
        if task.deadline_s is not None:
            timer = task.loop.call_later(task.deadline_s, self._end_waiting, task)
        try:
            return await done
        except asyncio.CancelledError:
            task.dropped = True
            raise
        finally:
            if timer is not None:
                timer.cancel()

    def _end_waiting(self, task: _Task) -> None:
        """Ends a push whose time is over before it begins; what is being read looks at the time itself."""
        with self._condition:
            if task.begun or task.done.done():
                return
            task.dropped = True
        task.done.set_exception(
            DeadlineError(
                f"the push waited longer than {task.deadline_s:g} s, and nothing of it was read; try again."
            )
        )

    def _run(self) -> None:
        next_flush = time.monotonic() + self._flush_every
        unsaved: list[str] = []
        while True:
            with self._condition:
                at_once = unsaved or self._long or self._later
                wait_s = 0.0 if at_once else max(0.0, next_flush - time.monotonic())
                self._condition.wait_for(lambda: self._waiting or self._closing, timeout=wait_s)
                if self._closing and not (self._waiting or self._long or self._later):
                    return
                ready = self._sorted()
            for calls, group in itertools.groupby(ready, lambda task: task.call is not None):
                tasks = list(group)
                _resolve(self._called(tasks) if calls else self._read(tasks))
            if self._long and (result := self._long[0].advance()) is not None:
                _resolve([(self._long.popleft().task, result)])
            elif self._long:
                # The others get their turn.
                self._long.rotate(-1)
            begins = not unsaved and time.monotonic() >= next_flush
            if begins:
                next_flush = time.monotonic() + self._flush_every
                self.sessions.end_unused()
                unsaved = self.sessions.disk.unsaved()
            if begins or unsaved:
                self._flush(unsaved)

    def _sorted(self) -> list[_Task]:
        """Takes out what is done now. What takes long goes on beside it, and what follows that in a session waits."""
        busy: set[str] = set()
        for one in self._long:
            busy |= one.task.names
        ready, later = [], []
        for task in (*self._later, *self._waiting):
            if task.dropped:
                continue
            if busy and busy & task.names:
                later.append(task)
                busy |= task.names
                continue
            task.begun = True
            if any(map(is_long, task.pushes)):
                self._long.append(_LongTask(self.sessions, task))
                busy |= task.names
            else:
                ready.append(task)
        self._later, self._waiting = later, []
        self._count = sum(task.count for task in later) + sum(one.task.count for one in self._long)
        return ready

    def _flush(self, unsaved: list[str]) -> None:
        """Writes some of the states that are not on the disk, and says if it takes none."""
        try:
            # A few at a time, for pushes wait meanwhile.
            if not self.sessions.disk.flush_some(unsaved, _FLUSHED_AT_ONCE):
                self.sessions.disk.settle()
        except CellerateError:
            # The next time begins with all of them.
            unsaved.clear()
        trouble, now = self.sessions.disk.trouble, time.monotonic()
        if trouble and now >= self._next_word:
            self._next_word = now + _WORD_EVERY_S
            log.error(
                "the states of sessions are not kept, %d wait: %s", self.sessions.disk.unsaved_count, trouble
            )
        elif not trouble and self._next_word:
            self._next_word = 0.0
            log.warning("the states of sessions are kept again.")

    def _called(self, tasks: Sequence[_Task]) -> list[tuple[_Task, Any]]:
        results: list[tuple[_Task, Any]] = []
        for task in tasks:
            try:
                assert task.call is not None  # noqa: S101 (as it was grouped)
                results.append((task, task.call(self.sessions)))
            except Exception as error:
                results.append((task, error))
        return results

    def _read(self, tasks: Sequence[_Task]) -> list[tuple[_Task, Any]]:
        try:
            found = iter(self.sessions.push([push for task in tasks for push in task.pushes]))
            return [(task, [next(found) for _ in task.pushes]) for task in tasks]
        except Exception as error:
            return [(task, error) for task in tasks]


class _Task:
    """Pushes or a call, and who waits for them.

    Attributes:
        begun: Whether it is being done.
        dropped: Whether nobody waits for it any more.
    """

    __slots__ = ("begun", "call", "count", "deadline_s", "done", "dropped", "loop", "names", "pushes")

    def __init__(
        self,
        pushes: Sequence[Push],
        call: Callable[[Sessions], Any] | None,
        names: frozenset[str],
        deadline_s: float | None,
    ) -> None:
        self.pushes, self.call, self.names, self.deadline_s = pushes, call, names, deadline_s
        self.loop = asyncio.get_running_loop()
        self.done: asyncio.Future[Any] = self.loop.create_future()
        self.count = max(len(pushes), 1)
        self.begun = self.dropped = False


class _LongTask:
    """Pushes of which some take long, one after another.

    Args:
        sessions: Where they are pushed.
        task: The pushes.
    """

    def __init__(self, sessions: Sessions, task: _Task) -> None:
        self.task, self._sessions = task, sessions
        self._left = collections.deque(task.pushes)
        self._results: list[Result] = []
        self._long: LongPush | None = None

    def advance(self) -> list[Result] | None:
        """Does a part; all results once there is nothing left, else None."""
        if self._long is None and self._left and not is_long(self._left[0]):
            short = []
            while self._left and not is_long(self._left[0]):
                short.append(self._left.popleft())
            self._results += self._sessions.push(short)
        elif self._left or self._long is not None:
            if self._long is None:
                self._long = LongPush(self._sessions, self._left.popleft(), self.task.deadline_s)
            if self.task.dropped:
                self._long.give_up()
                return []
            result = self._long.advance()
            if result is not None:
                self._results.append(result)
                self._long = None
        return None if self._left or self._long is not None else self._results


def _resolve(results: Sequence[tuple[_Task, Any]]) -> None:
    """Hands results to those that wait for them, in one call an event loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Any], Any]]] = {}
    for task, result in results:
        by_loop.setdefault(task.loop, []).append((task.done, result))
    for loop, items in by_loop.items():
        with contextlib.suppress(RuntimeError):  # the loop has ended, and with it the waiting requests
            loop.call_soon_threadsafe(_resolve_all, items)


def _resolve_all(items: Sequence[tuple[asyncio.Future[Any], Any]]) -> None:
    for done, result in items:
        if done.done():
            continue
        if isinstance(result, Exception):
            done.set_exception(result)
        else:
            done.set_result(result)
