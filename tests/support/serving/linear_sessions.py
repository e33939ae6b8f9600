"""Clients of sessions that check the answers: some order of the pushes must explain all of them.

Each session has its own client, which sends one to three pushes at once, waits for all answers, and keeps every state
that the session may have had since. An answer that no order of the pushes gives from any of these states is wrong: a
push was read twice, not at all, or only in part, or an older state came back.
"""

import asyncio
import dataclasses
import itertools
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import httpx2
import numpy as np

from cellerate.runtime.streams import Streams

# Pushes without an answer multiply the possible states; beyond this many the client gives the session up.
_MOST_STATES = 64


@dataclasses.dataclass(frozen=True)
class Sent:
    """A push.

    Attributes:
        steps: (k, F) the steps that were sent.
        answer: The outputs by name; None if there was no answer, so that it may have been read or not.
    """

    steps: np.ndarray
    answer: Mapping[str, Any] | None


class Explained(NamedTuple):
    """The states that explain the answers of some pushes.

    Attributes:
        after: The states that the session may be in now; none if nothing explains the answers.
        between: States that it may have had between two of the pushes.
    """

    after: list[Streams]
    between: list[Streams]


def explained(states: Sequence[Streams], pushes: Sequence[Sent]) -> Explained:
    """The possible states after pushes in any order; each push without an answer may have been read or not."""
    after, between = {}, {}
    for state in states:
        for order in _orders(pushes):
            if passed := _passed(state, order):
                after[passed[-1].state.tobytes()] = passed[-1]
                between |= {one.state.tobytes(): one for one in passed[:-1]}
    return Explained(list(after.values()), list(between.values()))


def _orders(pushes: Sequence[Sent]) -> Iterator[tuple[Sent, ...]]:
    answered = [push for push in pushes if push.answer is not None]
    unknown = [push for push in pushes if push.answer is None]
    for count in range(len(unknown) + 1):
        for some in itertools.combinations(unknown, count):
            yield from itertools.permutations([*answered, *some])


def _passed(state: Streams, order: Sequence[Sent]) -> list[Streams]:
    """The states before, between and after pushes in this order; none if an answer differs."""
    passed = [state]
    for push in order:
        state = state.clone()
        outputs = state.push(push.steps[None])
        assert isinstance(outputs, dict)
        if push.answer is not None and not all(
            np.array_equal(np.array(push.answer[name], np.float32), array[0])
            for name, array in outputs.items()
        ):
            return []
        passed.append(state)
    return passed


@dataclasses.dataclass(frozen=True)
class Crash:
    """A kill of the server.

    Attributes:
        at: The time of the kill, by the monotonic clock.
        lost_s: Pushes of this many seconds before the kill may be lost.
        ends_sessions: Sessions in use may have ended with the kill, because the disk was failing.
    """

    at: float
    lost_s: float
    ends_sessions: bool


@dataclasses.dataclass
class Outcome:
    """The results of all clients so far.

    Attributes:
        counts: The number of answers of each kind.
        wrong: Descriptions of answers that nothing explains.
        crashes: Each kill of the server.
        is_down: The server is down on purpose.
    """

    counts: dict[str, int] = dataclasses.field(default_factory=dict)
    wrong: list[str] = dataclasses.field(default_factory=list)
    crashes: list[Crash] = dataclasses.field(default_factory=list)
    is_down: bool = False

    def count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1


