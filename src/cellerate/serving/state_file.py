"""The states of sessions on disk, by name: an SQLite database, which a crash leaves whole."""

import contextlib
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from cellerate.errors import DataError, OutputError

_VERSION = "1"
_TABLES = """
    CREATE TABLE IF NOT EXISTS about (key TEXT PRIMARY KEY, value TEXT NOT NULL);
    CREATE TABLE IF NOT EXISTS sessions (name TEXT PRIMARY KEY, state BLOB NOT NULL, used REAL NOT NULL);
    CREATE INDEX IF NOT EXISTS by_use ON sessions (used);
"""


class StateFile:
    """A file of states; one thread at a time.

    Args:
        path: The file; it is made if it is not there.
        fingerprint: Tells the model from others.
        size: How many numbers a state has.

    Raises:
        DataError: The file is something else, or holds states of another model.
        OutputError: It cannot be written.
    """

    def __init__(self, path: Path, fingerprint: str, size: int) -> None:
        about = {"version": _VERSION, "model": fingerprint, "size": str(size)}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._base = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
            # One server at a time: two would each keep their own idea of a session in memory.
            self._base.execute("PRAGMA locking_mode = EXCLUSIVE")
            self._base.execute("PRAGMA journal_mode = WAL")
            self._base.execute("PRAGMA synchronous = NORMAL")
            self._base.executescript(_TABLES)
            self._base.executemany("INSERT OR IGNORE INTO about VALUES (?, ?)", about.items())
            found = dict(self._base.execute("SELECT key, value FROM about").fetchall())
        except OSError as error:
            raise OutputError(f"the file of sessions {path} cannot be written: {error.strerror}.") from error
        except sqlite3.OperationalError as error:
            if error.sqlite_errorname == "SQLITE_BUSY":
                raise OutputError(
                    f"the file of sessions {path} is in use by another server: give this one another folder."
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
        """How many states there are."""
        (count,) = self._base.execute("SELECT COUNT(*) FROM sessions").fetchone()
        return int(count)

    def __contains__(self, name: str) -> bool:
        """Whether there is a state of a name."""
        return self._base.execute("SELECT 1 FROM sessions WHERE name = ?", (name,)).fetchone() is not None

    def state(self, name: str) -> np.ndarray | None:
        """(S,) float32, or None if there is none of this name."""
        found = self._base.execute("SELECT state FROM sessions WHERE name = ?", (name,)).fetchone()
        return None if found is None else np.frombuffer(found[0], "<f4")

    def used(self, name: str) -> float | None:
        """When a state was used last, or None if there is none of this name."""
        found = self._base.execute("SELECT used FROM sessions WHERE name = ?", (name,)).fetchone()
        return None if found is None else float(found[0])

    def unused_since(self, time: float) -> list[str]:
        """The names of states that were written before a time."""
        found = self._base.execute("SELECT name FROM sessions WHERE used < ?", (time,)).fetchall()
        return [name for (name,) in found]

    def save(self, names: Sequence[str], states: np.ndarray, used: Sequence[float]) -> None:
        """Writes (N, S) states and when they were used, all or none.

        Raises:
            OutputError: The file cannot be written.
        """
        rows = zip(names, (state.tobytes() for state in states.astype("<f4", copy=False)), used, strict=True)
        with self._changing():
            self._base.executemany("INSERT OR REPLACE INTO sessions VALUES (?, ?, ?)", rows)

    def delete(self, names: Sequence[str]) -> None:
        """Removes states, all or none.

        Raises:
            OutputError: The file cannot be written.
        """
        with self._changing():
            self._base.executemany("DELETE FROM sessions WHERE name = ?", ((name,) for name in names))

    def close(self) -> None:
        """Lets go of the file."""
        self._base.close()

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        try:
            with self._base:
                self._base.execute("BEGIN")
                yield
        except sqlite3.Error as error:
            raise OutputError(f"the file of sessions cannot be written: {error}.") from error
