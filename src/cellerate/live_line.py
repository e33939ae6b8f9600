"""The progress line at the bottom of a terminal: of a training, of `optimize`, of reading."""

import sys
from typing import Any


class LiveLine:
    """A line on stderr that is updated in place, with messages above it; it is shown on a terminal only.

    Attributes:
        on_terminal: True if stderr is a terminal, so that a line can be shown.
        shown: True while the line is there.
    """

    def __init__(self) -> None:
        from rich.console import Console

        self._console = Console(stderr=True, highlight=False, soft_wrap=not sys.stderr.isatty())
        self._progress: Any = None
        self.on_terminal: bool = self._console.is_terminal

    @property
    def shown(self) -> bool:
        """See the class."""
        return self._progress is not None

    def start(self, *columns: Any, total: float | None = None, **fields: Any) -> None:
        """Shows the line, if there is a terminal.

        Args:
            columns: Columns of `rich.progress`.
            total: The units of work in all; None if that is not known.
            fields: The first values of the columns' fields.
        """
        if not self.on_terminal:
            return
        from rich.progress import Progress

        self._progress = Progress(*columns, console=self._console, transient=True)
        self._task = self._progress.add_task("", total=total, **fields)
        self._progress.start()

    def update(self, **fields: Any) -> None:
        """Changes fields of the columns; `completed` is the finished units of work."""
        if self._progress is not None:
            self._progress.update(self._task, **fields)

    def print(self, text: str) -> None:
        """Prints a sentence above the line, where it stays."""
        self._console.print(text, markup=False)

    def stop(self) -> None:
        """Removes the line."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None
