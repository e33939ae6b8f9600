"""A push of many steps, read in pieces so that other pushes need not wait, and applied whole or not at all.

The pieces go through a separate row, which starts with the session's state. Until the last piece the session keeps its
acknowledged state, in memory and on disk, so after a failure nothing of the push was read.
"""

from __future__ import annotations

import time

import numpy as np

from cellerate.serving.sessions.pushes import Push, steps_in
from cellerate.serving.sessions.sessions import Result, Sessions
from cellerate.serving.workers import DeadlineError

SHORT = 64
"""Pushes of up to so many steps are read at once."""

# The seconds that a piece may take, and its steps at first and at most.
_PIECE_S = 0.02
_FIRST, _MOST = 16, 8192


def is_long(push: Push) -> bool:
    """True for a push that is read in pieces."""
    for array in push.inputs.values():  # noqa: SIM110 (as any() it takes twice as long)
        if array.shape and array.shape[0] > SHORT:
            return True
    return False


class LongPush:
    """A push that is read in pieces; one thread at a time.

    Args:
        sessions: The sessions of the model.
        push: The push.
        deadline_s: The seconds that the push may take from now on; None for no limit.
    """

    def __init__(self, sessions: Sessions, push: Push, deadline_s: float | None = None) -> None:
        self._sessions, self._push = sessions, push
        self._deadline_s = deadline_s
        self._end = None if deadline_s is None else time.monotonic() + deadline_s
        self._row: int | None = None
        self._place, self._count = 0, steps_in(push)
        self._piece = _FIRST
        self._pieces: list[dict[str, np.ndarray]] = []

    def advance(self) -> Result | None:
        """Read the next piece; return the outputs after the last piece, an error, or None if pieces are left."""
        try:
            if self._end is not None and time.monotonic() > self._end:
                raise DeadlineError(
                    f"the push took longer than {self._deadline_s:g} s, and was ended; nothing of it was read. Push "
                    "fewer steps at once."
                )
            if self._row is None:
                self._row = self._sessions.lend(self._push)
            self._read()
            if self._place < self._count:
                return None
            self._sessions.keep_lent(self._push, self._row)
            self.give_up()
            return self._outputs()
        except Exception as error:  # as in `Sessions.push`, the error concerns only this session
            self.give_up()
            return error

    def give_up(self) -> None:
        """Release the row; the pieces read so far have no effect."""
        if self._row is not None:
            self._sessions.take_back(self._row)
            self._row = None

    def _read(self) -> None:
        assert self._row is not None  # noqa: S101 (it was lent)
        begin = time.monotonic()
        piece = {
            name: np.asarray(array)[self._place : self._place + self._piece]
            for name, array in self._push.inputs.items()
        }
        self._pieces.append(self._sessions.read_lent(piece, self._row))
        self._place += self._piece
        took = max(time.monotonic() - begin, 1e-6)
        self._piece = int(min(max(self._piece * min(4.0, _PIECE_S / took), _FIRST), _MOST))

    def _outputs(self) -> dict[str, np.ndarray]:
        """Outputs of each step from all pieces, and those of the last step from the last one."""
        last = self._pieces[-1]
        return {
            name: np.concatenate([piece[name] for piece in self._pieces])
            if name in self._sessions.size.of_each_step
            else last[name]
            for name in last
        }
