"""Every exception Cellerate raises on purpose, and the exit code the command line gives it.

Any module can raise without importing more::

    CellerateError                        exit code
    ├── ConfigError   (also ValueError)   2   an argument or setting is wrong
    ├── DataError     (also ValueError)   3   the input data cannot be used
    ├── ModelError    (also ValueError)   4   the model file or model does not fit the task
    ├── CheckpointError (also ValueError) 4   a checkpoint is damaged or belongs to another run
    ├── BackendError  (also RuntimeError) 5   a backend or an optional package is missing
    ├── OutputError   (also OSError)      6   the result could not be written
    └── TrainingError (also RuntimeError) 7   training diverged

A message states the argument, what was expected, what came, and how to fix it.
"""

import re
from typing import ClassVar

from cellerate.messages import Message


class CellerateError(Exception):
    """Base of every error Cellerate raises on purpose.

    Args:
        message: A sentence, in which `messages.argument` marks the arguments that it names.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str = "") -> None:
        super().__init__(Message(message))


class ConfigError(CellerateError, ValueError):
    """An argument or a setting has a value that cannot be used."""

    exit_code = 2


class DataError(CellerateError, ValueError):
    """The input data are missing, empty, malformed or too short."""

    exit_code = 3


class ModelError(CellerateError, ValueError):
    """A model file is damaged, or the model does not fit the task."""

    exit_code = 4


class CheckpointError(CellerateError, ValueError):
    """A checkpoint is damaged, or belongs to a run with other settings or data."""

    exit_code = 4


class BackendError(CellerateError, RuntimeError):
    """A Keras backend or an optional package is not installed or cannot run here."""

    exit_code = 5


class OutputError(CellerateError, OSError):
    """A result could not be written; nothing half-written is left behind."""

    exit_code = 6


class TrainingError(CellerateError, RuntimeError):
    """Training diverged in a way no input check could foresee: the loss is no longer a number, or far too large."""

    exit_code = 7


def in_a_line(error: BaseException) -> str:
    """The error as one line: its message, prefixed by its type unless it is a CellerateError.

    TensorFlow's messages begin with the place of the error ("Graph execution error:"), and have the cause below.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    if lines[0].endswith(":"):
        causes = (line for line in lines[1:] if re.match(r"\w*(Error|Exception): ", line))
        lines[0] = f"{lines[0]} {next(causes, lines[-1])}"
    return lines[0] if isinstance(error, CellerateError) else f"{type(error).__name__}: {lines[0]}"
