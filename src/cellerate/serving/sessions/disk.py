"""Keeps the states of sessions on the disk: what is not there yet, writing it, and what to say when that fails."""

import threading

from cellerate.errors import OutputError
from cellerate.serving.sessions.memory import SessionMemory
from cellerate.serving.sessions.pushes import StorageError

# States that are looked at in one call.
_MOST = 4096


class SessionDisk:
    """The disk of the sessions of one model; any thread may call any method.

    Args:
        memory: The sessions in memory, and the store behind them.
        lock: Held while a thread looks at them.
        refuse_after_s: For how long states may stay unwritten because the disk takes none; then pushes are refused.
    """

    def __init__(self, memory: SessionMemory, lock: "threading.RLock", refuse_after_s: float) -> None:
        self._memory, self._lock, self._refuse_after = memory, lock, refuse_after_s

    def unsaved(self) -> list[str]:
        """The sessions whose states are not on disk yet; none without a file."""
        with self._lock:
            return sorted(self._memory.changed) if self._memory.store is not None else []

    @property
    def unsaved_count(self) -> int:
        """Their number."""
        return len(self._memory.changed) if self._memory.store is not None else 0

    def flush_some(self, names: list[str], most: int = _MOST) -> bool:
        """Writes some of the states that are not on disk yet.

        Args:
            names: Which; those that are looked at are taken out.
            most: How many are looked at.

        Returns:
            Whether there are more in `names`.

        Raises:
            StorageError: The file cannot be written.
        """
        with self._lock:
            some = names[-most:]
            del names[-most:]
            self._memory.save([name for name in some if name in self._memory.changed])
        return bool(names)

    def settle(self) -> None:
        """Notes, once all states are written, that the disk takes them again, or that its file is not there."""
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
        """The seconds for which they could not."""
        return 0.0 if self._memory.store is None else self._memory.store.trouble_s

    @property
    def refuses(self) -> bool:
        """True once that is too long: pushes are refused."""
        return self.trouble_s > self._refuse_after

    def check(self) -> None:
        """Raises `StorageError` once states could not be written for too long."""
        if self.refuses:
            raise StorageError(
                f"states cannot be written for {self.trouble_s:.0f} s, so pushes are refused: {self.trouble}"
            )

    def shut(self) -> None:
        """Writes every state that is not on disk yet, and lets go of the file.

        Raises:
            OutputError: They cannot be written. Those sessions are marked, and end when the file is opened again.
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
