"""Sessions: the states of streams between requests, in memory and on disk, and the thread that computes their pushes.

An acknowledged push is never undone, and a stale state is never served as current. Nothing here knows HTTP.
"""

from cellerate.serving.sessions.pushes import (
    ExistingSessionError,
    MissingSessionError,
    Push,
    ReplacedModelError,
    StorageError,
    TooManySessionsError,
    steps_in,
)
from cellerate.serving.sessions.sessions import Result, Sessions
from cellerate.serving.sessions.streams import StepSize, zeros
from cellerate.serving.sessions.worker import SessionWorker

__all__ = [
    "ExistingSessionError",
    "MissingSessionError",
    "Push",
    "ReplacedModelError",
    "Result",
    "SessionWorker",
    "Sessions",
    "StepSize",
    "StorageError",
    "TooManySessionsError",
    "steps_in",
    "zeros",
]
