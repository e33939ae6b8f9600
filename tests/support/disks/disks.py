"""A disk that fails under the states of sessions."""

import contextlib
import sqlite3
from collections.abc import Iterator
from typing import Any

import pytest

from cellerate.serving.sessions.state_file import StateFile


class _Failing:
    """A database whose changes fail as on a full disk; with `reads`, everything."""

    def __init__(self, base: sqlite3.Connection, *, reads: bool) -> None:
        self._base, self._reads = base, reads

    def __enter__(self) -> None:
        self._base.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._base.__exit__(*error)

    def execute(self, question: str, *values: Any) -> Any:
        if self._reads:
            raise sqlite3.OperationalError("disk I/O error")
        return self._base.execute(question, *values)

    def executemany(self, question: str, rows: Any) -> Any:
        raise sqlite3.OperationalError("disk I/O error")

    def close(self) -> None:
        self._base.close()


@contextlib.contextmanager
def failing_disk(*, reads: bool = False) -> Iterator[None]:
    """Make all state files fail within the context: their changes, and with `reads` their queries, too."""
    with pytest.MonkeyPatch.context() as patch:
        bases: dict[int, sqlite3.Connection] = {}

        def get(file: StateFile) -> Any:
            return _Failing(file.__dict__["_base"], reads=reads)

        def put(file: StateFile, base: sqlite3.Connection) -> None:
            file.__dict__["_base"] = bases[id(file)] = base

        patch.setattr(StateFile, "_base", property(get, put), raising=False)
        yield
