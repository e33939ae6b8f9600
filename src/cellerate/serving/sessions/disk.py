"""Keeps the states of sessions on the disk: finds unsaved states, writes them, and reports failures."""

from __future__ import annotations

import threading

from cellerate.errors import OutputError
from cellerate.serving.sessions.memory import SessionMemory
from cellerate.serving.sessions.pushes import StorageError

# The most states to examine in one call.
_MOST = 4096


class SessionDisk:
    """The disk of the sessions of one model; any thread may call any method.

    Args:
        memory: The sessions in memory, and the store behind them.
        lock: Held while a thread uses the sessions.
        refuse_after_s: The seconds for which a failing disk may leave states unwritten; then pushes are refused.
    """

    def __init__(self, memory: SessionMemory, lock: threading.RLock, refuse_after_s: float) -> None:
        self._memory, self._lock, self._refuse_after = memory, lock, refuse_after_s

    def unsaved(self) -> list[str]:
        """The sessions whose states are not on disk yet; empty without a file."""
        with self._lock:
            return sorted(self._memory.changed) if self._memory.store is not None else []

    @property
    def unsaved_count(self) -> int:
        """The number of sessions whose states are not on disk yet."""
        return len(self._memory.changed) if self._memory.store is not None else 0

    def flush_some(self, names: list[str], most: int = _MOST) -> bool:
        """Write some of the states that are not on disk yet.

        Args:
            names: The sessions; this call removes those that it examines.
            most: The most sessions to examine.

        Returns:
            True if `names` has more sessions.

        Raises:
            StorageError: The file cannot be written.
        """
        with self._lock:
            some = names[-most:]
            del names[-most:]
            self._memory.save([name for name in some if name in self._memory.changed])
        return bool(names)

    def settle(self) -> None:
        """Record, once all states are written, that the disk works again, or that its file is gone."""
        with self._lock:
            if self._memory.store is not None:
                self._memory.store.settle()
                self._memory.store.check()

    @property
    def trouble(self) -> str:
        """The reason why states cannot be written now; "" while they can."""
        return "" if self._memory.store is None else self._memory.store.trouble

    @property
    def trouble_s(self) -> float:
        """The seconds for which states could not be written."""
        return 0.0 if self._memory.store is None else self._memory.store.trouble_s

    @property
    def refuses(self) -> bool:
        """True if states could not be written for too long, so that pushes are refused."""
        return self.trouble_s > self._refuse_after

    def check(self) -> None:
        """Raise `StorageError` if states could not be written for too long."""
        if self.refuses:
            raise StorageError(
                f"states could not be written for {self.trouble_s:.0f} s, so pushes are refused: {self.trouble}"
            )

    def shut(self) -> None:
        """Write every state that is not on disk yet, and close the file.

        Raises:
            OutputError: States cannot be written. Their sessions are marked, and end when the file is opened again.
        """
        with self._lock:
            store = self._memory.store
            if store is None:
                return
            try:
                self._memory.save(self.unsaved())
                self.settle()
                if store.trouble:
                    raise OutputError(store.trouble)
            except StorageError as error:
                raise OutputError(str(error)) from error
            finally:
                store.close()
