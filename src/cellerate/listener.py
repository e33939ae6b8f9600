"""A listener to long work: its messages for the user, and its progress."""

from collections.abc import Callable


class Listener:
    """Receives messages and progress, and ignores them; subclasses override the methods."""

    def message(self, text: str) -> None:
        """A sentence for the user."""

    def progress(self, done: int, total: int) -> None:
        """`done` units of `total` are finished; `total` is 0 if it is not known."""


class Callbacks(Listener):
    """Passes messages and progress on to functions.

    Args:
        message: Called with each message; None ignores messages.
        progress: Called with the finished units and their total; None ignores progress.
    """

    def __init__(
        self,
        message: Callable[[str], None] | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self._message, self._progress = message, progress

    def message(self, text: str) -> None:
        """Passes a sentence on."""
        if self._message is not None:
            self._message(text)

    def progress(self, done: int, total: int) -> None:
        """Passes the progress on."""
        if self._progress is not None:
            self._progress(done, total)


SILENT = Listener()
"""Shows nothing."""
