"""Named streams: their results, the storage of their states, their ends, and restarts."""

import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cellerate.errors import ConfigError, DataError
from cellerate.runtime.cell import write_cell
from cellerate.serving.sessions.pushes import ExistingSessionError, MissingSessionError, Push
from cellerate.serving.sessions.sessions import Sessions
from support.graphs import draw
from support.serving.session_models import F, model, opened, steps


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def y_of(result: Any) -> np.ndarray:
    if isinstance(result, Exception):
        raise result
    found: np.ndarray = result["y"]
    return found


@pytest.mark.parametrize("on_disk", [False, True])
def test_pushes_cut_anywhere_give_the_bits_of_one_beside_any_others(tmp_path: Path, on_disk: bool) -> None:
    one, names = model(), [f"s{n}" for n in range(40)]
    right = {name: one.predict(draw(30, F, seed=n)[np.newaxis])[0] for n, name in enumerate(names)}
    # There is room for few states, so every push moves states to the disk and back.
    sessions = Sessions(one, tmp_path / "s.db" if on_disk else None, most_in_memory=7 if on_disk else 100)
    opened(sessions, *names)
    rng, left = np.random.default_rng(0), {name: draw(30, F, seed=n) for n, name in enumerate(names)}
    found: dict[str, list[np.ndarray]] = {name: [] for name in names}
    while any(len(rest) for rest in left.values()):
        pushes = []
        for name in rng.permutation(names)[:15]:
            for _ in range(rng.integers(1, 3)):
                k = int(rng.integers(1, 4))
                if len(left[name]):
                    pushes.append(Push(str(name), {"x": left[name][:k]}))
                    left[name] = left[name][k:]
        for push, result in zip(pushes, sessions.push(pushes), strict=True):
            found[push.name].append(y_of(result))
    for name in names:
        assert np.concatenate(found[name]).tobytes() == right[name].tobytes(), name
    assert len(sessions) == 40


def test_nan_in_one_session_leaves_the_others_bitwise_unchanged() -> None:
    one = model()
    sessions = opened(Sessions(one), "a", "b", "c")
    bad = steps(4, seed=1)
    bad["x"][2, 1] = np.nan
    results = sessions.push([Push("a", steps(4)), Push("b", bad), Push("c", steps(4, seed=2))])
    again = sessions.push([Push(name, steps(2, seed=5)) for name in "abc"])
    alone = opened(Sessions(one), "a", "c")
    for name, place, seed in (("a", 0, 0), ("c", 2, 2)):
        assert (
            y_of(results[place]).tobytes() == y_of(alone.push([Push(name, steps(4, seed=seed))])[0]).tobytes()
        )
        assert y_of(again[place]).tobytes() == y_of(alone.push([Push(name, steps(2, seed=5))])[0]).tobytes()
    assert np.isnan(y_of(again[1])).all()


def test_wrong_push_fails_alone_and_changes_nothing() -> None:
    sessions = opened(Sessions(model()), "a", "b")
    before = sessions.state("b")
    results = sessions.push(
        [
            Push("a", steps(2)),
            Push("b", {"x": draw(2, F + 1)}),
            Push("nobody", steps(2)),
            Push("b", {"z": draw(2, F)}),
            Push("b", {"x": np.array([["word"] * F])}),
        ]
    )
    assert y_of(results[0]).shape == (2, 2)
    kinds = [type(result) for result in results[1:]]
    assert kinds == [DataError, MissingSessionError, ConfigError, DataError]
    assert np.array_equal(sessions.state("b"), before)


def test_missing_session_gives_the_reason_and_never_begins_by_itself(tmp_path: Path) -> None:
    clock = Clock()
    for path in (None, tmp_path / "s.db"):
        clock.now = 1000
        sessions = opened(Sessions(model(), path, time_to_live_s=60, clock=clock), "old", "used", "closed")
        sessions.close("closed")
        clock.now += 50
        sessions.push([Push("used", steps(1))])
        clock.now += 30
        for name, message, ended in (
            ("old", r"the session 'old' ended: it was not used for 60 s\. Open it again", True),
            ("closed", r"there is no session 'closed': open it first", False),
            ("never", r"there is no session 'never'", False),
        ):
            (result,) = sessions.push([Push(name, steps(1))])
            assert isinstance(result, MissingSessionError)
            assert result.ended == ended
            with pytest.raises(MissingSessionError, match=message):
                sessions.state(name)
        assert len(sessions) == 1
        sessions.open("old")
        assert not sessions.state("old").any()
        sessions.disk.shut()


def test_least_recently_used_session_ends_only_without_a_file(tmp_path: Path) -> None:
    names = [f"s{n}" for n in range(20)]
    small = opened(Sessions(model(), most_in_memory=16), *names)
    assert len(small) < 20
    (result,) = small.push([Push("s0", steps(1))])
    assert isinstance(result, MissingSessionError)
    assert result.ended and "no room" in str(result)
    kept = opened(Sessions(model(), tmp_path / "s.db", most_in_memory=16), *names)
    assert len(kept) == 20
    assert all(isinstance(result, dict) for result in kept.push([Push(name, steps(1)) for name in names]))


