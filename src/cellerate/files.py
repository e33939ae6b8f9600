"""Writes files so that a crash, a full disk or a kill never leaves half of one.

Models, checkpoints, caches and reports are all written in the same three steps: write beside the target,
flush to the disk, rename over the target.
"""

import contextlib
import csv
import errno
import fcntl
import functools
import glob
import itertools
import os
import shutil
import signal
import stat
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cellerate.errors import DataError, ModelError, OutputError

_REASONS = {
    errno.ENOSPC: "the disk is full; free some space or choose another folder",
    errno.EDQUOT: "the disk quota is used up; free some space or choose another folder",
    errno.EACCES: "permission denied; choose a folder you may write to",
    errno.EPERM: "permission denied; choose a folder you may write to",
    errno.EROFS: "the file system is read-only; choose another folder",
    errno.ENOTDIR: "a part of the path is a file, not a folder",
    errno.EEXIST: "a part of the path is a file, not a folder",
    errno.ENOTEMPTY: "a folder of that name is in the way; choose another name",
    errno.EISDIR: "a folder of that name is in the way; choose another name",
    errno.ENXIO: "it is a pipe or a device; give the name of a file",
    errno.ENAMETOOLONG: "the name is too long; choose a shorter one",
}


# A file that is being written is touched all the time. An hour also covers differences between machines' clocks.
ABANDONED_AFTER_S = 3600
LOCK = ".lock"
_HDF5_SUFFIXES = (".h5", ".hdf5")
_HDF5_START = b"\x89HDF\r\n\x1a\n"


def check_model_file(source: Path) -> None:
    """Refuse a path that does not name a file, before a framework starts to read it as a model.

    Raises:
        ModelError: The path is missing, or a folder, a pipe or a device; or its name or its first bytes are not those
            of a Keras model, or its end is missing.
    """
    if source.is_dir():
        raise ModelError(f"{source} is a folder; expected a .keras file.")
    if not source.exists():
        raise ModelError(f"there is no model file {source}; check the path, or train a model first.")
    # A pipe may block, and a device may never end.
    if not source.is_file():
        raise ModelError(f"{source} is not a regular file; give the path of a .keras file.")
    if source.suffix == ".cell":
        raise ModelError(
            f"{source} is a packed model, from which no Keras model can be made: open it with cellerate.load, or "
            "give the .keras file it was packed from."
        )
    if source.suffix not in (".keras", *_HDF5_SUFFIXES):
        raise ModelError(
            f"{source} does not end in '.keras' (or '.h5'): is it a Keras model? Then rename it."
        )
    try:
        _check_model_bytes(source)
    except OSError as error:
        raise ModelError(f"{source} cannot be read: {(error.strerror or str(error)).lower()}.") from error


def _check_model_bytes(source: Path) -> None:
    """Raise `ModelError` unless a file is a zip archive or an HDF5 file, as its name says."""
    import zipfile

    with source.open("rb") as file:
        start = file.read(len(_HDF5_START))
    if not start:
        raise damaged_model(source, "it is empty")
    if source.suffix in _HDF5_SUFFIXES:
        if start != _HDF5_START:
            raise ModelError(f"{source} is not an HDF5 file, as models of Keras 2 are. Was it renamed?")
    elif not start.startswith(b"PK"):
        raise ModelError(f"{source} is not a .keras file: it is not a zip archive. Was it renamed?")
    elif not zipfile.is_zipfile(source):
        raise damaged_model(source, "its end is missing")


def damaged_model(source: Path, reason: str) -> ModelError:
    """The error of a file that cannot be read as a model."""
    return ModelError(
        f"{source} is damaged or not a model file: {reason}. Copy or download it again, or go back to a "
        "checkpoint."
    )


def output_error(path: Path, error: OSError) -> OutputError:
    """Turns an `OSError` from writing `path` into an error that says what to do."""
    reason = _REASONS.get(error.errno or 0, error.strerror or str(error))
    advice = ""
    if path.is_relative_to(cache_dir()):
        # No argument of the caller names this path.
        advice = " Data are cached there; set CELLERATE_CACHE to a folder with room that you may write to."
    return OutputError(f"cannot write {path}: {reason}.{advice}")


