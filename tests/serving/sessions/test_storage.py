"""Session states on a failing disk: no acknowledged push is undone, no stale state is served, errors are reported."""

import random
import sqlite3
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cellerate.errors import OutputError
from cellerate.serving.sessions import sessions as module
from cellerate.serving.sessions.loss_marker import LossMarker
from cellerate.serving.sessions.pushes import DamagedStateError, MissingSessionError, Push, StorageError
from cellerate.serving.sessions.sessions import Sessions
from cellerate.serving.sessions.state_file import StateFile
from cellerate.serving.sessions.state_store import StateStore
from support.disks.disks import failing_disk
from support.serving.session_models import model, opened, steps


def read(sessions: Sessions, *names: str, **further: Any) -> list[Any]:
    return sessions.push([Push(name, steps(2), **further) for name in names])


def flushed(sessions: Sessions) -> None:
    sessions.disk.flush_some(sessions.disk.unsaved())


def test_flipped_bit_anywhere_is_detected_and_affects_only_its_session(tmp_path: Path) -> None:
    path, draw = tmp_path / "s.db", random.Random(0)
    file = StateFile(path, "f", 64)
    names = [f"k{n}" for n in range(100)]
    states = np.random.default_rng(0).normal(size=(100, 64)).astype(np.float32)
    file.save(names, states, [float(n) for n in range(100)])
    file.close()
    wrong = refused = 0
    for _ in range(300):
        whole = bytearray(path.read_bytes())
        # After the first pages, without which SQLite would not open the file.
        place = draw.randrange(16_384, len(whole))
        whole[place] ^= 1 << draw.randrange(8)
        (tmp_path / "t.db").write_bytes(whole)
        damaged = StateFile(tmp_path / "t.db", "f", 64)
        for name, state in zip(names, states, strict=True):
            try:
                found = damaged.state(name)
            except (DamagedStateError, StorageError):
                refused += 1
            else:
                wrong += found is not None and not np.array_equal(found, state)
        damaged.close()
    assert wrong == 0
    assert refused > 100


def test_damaged_state_ends_only_its_own_session(tmp_path: Path) -> None:
    one, path = model(), tmp_path / "s.db"
    sessions = opened(Sessions(one, path), "a", "b", "c")
    read(sessions, "a", "b", "c")
    right = sessions.state("b")
    sessions.disk.shut()
    base = sqlite3.connect(path)
    base.execute("UPDATE sessions SET state = zeroblob(length(state)) WHERE name = 'a'")
    base.execute("UPDATE sessions SET state = x'00' WHERE name = 'c'")
    base.commit()
    base.close()
    sessions = Sessions(one, path)
    assert np.array_equal(sessions.state("b"), right)
    results = read(sessions, "a", "b", "c")
    assert [type(result) for result in results] == [MissingSessionError, dict, MissingSessionError]
    assert "'a' ended: its state on the disk was damaged" in str(results[0])
    assert len(sessions) == 1
    opened(sessions, "a")
    assert isinstance(read(sessions, "a")[0], dict)


def test_file_without_checksums_is_read_and_gets_checksums(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    base = sqlite3.connect(path)
    base.executescript(
        "CREATE TABLE about (key TEXT PRIMARY KEY, value TEXT NOT NULL);"
        "CREATE TABLE sessions (name TEXT PRIMARY KEY, state BLOB NOT NULL, used REAL NOT NULL);"
        "INSERT INTO about VALUES ('version', '1'), ('model', 'f'), ('size', '2');"
    )
    base.execute("INSERT INTO sessions VALUES ('a', ?, 1.0)", (np.ones(2, "<f4").tobytes(),))
    base.commit()
    base.close()
    file = StateFile(path, "f", 2)
    found = file.state("a")
    assert found is not None and found.tolist() == [1, 1]
    file.save(["a"], np.full((1, 2), 2, np.float32), [2.0])
    file.close()
    again = sqlite3.connect(path)
    assert again.execute("SELECT checksum IS NULL FROM sessions").fetchall() == [(0,)]
    again.close()


def test_session_files_are_readable_by_their_owner_only(tmp_path: Path) -> None:
    sessions = opened(Sessions(model(), tmp_path / "states" / "s.db"), "a")
    flushed(sessions)
    folder = tmp_path / "states"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    files = list(folder.iterdir())
    assert len(files) >= 3
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}


def test_loss_marker_finds_every_marked_session_and_few_others(tmp_path: Path) -> None:
    marker = LossMarker(tmp_path / "m")
    names = [f"session {n}" for n in range(1000)]
    marker.mark(names)
    again = LossMarker(tmp_path / "m")
    assert all(name in again for name in names)
    assert sum(f"other {n}" in again for n in range(10_000)) < 10
    again.clear()
    assert not LossMarker(tmp_path / "m").any
    (tmp_path / "m").write_bytes(b"cut")
    assert not LossMarker(tmp_path / "m").any


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[tuple[Any, Path, Sessions]]:
    """A model, a file, and sessions x, y and z with pushes since their last write to disk."""
    one, path = model(), tmp_path / "s.db"
    sessions = opened(Sessions(one, path), "x", "y", "z", "still")
    read(sessions, "x", "y", "z", "still")
    flushed(sessions)
    read(sessions, "x", "y", "z")
    yield one, path, sessions
    sessions._memory.store.close()


