"""Sessions under random schedules of pushes, ends, evictions, flushes, failing disks, crashes and swaps of models.

A model of what was acknowledged goes along: each answer is held against it at once, so that what a session gives is
what one that never left memory gives, whatever the disk and the process did meanwhile.
"""

import contextlib
import dataclasses
import random
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cellerate.errors import CellerateError, OutputError
from cellerate.serving.sessions import sessions as module
from cellerate.serving.sessions.pushes import MissingSessionError, Push, StorageError
from cellerate.serving.sessions.sessions import Sessions
from cellerate.serving.sessions.streams import StepSize
from support.disks.disks import failing_disk

NAMES = [f"s{n}" for n in range(6)]


class Sums:
    """Streams whose state is the sum and count of their steps: as exact as a model, and far quicker."""

    outputs = ("y",)
    initial_state = np.zeros(2, np.float32)

    def __init__(self) -> None:
        self.states = np.zeros((0, 2), np.float32)

    def measured(self) -> StepSize:
        return StepSize(frozenset(), 0, 2)

    @property
    def count(self) -> int:
        return len(self.states)

    def grow(self, count: int) -> None:
        self.states = np.concatenate([self.states, np.zeros((count, 2), np.float32)])

    def states_of(self, rows: Any) -> np.ndarray:
        return self.states[rows]

    def set_states(self, rows: Any, states: np.ndarray) -> None:
        self.states[rows] = states

    def push(self, inputs: Mapping[str, np.ndarray], rows: np.ndarray) -> dict[str, np.ndarray]:
        x = inputs["x"]
        if (x < 0).any():
            raise ValueError("below 0")
        self.states[rows] += np.stack([x.sum(axis=(1, 2)), np.full(len(x), x.shape[1])], axis=1)
        return {"y": self.states[rows]}


@dataclasses.dataclass
class Known:
    """The acknowledged states of each session since its last certain write to disk, the newest last."""

    states: dict[str, list[tuple[float, float]]] = dataclasses.field(default_factory=dict)
    # Known to be on the disk.
    saved: set[str] = dataclasses.field(default_factory=set)