class SessionClient:
    """A client that uses one session after the other.

    Args:
        place: The number of the client.
        seed: The seed of its random choices.
        new: A stream that has read nothing.
        features: The number of values in a step.
        outcome: Receives the results.
    """

    def __init__(self, place: int, seed: int, new: Streams, features: int, outcome: Outcome) -> None:
        self._draw = random.Random(f"{seed} {place}")
        self._numbers = np.random.default_rng([seed, place])
        self._new, self._features, self._outcome, self._place = new, features, outcome, place
        self._sessions = 0
        self._begin()

    def _begin(self) -> None:
        self._sessions += 1
        self._name = f"c{self._place}-{self._sessions}"
        self._states = [self._new.clone()]
        self._history: list[tuple[float, list[Streams]]] = []
        self._crashes = len(self._outcome.crashes)
        self._begun, self._began = False, time.monotonic()
        self._refused: list[tuple[float, np.ndarray]] = []

    async def run(self, http: httpx2.AsyncClient, model: str, until: float) -> None:
        """Push until a time of the monotonic clock."""
        while time.monotonic() < until:
            if self._outcome.is_down:
                await asyncio.sleep(0.05)
                continue
            # The first push opens the session, so it is sent alone.
            many = self._draw.choice((1, 1, 2, 3)) if self._begun else 1
            steps = [
                self._numbers.normal(size=(self._draw.randrange(1, 7), self._features)).astype(np.float32)
                for _ in range(many)
            ]
            crashes = len(self._outcome.crashes)
            found = await asyncio.gather(*(self._push(http, model, each) for each in steps))
            pushes = [push for push in found if isinstance(push, Sent)]
            self._judge(pushes, [status for status in found if isinstance(status, int)], crashes)
            await asyncio.sleep(self._draw.choice((0.0, 0.0, 0.01, 0.2)))
            if self._begun and self._draw.random() < 0.01:
                await self._end(http, model)

    async def _push(self, http: httpx2.AsyncClient, model: str, steps: np.ndarray) -> Sent | int:
        """Send a push; return it with its answer, or the status of a refusal."""
        path = f"/v1/models/{model}/sessions/{self._name}/push"
        body = {"inputs": steps.tolist()} | ({} if self._begun else {"begin": True})
        try:
            answer = await http.post(path, json=body)
        except httpx2.ConnectError:
            return 0  # not sent
        except httpx2.HTTPError:
            self._outcome.count("no answer")
            return Sent(steps, None)
        self._outcome.count(str(answer.status_code))
        if answer.status_code == 200:
            return Sent(steps, answer.json()["outputs"])
        self._refused = [*self._refused[-20:], (time.monotonic(), steps)]
        return answer.status_code

    def _judge(self, pushes: Sequence[Sent], refusals: Sequence[int], crashes: int) -> None:
        """Compare the answers of pushes that were sent together, after this many crashes, with the possible ones."""
        now = time.monotonic()
        possible = self._possible(crashes)
        after, between = explained(possible, pushes)
        answered = any(push.answer is not None for push in pushes)
        if not after:
            self._outcome.wrong.append(self._told(now, pushes, possible))
            self._begin()
            return
        if any(status in (404, 410) for status in refusals):
            if not self._may_be_gone():
                self._outcome.wrong.append(f"{self._name}: it is gone without a crash")
            self._outcome.count("sessions lost in a crash")
            self._begin()
            return
        if answered and crashes > self._crashes:
            # The first answer after a crash shows which states it lost.
            self._crashes, self._history = crashes, [(now, possible)]
        for push in pushes:
            if push.answer is not None:
                self._outcome.count("answers checked")
        if pushes and not self._begun and not answered:
            self._begin()  # the session may exist or not
            return
        self._begun = self._begun or answered
        self._states = after
        # A crash may undo the last of several pushes that were sent together.
        self._history.append((now, [*between, *after]))
        # A crash undoes at most half a minute.
        while len(self._history) > 1 and self._history[1][0] < now - 60:
            del self._history[0]
        if len(after) > _MOST_STATES:
            self._begin()

    def _told(self, now: float, pushes: Sequence[Sent], possible: Sequence[Streams]) -> str:
        """Describe an answer that nothing explains, with the older states and refused pushes that would."""
        older = [f"{now - when:.1f} s" for when, states in self._history if explained(states, pushes).after]
        late = [
            f"{now - when:.1f} s"
            for when, steps in self._refused
            if self._with_refused(pushes, possible, steps)
        ]
        ages = [f"{now - crash.at:.1f} s" for crash in self._outcome.crashes]
        return (
            f"{self._name}, begun {now - self._began:.1f} s ago: nothing explains the answers of {len(pushes)} pushes "
            f"from {len(possible)} states; states that would are {', '.join(older) or 'not known'} old, pushes refused "
            f"{', '.join(late) or 'at no time'} ago would; crashes {', '.join(ages)} ago, of these "
            f"{len(self._outcome.crashes) - self._crashes} not seen yet"
        )

    @staticmethod
    def _with_refused(pushes: Sequence[Sent], possible: Sequence[Streams], steps: np.ndarray) -> bool:
        return bool(explained(possible, [*pushes, Sent(steps, None)]).after)

    def _possible(self, crashes: int) -> list[Streams]:
        """The states that the session may be in: after a crash, any state since the last flush."""
        found = {state.state.tobytes(): state for state in self._states}
        for crash in self._outcome.crashes[self._crashes : crashes]:
            flushed = crash.at - crash.lost_s
            before = [states for when, states in self._history if when < flushed]
            within = [states for when, states in self._history if flushed <= when <= crash.at]
            for state in itertools.chain(*before[-1:], *within):
                found[state.state.tobytes()] = state
        return list(found.values())

    def _may_be_gone(self) -> bool:
        return not self._begun or any(
            crash.ends_sessions or self._began > crash.at - crash.lost_s
            for crash in self._outcome.crashes[self._crashes :]
        )

    async def _end(self, http: httpx2.AsyncClient, model: str) -> None:
        try:
            answer = await http.delete(f"/v1/models/{model}/sessions/{self._name}")
        except httpx2.HTTPError:
            self._begin()
            return
        self._outcome.count(f"end {answer.status_code}")
        if answer.status_code == 204:
            crashes = len(self._outcome.crashes)
            found = await self._push(http, model, np.zeros((1, self._features), np.float32))
            if isinstance(found, Sent) and found.answer is not None and crashes == len(self._outcome.crashes):
                self._outcome.wrong.append(f"{self._name}: it takes a push after its end")
        self._begin()