@contextlib.contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Gives a temporary path beside `path`; on success it is flushed and renamed over `path`.

    The temporary name keeps the suffix of `path`, because Keras and others choose a format by it.
    If anything goes wrong inside the block, the temporary file is removed and `path` stays as it was.

    Args:
        path: The file to write, or a link to it, which stays. Missing parent folders are created.

    Yields:
        The path to write to.

    Raises:
        OutputError: The file could not be written (no space, no permission, a folder or a device in the way).

    Example:
        >>> with atomic_write("out/vectors.npy") as beside:
        ...     np.save(beside, vectors)
    """
    # An OSError that has nothing to do with writing (a missing *input* file, say) would be reported as one about
    # `path`, so callers read their inputs before they open the block.
    beside: Path | None = None
    with _reported(Path(path)):
        try:
            target = _file_at(path)
            target.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(
                prefix=_unfinished(target), suffix=target.suffix, dir=target.parent
            )
            os.close(handle)
            beside = Path(name)
            yield beside
            _flush(beside)
            # mkstemp makes the file private (0600); a result gets the permissions of any new file.
            beside.chmod(0o666 & ~_umask())
            beside.replace(target)
            beside = None
            _flush(target.parent)
        finally:
            if beside is not None:
                beside.unlink(missing_ok=True)


@contextlib.contextmanager
def atomic_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Gives a temporary folder beside `path`; on success it is flushed and renamed to `path`.

    If anything goes wrong inside the block, the temporary folder is removed.

    Args:
        path: The folder to make. Missing parent folders are created.

    Yields:
        The folder to write into.

    Raises:
        OutputError: The folder could not be written, or there is something of this name.
    """
    target = Path(path)
    beside: Path | None = None
    with _reported(target):
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            beside = Path(tempfile.mkdtemp(prefix=_unfinished(target), dir=target.parent))
            yield beside
            beside.chmod(0o777 & ~_umask())
            publish_folder(beside, target)
            beside = None
        finally:
            if beside is not None:
                shutil.rmtree(beside, ignore_errors=True)


def write_csv(path: str | os.PathLike[str], columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Writes a table as CSV, whole or not at all.

    Raises:
        OutputError: The file could not be written.
    """
    with atomic_write(path) as beside, beside.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(rows)


def write_parquet(path: str | os.PathLike[str], columns: Mapping[str, Any]) -> None:
    """Writes a table as Parquet, whole or not at all: NumPy or Arrow arrays or lists by the names of the columns.

    Raises:
        OutputError: The file could not be written.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table(dict(columns))
    with atomic_write(path) as beside:
        pq.write_table(table, beside)


def publish_folder(folder: Path, target: Path) -> None:
    """Flushes a folder with all its files, and renames it to `target`, together with the lock of `exclusive`.

    No other process may be writing there: temporary files of killed writes are removed.

    Raises:
        OSError: The folder cannot be flushed or renamed.
    """
    remove_unfinished(folder)
    for written in (*folder.rglob("*"), folder):
        _flush(written)
    # The lock moves with the folder: until the folder has its final name, no other process may begin one there.
    folder.rename(target)
    (target / LOCK).unlink(missing_ok=True)
    _flush(target.parent)


@contextlib.contextmanager
def interrupted_by_sigterm() -> Iterator[None]:
    """Has SIGTERM raise `KeyboardInterrupt`, as Ctrl-C does; by itself it ends the process and leaves unfinished files.

    An interrupt that falls into a finalizer or a callback of the garbage collector, where Python would only print it,
    is raised again. On other threads than the main one this does nothing, because they cannot set what a signal does.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before, hook = signal.signal(signal.SIGTERM, signal.default_int_handler), sys.unraisablehook
    sys.unraisablehook = functools.partial(_interrupt_again, hook)
    try:
        yield
    finally:
        sys.unraisablehook = hook
        signal.signal(signal.SIGTERM, before)


def _interrupt_again(otherwise: Callable[[Any], None], ignored: Any) -> None:
    if ignored.exc_type is None or not issubclass(ignored.exc_type, KeyboardInterrupt):
        otherwise(ignored)
        return
    number = signal.SIGTERM if signal.getsignal(signal.SIGINT) is signal.SIG_IGN else signal.SIGINT
    # A little later, as here it would be lost once more.
    with contextlib.suppress(RuntimeError):  # no thread starts while Python ends
        threading.Timer(0.02, os.kill, (os.getpid(), number)).start()


@contextlib.contextmanager
def exclusive(folder: Path, *, wait: bool = False) -> Iterator[None]:
    """Holds the lock of a folder, which only one process can hold at a time.

    Args:
        folder: The folder; made with its parents if it is missing, and removed again if nothing was written into it.
        wait: Waits until the process that holds the lock has ended or renamed the folder, instead of raising.

    Raises:
        OutputError: Another process holds the lock, or the folder cannot be written.
    """
    made = list(itertools.takewhile(lambda one: not one.exists(), (folder, *folder.parents)))
    handle = _locked(folder, wait=wait)
    try:
        yield
    finally:
        if made:
            _remove_unused(made, handle)
        os.close(handle)


def _remove_unused(made: Sequence[Path], handle: int) -> None:
    """Removes a folder that holds nothing but its lock, whose descriptor is `handle`, and its empty parents.

    Args:
        made: The folder, and its parents to remove, from the inside out.
        handle: The descriptor.
    """
    folder = made[0]
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            # Once this folder was renamed, another process may have made one of its name.
            if path.name != LOCK or not os.path.samestat(os.fstat(handle), path.stat()):
                return
        (folder / LOCK).unlink(missing_ok=True)
        for each in made:
            each.rmdir()


def is_taken(folder: Path) -> bool:
    """True if another process holds the lock of a folder; see `exclusive`."""
    if not (folder / LOCK).is_file():
        return False
    try:
        os.close(_locked(folder, wait=False))
    except OutputError:
        return True
    return False


def _locked(folder: Path, *, wait: bool) -> int:
    """The descriptor of a folder's lock file, locked."""
    lock = folder / LOCK
    while True:
        with _reported(folder):
            folder.mkdir(parents=True, exist_ok=True)
            try:
                handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            except FileNotFoundError:
                continue  # the folder has just gone
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError as error:
                os.close(handle)
                raise OutputError(
                    f"another process is writing into {folder}. Wait until it has ended, or choose another name."
                ) from error
            except OSError as error:
                # Some network file systems have no locks; there the folder stays unprotected.
                if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS):
                    os.close(handle)
                    raise
                return handle
            # The process that had it may have renamed or removed the folder meanwhile.
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(handle), lock.stat()):
                    return handle
            os.close(handle)