def test_states_survive_a_restart_and_another_model_is_refused(tmp_path: Path) -> None:
    one, path = model(), tmp_path / "folder" / "s.db"
    sessions = opened(Sessions(one, path), "a", "b")
    sessions.push([Push("a", steps(5))])
    sessions.disk.shut()
    again = Sessions(one, path)
    assert len(again) == 2
    (found,) = again.push([Push("a", steps(3, seed=9))])
    whole = one.predict(np.concatenate([steps(5)["x"], steps(3, seed=9)["x"]])[np.newaxis])[0]
    assert y_of(found).tobytes() == whole[5:].tobytes()
    again.disk.shut()
    with pytest.raises(DataError, match="holds sessions of another model"):
        Sessions(model(2.0), path)
    (tmp_path / "text.db").write_text("no database " * 100)
    with pytest.raises(DataError, match="is not a file of sessions"):
        Sessions(one, tmp_path / "text.db")


def test_exported_state_resumes_where_it_was_taken() -> None:
    one = model()
    sessions = opened(Sessions(one), "a")
    sessions.push([Push("a", steps(4))])
    other = Sessions(one)
    other.restore("copy", sessions.state("a"))
    here, there = sessions.push([Push("a", steps(2, seed=3))]), other.push([Push("copy", steps(2, seed=3))])
    assert y_of(here[0]).tobytes() == y_of(there[0]).tobytes()
    other.restore("copy", np.zeros_like(sessions.state("a")))
    assert not other.state("copy").any()
    with pytest.raises(DataError, match=r"the state must be 36 numbers, not float32 \(3,\)"):
        other.restore("copy", np.zeros(3, np.float32))
    assert len(other) == 1


@pytest.mark.parametrize("name", ["", "a\nb", "x" * 257])
def test_unprintable_session_name_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="1 to 256 characters"):
        Sessions(model()).open(name)


def test_open_session_cannot_be_opened_twice() -> None:
    sessions = opened(Sessions(model()), "a")
    with pytest.raises(ConfigError, match="there is a session 'a' already"):
        sessions.open("a")


def test_threads_push_in_parallel() -> None:
    one = model()
    sessions, failures = opened(Sessions(one), *(f"s{n}" for n in range(8))), []
    right = {f"s{n}": one.predict(draw(40, F, seed=n)[np.newaxis])[0] for n in range(8)}

    def work(number: int) -> None:
        try:
            name, x = f"s{number}", draw(40, F, seed=number)
            found = [y_of(sessions.push([Push(name, {"x": x[t : t + 1]})])[0]) for t in range(40)]
            assert np.concatenate(found).tobytes() == right[name].tobytes()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures


KILLED = """
import os, signal, sys
from pathlib import Path
import numpy as np
from cellerate.runtime.packed import load
from cellerate.serving.sessions.sessions import Push, Sessions
sessions = Sessions(load(sys.argv[1]), Path(sys.argv[2]))
for n in range(50):
    sessions.open(f"s{n}")
sessions.push([Push(f"s{n}", {"x": np.full((3, 3), n, np.float32)}) for n in range(50)])
sessions.disk.flush_some(sessions.disk.unsaved())
sessions.push([Push(f"s{n}", {"x": np.full((3, 3), n, np.float32)}) for n in range(50)])
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_killed_process_loses_nothing_that_was_flushed(tmp_path: Path) -> None:
    one = model()
    write_cell(tmp_path / "m.cell", one.cell.program)
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path / "m.cell"), str(tmp_path / "s.db")], check=False
    )
    assert done.returncode == -signal.SIGKILL
    sessions = Sessions(one, tmp_path / "s.db")
    assert len(sessions) == 50
    results = sessions.push([Push(f"s{n}", {"x": np.full((1, 3), n, np.float32)}) for n in range(50)])
    for n, result in enumerate(results):
        right = one.predict(np.full((1, 4, 3), n, np.float32))[0]
        assert y_of(result).tobytes() == right[3:].tobytes()


@pytest.mark.parametrize("on_disk", [False, True])
def test_session_that_restarts_forgets_its_steps_and_keeps_them_if_the_push_fails(
    tmp_path: Path, on_disk: bool
) -> None:
    one, x = model(), draw(9, F)
    right = one.predict(x[np.newaxis])[0]
    sessions = Sessions(one, tmp_path / "s.db" if on_disk else None, most_in_memory=1 if on_disk else 9)

    def push(name: str, rows: np.ndarray, **options: Any) -> Any:
        return sessions.push([Push(name, {"x": rows}, **options)])[0]

    again = {"begin": True, "restart": True}
    assert y_of(push("a", x[:4], **again)).tobytes() == right[:4].tobytes()
    y_of(push("other", x, begin=True))  # "a" leaves for the disk
    assert y_of(push("a", x[:2], **again)).tobytes() == right[:2].tobytes()
    assert isinstance(push("a", draw(3, F + 1), **again), DataError)
    assert y_of(push("a", x[2:5])).tobytes() == right[2:5].tobytes()
    assert isinstance(push("a", x[:2], begin=True), ExistingSessionError)
    assert y_of(push("a", x[:6], **again, end=True)).tobytes() == right[:6].tobytes()
    assert isinstance(push("a", x[6:]), MissingSessionError)
    assert len(sessions) == 1
    if on_disk:
        y_of(push("b", x[:3], begin=True))
        sessions.disk.shut()
        reopened = Sessions(one, tmp_path / "s.db")
        assert y_of(reopened.push([Push("b", {"x": x[3:]})])[0]).tobytes() == right[3:].tobytes()
