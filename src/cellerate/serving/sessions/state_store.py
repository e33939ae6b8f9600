"""The disk behind the sessions of one model: the states that it holds, and the errors while it fails.

A session that ended stays ended, even if its row cannot be removed. While states cannot be written, used sessions are
marked beforehand (`loss_marker`): if the server ends before the disk works again, their older states are not served as
if they were current.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np

from cellerate.errors import CellerateError, OutputError
from cellerate.serving.sessions.loss_marker import LossMarker
from cellerate.serving.sessions.pushes import StorageError
from cellerate.serving.sessions.state_file import StateFile

LOST = "its last pushes could not be written to the disk before the server ended"


class StateStore:
    """The states on disk.

    Args:
        path: The file.
        fingerprint: The fingerprint of the model.
        size: The numbers of a state.
        unsaved: Returns the names of the sessions whose states are not on disk.

    Attributes:
        ended: The sessions that ended because an earlier server lost their last pushes.
        trouble: The reason why states cannot be written now; "" while they can.

    Raises:
        DataError: The file is not a file of states, or holds states of another model.
        OutputError: The file cannot be written.
    """

    def __init__(self, path: Path, fingerprint: str, size: int, unsaved: Callable[[], Iterable[str]]) -> None:
        self._file, self._unsaved = StateFile(path, fingerprint, size), unsaved
        self._marker = LossMarker(path.with_name(path.name + ".lost"))
        # Sessions that ended but are still in the file.
        self._gone: set[str] = set()
        self.trouble = ""
        self._since = 0.0
        self.ended: list[str] = []
        try:
            if self._marker.any:
                self.ended = [name for name in self._file.names() if name in self._marker]
                self._file.delete(self.ended)
                self._marker.clear()
        except StorageError as error:
            raise OutputError(str(error)) from error

    def __len__(self) -> int:
        """The number of sessions that have a state here."""
        return len(self._file) - len(self._gone)

    def __contains__(self, name: str) -> bool:
        """True if there is a state of a name. Raises `StorageError` if that cannot be read."""
        return name not in self._gone and name in self._file

    def state(self, name: str) -> np.ndarray | None:
        """(S,) float32; None if there is none. Raises `DamagedStateError` or `StorageError`."""
        return None if name in self._gone else self._file.state(name)

    def used(self, name: str) -> float | None:
        """When a state was used last; None if there is none. Raises `StorageError` if that cannot be read."""
        return None if name in self._gone else self._file.used(name)

    def unused_since(self, moment: float) -> list[str]:
        """The names of states that were written before a time. Raises `StorageError` if they cannot be read."""
        return [name for name in self._file.unused_since(moment) if name not in self._gone]

    def save(self, names: Sequence[str], states: np.ndarray, used: Sequence[float]) -> None:
        """Writes (N, S) states and when they were used, all or none.

        Raises:
            StorageError: They cannot be written; `trouble` says why from now on.
        """
        try:
            self._file.check_there()
            self._file.save(names, states, used)
        except StorageError as error:
            self._fails(error)
            raise
        self._gone.difference_update(names)

    def delete(self, names: Sequence[str]) -> None:
        """Removes states; those that cannot be removed now count as removed, and are once the disk takes it."""
        if not names:
            return
        try:
            self._file.delete(names)
        except StorageError as error:
            self._gone.update(names)
            self._fails(error)

    def note_use(self, names: Iterable[str]) -> None:
        """Marks sessions that are used while nothing can be written."""
        if self.trouble:
            self._marker.mark(names)

    def settle(self) -> None:
        """Ends the trouble, if all states are written now and what ended can be removed."""
        if not self.trouble:
            return
        try:
            self._file.check_there()
            self._file.delete(sorted(self._gone))
            self._marker.clear()
        except CellerateError as error:
            self.trouble = str(error)
            return
        self._gone.clear()
        self.trouble = ""

    def check(self) -> None:
        """Looks whether the file is still there; `trouble` says so if not."""
        try:
            self._file.check_there()
        except StorageError as error:
            self._fails(error)

    @property
    def trouble_s(self) -> float:
        """The seconds for which nothing could be written."""
        return time.monotonic() - self._since if self.trouble else 0.0

    def close(self) -> None:
        """Lets go of the files."""
        self._file.close()
        with contextlib.suppress(OSError):
            self._marker.close()

    def _fails(self, error: StorageError) -> None:
        if not self.trouble:
            self._since = time.monotonic()
        self.trouble = str(error)
        self._marker.mark(self._unsaved())
        self._marker.mark(self._gone)