class Schedule:
    """One random schedule on one file.

    Args:
        folder: Where the file is.
        seed: Which schedule.
    """

    def __init__(self, folder: Path, seed: int) -> None:
        self.random, self.path = random.Random(seed), folder / "s.db"
        self.known, self.now, self.stack = Known(), 0.0, contextlib.ExitStack()
        self.failing = False
        self.model: Any = SimpleNamespace(fingerprint="f")
        self.sessions = self.open()

    def open(self) -> Sessions:
        return Sessions(self.model, self.path, most_in_memory=3, time_to_live_s=1e9, clock=lambda: self.now)

    def run(self, count: int) -> None:
        """Take random steps, then shut down cleanly and check every session."""
        steps = [self.push] * 6 + [
            self.begin,
            self.end,
            self.look,
            self.restore,
            self.flush,
            self.disk,
            self.crash,
        ]
        for _ in range(count):
            self.now += 1
            self.random.choice(steps)()
        self.mend()
        self.sessions.disk.shut()
        self.sessions = self.open()
        for name in NAMES:
            self.check(name)
        self.sessions._memory.store.close()

    def name(self) -> str:
        return self.random.choice(NAMES)

    def push(self) -> None:
        pushes, turns = [], self.random.randrange(1, 5)
        for _ in range(turns):
            x = np.array(
                [[self.random.choice([1.0, 2.0, 3.0, -1.0])]] * self.random.randrange(1, 3), np.float32
            )
            begin, end = self.random.random() < 0.1, self.random.random() < 0.1
            pushes.append(Push(self.name(), {"x": x}, begin, end))
        for push, result in zip(pushes, self.sessions.push(pushes), strict=True):
            self.judge(push, result)

    def judge(self, push: Push, result: Any) -> None:
        """Check the answer of a push against the acknowledged states."""
        states, x = self.known.states, push.inputs["x"]
        there = push.name in states
        if isinstance(result, dict):
            assert there != push.begin
            before = (0.0, 0.0) if push.begin else states[push.name][-1]
            after = (before[0] + float(x.sum()), before[1] + len(x))
            assert tuple(result["y"].tolist()) == after
            # If a session is evicted between its begin and its first push, a crash may undo that push, too.
            states.setdefault(push.name, [before]).append(after)
            if push.end:
                self.forget(push.name)
            return
        if isinstance(result, MissingSessionError):
            assert not there and not push.begin
        elif type(result) is ValueError:
            assert (x < 0).any() and there != push.begin
        elif isinstance(result, StorageError):
            assert self.failing
        else:
            assert there and push.begin, result

    def begin(self) -> None:
        name = self.name()
        try:
            self.sessions.open(name)
        except CellerateError as error:
            assert name in self.known.states or (isinstance(error, StorageError) and self.failing)
        else:
            assert name not in self.known.states
            self.known.states[name] = [(0.0, 0.0)]

    def end(self) -> None:
        name = self.name()
        try:
            self.sessions.close(name)
        except MissingSessionError:
            assert name not in self.known.states
        else:
            assert name in self.known.states
            self.forget(name)

    def restore(self) -> None:
        name, state = self.name(), (float(self.random.randrange(9)), 1.0)
        try:
            self.sessions.restore(name, np.array(state, np.float32))
        except StorageError:
            assert self.failing
        else:
            self.known.states.setdefault(name, []).append(state)

    def look(self) -> None:
        self.check(self.name())

    def check(self, name: str) -> None:
        try:
            found = self.sessions.state(name)
        except MissingSessionError:
            assert name not in self.known.states
        except StorageError:
            assert self.failing
        else:
            assert tuple(found.tolist()) == self.known.states[name][-1]
        assert len(self.sessions) == len(self.known.states)

    def flush(self) -> None:
        unsaved = self.sessions.disk.unsaved()
        try:
            while self.sessions.disk.flush_some(unsaved, 2):
                pass
        except StorageError:
            assert self.failing
        else:
            self.sessions.disk.settle()
            assert (self.sessions.disk.trouble != "") <= self.failing
            for name, states in self.known.states.items():
                # Older states cannot come back any more.
                del states[:-1]
                self.known.saved.add(name)

    def disk(self) -> None:
        """Make the disk fail, or make it work again."""
        if self.failing:
            self.stack.close()
        else:
            self.stack.enter_context(failing_disk())
        self.failing = not self.failing

    def mend(self) -> None:
        if self.failing:
            self.disk()

    def forget(self, name: str) -> None:
        del self.known.states[name]
        self.known.saved.discard(name)

    def crash(self) -> None:
        """End the process by a signal or after a last write, and start another one from the disk."""
        trouble = self.sessions.disk.trouble != ""
        clean = self.random.random() < 0.5
        if clean:
            with contextlib.suppress(OutputError):
                self.sessions.disk.shut()
        else:
            self.sessions._memory.store.close()
        clean = clean and not self.failing
        self.mend()
        self.sessions = self.open()
        states = self.known.states
        for name in NAMES:
            try:
                found: Any = tuple(self.sessions.state(name).tolist())
            except MissingSessionError as error:
                # A state that is safe on the disk may go only if the disk failed and the error says so.
                safe = name in states and name in self.known.saved and len(states[name]) == 1
                assert not clean or name not in states
                assert trouble or error.ended or not safe, name
                states.pop(name, None)
                self.known.saved.discard(name)
            else:
                assert name in states, f"{name} is there again"
                # After disk trouble only the newest state is served; after a crash any state since the last flush.
                assert found in (states[name][-1:] if trouble or clean else states[name]), name
                states[name] = [found]
                self.known.saved.add(name)


def schedules(folder: Path, seeds: Sequence[int], count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "session_streams", lambda model: Sums())
    for seed in seeds:
        own = folder / str(seed)
        own.mkdir()
        one = Schedule(own, seed)
        try:
            one.run(count)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
        finally:
            one.stack.close()
        for file in own.iterdir():
            file.unlink()
        own.rmdir()


def test_random_schedules_lose_no_acknowledged_push(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    schedules(tmp_path, range(400), 40, monkeypatch)


@pytest.mark.slow
def test_hundred_thousand_random_schedules_lose_no_acknowledged_push(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # In memory where possible, because the disk would take most of the time.
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else tmp_path) as folder:
        schedules(Path(folder), range(1000, 101_000), 25, monkeypatch)