def remove_unfinished(target: Path, after_s: float = 0.0) -> None:
    """Removes the temporary files that killed writes left behind, of a file or of all files in a folder.

    Args:
        target: The file or folder. No other process may be writing there, unless `after_s` exceeds a write's pauses.
        after_s: Leaves files that were touched within so many seconds.
    """
    folder = target if target.is_dir() else target.parent
    for left in folder.glob(
        "." + ("*" if target.is_dir() else f"{glob.escape(target.stem)}") + ".unfinished-*"
    ):
        if left.is_dir() or (folder == target.parent and left.suffix != target.suffix):
            continue
        # Another process may be sweeping too, or may finish its write after all; a disk that takes no change keeps it.
        with contextlib.suppress(OSError):
            if time.time() - left.stat().st_mtime >= after_s:
                left.unlink()


def check_writable(path: str | os.PathLike[str]) -> None:
    """Raises `OutputError` at once if `path` could not be written: before hours of training, not after.

    It also removes the temporary files that killed writes of `path` left behind, once they are too old to be
    still in use.
    """
    with _reported(Path(path)):
        target = _file_at(path)
        # The parents that are missing are made when the result is written: a refused command leaves none behind.
        folder = next(one for one in target.absolute().parents if os.path.lexists(one))
        with tempfile.NamedTemporaryFile(prefix=_unfinished(target), suffix=target.suffix, dir=folder):
            pass
        remove_unfinished(target, ABANDONED_AFTER_S)


def read_regular(path: str | os.PathLike[str], most: int, give: str, what: str = "") -> bytes:
    """Return the content of a small regular file; a pipe may block, and a device may never end.

    Args:
        path: The file.
        most: The most bytes that it may have.
        give: The advice that ends a refusal, such as "give the report that `cellerate optimize` wrote".
        what: The name that messages put before the path, such as "the file of keys".

    Raises:
        DataError: It is missing, not a regular file, too long or cannot be read.
    """
    source = Path(path)
    name = f"{what} {source}".strip()
    try:
        if not stat.S_ISREG(source.stat().st_mode):
            raise DataError(f"{name} is not a regular file: {give}.")
        with source.open("rb") as file:
            content = file.read(most + 1)
    except FileNotFoundError as error:
        raise DataError(f"there is no {name.removeprefix('the ')}: {give}.") from error
    except OSError as error:
        raise DataError(f"{name} cannot be read: {error.strerror}.") from error
    if len(content) > most:
        raise DataError(f"{name} has more than {most:,} bytes: {give}.")
    return content


def cache_dir() -> Path:
    """The folder for encoded corpora: `CELLERATE_CACHE`, else `$XDG_CACHE_HOME/cellerate`, else `~/.cache`."""
    if chosen := os.environ.get("CELLERATE_CACHE"):
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else home_dir() / ".cache") / "cellerate"


def home_dir() -> Path:
    """The user's home; a temporary folder for a user who has none, as in a container."""
    try:
        return Path.home()
    except RuntimeError:
        # HOME is not set, and the list of users does not have this user.
        return Path(tempfile.gettempdir()) / f"cellerate-{os.getuid()}"


@contextlib.contextmanager
def _reported(target: Path) -> Iterator[None]:
    """Turns an `OSError` of the block into an `OutputError` about a path."""
    try:
        yield
    except OutputError:
        raise
    except OSError as error:
        raise output_error(target, error) from error


def _file_at(path: str | os.PathLike[str]) -> Path:
    """The file that a write to a path makes: of a link the file that it names, because the link stays.

    Raises:
        OSError: A folder, a device or a pipe is there.
    """
    target = Path(path)
    if target.is_symlink():
        target = Path(os.path.realpath(target))
    if target.exists() and not target.is_file():
        raise OSError(errno.EISDIR if target.is_dir() else errno.ENXIO, "", str(target))
    return target


def _unfinished(target: Path) -> str:
    """The prefix of the temporary files that become `target` once they are complete."""
    return f".{target.stem}.unfinished-"


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
