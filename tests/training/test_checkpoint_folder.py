"""Checkpoints on disk: writing, reading, and their state after a kill, a full disk or damage."""

import errno
import fcntl
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cellerate.errors import CheckpointError, OutputError
from cellerate.files import exclusive, remove_unfinished
from cellerate.training import checkpoint as checkpoint_file
from cellerate.training.checkpoint import Checkpoint, Position, load_checkpoint, save_checkpoint
from cellerate.training.checkpoint_folder import CheckpointFolder

pytestmark = pytest.mark.keras


def checkpoint(number: int, size: int = 3) -> Checkpoint:
    """All of it says which one it is."""
    return Checkpoint(
        Position(number, number), {"n": number}, {"n": number}, {"model/0": np.full(size, float(number))}
    )


def number_of(found: Checkpoint | None) -> int:
    """Which one it is; every part must say the same."""
    assert found is not None
    (number,) = {*found.arrays["model/0"], found.position.epoch, found.identity["n"], found.progress["n"]}
    return int(number)


def files_of(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_every_flipped_byte_is_detected(tmp_path):
    path = tmp_path / "c.safetensors"
    save_checkpoint(path, checkpoint(1))
    whole = path.read_bytes()
    for place in range(len(whole)):
        for flip in (0x01, 0x20, 0xFF):
            path.write_bytes(whole[:place] + bytes([whole[place] ^ flip]) + whole[place + 1 :])
            with pytest.raises(CheckpointError):
                load_checkpoint(path)
    path.write_bytes(whole)
    assert number_of(load_checkpoint(path)) == 1


def test_every_truncation_and_addition_is_detected(tmp_path):
    path = tmp_path / "c.safetensors"
    save_checkpoint(path, checkpoint(1))
    whole = path.read_bytes()
    for other in [*(whole[:size] for size in range(len(whole))), whole + b"\0", whole * 2]:
        path.write_bytes(other)
        with pytest.raises(CheckpointError):
            load_checkpoint(path)


def test_damaged_checkpoint_is_skipped_with_a_message(tmp_path):
    folder = CheckpointFolder(tmp_path, keep=3)
    for number in (1, 2, 3):
        folder.save(checkpoint(number))
    newest = tmp_path / files_of(tmp_path)[-1]
    newest.write_bytes(newest.read_bytes()[:-1])
    said: list[str] = []
    again = CheckpointFolder(tmp_path, keep=3)
    assert number_of(again.newest(said.append)) == 2
    assert len(said) == 1 and newest.name in said[0] and "before it" in said[0]
    again.save(checkpoint(4))
    assert newest.name not in files_of(tmp_path)
    assert [number_of(load_checkpoint(path)) for path in sorted(tmp_path.iterdir())] == [1, 2, 4]


def test_only_damaged_checkpoints_are_an_error(tmp_path):
    folder = CheckpointFolder(tmp_path, keep=2)
    for number in (1, 2):
        folder.save(checkpoint(number))
    for path in tmp_path.iterdir():
        path.write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"00000001.*No older one is whole"):
        CheckpointFolder(tmp_path).newest()
    assert CheckpointFolder(tmp_path / "none").newest() is None


def test_last_checkpoints_are_kept(tmp_path):
    folder = CheckpointFolder(tmp_path, keep=2)
    for number in range(1, 6):
        folder.save(checkpoint(number))
    assert files_of(tmp_path) == ["checkpoint-00000004.safetensors", "checkpoint-00000005.safetensors"]


def test_new_run_removes_earlier_checkpoints_after_writing_its_own(tmp_path):
    CheckpointFolder(tmp_path, keep=2).save(checkpoint(1))
    new = CheckpointFolder(tmp_path, keep=2)
    assert len(files_of(tmp_path)) == 1
    new.save(checkpoint(2))
    assert files_of(tmp_path) == ["checkpoint-00000002.safetensors"]


def test_two_runs_cannot_write_into_one_folder(tmp_path):
    code = "import sys; from pathlib import Path; from cellerate.files import exclusive\n"
    code += "with exclusive(Path(sys.argv[1])): print('has it', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout.readline() == "has it\n"
        with pytest.raises(OutputError, match="another process"), exclusive(tmp_path):
            pass
        other.kill()
    with exclusive(tmp_path):
        pass


def test_folder_without_lock_support_is_accepted_and_a_broken_one_refused(tmp_path, monkeypatch):
    def no_lock(number):
        def flock(*_):
            raise OSError(number, os.strerror(number))

        return flock

    monkeypatch.setattr(fcntl, "flock", no_lock(errno.ENOLCK))
    with exclusive(tmp_path):
        pass
    monkeypatch.setattr(fcntl, "flock", no_lock(errno.EIO))
    with pytest.raises(OutputError, match=os.strerror(errno.EIO)), exclusive(tmp_path):
        pass
    (lock,) = tmp_path.iterdir()
    assert lock.stat().st_mode & 0o111 == 0


