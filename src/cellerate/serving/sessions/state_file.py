"""The states of sessions on disk, by name: an SQLite database, which a crash leaves whole."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import struct
import weakref
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cellerate.errors import DataError, OutputError
from cellerate.messages import argument
from cellerate.serving.sessions.pushes import DamagedStateError, StorageError

# Version 1 had no checksums: its rows are trusted until they are written again.
_VERSION, _WITHOUT_CHECKSUMS = "2", "1"
_TABLES = """
    CREATE TABLE IF NOT EXISTS about (key TEXT PRIMARY KEY, value TEXT NOT NULL);
    CREATE TABLE IF NOT EXISTS sessions (name TEXT PRIMARY KEY, state BLOB NOT NULL, used REAL NOT NULL);
    CREATE INDEX IF NOT EXISTS by_use ON sessions (used);
"""


class StateFile:
    """A file of states, which only its owner may read; one thread at a time.

    Args:
        path: The file; it is made if it is missing.
        fingerprint: The fingerprint of the model.
        size: The numbers of a state.

    Raises:
        DataError: The file is not a file of states, or holds states of another model.
        OutputError: The file cannot be written.
    """

    def __init__(self, path: Path, fingerprint: str, size: int) -> None:
        about = {"version": _VERSION, "model": fingerprint, "size": str(size)}
        self._path, self._size = path, size
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            # SQLite gives its other files the permissions of this one.
            os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
            self._base = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
            # Closed even if opening fails further on.
            weakref.finalize(self, self._base.close)
            # One server at a time: two would keep different states of a session in memory.
            self._base.execute("PRAGMA locking_mode = EXCLUSIVE")
            self._base.execute("PRAGMA journal_mode = WAL")
            self._base.execute("PRAGMA synchronous = NORMAL")
            self._base.executescript(_TABLES)
            found = self._opened(about)
            self._inode = path.stat().st_ino
        except OSError as error:
            raise OutputError(f"the file of sessions {path} cannot be written: {error.strerror}.") from error
        except sqlite3.OperationalError as error:
            if error.sqlite_errorname == "SQLITE_BUSY":
                raise OutputError(
                    f"the file of sessions {path} is in use by another server: end that one, or give "
                    f"this one another folder ({argument('state')})."
                ) from error
            raise OutputError(f"the file of sessions {path} cannot be written: {error}.") from error
        except sqlite3.DatabaseError as error:
            raise DataError(
                f"{path} is not a file of sessions: {error}. Give another one, or remove it."
            ) from error
        if found != about:
            self._base.close()
            raise DataError(
                f"{path} holds sessions of another model, or of one packed otherwise: give it that model, or give "
                "this one another file."
            )

    def __len__(self) -> int:
        """The number of states."""
        (count,) = self._ask("SELECT COUNT(*) FROM sessions")[0]
        return int(count)

    def __contains__(self, name: str) -> bool:
        """True if there is a state of a name."""
        return bool(self._ask("SELECT 1 FROM sessions WHERE name = ?", name))

    def names(self) -> list[str]:
        """The names of all states."""
        return [name for (name,) in self._ask("SELECT name FROM sessions")]

    def state(self, name: str) -> np.ndarray | None:
        """(S,) float32, or None if there is none of this name.

        Raises:
            DamagedStateError: The state is damaged.
        """
        found = self._ask("SELECT state, used, checksum FROM sessions WHERE name = ?", name)
        if not found:
            return None
        ((state, used, checksum),) = found
        right = isinstance(state, bytes) and len(state) == 4 * self._size and isinstance(used, float)
        if not right or checksum not in (None, _checksum(name, state, used)):
            raise DamagedStateError(f"the state of the session {name!r} on the disk is damaged.")
        return np.frombuffer(state, "<f4")

    def used(self, name: str) -> float | None:
        """The time of the last use of a state, or None if there is none of this name."""
        found = self._ask("SELECT used FROM sessions WHERE name = ?", name)
        return float(found[0][0]) if found else None

    def unused_since(self, time: float) -> list[str]:
        """The names of states that were written before a time."""
        return [name for (name,) in self._ask("SELECT name FROM sessions WHERE used < ?", time)]

    def save(self, names: Sequence[str], states: np.ndarray, used: Sequence[float]) -> None:
        """Write (N, S) states and the times of their last use, all or none.

        Raises:
            StorageError: The file cannot be written.
        """
        written = (state.tobytes() for state in states.astype("<f4", copy=False))
        rows = [
            (name, state, time, _checksum(name, state, time))
            for name, state, time in zip(names, written, used, strict=True)
        ]
        with self._changing():
            self._base.executemany("INSERT OR REPLACE INTO sessions VALUES (?, ?, ?, ?)", rows)

    def delete(self, names: Sequence[str]) -> None:
        """Removes states, all or none.

        Raises:
            StorageError: The file cannot be written.
        """
        with self._changing():
            self._base.executemany("DELETE FROM sessions WHERE name = ?", [(name,) for name in names])

    def check_there(self) -> None:
        """Raise `StorageError` if the file was removed or replaced, because later writes would be lost."""
        try:
            same = self._path.stat().st_ino == self._inode
        except OSError:
            same = False
        if not same:
            raise StorageError(f"the file of sessions {self._path} was removed while the server ran.")

    def close(self) -> None:
        """Close the file."""
        self._base.close()

    def _opened(self, about: dict[str, str]) -> dict[str, str]:
        """Describe a new file, add checksums to a file of version 1, and return the description."""
        self._base.executemany("INSERT OR IGNORE INTO about VALUES (?, ?)", about.items())
        found = dict(self._base.execute("SELECT key, value FROM about").fetchall())
        columns = [row[1] for row in self._base.execute("PRAGMA table_info(sessions)")]
        if "checksum" not in columns:
            self._base.execute("ALTER TABLE sessions ADD COLUMN checksum INTEGER")
        if found.get("version") == _WITHOUT_CHECKSUMS:
            self._base.execute("UPDATE about SET value = ? WHERE key = 'version'", (_VERSION,))
            found["version"] = _VERSION
        return found

    def _ask(self, question: str, *values: Any) -> list[tuple[Any, ...]]:
        try:
            return self._base.execute(question, values).fetchall()
        except sqlite3.Error as error:
            raise StorageError(f"the file of sessions cannot be read: {error}.") from error

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        try:
            with self._base:
                self._base.execute("BEGIN")
                yield
        except sqlite3.Error as error:
            raise StorageError(f"the file of sessions cannot be written: {error}.") from error


def _checksum(name: str, state: bytes, used: float) -> int:
    """CRC-32 of a row."""
    return zlib.crc32(struct.pack("<d", used), zlib.crc32(state, zlib.crc32(name.encode())))
