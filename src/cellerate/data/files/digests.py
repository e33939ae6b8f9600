"""The hash of a file's content, remembered for large files: reading many gigabytes again takes longer than all else."""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from pathlib import Path

from cellerate.errors import DataError, OutputError
from cellerate.files import atomic_write, cache_dir

_REMEMBER_BYTES = 64 << 20
# A file that was changed twice within the resolution of its file system's clock would look unchanged.
_SETTLED_S = 2.0


def file_digest(path: Path) -> str:
    """SHA-256 of a file's content.

    The digest of a large file stays in the cache folder until the file's size, inode or time of change differs.

    Raises:
        DataError: The file cannot be read.
    """
    try:
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            note = None
            if found.st_size >= _REMEMBER_BYTES and time.time() - found.st_mtime > _SETTLED_S:
                state = f"{path.resolve()} {found.st_dev} {found.st_ino} {found.st_size} {found.st_mtime_ns}"
                name = hashlib.blake2b(f"{state} {found.st_ctime_ns}".encode(), digest_size=16).hexdigest()
                note = cache_dir() / "digests" / name
                with contextlib.suppress(OSError, ValueError):
                    known = note.read_text()
                    if len(bytes.fromhex(known)) == hashlib.sha256().digest_size:
                        return known
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}.") from error
    if note is not None:
        with contextlib.suppress(OutputError), atomic_write(note) as beside:
            beside.write_text(digest)
    return digest
