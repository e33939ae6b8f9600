"""A listener to work that takes a while: sentences for people, and how far the work has come."""

from collections.abc import Callable


class Listener:
    """Hears what is going on, and shows nothing; subclasses show what they want."""

    def message(self, text: str) -> None:
        """A sentence for the user."""

    def progress(self, done: int, total: int) -> None:
        """So much is done, of so much in all; 0 if that is not known."""


class Callbacks(Listener):
    """Passes on to functions.

    Args:
        message: Called with each sentence; None for none.
        progress: Called with how much is done and how much there is in all; None for none.
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
        """Passes on how far the work has come."""
        if self._progress is not None:
            self._progress(done, total)


SILENT = Listener()
"""Shows nothing."""