def test_ending_a_session_on_a_failing_disk_ends_it_and_undoes_nothing(
    kept: tuple[Any, Path, Sessions],
) -> None:
    one, path, sessions = kept
    acknowledged = {name: sessions.state(name) for name in "xyz"}
    with failing_disk():
        sessions.close("x")
        with pytest.raises(MissingSessionError):
            sessions.state("x")
        results = sessions.push([Push("y", steps(2), end=True), Push("z", steps(2))])
        assert [type(result) for result in results] == [dict, dict]
        assert not np.array_equal(sessions.state("z"), acknowledged["z"])
        after = sessions.state("z")
        with pytest.raises(MissingSessionError):
            sessions.state("y")
        assert len(sessions) == 2
        # A session of the same name may begin again.
        opened(sessions, "x")
        fresh = sessions.state("x")
    flushed(sessions)
    sessions.disk.settle()
    assert sessions.disk.trouble == ""
    sessions.disk.shut()
    again = Sessions(one, path)
    assert len(again) == 3
    assert np.array_equal(again.state("x"), fresh)
    assert np.array_equal(again.state("z"), after)
    with pytest.raises(MissingSessionError, match="no session 'y'"):
        again.state("y")
    again.disk.shut()


@pytest.mark.parametrize("ends", ["killed", "shut down"])
def test_state_that_the_disk_missed_is_not_served_as_current(
    kept: tuple[Any, Path, Sessions], ends: str
) -> None:
    one, path, sessions = kept
    still = sessions.state("still")
    with failing_disk():
        with pytest.raises(StorageError):
            flushed(sessions)
        read(sessions, "x")
        sessions.close("y")
        if ends == "shut down":
            with pytest.raises(OutputError, match="cannot be written: disk I/O"):
                sessions.disk.shut()
        else:
            sessions._memory.store.close()
    again = Sessions(one, path)
    assert len(again) == 1
    assert np.array_equal(again.state("still"), still)
    for name in "xyz":
        with pytest.raises(MissingSessionError, match="its last pushes could not be written") as caught:
            again.state(name)
        assert caught.value.ended
    again.disk.shut()
    # After the report the file is like any other.
    last = Sessions(one, path)
    with pytest.raises(MissingSessionError, match="there is no session 'x'"):
        last.state("x")
    last.disk.shut()


def test_pushes_are_refused_once_the_disk_has_failed_for_too_long(tmp_path: Path) -> None:
    sessions = opened(Sessions(model(), tmp_path / "s.db", refuse_after_s=0.05), "a")
    with failing_disk():
        with pytest.raises(StorageError):
            flushed(sessions)
        assert isinstance(read(sessions, "a")[0], dict)
        before = sessions.state("a")
        time.sleep(0.06)
        assert sessions.disk.refuses
        (result,) = read(sessions, "a")
        assert isinstance(result, StorageError) and "so pushes are refused" in str(result)
        assert np.array_equal(sessions.state("a"), before)
        with pytest.raises(StorageError):
            sessions.open("b")
    flushed(sessions)
    sessions.disk.settle()
    assert isinstance(read(sessions, "a")[0], dict)
    sessions.disk.shut()


def test_removed_file_is_detected(tmp_path: Path) -> None:
    sessions = opened(Sessions(model(), tmp_path / "s.db"), "a")
    flushed(sessions)
    assert sessions.disk.trouble == ""
    (tmp_path / "s.db").unlink()
    sessions.disk.settle()
    assert "was removed while the server ran" in sessions.disk.trouble
    with pytest.raises(OutputError, match="was removed"):
        sessions.disk.shut()


def test_error_affects_only_its_own_session(monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = opened(Sessions(model()), *"abcd")
    real = sessions._streams.push

    def push(inputs: Any, rows: np.ndarray) -> Any:
        if sessions._memory.places["c"].row in rows:
            raise ValueError("something of numpy")
        return real(inputs, rows)

    monkeypatch.setattr(sessions._streams, "push", push)
    before = sessions.state("c")
    results = read(sessions, *"abcd")
    assert [type(result) for result in results] == [dict, dict, ValueError, dict]
    assert np.array_equal(sessions.state("c"), before)


def test_store_that_cannot_be_read_fails_those_that_need_it(tmp_path: Path) -> None:
    sessions = opened(Sessions(model(), tmp_path / "s.db", most_in_memory=2), "a", "b", "c")
    with failing_disk(reads=True):
        results = read(sessions, "b", "c", "a")
        assert [type(result) for result in results] == [dict, dict, StorageError]
    assert [type(result) for result in read(sessions, "a")] == [dict]
    sessions.disk.shut()


def test_clock_change_ends_no_session(monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = opened(Sessions(model(), time_to_live_s=60), "a")
    for step in (7200, -7200):
        now = time.time()
        monkeypatch.setattr(time, "time", lambda now=now, step=step: now + step)
        sessions._next_sweep = 0
        assert isinstance(read(sessions, "a")[0], dict)
        assert sessions.unused_s("a") < 5


def test_session_cannot_begin_while_its_model_is_replaced() -> None:
    sessions = Sessions(model())
    assert sessions.replace() == 0
    with pytest.raises(module.ReplacedModelError, match="replaced"):
        sessions.open("a")
    assert isinstance(sessions.push([Push("a", steps(1), begin=True)])[0], module.ReplacedModelError)
    sessions.keep()
    opened(sessions, "a")
    assert sessions.replace() == 1
    opened(sessions, "b")


def test_session_that_failed_to_be_deleted_does_not_count(tmp_path: Path) -> None:
    store = StateStore(tmp_path / "s.db", "f", 2, lambda: ())
    store.save(["a", "b"], np.zeros((2, 2), np.float32), [1.0, 2.0])
    with failing_disk():
        store.delete(["a"])
        assert len(store) == 1 and "a" not in store and store.state("a") is None and store.used("a") is None
        assert store.unused_since(10) == ["b"]
    store.settle()
    assert len(store) == 1 and store.trouble == ""
    store.close()
