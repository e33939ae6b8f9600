"""Writing files whole or not at all, and what is left of writes that were killed."""

import errno
import os
import signal
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from cellerate.errors import DataError, ModelError, OutputError
from cellerate.files import (
    LOCK,
    atomic_folder,
    atomic_write,
    cache_dir,
    check_model_file,
    check_writable,
    exclusive,
    interrupted_by_sigterm,
    is_taken,
    output_error,
    read_regular,
)

KILLED = """
import os, signal, sys
from cellerate.files import atomic_write
with atomic_write(sys.argv[1]) as beside:
    beside.write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""
HOURS = 3600.0


def killed_write(target: Path, hours_ago: float) -> Path:
    """What a write that was killed leaves, so many hours later."""
    before = set(target.parent.iterdir())
    done = subprocess.run([sys.executable, "-c", KILLED, str(target)], check=False)
    assert done.returncode == -signal.SIGKILL
    (left,) = set(target.parent.iterdir()) - before
    os.utime(left, (time.time() - hours_ago * HOURS,) * 2)
    return left


def test_killed_write_leaves_the_target_and_is_swept_later(tmp_path):
    target = tmp_path / "last.safetensors"
    target.write_text("whole")
    old, new = killed_write(target, 2), killed_write(target, 0.9)
    check_writable(target)
    assert target.read_text() == "whole"
    assert not old.exists() and new.exists()


@pytest.mark.parametrize("other", ["best.safetensors", "last.keras", "last.2.safetensors", "la.safetensors"])
def test_sweeping_leaves_what_writes_of_other_files_left_and_what_is_the_users(tmp_path, other):
    target = tmp_path / "last.safetensors"
    left = killed_write(tmp_path / other, 5)
    mine = [tmp_path / name for name in (".last.original.safetensors", ".last.safetensors", "last.bak")]
    for file in mine:
        file.touch()
        os.utime(file, (0, 0))
    check_writable(target)
    assert left.exists() and all(file.exists() for file in mine)


def test_write_is_on_the_disk_before_its_name_and_the_name_before_it_returns(tmp_path, monkeypatch):
    target, done = tmp_path / "a.txt", []
    fsync = os.fsync

    def recorded(handle):
        status = os.fstat(handle)
        done.append((stat.S_ISDIR(status.st_mode), status.st_ino, target.exists()))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", recorded)
    with atomic_write(target) as beside:
        beside.write_text("whole")
    assert done == [(False, target.stat().st_ino, False), (True, tmp_path.stat().st_ino, True)]


def test_write_that_fails_leaves_nothing(tmp_path):
    target = tmp_path / "a" / "b.txt"
    with pytest.raises(ZeroDivisionError), atomic_write(target) as beside:
        beside.write_text("half")
        assert beside.suffix == ".txt"
        _ = 1 / 0
    assert list(target.parent.iterdir()) == []
    check_writable(target)
    assert list(target.parent.iterdir()) == []


def test_write_that_fails_after_its_file_went_away_tells_its_own_error(tmp_path):
    with pytest.raises(ZeroDivisionError), atomic_write(tmp_path / "b.txt") as beside:
        beside.unlink()
        _ = 1 / 0


def test_what_is_written_has_the_permissions_of_any_new_file_or_folder(tmp_path):
    before = os.umask(0o026)
    try:
        with atomic_write(tmp_path / "a.txt") as beside:
            beside.write_text("whole")
        with atomic_folder(tmp_path / "folder"):
            pass
        with exclusive(tmp_path / "locked"):
            (tmp_path / "locked" / "b.txt").touch()
    finally:
        os.umask(before)
    modes = {
        path: stat.S_IMODE((tmp_path / path).stat().st_mode) for path in ("a.txt", "folder", f"locked/{LOCK}")
    }
    assert modes == {"a.txt": 0o640, "folder": 0o751, f"locked/{LOCK}": 0o640}


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError("the tape ran out"), "the tape ran out"),
        (OSError(errno.EL3HLT, "Level 3 halted"), "Level 3 halted"),
    ],
    ids=["without-number", "with-number"],
)
def test_error_of_writing_that_nobody_foresaw_keeps_its_reason(error, reason):
    assert str(output_error(Path("a.txt"), error)) == f"cannot write a.txt: {reason}."


def test_path_that_is_a_folder_is_refused_before_anything_is_done(tmp_path):
    with pytest.raises(OutputError, match="a folder of that name is in the way"):
        check_writable(tmp_path)


def test_device_or_pipe_is_refused_and_stays(tmp_path):
    os.mkfifo(tmp_path / "pipe.txt")
    (tmp_path / "null.txt").symlink_to("/dev/null")
    for name in ("pipe.txt", "null.txt"):
        with pytest.raises(OutputError, match=f"cannot write .*{name}: it is a pipe or a device"):
            check_writable(tmp_path / name)
        with pytest.raises(OutputError, match="a pipe or a device"), atomic_write(tmp_path / name):
            pass
    assert stat.S_ISFIFO((tmp_path / "pipe.txt").stat().st_mode)
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)


def test_link_stays_and_the_file_that_it_names_is_written(tmp_path):
    (tmp_path / "folder").mkdir()
    link = tmp_path / "link.txt"
    link.symlink_to("folder/file.txt")
    check_writable(link)
    for content in ("first", "second"):  # of a file that is not there yet, and of one that is
        with atomic_write(link) as beside:
            beside.write_text(content)
        assert link.is_symlink() and (tmp_path / "folder" / "file.txt").read_text() == content
    assert [one.name for one in (tmp_path / "folder").iterdir()] == ["file.txt"]


def test_a_check_of_a_path_makes_none_of_its_folders(tmp_path):
    check_writable(tmp_path / "a" / "b" / "c.txt")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match=r"cannot write .*file/b/c\.txt"):
        check_writable(tmp_path / "file" / "b" / "c.txt")


def test_folder_is_made_whole_or_not_at_all(tmp_path):
    with atomic_folder(tmp_path / "a" / "1") as beside:
        (beside / "inner").mkdir()
        (beside / "inner" / "file").write_text("whole")
        assert not (tmp_path / "a" / "1").exists()
    assert (tmp_path / "a" / "1" / "inner" / "file").read_text() == "whole"
    with pytest.raises(ZeroDivisionError), atomic_folder(tmp_path / "a" / "2") as beside:
        (beside / "file").write_text("half")
        raise ZeroDivisionError
    with (
        pytest.raises(OutputError, match="a folder of that name is in the way"),
        atomic_folder(tmp_path / "a" / "1"),
    ):
        pass
    (tmp_path / "file").touch()
    with (
        pytest.raises(OutputError, match="a part of the path is a file"),
        atomic_folder(tmp_path / "file" / "1"),
    ):
        pass
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["1", "a", "file", "file", "inner"]


@pytest.mark.parametrize(
    ("variables", "folder"),
    [
        ({}, "home/.cache/cellerate"),
        ({"XDG_CACHE_HOME": "xdg"}, "xdg/cellerate"),
        ({"XDG_CACHE_HOME": "xdg", "CELLERATE_CACHE": "own"}, "own"),
    ],
)
def test_cache_lies_where_the_variables_say(tmp_path, monkeypatch, variables, folder):
    for name in ("CELLERATE_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"HOME": "home", **variables}.items():
        monkeypatch.setenv(name, str(tmp_path / value))
    assert cache_dir() == tmp_path / folder


def test_cache_of_a_user_without_a_home_lies_in_a_temporary_folder(tmp_path, monkeypatch):
    for name in ("CELLERATE_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 54321)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert cache_dir() == tmp_path / "cellerate-54321" / ".cache" / "cellerate"


def test_a_file_of_settings_is_a_regular_one(tmp_path):
    whole, pipe = tmp_path / "keys", tmp_path / "pipe"
    whole.write_bytes(b"a\nb\n")
    os.mkfifo(pipe)
    for most in (4, 5):
        assert read_regular(whole, most, "give another") == b"a\nb\n"
    for path in (pipe, tmp_path, "/dev/zero"):
        with pytest.raises(DataError) as raised:
            read_regular(path, 4, "give another", "the file of keys")
        assert str(raised.value) == f"the file of keys {path} is not a regular file: give another."
    with pytest.raises(DataError) as raised:
        read_regular(tmp_path / "none", 4, "give another", "the file of keys")
    assert str(raised.value) == f"there is no file of keys {tmp_path / 'none'}: give another."
    with pytest.raises(DataError, match=r"has more than 3 bytes: give another\.$"):
        read_regular(whole, 3, "give another")


def test_a_folder_is_taken_only_while_another_has_it(tmp_path):
    assert not is_taken(tmp_path)
    with exclusive(tmp_path):
        assert is_taken(tmp_path)
    assert (tmp_path / LOCK).is_file()
    assert not is_taken(tmp_path)


def test_a_folder_made_for_its_lock_goes_unless_something_was_written(tmp_path):
    with exclusive(tmp_path / "unused"):
        assert is_taken(tmp_path / "unused")
    with exclusive(tmp_path / "none" / "of" / "these"):
        pass
    with exclusive(tmp_path / "used" / "unused" / "m.run"):
        (tmp_path / "used" / "a.txt").write_text("kept")
    mine = tmp_path / "mine"
    mine.mkdir()
    with exclusive(mine):
        pass
    assert {path.name for path in tmp_path.iterdir()} == {"used", "mine"}
    assert [path.name for path in (tmp_path / "used").iterdir()] == ["a.txt"]


def test_a_folder_of_the_same_name_stays_when_a_renamed_one_is_released(tmp_path):
    folder = tmp_path / "packed.building"
    with exclusive(folder):
        folder.rename(tmp_path / "packed")
        next_one = exclusive(folder)
        next_one.__enter__()
    assert is_taken(folder)
    next_one.__exit__(None, None, None)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("m.cell", "is a packed model"),
        ("m.bin", "does not end in '.keras'"),
        ("m.pt", "does not end in '.keras'"),
    ],
)
def test_a_model_file_of_another_kind_is_refused_by_its_name(tmp_path, name, message):
    (tmp_path / name).write_bytes(b"PK")
    with pytest.raises(ModelError, match=message):
        check_model_file(tmp_path / name)


class Interrupted:
    """Ctrl-C comes while it is finalized, where Python prints the exception and goes on."""

    def __del__(self) -> None:
        signal.raise_signal(signal.SIGINT)


def test_interrupt_that_a_finalizer_swallows_is_raised_again() -> None:
    hook = sys.unraisablehook
    with pytest.raises(KeyboardInterrupt), interrupted_by_sigterm():
        Interrupted()
        time.sleep(10)
    assert sys.unraisablehook is hook


def test_other_errors_of_finalizers_are_told_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    told = []
    monkeypatch.setattr(sys, "unraisablehook", lambda ignored: told.append(ignored.exc_type))

    class Failing:
        def __del__(self) -> None:
            raise ValueError

    with interrupted_by_sigterm():
        Failing()
    assert told == [ValueError]