def in_process(function: Callable[[str], None], argument: Path) -> str:
    """What a function of this module prints in a process of its own, which may fork: it has only one thread."""
    module = f"sys.path.insert(0, {str(Path(__file__).parent)!r}); import {Path(__file__).stem} as tests"
    code = f"import sys; {module}; tests.{function.__name__}(sys.argv[1])"
    done = subprocess.run(
        [sys.executable, "-c", code, str(argument)], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


STEPS = ("open", "fsync", "replace", "unlink", "chmod", "mkdir", "close", "stat")


def interrupt_at(number: int, then, monkeypatch) -> None:
    """Call `then` instead of the n-th step of a writer; a write step stops halfway."""
    left = [number]

    def step(real, *arguments, **keywords):
        left[0] -= 1
        if left[0] == 0:
            then()
        return real(*arguments, **keywords)

    for name in STEPS:
        real = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *a, _real=real, **k: step(_real, *a, **k))
    whole = checkpoint_file._write

    def write(path: Path, parts: Any) -> None:
        content = b"".join(bytes(part) for part in parts)
        for part in (content[:0], content[: len(content) // 2], content):
            whole(path, [part])
            step(lambda: None)

    monkeypatch.setattr(checkpoint_file, "_write", write)


def check_after_an_interruption(folder: Path) -> int:
    """Assert that checkpoint 2 or 3 exists, and that the next start of a run removes all else."""
    found = number_of(CheckpointFolder(folder).newest(pytest.fail))
    assert found in (2, 3)
    remove_unfinished(folder)
    again = CheckpointFolder(folder, keep=2)
    again.newest()
    again.save(checkpoint(4))
    names = files_of(folder)
    assert len(names) == 2 and all(name.startswith("checkpoint-") for name in names), names
    return found


def begun(folder: Path) -> CheckpointFolder:
    folder.mkdir()
    made = CheckpointFolder(folder, keep=2)
    for number in (1, 2):
        made.save(checkpoint(number))
    return made


def test_kill_at_any_step_leaves_a_whole_checkpoint_and_no_permanent_rest(tmp_path):
    killed, found = map(int, in_process(kill_everywhere, tmp_path).split())
    assert killed >= 12
    assert found == 3, "the last of the steps comes after the new checkpoint has its name"


def kill_everywhere(place: str) -> None:
    """Kill a child at each step of writing a checkpoint; print the number of steps and the files left last."""
    found = 0
    for number in range(1, 1000):
        folder = Path(place) / str(number)
        writer = begun(folder)
        child = os.fork()
        if not child:
            interrupt_at(number, lambda: os.kill(os.getpid(), signal.SIGKILL), pytest.MonkeyPatch())
            writer.save(checkpoint(3))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status):
            print(number - 1, found)
            return
        found = check_after_an_interruption(folder)


def test_kill_at_any_time_leaves_a_whole_checkpoint(tmp_path):
    in_process(kill_at_random, tmp_path)


def kill_at_random(place: str) -> None:
    """Kill fifty children, each of which writes checkpoints until then."""
    folder, clock = Path(place), random.Random(0)
    last = 0
    for _ in range(50):
        child = os.fork()
        if not child:
            writer = CheckpointFolder(folder, keep=2)
            writer.newest()
            for number in range(last + 1, 10**9):
                writer.save(checkpoint(number, size=50_000))
        # Each child writes at least one, however slow the disk is.
        before = set(folder.glob("checkpoint-*"))
        while not set(folder.glob("checkpoint-*")) - before:
            time.sleep(0.001)
        time.sleep(0.06 * clock.random())
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        remove_unfinished(folder)
        found = CheckpointFolder(folder).newest(pytest.fail)
        if found is not None:
            assert number_of(found) >= last
            last = number_of(found)
    assert last >= 50
    # After a kill just before the old ones are removed, the next checkpoint removes them.
    writer = CheckpointFolder(folder, keep=2)
    writer.newest()
    writer.save(checkpoint(last + 1))
    assert len(list(folder.glob("checkpoint-*"))) == 2


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_disk_failure_at_any_step_leaves_the_old_checkpoint(tmp_path, number):
    reached = []

    def fail() -> None:
        reached.append(steps)
        raise OSError(number, os.strerror(number))

    kept = 0
    for steps in range(1, 1000):
        folder = tmp_path / str(steps)
        writer = begun(folder)
        with pytest.MonkeyPatch.context() as patch:
            interrupt_at(steps, fail, patch)
            try:
                writer.save(checkpoint(3))
            except OutputError as error:
                assert str(folder) in str(error)
                assert ("disk is full" if number == errno.ENOSPC else os.strerror(number)) in str(error)
        if reached[-1:] != [steps]:
            break
        kept += check_after_an_interruption(folder) == 2
    assert len(reached) >= 12
    assert kept >= 5
