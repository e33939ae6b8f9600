"""Pushes to sessions, their grouping into calls, and the errors of a session."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from cellerate.errors import CellerateError, ConfigError, DataError

_LONGEST_NAME = 256
_MOST_ENDED = 100_000


class MissingSessionError(DataError):
    """There is no such session.

    Attributes:
        ended: True if the session existed and ended, because it was unused or memory was full.
    """

    def __init__(self, message: str, *, ended: bool) -> None:
        super().__init__(message)
        self.ended = ended


class ExistingSessionError(ConfigError):
    """There is a session of this name already."""


class TooManySessionsError(ConfigError):
    """The limit of sessions is reached."""


class ReplacedModelError(ConfigError):
    """The model takes no new sessions, because another model replaces it."""


class StorageError(CellerateError):
    """The states of sessions cannot be read from the disk, or written to it."""


class DamagedStateError(DataError):
    """The state of a session on disk is damaged."""


class Push(NamedTuple):
    """New steps for a session.

    Attributes:
        name: The session.
        inputs: The array of each input by its name, (k, F) numbers or (k,) ids: the next k steps.
        begin: True if the session begins with this push.
        end: True if the session ends with this push.
        restart: If it begins, True starts a session over that exists already, where False is an error.
    """

    name: str
    inputs: Mapping[str, np.ndarray]
    begin: bool = False
    end: bool = False
    restart: bool = False


def steps_in(push: Push) -> int:
    """The number of steps in a push, by its longest input."""
    return max([array.shape[0] for array in push.inputs.values() if array.shape], default=0)


def check_name(name: str) -> None:
    """Check the name of a session.

    Raises:
        ConfigError: The name is not valid.
    """
    if not 0 < len(name) <= _LONGEST_NAME or not name.isprintable():
        raise ConfigError(
            f"the name of a session must be 1 to {_LONGEST_NAME} characters that can be printed, not {name[:40]!r}."
        )


def turns_of(pushes: Sequence[Push]) -> list[list[int]]:
    """Return the indices of pushes by turns; a turn has at most one push of each session, which keeps their order."""
    turns: list[list[int]] = []
    seen: dict[str, int] = {}
    for number, push in enumerate(pushes):
        turn = seen.get(push.name, 0)
        seen[push.name] = turn + 1
        if turn == len(turns):
            turns.append([])
        turns[turn].append(number)
    return turns


def groups_of(pushes: Sequence[Push], numbers: Sequence[int]) -> list[list[int]]:
    """Group pushes with equal names and shapes of inputs, because one call reads them together."""
    groups: dict[Any, list[int]] = {}
    for number in numbers:
        shapes = tuple((name, np.shape(array)) for name, array in sorted(pushes[number].inputs.items()))
        groups.setdefault(shapes, []).append(number)
    return list(groups.values())


class Endings:
    """The reasons why sessions ended by themselves, for a bounded number of sessions."""

    def __init__(self) -> None:
        self._reasons: OrderedDict[str, str] = OrderedDict()

    def remember(self, names: Iterable[str], reason: str) -> None:
        """Record why sessions ended."""
        for name in names:
            self._reasons[name] = reason
        while len(self._reasons) > _MOST_ENDED:
            self._reasons.popitem(last=False)

    def forget(self, name: str) -> None:
        """Record that a session began again."""
        self._reasons.pop(name, None)

    def error(self, name: str) -> MissingSessionError:
        """The error for a session that is not there."""
        if name in self._reasons:
            return MissingSessionError(
                f"the session {name!r} ended: {self._reasons[name]}. Open it again; it begins from scratch.",
                ended=True,
            )
        return MissingSessionError(f"there is no session {name!r}: open it first.", ended=False)
